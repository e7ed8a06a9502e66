"""Receives a request's JSON body within its limits and has it read; decides what counts as JSON, not what fields mean.

Small bodies are read at once. Larger ones, and small ones of very many values, are spooled to a file and read by a
process of its own. Never holds the loop for as long as a body is long, and never waits without end for one.
"""

import asyncio
from collections import deque
from typing import Final, TypeVar

from aiohttp import StreamReader, hdrs, web

from hypnos_engine.domain.errors import InvalidRequest, PayloadTooLarge, RequestTimedOut
from hypnos_engine.server.exchange import OPTIONS, exchange_of
from hypnos_engine.server.options import ServerOptions
from hypnos_engine.server.packing import Unpacking, packing_of
from hypnos_engine.server.readers import Readers
from hypnos_engine.server.readings import Reading
from hypnos_engine.server.spool import MEMORY_MAX_BYTES, BodyBudget, Spool

R = TypeVar("R")

ALWAYS_QUICK_BYTES: Final = 64 * 1024
VALUES_MAX: Final = 50_000
"""A larger body with more commas, brackets and braces takes longer to decode than the loop may be held."""
_TURN_BYTES: Final = 256 * 1024
_TURNS_AT_ONCE: Final = 4
"""All bodies together are received in so many portions of `_TURN_BYTES` before the loop turns."""


class Bodies:
    """What all bodies of one server share."""

    def __init__(self, options: ServerOptions) -> None:
        self.budget = BodyBudget(options.max_body_bytes_in_flight, options.body_wait_s)
        self.readers = Readers()
        self.turns = _Turns()


BODIES: Final = web.AppKey("bodies", Bodies)


async def read_json(request: web.Request, reading: Reading[R]) -> R:
    """Receive, decode and check the body.

    Raises InvalidRequest, PayloadTooLarge above the limit, RequestTimedOut when it comes too slowly, ModelNotAvailable
    when too many bodies are on their way, and EngineFailed or EngineTimeout when it could not be read.
    """
    _check_type(request)
    packed = hdrs.CONTENT_ENCODING in request.headers
    packing = packing_of(request.headers.getall(hdrs.CONTENT_ENCODING)) if packed else None
    options = request.app[OPTIONS]
    content = request.content
    if packing is None and content.is_eof() and content.total_bytes <= min(ALWAYS_QUICK_BYTES, options.max_body_bytes):
        body = _whole(content)  # it came with its headers
        if (payload := exchange_of(request).call.request_payload) is not None:
            payload.add(body)
        return reading.read(body, options)
    bodies = request.app[BODIES]
    spool = Spool(bodies.budget, options.spool_dir)
    try:
        await _receive(request, spool, None if packing is None else Unpacking(packing), bodies)
        if spool.in_memory and _is_quick(body := spool.joined()):
            return reading.read(body, options)
        return await bodies.readers.read(reading, await spool.file(), spool.size_bytes, options)
    finally:
        spool.close()


async def read_optional_json(request: web.Request, reading: Reading[R], absent: R) -> R:
    """As `read_json`; `absent` for a request without a body, whatever its Content-Type says."""
    if not request.body_exists or request.content_length == 0:
        return absent
    return await read_json(request, reading)


def too_large(limit_bytes: int) -> PayloadTooLarge:
    """What a body above the limit is told."""
    return PayloadTooLarge(f"The body is larger than limits.max_body_bytes ({limit_bytes} bytes).")


def _check_type(request: web.Request) -> None:
    if hdrs.CONTENT_TYPE not in request.headers:
        raise InvalidRequest("The request needs the header `Content-Type: application/json`.")
    if request.content_type != "application/json":
        raise InvalidRequest("The Content-Type must be application/json.")


def _whole(content: StreamReader) -> bytes:
    try:
        return content.read_nowait()
    except (web.RequestPayloadError, ValueError) as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> InvalidRequest:
    return InvalidRequest(f"The body could not be read: {error}")


def _is_quick(body: bytes) -> bool:
    if len(body) <= ALWAYS_QUICK_BYTES:
        return True
    return sum(map(body.count, (b",", b"[", b"{"))) <= VALUES_MAX


async def _receive(request: web.Request, spool: Spool, unpacking: Unpacking | None, bodies: Bodies) -> None:
    limit_bytes = request.app[OPTIONS].max_body_bytes
    pace = _Pace(request.content, request.app[OPTIONS])
    declared_bytes = request.content_length
    if declared_bytes is not None and unpacking is None:
        await spool.expect(declared_bytes)
        if declared_bytes > MEMORY_MAX_BYTES:
            bodies.readers.prepare()
    since_turn_bytes = 0
    payload = exchange_of(request).call.request_payload
    while piece := await pace.take():
        for part in (piece,) if unpacking is None else unpacking.feed(piece):
            if spool.size_bytes + len(part) > limit_bytes:
                raise too_large(limit_bytes)
            if spool.in_memory and spool.size_bytes + len(part) > MEMORY_MAX_BYTES:
                bodies.readers.prepare()
            if payload is not None:
                payload.add(part)
            await spool.add(part)
            since_turn_bytes += len(part)
            if since_turn_bytes >= _TURN_BYTES:
                since_turn_bytes = 0
                await bodies.turns.take()
    if unpacking is not None:
        unpacking.finish()


class _Turns:
    """Lets a few portions be taken in each turn of the loop, in the order of asking.

    A body whose portion waits is not read from its socket meanwhile.
    """

    def __init__(self) -> None:
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Return at once, or in one of the loop's next turns."""
        loop = asyncio.get_running_loop()
        if self._taken == 0:
            loop.call_soon(self._turned)
        if self._taken < _TURNS_AT_ONCE:
            self._taken += 1
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _turned(self) -> None:
        self._taken = 0
        while self._waiting and self._taken < _TURNS_AT_ONCE:
            turn = self._waiting.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)
        if self._taken:
            asyncio.get_running_loop().call_soon(self._turned)


class _Pace:
    """Takes the pieces of a body as they come, and gives up on a client that sends too slowly.

    Only the time spent waiting for the client counts.
    """

    def __init__(self, content: StreamReader, options: ServerOptions) -> None:
        self._content = content
        self._options = options
        self._waited_s = 0.0
        self._received_bytes = 0

    async def take(self) -> bytes:
        """The next piece; empty at the end. Raises RequestTimedOut, and InvalidRequest for a body that breaks off."""
        options, clock = self._options, asyncio.get_running_loop().time
        allowed_s = options.body_grace_s + self._received_bytes / options.body_bytes_per_s
        started_s = clock()
        try:
            async with asyncio.timeout(allowed_s - self._waited_s):
                piece = await self._content.readany()
        except TimeoutError:
            raise RequestTimedOut(
                f"The body came too slowly: {self._received_bytes} bytes in {self._waited_s + clock() - started_s:.0f} "
                f"s. It may take {options.body_grace_s:g} s, and a second more for each {options.body_bytes_per_s} "
                "bytes."
            ) from None
        except (web.RequestPayloadError, ValueError) as error:
            raise _unreadable(error) from None
        self._waited_s += clock() - started_s
        self._received_bytes += len(piece)
        return piece
