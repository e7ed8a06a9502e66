"""A loop whose clock jumps to the next timer instead of waiting for it; what runs on it takes no real time."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everybody waits, and no timer is set")
        found = super().select(0)
        if not found and timeout > 0:
            self._jump(timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """Has no threads: what is given to its executor is done at once."""

    def __init__(self) -> None:
        self._now_s = 1000.0
        super().__init__(_Jumping(self._jump))

    def time(self) -> float:
        return self._now_s

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _jump(self, seconds: float) -> None:
        self._now_s += seconds


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
