"""The loop that Qt and asyncio share, made once per process, with a watch over who holds it.

Closed only when nothing runs on it or on its threads any more.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from time import perf_counter, thread_time
from typing import Any, TypeVar

import qasync
from PySide6.QtCore import QCoreApplication

from app.desktop.stalls import HERE, Stalls

T = TypeVar("T")

BEAT_S = 0.020
BEATS = 50
"""An idle window paints nothing and is not watched."""
THREADS = 4
"""For name look-ups and files. Python's own threads: Qt's cost twice as much to hand work to."""


class WatchedHandle(asyncio.Handle):
    """A callback whose time is taken."""

    __slots__ = ()

    def _run(self) -> None:
        began, named_before_s = perf_counter(), HERE.named_s
        super()._run()
        HERE.named_s = named_before_s  # what it called in turn is a part of it
        HERE.ran(self._describe, perf_counter() - began)

    def _describe(self) -> str:
        callback = self._callback  # type: ignore[attr-defined]
        task = getattr(callback, "__self__", None)
        if isinstance(task, asyncio.Task):
            work = task.get_coro()
            return f"{getattr(work, '__qualname__', work)} ({task.get_name()})"
        return str(getattr(callback, "__qualname__", callback))


class WatchedLoop(qasync.QEventLoop):  # type: ignore[misc]
    """qasync's loop on the running application."""

    def __init__(self, application: QCoreApplication) -> None:
        super().__init__(application)
        self.set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="hypnos-app"))

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """As the loop it extends, with a handle that is timed."""
        handle: asyncio.Handle = self._add_callback(WatchedHandle(callback, args, self, context), delay)
        return handle


class Heartbeat:
    """Looks how late the loop comes to it for a while after windows were used: Qt's own work has no handle to time."""

    def __init__(self, stalls: Stalls = HERE, beats: int = BEATS) -> None:
        self._stalls = stalls
        self._beats = beats
        self._left = 0
        self._due_s = self._used_s = 0.0

    def start(self) -> None:
        """Begin, or go on for as long again. Called on the loop."""
        beating, self._left = self._left > 0, self._beats
        if not beating:
            self._stalls.beat(0.0, 0.0)
            self._wait(asyncio.get_running_loop())

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_s, self._used_s = perf_counter() + BEAT_S, thread_time()
        loop.call_later(BEAT_S, self._beat, loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._stalls.beat(perf_counter() - self._due_s, thread_time() - self._used_s)
        self._left -= 1
        if self._left > 0:
            self._wait(loop)


def run_to_the_end(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], interrupted: Callable[[], None] | None = None
) -> T:
    """Run `work` until it is done, then close the loop.

    `interrupted` is called when Qt stops the loop by itself, as it does when the display goes away, and has to bring
    the work to its end; a second time, and without it, the work is cancelled, which raises CancelledError.
    """
    asyncio.set_event_loop(loop)
    task = loop.create_task(work)
    try:
        while not task.done():
            try:
                loop.run_until_complete(task)
            except RuntimeError:
                if task.done():
                    break  # it is the task's own error
                ask, interrupted = interrupted or task.cancel, None
                ask()
        return task.result()
    finally:
        loop.run_until_complete(_cancel_all())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        asyncio.set_event_loop(None)


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
