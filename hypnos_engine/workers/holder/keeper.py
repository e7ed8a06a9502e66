"""The holder's one loop: hears the supervisor between any two steps, fills what it is told to, and tends what it holds.

Decides only what is done next. A set that cannot be held is dropped whole, and the supervisor is told.
"""

import collections
import contextlib
import os
import queue
import time
from pathlib import Path
from typing import NoReturn

from hypnos_engine.ipc import holder_messages as h
from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.framing import FrameDecoder
from hypnos_engine.workers.channel import Channel
from hypnos_engine.workers.holder.file_set import CannotHold, FileSet, Steps
from hypnos_engine.workers.holder.files import FileChanged, shown
from hypnos_engine.workers.holder.locks import raise_limit, why_refused
from hypnos_engine.workers.holder.shortage import MemoryGauge, measure

LOOK_EVERY_S = 5.0
_LOOKING_PART = 100
"""Looking at the pages may take one part in so many of the time."""
_REPORTED_S = 0.1

HolderChannel = Channel[h.ToHolder]


class Keeper:
    """All sets of one holder process."""

    def __init__(self, channel: HolderChannel, gauge: MemoryGauge = measure) -> None:
        self._channel = channel
        self._gauge = gauge
        self._interval_s = LOOK_EVERY_S
        self._sets: dict[int, FileSet] = {}
        self._waiting: collections.deque[h.Fill] = collections.deque()
        self._filling: _Filling | None = None
        self._upkeep = self._rounds()
        self._next_s = 0.0
        """When the upkeep goes on."""
        self._told = h.Holding()

    def step(self) -> None:
        """Hear the supervisor, waiting for it while there is nothing else to do; then do one piece of work."""
        self._receive()
        if self._filling is not None or self._waiting:
            self._fill_on()
        elif self._sets and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + next(self._upkeep)

    # --- messages ---------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Take every message that is there; wait for one while there is nothing else to do."""
        with contextlib.suppress(queue.Empty):
            self._handle(self._channel.inbox.get(timeout=self._pause_s()))
            while True:
                self._handle(self._channel.inbox.get_nowait())

    def _pause_s(self) -> float | None:
        if self._filling is not None or self._waiting:
            return 0.0
        return max(0.0, self._next_s - time.monotonic()) if self._sets else None

    def _handle(self, message: m.ToWorker | h.ToHolder) -> None:
        match message:
            case h.CheckEvery():
                self._interval_s = max(0.0, message.interval_s)
            case h.Fill():
                self._waiting.append(message)
            case h.Drop():
                self._drop(message.number)
                self._channel.send(h.Dropped(message.number))
            case _:
                pass

    def _drop(self, number: int) -> None:
        for fill in [fill for fill in self._waiting if fill.number == number]:
            self._waiting.remove(fill)
            self._channel.send(h.Filled(number, 0, "It was dropped before it was read."))
        if self._filling is not None and self._filling.number == number:
            self._end_fill("It was dropped while it was read.")
        if number in self._sets:
            self._forget(number)
            self._upkeep = self._rounds()  # the old rounds may be in the middle of this set
            self._report()

    # --- filling ----------------------------------------------------------------------------------------------------

    def _fill_on(self) -> None:
        """One step of the fill in hand, or the beginning of the next one."""
        if self._filling is None:
            fill = self._waiting.popleft()
            try:
                files = FileSet(fill.number, fill.paths, self._gauge)
            except (OSError, FileChanged) as error:
                self._channel.send(h.Filled(fill.number, 0, _said(error)))
                return
            self._filling = _Filling(files, files.fill(self._unlocked_bytes))
            return
        filling = self._filling
        try:
            done = next(filling.steps, None) is None
        except (OSError, FileChanged, CannotHold) as error:
            self._end_fill(_said(error))
            return
        if not done:
            if filling.is_due():
                files = filling.files
                self._channel.send(h.FillProgress(files.number, files.done_bytes / files.size_bytes))
            return
        self._filling = None
        self._sets[filling.number] = filling.files
        self._next_s = 0.0
        self._report()
        self._channel.send(h.Filled(filling.number, filling.files.held_bytes))

    def _end_fill(self, why: str) -> None:
        assert self._filling is not None
        filling, self._filling = self._filling, None
        filling.files.close()
        self._channel.send(h.Filled(filling.number, 0, why))

    def _unlocked_bytes(self) -> int:
        return sum(files.held_bytes - files.locked_bytes for files in self._sets.values())

    # --- upkeep -----------------------------------------------------------------------------------------------------

    def _rounds(self) -> Steps[None]:
        """Look at every set, again and again, and tend it."""
        while True:
            looking_s = 0.0
            for files in list(self._sets.values()):
                began_s = time.monotonic()
                try:
                    missing = yield from files.look()
                    looking_s += time.monotonic() - began_s
                    self._report()
                    yield from files.tend(missing, self._interval_s)
                except CannotHold as error:
                    self._forget(files.number)
                    self._channel.send(h.Lost(files.number, str(error)))
                self._report()
            yield max(self._interval_s, _LOOKING_PART * looking_s)

    def _forget(self, number: int) -> None:
        self._sets.pop(number).close()

    def _report(self) -> None:
        """Tell the supervisor what is held, if that is news."""
        held = tuple(
            h.HeldSet(files.number, files.size_bytes, files.held_bytes, files.locked_bytes)
            for files in self._sets.values()
        )
        refusal = next((files.refusal for files in self._sets.values() if files.refusal is not None), None)
        now = h.Holding(held, why_refused(refusal) if refusal is not None else None)
        if now != self._told:
            self._told = now
            self._channel.send(now)


class _Filling:
    """A fill in hand."""

    def __init__(self, files: FileSet, steps: Steps[None]) -> None:
        self.files = files
        self.number = files.number
        self.steps = steps
        self._reported_s = time.monotonic()

    def is_due(self) -> bool:
        """Whether progress is to be told again."""
        now_s = time.monotonic()
        if now_s - self._reported_s < _REPORTED_S:
            return False
        self._reported_s = now_s
        return True


def _said(error: Exception) -> str:
    if isinstance(error, OSError):
        name = error.filename
        what = shown(name) if isinstance(name, bytes) else str(name or "the file")
        return f"{what} cannot be read ({error.strerror})."
    return str(error)


def run(read_fd: int, write_fd: int) -> NoReturn:
    """Hold pages until the channel ends, and the process with it."""
    channel = HolderChannel(read_fd, write_fd, FrameDecoder(h.ToHolder))
    channel.send(m.Hello(m.PROTOCOL_VERSION, h.KIND, os.getpid()))
    _be_first_to_go()
    raise_limit()
    channel.start_reading()
    keeper = Keeper(channel)
    while True:
        keeper.step()


def _be_first_to_go() -> None:
    """All that is held here can be read again: when memory runs out, this process is to be killed before any other."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
