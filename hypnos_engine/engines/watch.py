"""Decides when a worker that has work in hand counts as hung: it is silent for longer than its own steps explain.

Ends nothing and reads no message. Time during which this very process did not run (a suspended machine, a loop held
up) never counts against a worker. A worker that reads from a disk or computes in its silence is slow, not hung, and is
given longer.
"""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

_LONGEST_TICK_S = 1.0
_REMEMBERED_TICKS = 60
"""The slowest step of the last one to two times so many ticks sets the bound."""
_BUSY_SHARE = 0.05
"""Of one core: a process that uses less is waiting for something."""
_BUSY_PAGE_INS = 10


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a worker with work in hand may say nothing, in seconds of a machine that is awake."""

    least_s: float = 20.0
    slowest_steps: float = 20.0
    """As many times its slowest recent step, where that is more."""
    busy_times: float = 9.0
    """So many times that for a worker that computes or reads meanwhile."""

    def bound_s(self, slowest_s: float) -> float:
        """Silence after which an idle process is given up."""
        return max(self.least_s, self.slowest_steps * slowest_s)


HungSink = Callable[[float, str], None]
"""Called on the loop, once, with the seconds of silence and the state of the process."""


class Watch:
    """Looks at one worker while it has work. `heard` is cheap: it is called with every message."""

    def __init__(self, pid: int, patience: Patience, has_work: Callable[[], bool], on_hung: HungSink) -> None:
        self._loop = asyncio.get_running_loop()
        self._pid = pid
        self._patience = patience
        self._has_work = has_work
        self._on_hung = on_hung
        self._tick_s = min(_LONGEST_TICK_S, patience.least_s / 10)
        self._timer: asyncio.TimerHandle | None = None
        self._ticked_s = 0.0
        self._silent_s = 0.0
        """Since the last sign of progress, as of the last tick."""
        self._slowest_s = [0.0, 0.0]
        """In the present span of ticks, and in the one before it."""
        self._ticks = 0
        self._looked_at_s = 0.0
        """Silence at the last look at the process."""
        self._seen: _Signs | None = None
        self._closed = False

    def start(self) -> None:
        """There is work; does nothing when that was known."""
        if self._timer is None and not self._closed:
            self._silent_s = self._looked_at_s = 0.0
            self._ticked_s = self._loop.time()
            self._timer = self._loop.call_later(self._tick_s, self._tick)

    def heard(self) -> None:
        """The worker has made progress."""
        if self._timer is not None:
            silent_s = self._silent_s + self._awake_s()
            if silent_s > self._slowest_s[0]:
                self._slowest_s[0] = silent_s
            self._silent_s = self._looked_at_s = 0.0
            self._ticked_s = self._loop.time()

    def close(self) -> None:
        """Look no more. Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _awake_s(self) -> float:
        """Time since the last tick. Much more than a tick means that this process did not run either."""
        return min(self._loop.time() - self._ticked_s, 2 * self._tick_s)

    def _tick(self) -> None:
        self._timer = None
        if self._closed or not self._has_work():
            return
        self._silent_s += self._awake_s()
        self._ticked_s = self._loop.time()
        self._ticks += 1
        if self._ticks % _REMEMBERED_TICKS == 0:
            self._slowest_s = [0.0, self._slowest_s[0]]
        self._timer = self._loop.call_later(self._tick_s, self._tick)
        bound_s = self._patience.bound_s(max(self._slowest_s))
        if self._silent_s - self._looked_at_s >= bound_s / 2:
            self._judge(bound_s)

    def _judge(self, bound_s: float) -> None:
        """Look at the process twice in each bound: the second look tells whether it did anything since the first."""
        seen, span_s = self._seen, self._silent_s - self._looked_at_s
        first = self._looked_at_s == 0.0
        self._looked_at_s, self._seen = self._silent_s, _signs_of(self._pid)
        if first or self._silent_s < bound_s:
            return
        busy = seen is not None and self._seen is not None and self._seen.busy_since(seen, span_s)
        if not busy or self._silent_s >= self._patience.busy_times * bound_s:
            self.close()
            self._on_hung(self._silent_s, self._seen.state if self._seen else "not to be seen")


@dataclass(frozen=True, slots=True)
class _Signs:
    """What the operating system says about a process."""

    cpu_s: float
    page_ins: int
    """Pages that it had to wait for."""
    state: str

    def busy_since(self, before: "_Signs", seconds: float) -> bool:
        return self.cpu_s - before.cpu_s >= _BUSY_SHARE * seconds or self.page_ins - before.page_ins >= _BUSY_PAGE_INS


def _signs_of(pid: int) -> _Signs | None:
    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        return _Signs(times.user + times.system, _page_ins(process), process.status())
    except (psutil.Error, OSError):
        return None


def _page_ins(process: psutil.Process) -> int:
    if sys.platform == "linux":
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[9])
    memory = process.memory_info()
    return int(getattr(memory, "pageins", getattr(memory, "num_page_faults", 0)))
