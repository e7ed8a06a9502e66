"""Reads a request's JSON body within its limits; decides what counts as JSON, not what the fields mean."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from aiohttp import hdrs, web

from hypnos_engine.api.decoding import decode_json
from hypnos_engine.domain.errors import InvalidRequest
from hypnos_engine.server.exchange import OPTIONS
from hypnos_engine.server.packing import packing_of, unpack

T = TypeVar("T")
R = TypeVar("R")

DECODE_ON_LOOP_MAX_BYTES = 1024 * 1024
"""Larger bodies, and packed ones, are decoded on a thread. A stand-in for a child process: the decoder keeps the
interpreter's lock."""
# Threads of our own: what a loop uses by default is the loop's affair, and Qt's loop makes Qt threads of it.
_THREADS: Final = ThreadPoolExecutor(max_workers=2, thread_name_prefix="hypnos-body")


async def read_json(request: web.Request, schema: type[T], check: Callable[[T], R]) -> R:
    """Read, decode and check the body. Raises InvalidRequest; aiohttp's HTTPRequestEntityTooLarge above the limit."""
    if hdrs.CONTENT_TYPE not in request.headers:
        raise InvalidRequest("The request needs the header `Content-Type: application/json`.")
    if request.content_type != "application/json":
        raise InvalidRequest("The Content-Type must be application/json.")
    packing = packing_of(request.headers.getall(hdrs.CONTENT_ENCODING, ()))
    try:
        body = await request.read()
    except (web.RequestPayloadError, ValueError) as error:
        raise InvalidRequest(f"The body could not be read: {error}") from None
    if packing is None and len(body) <= DECODE_ON_LOOP_MAX_BYTES:
        return check(decode_json(body, schema))
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_THREADS, lambda: check(decode_json(_unpacked(body, packing, request), schema)))


def _unpacked(body: bytes, packing: str | None, request: web.Request) -> bytes:
    return body if packing is None else unpack(body, packing, request.app[OPTIONS].max_body_bytes)
