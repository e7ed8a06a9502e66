"""What a worker wrote to stderr before it died, and what that says about its death. Reads text; ends nothing."""

import collections
import re
import signal
import sys
import threading
from collections.abc import Sequence

from hypnos_engine.domain.errors import DeviceOutOfMemory, HypnosError, WorkerDied

KEPT_BYTES = 64 * 1024
_LINE_BYTES = 4 * 1024
_TELLING = re.compile(
    r"assert|error|exception|fail|abort|fatal|terminate called|what\(\)|out of memory|cannot|can't|unable|no module"
    r"|killed",
    re.IGNORECASE,
)
_ALLOCATION_FAILED = re.compile(
    r"out of (device )?memory|failed to allocate|unable to allocate|cudaMalloc|OutOfDeviceMemory"
    r"|cudaErrorMemoryAllocation|insufficient memory",
    re.IGNORECASE,
)
_HOST_ALLOCATION_FAILED = re.compile(
    r"std::bad_alloc|MemoryError|Cannot allocate memory|cpu_buffer_type_alloc_buffer: failed to allocate"
    r"|failed to allocate CPU|insufficient memory \(attempted|ctx->mem_buffer != NULL|mmap failed"
    r"|memory allocation of \d+ bytes failed"
    r"|can't start new thread",
)
"""In the words of C++, Python, the C library, ggml and Rust."""
_HARMLESS = re.compile(r"pinned memory", re.IGNORECASE)
"""ggml says so, then goes on with ordinary memory."""
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_SOURCE_FOLDERS = re.compile(r"[^\s:]*/(?=[\w.-]+\.(c|cc|cpp|cu|cuh|h|hpp|m|mm|rs|py):\d+)")
"""Where a library was built says nothing to whoever runs it."""
_SHOWN_LINES = 3
_SHOWN_CHARACTERS = 400
_RECENT_LINES = 30


class StderrTail:
    """The last KEPT_BYTES that a process wrote, as lines. Filled by one thread, read by any."""

    def __init__(self) -> None:
        self._lines: collections.deque[bytes] = collections.deque()
        self._kept_bytes = 0
        self._partial = b""
        self._lock = threading.Lock()

    def feed(self, chunk: bytes) -> list[str]:
        """Add what was read; return the lines that it completed. Endless lines are cut into pieces."""
        pieces = (self._partial + chunk).split(b"\n")
        self._partial = pieces.pop()
        while len(self._partial) > _LINE_BYTES:
            pieces.append(self._partial[:_LINE_BYTES])
            self._partial = self._partial[_LINE_BYTES:]
        with self._lock:
            for piece in pieces:
                line = piece[:_LINE_BYTES]
                self._lines.append(line)
                self._kept_bytes += len(line) + 1
            while self._kept_bytes > KEPT_BYTES:
                self._kept_bytes -= len(self._lines.popleft()) + 1
        return [_readable(piece) for piece in pieces]

    def lines(self) -> list[str]:
        """Every kept line that is not empty, oldest first, the unfinished last one included."""
        with self._lock:
            kept = [*self._lines, self._partial]
        return [line for line in map(_readable, kept) if line]


def telling_lines(lines: Sequence[str]) -> str:
    """The few lines that most likely say what went wrong, as one short text; empty when there are none."""
    recent = lines[-_RECENT_LINES:]
    chosen = [line for line in recent if _TELLING.search(line)] or recent
    return " | ".join(_SOURCE_FOLDERS.sub("", line) for line in chosen[-_SHOWN_LINES:])[:_SHOWN_CHARACTERS]


def describe_exit(status: int) -> str:
    """How a process ended, from its return code: negative = POSIX signal, large = Windows NTSTATUS."""
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"number {-status}"
        return f"was ended by signal {name}"
    if status >= 0x80000000:
        return f"crashed with code 0x{status:08X}"
    return f"ended with status {status}"


def cause_of_death(model: str, status: int, lines: Sequence[str], *, memory_ran_out: bool = False) -> HypnosError:
    """The error of a worker that ended by itself: WorkerDied, or DeviceOutOfMemory if its last words say so.

    `memory_ran_out` tells that the system killed processes for want of memory while the worker lived.
    """
    words = telling_lines(lines)
    said = f": {words}" if words else "."
    if sys.platform != "win32" and status == -signal.SIGKILL:
        return WorkerDied(
            f"The worker of '{model}' was killed (signal SIGKILL), {_why_killed(memory_ran_out=memory_ran_out)}{said}"
        )
    if sys.platform != "win32" and status == -signal.SIGBUS:
        return WorkerDied(
            f"The worker of '{model}' {describe_exit(status)}: a file that it had mapped, most likely the model's own, "
            f"was cut short or replaced, or its disk cannot be read any more. Look at the file, then try again{said}"
        )
    if status != 0 and _allocation_failed(lines, _HOST_ALLOCATION_FAILED):
        return WorkerDied(
            f"The worker of '{model}' ran out of memory and {describe_exit(status)}. Give the model a smaller "
            f"context_len, or free memory{said}"
        )
    if status != 0 and _allocation_failed(lines, _ALLOCATION_FAILED):
        return DeviceOutOfMemory(f"The worker of '{model}' ran out of device memory: {words}")
    return WorkerDied(f"The worker of '{model}' {describe_exit(status)}{said}")


def _why_killed(*, memory_ran_out: bool) -> str:
    if memory_ran_out:
        return "and the system ran out of memory at that time: give its model a smaller context_len, or free memory"
    return "perhaps because the system ran out of memory"


def _allocation_failed(lines: Sequence[str], words: re.Pattern[str]) -> bool:
    return any(words.search(line) and not _HARMLESS.search(line) for line in lines[-_RECENT_LINES:])


def _readable(line: bytes) -> str:
    return _UNPRINTABLE.sub(" ", line.decode("utf-8", "replace")).strip()
