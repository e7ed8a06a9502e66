"""Who waits for the scheduler: requests for their grants, people for their moves, owners for their changes.

Each waiter is answered exactly once, and forgotten when it leaves. Decides nothing.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from hypnos_engine.domain.errors import Cancelled, HypnosError
from hypnos_engine.domain.model import ModelId
from hypnos_engine.runtime.residents import Resident
from hypnos_engine.scheduler import effects as fx

T = TypeVar("T")


class Granted(NamedTuple):
    """A grant, and the worker that it is for."""

    grant: fx.Grant
    live: Resident


class Wishes:
    """Futures by what they wait for. Used on one loop; after `close` nobody can wait any more."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._last = 0
        self._grants: dict[int, asyncio.Future[Granted]] = {}
        self._moves: dict[int, asyncio.Future[None]] = {}
        self._changes: dict[ModelId, dict[int, asyncio.Future[bool]]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._grants) + len(self._moves) + sum(map(len, self._changes.values()))

    def next_number(self) -> int:
        """A number that no request and no move has had."""
        self._last += 1
        return self._last

    @contextmanager
    def request(self, number: int) -> Generator["asyncio.Future[Granted]", None, None]:
        """Wait for the grant of a request within the block."""
        with self._waiting(self._grants, number) as waits:
            yield waits

    @contextmanager
    def move(self, number: int) -> Generator["asyncio.Future[None]", None, None]:
        """Wait for a move within the block."""
        with self._waiting(self._moves, number) as waits:
            yield waits

    @contextmanager
    def change(self, model: ModelId) -> Generator["asyncio.Future[bool]", None, None]:
        """Wait within the block for a change of the pool: True when it was made, False when it was abandoned."""
        those: dict[int, asyncio.Future[bool]] = self._changes.setdefault(model, {})
        try:
            with self._waiting(those, self.next_number()) as waits:
                yield waits
        finally:
            if not those and self._changes.get(model) is those:
                del self._changes[model]

    @contextmanager
    def _waiting(self, where: dict[int, asyncio.Future[T]], number: int) -> Generator["asyncio.Future[T]", None, None]:
        waits: asyncio.Future[T] = self._loop.create_future()
        if self._closed:
            waits.set_exception(_ending())
        where[number] = waits
        try:
            yield waits
        finally:
            where.pop(number, None)
            if not waits.cancel() and not waits.cancelled():
                waits.exception()  # seen, also when its waiter has left

    # --- answers ----------------------------------------------------------------------------------------------------

    def grant(self, effect: fx.Grant, live: Resident) -> bool:
        """Answer a request; False when nobody waits for it any more."""
        waits = self._grants.get(effect.request)
        if waits is None or waits.done():
            return False
        waits.set_result(Granted(effect, live))
        return True

    def refuse(self, number: int, error: HypnosError) -> None:
        """Answer a request or a move with an error; one that nobody waits for is ignored."""
        waits = self._grants.get(number) or self._moves.get(number)
        if waits is not None and not waits.done():
            waits.set_exception(_fresh(error))

    def moved(self, number: int) -> None:
        waits = self._moves.get(number)
        if waits is not None and not waits.done():
            waits.set_result(None)

    def changed(self, model: ModelId, *, done: bool) -> None:
        for waits in self._changes.get(model, {}).values():
            if not waits.done():
                waits.set_result(done)

    def close(self) -> None:
        """The program ends: everybody who still waits is told so."""
        self._closed = True
        for number in (*self._grants, *self._moves):
            self.refuse(number, _ending())
        for waiting in self._changes.values():
            for waits in waiting.values():
                if not waits.done():
                    waits.set_exception(_ending())


def _ending() -> Cancelled:
    return Cancelled("Hypnos is shutting down.")


def _fresh(error: HypnosError) -> HypnosError:
    """A copy to raise: one error may refuse many requests, and a raised exception collects its raisers' frames."""
    copy = error.__class__.__new__(error.__class__)
    copy.__dict__.update(error.__dict__)
    copy.args = error.args
    return copy
