"""One client's connection: what is answered to bytes that are no HTTP, and when a client that takes nothing is dropped.

Never logs what a stranger sent.
"""

import asyncio
import logging
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

from hypnos_engine.api.error_table import INVALID, SERVER_ERROR
from hypnos_engine.api.schemas.errors import ErrorBody, ErrorDetail
from hypnos_engine.journal import Line
from hypnos_engine.server.answers import json_response, stamp
from hypnos_engine.server.exchange import Exchange

log: Final = logging.getLogger("hypnos.http")

MOMENT_S: Final = 0.05


class AccessLog(AbstractAccessLogger):
    """One line a request: id, what was asked, status, bytes, time, address. No query, no body, no key.

    Lines that come within a moment are one record: a record costs as much as the rest of a small request.
    """

    def __init__(self) -> None:
        super().__init__(log, "")
        self._lines: list[Line] = []

    @property
    def enabled(self) -> bool:
        return self.logger.isEnabledFor(logging.INFO)

    def log(self, request: BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Say that a request was answered after `time` seconds."""
        what = (
            f"{request.method} {request.rel_url.raw_path} "
            f"{response.status} {response.body_length}B {time:.3f}s {request.remote or '-'}"
        )
        self._lines.append(Line(response.headers.get("x-request-id", "-"), what))
        if len(self._lines) == 1:
            asyncio.get_running_loop().call_later(MOMENT_S, self.flush)

    def flush(self) -> None:
        """Write what was said."""
        if self._lines:
            lines, self._lines = self._lines, []
            text = "\n".join(f"{line.request_id} {line.text}" for line in lines)
            self.logger.info("%s", text, extra={"lines": tuple(lines)})


class Connections:
    """The open connections of one site, and the moment when there are none."""

    def __init__(self) -> None:
        self.access_log = AccessLog()
        self._open: set[Connection] = set()
        self._none = asyncio.Event()
        self._none.set()

    def add(self, connection: "Connection") -> None:
        self._open.add(connection)
        self._none.clear()

    def discard(self, connection: "Connection") -> None:
        self._open.discard(connection)
        if not self._open:
            self._none.set()

    async def flush(self, seconds: float) -> None:
        """Give the last bytes `seconds` to leave, then drop every client that has not read them."""
        self.access_log.flush()
        try:
            async with asyncio.timeout(seconds):
                await self._none.wait()
        except TimeoutError:
            for connection in tuple(self._open):
                connection.drop()
            await self._none.wait()


class Connection(RequestHandler):
    """aiohttp's connection, with an end for clients that stop reading."""

    def __init__(
        self, server: web.Server, connections: Connections, *, stall_s: float, version: str, **kwargs: Any
    ) -> None:
        super().__init__(
            server,
            logger=log,
            access_log=log,
            access_log_class=cast("type[AbstractAccessLogger]", lambda *_: connections.access_log),
            auto_decompress=False,  # bodies are unpacked where they are read, after the checks of who sends them
            **kwargs,
        )
        self._version = version
        self._all = connections
        self._stall_s = stall_s
        self._socket: asyncio.Transport | None = None
        self._unread_bytes = 0
        self._stall_check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._socket = cast("asyncio.Transport", transport)
        self._all.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._cancel_check()
        self._socket = None
        self._all.discard(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_check()

    def close(self) -> None:
        super().close()
        if not self._request_in_progress and self._socket is not None:
            self._socket.close()  # aiohttp would keep an idle connection open, deaf, until the drain has ended

    def force_close(self) -> None:
        super().force_close()
        self._watch()  # what is still unsent keeps the socket open

    def drop(self) -> None:
        """Close at once, whatever the client has not read yet."""
        if self._socket is not None:
            self._socket.abort()

    def log_exception(self, *args: Any, **kwargs: Any) -> None:
        """A body that breaks off or does not unpack is the client's affair: it was answered, or nobody is there."""
        if isinstance(kwargs.get("exc_info"), web.RequestPayloadError | ConnectionError):
            log.debug("a request's body was broken")
        else:
            super().log_exception(*args, **kwargs)

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer bytes that are no HTTP request (400), or a fault that escaped the application (500)."""
        exchange = Exchange()
        if status >= 500:
            log.error("%s %s failed outside the application", exchange.id, request.rel_url.raw_path, exc_info=exc)
            if request.writer.output_size > 0:
                raise ConnectionError("an answer was already under way")
            detail = ErrorDetail(f"Internal error. The server's log has the details under {exchange.id}.", SERVER_ERROR)
        else:
            detail = ErrorDetail("The bytes received are not a valid HTTP request.", INVALID)
        response = json_response(ErrorBody(detail), status=status)
        stamp(response, exchange.id, self._version)
        response.force_close()
        return response

    def _watch(self) -> None:
        if self._stall_check is None and self._socket is not None:
            self._unread_bytes = self._socket.get_write_buffer_size()
            if self._unread_bytes:
                self._stall_check = self._loop.call_later(self._stall_s, self._check_stall)

    def _check_stall(self) -> None:
        self._stall_check = None
        if self._socket is None:
            return
        if self._socket.get_write_buffer_size() >= self._unread_bytes:
            log.info("dropped a client that took no byte for %g s", self._stall_s)
            self._socket.abort()
        else:
            self._watch()

    def _cancel_check(self) -> None:
        if self._stall_check is not None:
            self._stall_check.cancel()
            self._stall_check = None
