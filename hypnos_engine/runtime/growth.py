"""Measures how much anonymous memory the process of an engine has; decides nothing."""

import sys
from pathlib import Path
from typing import Protocol, runtime_checkable

import psutil

from hypnos_engine.engines.base import Engine


@runtime_checkable
class HasProcess(Protocol):
    """The ability to name the one process that an engine runs in."""

    @property
    def pid(self) -> int | None:
        """None before its start and after its end."""
        ...


def private_bytes_of(engine: Engine) -> int:
    """Private and shared anonymous memory of an engine's process; 0 where it has none or the system does not say."""
    pid = engine.pid if isinstance(engine, HasProcess) else None
    if pid is None:
        return 0
    try:
        if sys.platform == "linux":
            return _linux_bytes(pid)
        if sys.platform == "win32":
            return int(psutil.Process(pid).memory_info().private)
        return int(psutil.Process(pid).memory_full_info().uss)
    except (OSError, ValueError, psutil.Error):
        return 0


def _linux_bytes(pid: int) -> int:
    kilobytes = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(("RssAnon:", "RssShmem:")):
            kilobytes += int(line.split()[1])
    return kilobytes * 1024
