"""What one server counts of its requests, and what it does when one is over: the only place where that is told.

Decides what is counted of whom. Never waits, and never keeps what a client wrote but by the request log's rules.
"""

import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from aiohttp import hdrs, web

from hypnos_engine.api.error_table import row_of
from hypnos_engine.domain.errors import HypnosError, InvalidRequest, PermissionDenied, RateLimited
from hypnos_engine.domain.kinds import Modality
from hypnos_engine.runtime.lease import Switch
from hypnos_engine.server.answers import JSON
from hypnos_engine.server.exchange import Exchange, Route
from hypnos_engine.server.request_log import Ended, RequestLog
from hypnos_engine.telemetry.calls import Call
from hypnos_engine.telemetry.decided import Decided
from hypnos_engine.telemetry.latency import Latencies
from hypnos_engine.telemetry.measures import Measures
from hypnos_engine.telemetry.traffic import ELSEWHERE, KeyCounts, Traffic


@dataclass(slots=True)
class Accounts:
    """Everything that is counted, since the start of the server. Used on one loop."""

    log: RequestLog
    latencies: Latencies = field(default_factory=Latencies)
    decided: Decided = field(default_factory=Decided)
    traffic: Traffic = field(default_factory=Traffic)
    keys: KeyCounts = field(default_factory=KeyCounts)
    measures: Measures = field(default_factory=Measures)

    def begin(self, exchange: Exchange) -> None:
        """The caller is known, and may ask; the request is about to be read."""
        if exchange.route is not None and exchange.route.inference is not None:
            self.log.open(exchange.call)

    def answered(
        self, request: web.Request, exchange: Exchange, response: web.StreamResponse, error: HypnosError | None = None
    ) -> None:
        """As `end`, with the answer at hand."""
        payload = exchange.call.response_payload
        if payload is not None and isinstance(response, web.Response):
            payload.add(_text_body(response))
        self.end(request, exchange, response.status, error)

    def end(self, request: web.Request, exchange: Exchange, status: int, error: HypnosError | None = None) -> None:
        """The answer is out, or about to be handed to the socket. Called once for each request."""
        route, call = exchange.route, exchange.call
        duration_s = time.perf_counter() - exchange.started_s
        endless = route is not None and route.endless
        path = ELSEWHERE if route is None else route.public_path
        self.traffic.answered(path, status, duration_s, endless=endless)
        if route is None:
            return
        if not endless and status < HTTPStatus.BAD_REQUEST:
            self.latencies.request_ended(path, duration_s)
        if exchange.identified and route.needs_key:
            self.keys.came(exchange.key.label, rejected=isinstance(error, RateLimited | PermissionDenied))
        if exchange.identified and route.inference is not None:
            self._count(route.inference, exchange, call)
            if call.level is not None:
                self.log.close(call, _ended(request, exchange, route, status, duration_s, error))

    def _count(self, modality: Modality, exchange: Exchange, call: Call) -> None:
        if call.granted:
            self.measures.began(call)
        if call.timing is not None:
            self.measures.finished(call)
            self.keys.used(exchange.key.label, (call.tokens_in or 0) + (call.tokens_out or 0))
            if modality is Modality.TEXT:
                self.measures.chatted(call)


ACCOUNTS: Final = web.AppKey("accounts", Accounts)


def note_grant(call: Call, switch: Switch) -> None:
    """A call holds its model."""
    call.began(
        previous_tier=switch.previous_tier,
        switch_ms=switch.latency_ms,
        waited_ms=switch.waited_ms,
        overtaken=switch.overtaken,
        restored_tokens=0 if switch.restored is None else switch.restored.tokens,
    )


def _text_body(response: web.Response) -> bytes:
    """The body of an answer that is text; what else it may be is named only."""
    body = response.body
    if not isinstance(body, bytes):
        return b""
    if response.content_type == JSON or response.content_type.startswith("text/"):
        return body
    return f"({len(body)} bytes of {response.content_type})".encode()


def _ended(
    request: web.Request,
    exchange: Exchange,
    route: Route,
    status: int,
    duration_s: float,
    error: HypnosError | None,
) -> Ended:
    failure = error or exchange.call.failure
    return Ended(
        id=exchange.id,
        route=route.public_path,
        method=request.method,
        status=status,
        key=exchange.key.label,
        duration_s=duration_s,
        error_type=None if failure is None else row_of(failure).wire_type or failure.code,
        error=None if failure is None else failure.message,
        quotes=isinstance(failure, InvalidRequest),
        secret=_secret(request.headers.get(hdrs.AUTHORIZATION)),
    )


def _secret(authorization: str | None) -> str:
    """What stands where a key belongs."""
    return "" if not authorization or authorization.isspace() else authorization.split()[-1]
