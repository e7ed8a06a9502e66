"""Keeps the conversations of models that left tier 1 in host memory, within a bound, and gives them back.

Decides which are dropped when the bound is reached: those parked longest ago. Whatever goes wrong with a conversation
costs its next turn time and nothing else: nothing here raises because of a worker, and nobody waits for one that hangs.
"""

import asyncio
import logging
import mmap
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from hypnos_engine.domain.errors import HypnosError
from hypnos_engine.domain.model import ModelId
from hypnos_engine.engines.base import Engine, ParksKv
from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.blocks import Block, BlockError

log = logging.getLogger("hypnos.parking")

GIB = 1024**3
PARK_WITHIN_S = 4.0
"""A worker that takes longer than this, and a second for each GiB of room, is given up: it has to leave."""
RESTORE_WITHIN_S = 10.0
"""The same, for a worker that takes conversations back: it serves without them."""
_CLOSED_AT_ONCE_BYTES = 16 * 1024**2
"""Giving memory back takes 0.15 ms for each MiB; more than this goes to a thread, so that the loop turns on."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Restored:
    """Conversations that are back in their slots."""

    ms: float
    tokens: int


@dataclass(frozen=True, slots=True)
class ParkedModel:
    """What is parked of one model."""

    model: ModelId
    slots: int
    tokens: int
    bytes: int
    parked_secs_ago: float


@dataclass(frozen=True, slots=True)
class ParkView:
    """Parking at one moment (contract §14.3)."""

    enabled: bool
    max_bytes: int
    used_bytes: int
    models: tuple[ParkedModel, ...] = ()
    """Those that were parked longest ago first."""


class Conversations(Protocol):
    """Where conversations stay while their model is not loaded. All methods are called on one loop.

    What an implementation drops of its own accord (for the bound) it tells to the callback that it was made with, once
    for each model; what `drop`, `restore` and `configure` drop it does not tell there: the caller knows. The one
    caller books the bytes with the scheduler (`KvParked`) after each of `park`, `restore` and the callback.
    """

    @property
    def enabled(self) -> bool:
        """False = `park` keeps nothing."""
        ...

    async def park(self, model: ModelId, engine: Engine, room_bytes: int) -> int:
        """Copy the conversations of the engine's idle slots out, in at most `room_bytes`; before it is unloaded.

        Returns the bytes that the model's conversations take now: 0 when there are none, parking is off, the engine
        keeps none, fails or hangs. Takes a few seconds at most; cancelling it leaves nothing of the model. What was
        parked of the model before is gone. A `drop` of the model meanwhile counts: then nothing is kept.
        """
        ...

    async def restore(self, model: ModelId, engine: Engine, loaded: m.Loaded) -> Restored | None:
        """Give the model's conversations to an engine that has just been loaded, before it takes requests.

        None when nothing came back: nothing was parked, or what was does not fit any more (other weights, settings,
        build or context), is damaged, or the engine fails; one line in the log says why. Whatever happens, the model's
        parked bytes are free afterwards. Takes seconds at most.
        """
        ...

    def drop(self, model: ModelId) -> None:
        """Forget the model's conversations, if there are any: also those that are being parked at this moment."""
        ...

    def configure(self, *, enabled: bool | None = None, max_bytes: int | None = None) -> tuple[ModelId, ...]:
        """Change either; None leaves it. Off drops everything, a lower bound the oldest until the rest fits.

        Returns the models whose conversations were dropped.
        """
        ...

    def view(self) -> ParkView:
        """What is parked now."""
        ...


@dataclass(slots=True)
class _Parked:
    block: Block
    slots: int
    tokens: int
    held_bytes: int
    context_len: int
    parked_s: float


@dataclass(eq=False, slots=True)
class _Reservation:
    """Room for conversations that are being parked."""

    room_bytes: int
    dropped: bool = False


class ParkedConversations:
    """Implements Conversations in nameless shared memory: it outlives a worker, and ends with this process."""

    def __init__(
        self,
        *,
        enabled: bool,
        max_bytes: int,
        on_dropped: Callable[[ModelId], None],
        clock: Callable[[], float] = time.monotonic,
        park_within_s: float = PARK_WITHIN_S,
        restore_within_s: float = RESTORE_WITHIN_S,
    ) -> None:
        """`on_dropped` is called on the loop; see Conversations."""
        self._enabled = enabled
        self._max_bytes = max_bytes
        self._on_dropped = on_dropped
        self._clock = clock
        self._park_within_s = park_within_s
        self._restore_within_s = restore_within_s
        self._parked: dict[ModelId, _Parked] = {}
        """Oldest first."""
        self._reserved: dict[ModelId, _Reservation] = {}

    @property
    def enabled(self) -> bool:
        """As Conversations.enabled."""
        return self._enabled

    async def park(self, model: ModelId, engine: Engine, room_bytes: int) -> int:
        """As Conversations.park."""
        self.drop(model)
        if not self._enabled or not isinstance(engine, ParksKv):
            return 0
        room_bytes = self._make_room(room_bytes)
        if room_bytes < 1:
            return 0
        reservation = self._reserved[model] = _Reservation(room_bytes)
        try:
            block = Block.create(room_bytes)
            try:
                parked = await self._ask(model, engine.park(block), self._park_within_s + room_bytes / GIB)
            except BaseException:
                _give_up(block, room_bytes)
                raise
        except BlockError as error:
            log.info("the conversations of %s are not parked: %s", model, error)
            return 0
        finally:
            if self._reserved.get(model) is reservation:
                del self._reserved[model]
        return self._keep(model, block, parked, reservation)

    async def restore(self, model: ModelId, engine: Engine, loaded: m.Loaded) -> Restored | None:
        """As Conversations.restore."""
        parked = self._parked.get(model)
        if parked is None:
            return None
        try:
            if loaded.context_len != parked.context_len:
                why = f"the context has {loaded.context_len} tokens and had {parked.context_len}"
                answer = m.Restored(0, 0, 0, 0.0, why)
            elif not isinstance(engine, ParksKv):
                answer = m.Restored(0, 0, 0, 0.0, "the engine is another one")
            else:
                limit_s = self._restore_within_s + parked.held_bytes / GIB
                asked = await self._ask(model, engine.restore(parked.block), limit_s)
                answer = asked or m.Restored(0, 0, 0, 0.0, "the worker does not take them back")
        finally:
            if self._parked.get(model) is parked:
                self.drop(model)
        if answer.slots < parked.slots:
            log.info(
                "parked conversations of %s were dropped (%d of %d): %s",
                model,
                parked.slots - answer.slots,
                parked.slots,
                answer.problem or "the worker does not say why",
            )
        return Restored(answer.ms, answer.tokens) if answer.slots > 0 else None

    def drop(self, model: ModelId) -> None:
        """As Conversations.drop."""
        if (reservation := self._reserved.get(model)) is not None:
            reservation.dropped = True
        if (parked := self._parked.pop(model, None)) is not None:
            _give_up(parked.block, parked.held_bytes)

    def configure(self, *, enabled: bool | None = None, max_bytes: int | None = None) -> tuple[ModelId, ...]:
        """As Conversations.configure."""
        self._enabled = self._enabled if enabled is None else enabled
        self._max_bytes = self._max_bytes if max_bytes is None else max_bytes
        dropped = list(self._oldest_beyond(self._max_bytes if self._enabled else -1))
        for model in dropped:
            self.drop(model)
        for reservation in self._reserved.values():
            reservation.dropped = reservation.dropped or not self._enabled
        return tuple(dropped)

    def view(self) -> ParkView:
        """As Conversations.view."""
        now_s = self._clock()
        models = tuple(
            ParkedModel(model, one.slots, one.tokens, one.held_bytes, max(0.0, now_s - one.parked_s))
            for model, one in self._parked.items()
        )
        return ParkView(self._enabled, self._max_bytes, sum(one.bytes for one in models), models)

    def close(self) -> None:
        """Forget everything; at the end of the program."""
        self.configure(enabled=False)

    # --- the bound --------------------------------------------------------------------------------------------------

    def _make_room(self, room_bytes: int) -> int:
        """Drop the oldest until so much fits beside the rest; returns how much does fit, in whole pages."""
        reserved = sum(one.room_bytes for one in self._reserved.values())
        room_bytes = min(room_bytes, self._max_bytes - reserved) // mmap.PAGESIZE * mmap.PAGESIZE
        if room_bytes > 0:
            self._drop_beyond(self._max_bytes - reserved - room_bytes)
        return room_bytes

    def _drop_beyond(self, most_bytes: int) -> None:
        for model in self._oldest_beyond(most_bytes):
            log.info("the parked conversations of %s were dropped: newer ones need the room", model)
            self.drop(model)
            self._on_dropped(model)

    def _oldest_beyond(self, most_bytes: int) -> tuple[ModelId, ...]:
        """The models parked longest ago, as many as have to go for the rest to take no more than that."""
        used_bytes = sum(one.held_bytes for one in self._parked.values())
        beyond: list[ModelId] = []
        for model, one in self._parked.items():
            if used_bytes <= most_bytes:
                break
            used_bytes -= one.held_bytes
            beyond.append(model)
        return tuple(beyond)

    # --- the worker -------------------------------------------------------------------------------------------------

    async def _ask(self, model: ModelId, answer: Awaitable[T], limit_s: float) -> T | None:
        """What the worker answers; None when it fails or takes too long."""
        try:
            async with asyncio.timeout(limit_s):
                return await answer
        except TimeoutError:
            log.info(
                "the worker of %s did not hand its conversations over, or take them, within %.1f s", model, limit_s
            )
        except HypnosError as error:
            log.info("the worker of %s did not hand its conversations over, or take them: %s", model, error)
        return None

    def _keep(self, model: ModelId, block: Block, parked: m.Parked | None, reservation: _Reservation) -> int:
        """Book what a worker has parked, if that is anything and still wanted; returns its bytes."""
        if parked is not None and parked.problem:
            log.info("not all conversations of %s were parked: %s", model, parked.problem)
        usable = parked is not None and parked.slots > 0 and 0 < parked.size_bytes <= block.size_bytes
        if parked is None or not usable or reservation.dropped or not self._enabled:
            _give_up(block, block.size_bytes)
            return 0
        held_bytes = -(-parked.size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._parked[model] = _Parked(block, parked.slots, parked.tokens, held_bytes, parked.context_len, self._clock())
        self._drop_beyond(self._max_bytes)  # the bound may have come down meanwhile
        return held_bytes if model in self._parked else 0


def _give_up(block: Block, held_bytes: int) -> None:
    """Close a block; a large one on a thread, for that takes as long as its pages are many."""
    if held_bytes <= _CLOSED_AT_ONCE_BYTES:
        block.close()
    else:
        threading.Thread(target=block.close, name="hypnos-block-close", daemon=True).start()
