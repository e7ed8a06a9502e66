"""Follows `/v1/memory/events` over lost connections: where to go on, how long to wait, when to give up.

Opens no connection itself and never gives up on a server that is merely away.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

import msgspec

from hypnos_engine.api.schemas.memory_events import EVENTS, MemoryEvent
from hypnos_engine.api.sse import EventReader
from hypnos_engine.domain.errors import EngineFailed, HypnosError, RequestRefused

FIRST_WAIT_S: Final = 0.25
LONGEST_WAIT_S: Final = 5.0

EventConnection = AsyncIterator[bytes]
"""The pieces of one open stream."""
Connect = Callable[[int | None], AbstractAsyncContextManager[EventConnection]]
"""Opens the stream after the event of that number; raises a HypnosError."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The stream is not there at the moment."""

    error: HypnosError
    retry_in_s: float


class _Kind(msgspec.Struct, frozen=True):
    object: str


_KNOWN: Final = frozenset(str(event.__struct_config__.tag) for event in EVENTS)
_KIND_DECODER: Final = msgspec.json.Decoder(_Kind)
_DECODER: Final[msgspec.json.Decoder[MemoryEvent]] = msgspec.json.Decoder(MemoryEvent)


async def follow(
    connect: Connect, last_id: int | None, on_lost: Callable[[Lost], None] | None
) -> AsyncGenerator[MemoryEvent, None]:
    """Yield typed events for ever; see `HypnosClient.memory_events`."""
    wait_s = FIRST_WAIT_S
    while True:
        try:
            async with connect(last_id) as pieces:
                reader = EventReader()
                async for piece in pieces:
                    for event in reader.feed(piece):
                        known = decode_event(event.data)
                        if event.id.isdecimal():
                            last_id = int(event.id)
                        wait_s = FIRST_WAIT_S
                        if known is not None:
                            yield known
            error: HypnosError = EngineFailed("The server ended the stream of events.")
        except RequestRefused:
            raise
        except HypnosError as lost:
            error = lost
        except ValueError as broken:  # an event beyond all bounds
            error = EngineFailed(f"The stream of events cannot be read: {broken}.")
        if on_lost is not None:
            on_lost(Lost(error, wait_s))
        await asyncio.sleep(wait_s)
        wait_s = min(LONGEST_WAIT_S, 2 * wait_s)


def decode_event(text: str) -> MemoryEvent | None:
    """The event, or None for one of a kind that this version does not know. Raises EngineFailed for anything else."""
    try:
        kind = _KIND_DECODER.decode(text).object
        return _DECODER.decode(text) if kind in _KNOWN else None
    except msgspec.MsgspecError as error:
        raise EngineFailed(f"The server's event is not one of Hypnos: {error}.") from error
