"""How much of a Mac's memory Metal may have; asks `sysctl`, opens no Metal device."""

import subprocess
import sys
from collections.abc import Callable

WIRED_LIMIT = "iogpu.wired_limit_mb"
ANSWER_S = 5.0
"""How long `sysctl` may take."""
_MIB = 1024**2
_GIB = 1024**3
_LARGE_BYTES = 36 * _GIB
"""From this size on Metal takes three quarters of a Mac's memory, below it two thirds."""

Sysctl = Callable[[str], str]
"""Takes the name of a kernel setting, returns its value as text; empty when there is none."""


def sysctl(name: str) -> str:
    """A kernel setting's value; empty where it cannot be had. Blocks for the time of a short command."""
    if sys.platform != "darwin":
        return ""
    try:
        asked = subprocess.run(
            ["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""


def working_set_bytes(reported_bytes: int, host_bytes: int, ask: Sysctl = sysctl) -> int:
    """What Metal recommends to use at most of `host_bytes`.

    1. What the owner has set (`sudo sysctl iogpu.wired_limit_mb=...`), which Metal goes by from its next start on.
    2. What the Metal device has reported.
    3. Metal's rule, where it has reported nothing.
    """
    limit = ask(WIRED_LIMIT)
    if limit.isdecimal() and int(limit) > 0:
        return min(int(limit) * _MIB, host_bytes)
    return reported_bytes or default_working_set_bytes(host_bytes)


def default_working_set_bytes(host_bytes: int) -> int:
    """What Metal recommends on a Mac with so much memory that nobody has set up otherwise."""
    return host_bytes * 3 // 4 if host_bytes >= _LARGE_BYTES else host_bytes * 2 // 3
