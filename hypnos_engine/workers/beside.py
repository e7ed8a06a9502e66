"""One computation on a thread of its own, beside a long native call of the thread that wants its result.

Never swallows an error: who asks for the result gets it.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

SMALL_STACK_BYTES = 512 * 1024
"""For work that calls nothing deep: the C library keeps the stacks of threads that have ended."""


class Beside(Generic[T]):
    """Starts `work` at once; `result` waits for it."""

    def __init__(self, work: Callable[[], T], name: str, stack_bytes: int = 0) -> None:
        """With a stack of this size, or of the system's own choice."""
        self._work = work
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        usual_bytes = threading.stack_size(stack_bytes)
        try:
            self._thread.start()
        finally:
            threading.stack_size(usual_bytes)

    def result(self) -> T:
        """What the work returned. Raises what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:
            self._error = error
