"""Conversations on their way into or out of a block, between one engine and its worker. Decides nothing about them."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from hypnos_engine.domain.errors import EngineFailed, HypnosError, error_from_code
from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.blocks import Block, BlockError

NOTHING_PARKED = m.Parked(0, 0, 0, 0, 0, 0.0)
NOTHING_RESTORED = m.Restored(0, 0, 0, 0.0, "this model keeps no conversations")

A = TypeVar("A", m.Parked, m.Restored)


class Transfers:
    """The unanswered ParkKv and RestoreKv of one worker, by the number of their block."""

    def __init__(
        self, model: str, hand_over: Callable[[Block], int], tell: Callable[[m.ParkKv | m.RestoreKv], None]
    ) -> None:
        """`hand_over` gives the worker a block and returns its number, `tell` sends a message."""
        self._model = model
        self._hand_over = hand_over
        self._tell = tell
        self._waiting: dict[int, tuple[type[m.Message], asyncio.Future[Any]]] = {}

    async def park(self, block: Block) -> m.Parked:
        """As ParksKv.park, for a worker that serves."""
        number = self._handed_over(block)
        self._tell(m.ParkKv(number, block.size_bytes))
        return await self._answer(number, m.Parked)

    async def restore(self, block: Block) -> m.Restored:
        """As ParksKv.restore, for a worker that serves."""
        number = self._handed_over(block)
        self._tell(m.RestoreKv(number, block.size_bytes))
        return await self._answer(number, m.Restored)

    def take(self, message: m.Parked | m.Restored) -> bool:
        """An answer has arrived; False when nobody waits for it."""
        kind, future = self._waiting.get(message.block, (None, None))
        if future is None or kind is not type(message) or future.done():
            return False
        future.set_result(message)
        return True

    def fail_all(self, error: HypnosError) -> None:
        """End every wait."""
        for _, future in self._waiting.values():
            if not future.done():
                # Each waiter raises an instance of its own: one shared among tasks would collect their tracebacks.
                future.set_exception(error_from_code(error.code, error.message))

    def _handed_over(self, block: Block) -> int:
        try:
            return self._hand_over(block)
        except BlockError as error:
            raise EngineFailed(f"The worker of '{self._model}' takes no shared memory: {error}.") from error

    async def _answer(self, number: int, kind: type[A]) -> A:
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting[number] = kind, future
        try:
            return await future
        finally:
            self._waiting.pop(number, None)
