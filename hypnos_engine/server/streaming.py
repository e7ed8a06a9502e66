"""The one writer of event streams: when the status goes out, what keeps a silent stream alive, how an error travels.

Knows no model and no chat. Never changes a status that was sent, and never writes to a client that has left.
"""

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from aiohttp import hdrs, web

from hypnos_engine.api import sse
from hypnos_engine.server.exchange import exchange_of
from hypnos_engine.server.options import StreamTimes


class EventStream:
    """One response of `text/event-stream`, used as a context manager around the work that feeds it.

    Nothing is sent until `start`, or until the work has taken `hold_s`: then the status goes out and comments follow,
    and whoever feeds the stream has to send later failures as events (`started` tells).
    """

    def __init__(self, request: web.Request, times: StreamTimes, *, estimated_wait_ms: float | None = None) -> None:
        self._request = request
        self._times = times
        self._estimated_wait_ms = estimated_wait_ms
        self._loop = asyncio.get_running_loop()
        self._response = web.StreamResponse()
        self._response.content_type = "text/event-stream"
        self._response.headers[hdrs.CACHE_CONTROL] = "no-cache"
        self._response.headers["X-Accel-Buffering"] = "no"  # proxies must pass each event on at once
        self._starting = asyncio.Lock()
        self._silent_since = self._loop.time()
        self._feeding = False
        self._comments: asyncio.Task[None] | None = None
        self._payload = exchange_of(request).call.response_payload
        """What the request log wants to see of the events."""

    @property
    def started(self) -> bool:
        """True once the status is out."""
        return self._response.prepared

    @property
    def response(self) -> web.StreamResponse:
        return self._response

    async def __aenter__(self) -> Self:
        self._comments = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        comments = self._comments
        assert comments is not None
        comments.cancel()
        await asyncio.wait((comments,))  # not awaited itself: its cancellation must not pass for this task's own
        if not comments.cancelled():
            comments.result()

    async def start(self) -> None:
        """Send the status and the headers, once."""
        async with self._starting:
            if self.started:
                return
            exchange = exchange_of(self._request)
            exchange.stop_clock()
            if exchange.estimated_wait_ms is None:
                exchange.estimated_wait_ms = self._estimated_wait_ms
            await self._response.prepare(self._request)

    async def send(self, *events: bytes) -> None:
        """Write whole events, and wait while the client is slow to take them. Starts the stream if need be.

        Raises ConnectionError when the client has left.
        """
        self._feeding = True
        if not self.started:
            await self.start()
        self._silent_since = self._loop.time()
        piece = events[0] if len(events) == 1 else b"".join(events)
        if self._payload is not None:
            self._payload.add(piece)
        await self._response.write(piece)
        await self._request.writer.drain()

    async def end(self) -> web.StreamResponse:
        """Complete the response; what was sent before is out, or on its way to a client that still reads."""
        await self._response.write_eof()
        return self._response

    async def _keep_alive(self) -> None:
        times = self._times
        longest_sleep_s = min(times.hold_s, times.waiting_comment_s, times.silent_comment_s)
        with contextlib.suppress(ConnectionError):  # the client left: whoever feeds the stream finds out
            while True:
                remaining_s = self._silent_since + self._silence_allowed_s() - self._loop.time()
                if remaining_s > 0:
                    await asyncio.sleep(min(remaining_s, longest_sleep_s))
                else:
                    await self.start()
                    await self._comment("keep-alive" if self._feeding else "waiting")

    def _silence_allowed_s(self) -> float:
        if self._feeding:
            return self._times.silent_comment_s
        return self._times.waiting_comment_s if self.started else self._times.hold_s

    async def _comment(self, text: str) -> None:
        self._silent_since = self._loop.time()
        transport = self._request.transport
        # Only into an empty buffer: two tasks must never wait for one connection to drain.
        if transport is not None and transport.get_write_buffer_size() == 0:
            await self._response.write(sse.comment(text))
