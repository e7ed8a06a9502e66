"""Decides whether the machine is short of memory, from what the operating system says; changes nothing."""

import contextlib
import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

LEAST_RESERVE_BYTES = 256 * 1024 * 1024
RESERVED_PART = 50
"""One part in so many of the machine's memory is left to others in any case."""
MOST_STALLED_PERCENT = 5.0
"""Of the last ten seconds, in which something waited for memory; more than this is pressure."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What is known of the machine's memory now. `available_bytes` counts what can be taken without pushing out."""

    total_bytes: int
    available_bytes: int
    pressed: bool
    """The system says that programs wait for memory, or warns of it."""

    @property
    def reserve_bytes(self) -> int:
        """What has to stay available to others."""
        return max(LEAST_RESERVE_BYTES, self.total_bytes // RESERVED_PART)

    def has_room(self, wanted_bytes: int) -> bool:
        """Whether so much more can be taken."""
        return self.available_bytes - wanted_bytes >= self.reserve_bytes


class MemoryGauge(Protocol):
    """Says how the machine's memory is; called often, so it has to be cheap."""

    def __call__(self) -> Memory: ...


UNKNOWN = Memory(0, 1 << 62, pressed=False)
"""Where the system does not say: nothing is refused for it."""

if sys.platform == "linux":
    _MEMORY = Path("/proc/meminfo")
    _CGROUPS = Path("/sys/fs/cgroup")

    def measure() -> Memory:
        """Implements MemoryGauge."""
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            lines = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
            total, available = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
            pressed = any(_stalled_percent(path) > MOST_STALLED_PERCENT for path in _PRESSURE)
            return Memory(total, available, pressed)
        return UNKNOWN

    def _stalled_percent(path: Path) -> float:
        """`some avg10` of a pressure file; 0 where there is none."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            return float(path.read_text().split("avg10=", 1)[1].split()[0])
        return 0.0

    def _pressure_files() -> tuple[Path, ...]:
        """Of the machine, and of the control group of this process."""
        files = [Path("/proc/pressure/memory")]
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/cgroup").read_text().splitlines():
                if line.startswith("0::/"):
                    files.append(_CGROUPS / line[4:] / "memory.pressure")
        return tuple(files)

    _PRESSURE = _pressure_files()

elif sys.platform == "darwin":
    _libc = ctypes.CDLL(None, use_errno=True)
    _NORMAL_LEVEL = 1

    def measure() -> Memory:
        """Implements MemoryGauge."""
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        free_percent = _number(b"kern.memorystatus_level")
        level = _number(b"kern.memorystatus_vm_pressure_level")
        available = UNKNOWN.available_bytes if free_percent is None else total * free_percent // 100
        return Memory(total, available, pressed=level is not None and level > _NORMAL_LEVEL)

    def _number(name: bytes) -> int | None:
        value, size = ctypes.c_int(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
        if _libc.sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)):
            return None
        return value.value

elif sys.platform == "win32":

    class _Status(ctypes.Structure):
        _fields_ = (
            ("length", ctypes.c_uint32),
            ("load_percent", ctypes.c_uint32),
            *(
                (name, ctypes.c_uint64)
                for name in ("total", "available", "page_file", "page_file_free", "virtual", "virtual_free", "extended")
            ),
        )

    _PRESSED_PERCENT = 95

    def measure() -> Memory:
        """Implements MemoryGauge."""
        status = _Status(length=ctypes.sizeof(_Status))
        if not ctypes.WinDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(status)):
            return UNKNOWN
        return Memory(status.total, status.available, pressed=status.load_percent >= _PRESSED_PERCENT)
