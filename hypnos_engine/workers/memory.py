"""Measures the anonymous memory of a process as the operating system counts it; never counts file pages."""

import ctypes
import os
import sys
from pathlib import Path


def anonymous_bytes(pid: int | None = None) -> int:
    """Private and shared anonymous memory in bytes, of this process or a child; 0 where the system does not say."""
    try:
        if sys.platform == "linux":
            return _linux(pid)
        if sys.platform == "darwin":
            return _macos(pid)
        if sys.platform == "win32":
            return _windows(pid)
    except (OSError, ValueError, AttributeError):
        pass
    return 0


def _linux(pid: int | None) -> int:
    kilobytes = 0
    for line in Path(f"/proc/{pid or 'self'}/status").read_text().splitlines():
        if line.startswith(("RssAnon:", "RssShmem:")):
            kilobytes += int(line.split()[1])
    return kilobytes * 1024


def _macos(pid: int | None) -> int:
    flavor, words, footprint = 0, 64, 9  # rusage_info_v0: uuid in words 0-1, ri_phys_footprint is the tenth word
    usage = (ctypes.c_uint64 * words)()
    if ctypes.CDLL("/usr/lib/libproc.dylib").proc_pid_rusage(pid or os.getpid(), flavor, ctypes.byref(usage)):
        return 0
    return int(usage[footprint])


def _windows(pid: int | None) -> int:
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
    kernel.OpenProcess.restype = ctypes.c_void_p
    kernel.CloseHandle.argtypes = [ctypes.c_void_p]
    kernel.K32GetProcessMemoryInfo.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32]
    query_limited_information = 0x1000
    process = kernel.OpenProcess(query_limited_information, False, pid or os.getpid())
    if not process:
        return 0
    found = kernel.K32GetProcessMemoryInfo(process, ctypes.byref(counters), ctypes.sizeof(counters))
    kernel.CloseHandle(process)
    return int(counters.private) if found else 0
