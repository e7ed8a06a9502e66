"""What the server knows about one request beside the request itself, and how handlers reach what serves them.

Decides nothing; holds no body and no key.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from aiohttp import web

from hypnos_engine.domain.kinds import Modality
from hypnos_engine.runtime.lease import Runtime
from hypnos_engine.server.keys import LOCAL
from hypnos_engine.server.options import AccessKey, ServerOptions
from hypnos_engine.telemetry.calls import Call
from hypnos_engine.telemetry.latency import Latencies

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


_DRAWN_AT_ONCE: Final = 64
_drawn: Final[list[str]] = []


def new_id(prefix: str) -> str:
    """An id that no other has and nobody guesses: the prefix and 128 random bits as 32 hexadecimal digits."""
    try:
        return prefix + _drawn.pop()
    except IndexError:  # the system is asked once for many
        digits = secrets.token_hex(16 * _DRAWN_AT_ONCE)
        _drawn.extend(digits[start : start + 32] for start in range(32, len(digits), 32))
        return prefix + digits[:32]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A header, path or query parameter, as `/openapi.json` shows it."""

    name: str
    where: str
    about: str
    schema: str = "string"
    least: int | None = None
    """Smallest value of a number."""
    choices: tuple[str, ...] = ()
    """All values that are taken; empty = any."""


@dataclass(frozen=True, slots=True)
class Route:
    """One route: what serves it, who may call it and when, and what it takes and answers."""

    method: str
    path: str
    handler: Handler
    summary: str
    answers: dict[int, Any]
    """Schema of each successful status; a str is a content type whose body has no schema."""
    request: type[Any] | None = None
    parameters: tuple[Parameter, ...] = ()
    errors: tuple[int, ...] = ()
    """Statuses of errors beyond those that every route may answer."""
    needs_key: bool = True
    admin: bool = False
    while_staging: bool = True
    """Whether the route works before the startup models are staged (contract §3)."""
    streams: Any = None
    """Schema of one event, where the route can answer with a stream."""
    endless: bool = False
    """True for a stream that goes on until its reader leaves; it ends when the server begins to shut down."""
    optional_body: bool = False
    """True where `request` may be left out."""
    inference: Modality | None = None
    """What its calls ask of a model; None for a route that calls none. Calls are in the request log (contract §15)."""

    @property
    def public_path(self) -> str:
        """The path as the documentation and the metrics name it."""
        return self.path.replace("{id:.+}", "{id}")


@dataclass(slots=True, eq=False)
class Exchange:
    """One request on its way. Lives as long as the request's task."""

    id: str = field(default_factory=partial(new_id, "req-"))
    key: AccessKey = LOCAL
    route: Route | None = None
    estimated_wait_ms: float | None = None
    """Set once the request is admitted, when an estimate was made (contract §1.2)."""
    limit: asyncio.Timeout | None = None
    task: asyncio.Task[Any] | None = None
    started_s: float = field(default_factory=time.perf_counter)
    """When the request's head was there."""
    identified: bool = False
    """True once it is known whose request it is."""
    call: Call = field(default_factory=Call)
    """What a route that calls a model finds out about the call."""
    cut_off: bool = False
    """True once the server ended the request because it is shutting down."""

    def stop_clock(self) -> None:
        """The headers are out: `request_timeout_s` no longer applies."""
        if self.limit is not None and not self.limit.expired():
            self.limit.reschedule(None)

    def cut(self) -> None:
        """End the request because the server is going down; its client is told if that is still possible."""
        if self.task is not None and not self.cut_off:
            self.cut_off = True
            self.task.cancel()

    def was_cut(self) -> bool:
        """Called where a CancelledError arrived: True, once, when it came from `cut` and is to be answered."""
        return self.cut_off and self.task is not None and self.task.cancelling() == 1 and self.task.uncancel() == 0


@dataclass(slots=True, eq=False)
class Lifecycle:
    """The server's own state."""

    started_s: float = field(default_factory=time.monotonic)
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    running: set[Exchange] = field(default_factory=set)


EXCHANGE: Final = web.RequestKey("exchange", Exchange)
RUNTIME: Final = web.AppKey("runtime", Runtime)
OPTIONS: Final = web.AppKey("options", ServerOptions)
LIFECYCLE: Final = web.AppKey("lifecycle", Lifecycle)
ROUTES: Final = web.AppKey("routes", tuple[Route, ...])
LATENCIES: Final = web.AppKey("latencies", Latencies)


def exchange_of(request: web.Request) -> Exchange:
    """The request's exchange, made on the first call."""
    try:
        return request[EXCHANGE]
    except KeyError:
        exchange = request[EXCHANGE] = Exchange()
        return exchange


def client_left(request: web.Request) -> bool:
    """True when nobody reads an answer any more."""
    return request.transport is None or request.transport.is_closing()
