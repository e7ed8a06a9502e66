"""Says how quiet the machine was while something was measured; decides nothing about the figures themselves."""

import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

QUIET_CORES = 0.15
"""CPU that other processes may use, in cores, before a figure is marked as noisy."""


def machine() -> str:
    """The machine in one line."""
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")),
        platform.processor(),
    )
    memory = psutil.virtual_memory().total / 2**30
    system = platform.platform(terse=True)
    return f"{os.cpu_count()} cores of {cpu}, {memory:.0f} GiB, {system}, Python {platform.python_version()}"


def load_average() -> str:
    """The load averages of 1, 5 and 15 minutes."""
    return ", ".join(f"{load:.2f}" for load in os.getloadavg())


@dataclass
class OtherPrograms:
    """Measures the CPU that processes other than the given ones use between `start` and `cores`."""

    own: tuple[psutil.Process, ...] = ()
    _begun_s: float = 0.0
    _busy_s: float = 0.0
    _own_s: float = field(default=0.0)

    def start(self, own: Iterable[psutil.Process]) -> None:
        """Begin a span in which `own`, this process and their children are not counted as others."""
        self.own = (psutil.Process(), *own)
        self._begun_s, self._busy_s, self._own_s = time.monotonic(), _busy_s(), self._own_cpu_s()

    def cores(self) -> float:
        """Cores that the others used on average since `start`."""
        elapsed_s = max(time.monotonic() - self._begun_s, 1e-3)
        others_s = (_busy_s() - self._busy_s) - (self._own_cpu_s() - self._own_s)
        return max(0.0, others_s / elapsed_s)

    def _own_cpu_s(self) -> float:
        seen: dict[int, float] = {}
        for root in self.own:
            for process in (root, *root.children(recursive=True)):
                times = process.cpu_times()
                # Children that ended meanwhile count with whom they were children of.
                seen[process.pid] = times.user + times.system + times.children_user + times.children_system
        return sum(seen.values())


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
