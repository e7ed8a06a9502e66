"""Measures the anonymous memory of this process as the operating system counts it; never counts file pages."""

import ctypes
import os
import sys
from pathlib import Path


def anonymous_bytes() -> int:
    """Private and shared anonymous memory in bytes; 0 where the system does not say."""
    try:
        if sys.platform == "linux":
            return _linux()
        if sys.platform == "darwin":
            return _macos()
        if sys.platform == "win32":
            return _windows()
    except (OSError, ValueError, AttributeError):
        pass
    return 0


def _linux() -> int:
    kilobytes = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(("RssAnon:", "RssShmem:")):
            kilobytes += int(line.split()[1])
    return kilobytes * 1024


def _macos() -> int:
    flavor, words, footprint = 0, 64, 9  # rusage_info_v0: uuid in words 0-1, ri_phys_footprint is the tenth word
    usage = (ctypes.c_uint64 * words)()
    if ctypes.CDLL("/usr/lib/libproc.dylib").proc_pid_rusage(os.getpid(), flavor, ctypes.byref(usage)):
        return 0
    return int(usage[footprint])


def _windows() -> int:
    class Counters(ctypes.Structure):
        _fields_ = (
            ("cb", ctypes.c_uint32),
            ("page_faults", ctypes.c_uint32),
            *(
                (name, ctypes.c_size_t)
                for name in ("peak_set", "set", "q1", "q2", "q3", "q4", "pages", "peak_pages", "private")
            ),
        )

    counters = Counters(cb=ctypes.sizeof(Counters))
    kernel = ctypes.CDLL("kernel32")
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    kernel.K32GetProcessMemoryInfo.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32]
    if not kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), ctypes.byref(counters), ctypes.sizeof(counters)):
        return 0
    return int(counters.private)
