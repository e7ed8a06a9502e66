"""One weights file in the hands of the holder: read through the file, locked through a mapping, looked at again.

Decides whether the file is still the one that was opened. Never touches a mapped byte, so that a file which is cut
short, replaced or lost with its disk is an error here and not a signal.
"""

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator

from hypnos_engine.workers.holder.locks import LockRefused
from hypnos_engine.workers.holder.mapping import PAGE_BYTES, FileMapping

CHUNK_BYTES = 4 * 1024 * 1024
"""Read between two looks at what the supervisor says."""
AHEAD_BYTES = 4 * CHUNK_BYTES
"""The disk is asked so much ahead of what is being read: its queue never runs dry."""
LOOK_BYTES = 64 * 1024 * 1024
"""Of a mapping, asked about at once."""
_SCRATCH_BYTES = 1024 * 1024
_SAMPLED_PAGES = 16
"""Where the system does not tell this user which pages are in memory, one page of so many is tried."""

_SCRATCH = memoryview(bytearray(_SCRATCH_BYTES))
_PROBE = memoryview(bytearray(1))


class FileChanged(Exception):
    """The file is not the one that was opened any more; says how."""


def shown(path: bytes) -> str:
    """A path for a sentence."""
    return path.decode("utf-8", "replace")


class HeldFile:
    """An open file and its mapping. Not for several threads."""

    def __init__(self, path: bytes) -> None:
        """Raises OSError when the file cannot be opened or mapped, FileChanged when it is no file."""
        self.path = path
        self.locked_bytes = 0
        """Locked from the beginning on; whole pages, or the whole file."""
        # A pipe in the place of a file must not hold the holder up until somebody writes to it.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        self._file = open(path, "rb", buffering=0, opener=lambda name, _: os.open(name, flags))  # noqa: SIM115
        try:
            opened = os.fstat(self._file.fileno())
            if not stat.S_ISREG(opened.st_mode):
                raise FileChanged(f"{shown(path)} is no file.")
            self.size_bytes = opened.st_size
            self.identity = (opened.st_dev, opened.st_ino)
            self._mapping = FileMapping(self._file.fileno(), self.size_bytes) if self.size_bytes else None
            self._told = _is_told(path, opened)
        except BaseException:
            self._file.close()
            raise

    def check_unchanged(self) -> None:
        """Raises FileChanged when another file, or none, is in its place, and when its size is another."""
        try:
            now = os.stat(self.path)  # noqa: PTH116 - the path is bytes
        except OSError as error:
            raise FileChanged(f"{shown(self.path)} is gone ({error.strerror}).") from error
        if (now.st_dev, now.st_ino) != self.identity:
            raise FileChanged(f"{shown(self.path)} was replaced by another file.")
        if now.st_size != self.size_bytes:
            raise FileChanged(f"{shown(self.path)} had {self.size_bytes} bytes and has {now.st_size} now.")

    def read_at_full_speed(self, start: int) -> None:
        """Read the CHUNK_BYTES from `start` on, and ask the disk for what comes next. As `read` otherwise."""
        if sys.platform == "linux":
            ahead = start + AHEAD_BYTES if start else 0
            length = CHUNK_BYTES if start else AHEAD_BYTES + CHUNK_BYTES
            os.posix_fadvise(self._file.fileno(), ahead, length, os.POSIX_FADV_WILLNEED)
        self.read(start, min(CHUNK_BYTES, self.size_bytes - start))

    def read(self, start: int, length: int) -> None:
        """Bring these bytes into memory. Raises FileChanged when they are not there any more, and OSError."""
        self._file.seek(start)
        rest = length
        while rest > 0:
            count = self._file.readinto(_SCRATCH[: min(rest, _SCRATCH_BYTES)])
            if not count:
                raise FileChanged(f"{shown(self.path)} was cut short while it was read.")
            rest -= count

    def end_of_reading(self) -> None:
        """From here on only what is asked for is read: no more is fetched ahead."""
        if sys.platform == "linux":
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)

    def lock_up_to(self, end: int) -> LockRefused | None:
        """Lock what is not locked yet before `end`, as far as that is allowed; returns why the rest is not."""
        if self._mapping is None:
            return None
        step = end = min(end, self.size_bytes)
        refused: LockRefused | None = None
        while self.locked_bytes < end and step >= 1:
            step = min(step, end - self.locked_bytes)
            try:
                self._mapping.lock(self.locked_bytes, step)
                self.locked_bytes += step
            except LockRefused as error:
                refused = error
                step = step // 2 // PAGE_BYTES * PAGE_BYTES
        return refused if self.locked_bytes < end else None

    def missing(self) -> Iterator[tuple[int, int] | None]:
        """Every range (start, length) that is not in memory, in order; None between two parts of the work."""
        for start in range(0, self.size_bytes, LOOK_BYTES):
            flags = self._in_memory(start, min(LOOK_BYTES, self.size_bytes - start))
            first = flags.find(0)
            while first >= 0:
                end = flags.find(1, first)
                end = len(flags) if end < 0 else end
                begin = start + first * PAGE_BYTES
                yield begin, min(start + end * PAGE_BYTES, self.size_bytes) - begin
                first = flags.find(0, end)
            yield None

    def close(self) -> None:
        """Unlock, unmap, close. Idempotent."""
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None
        self._file.close()

    def _in_memory(self, start: int, length: int) -> bytes:
        assert self._mapping is not None
        if self._told:
            return self._mapping.in_memory(start, length)
        return b"".join(
            (b"\1" if position < self.locked_bytes or self._is_cached(position) else b"\0")
            * min(_SAMPLED_PAGES, -(-(start + length - position) // PAGE_BYTES))
            for position in range(start, start + length, _SAMPLED_PAGES * PAGE_BYTES)
        )

    def _is_cached(self, position: int) -> bool:
        """Whether a byte can be read without the disk; True where the file system cannot tell."""
        if sys.platform == "linux":
            try:
                return os.preadv(self._file.fileno(), [_PROBE], position, os.RWF_NOWAIT) == 1
            except OSError as error:
                return error.errno != errno.EAGAIN
        return True


def _is_told(path: bytes, opened: os.stat_result) -> bool:
    """Whether the system says which pages are in memory: Linux tells it only those who may write the file.

    To everybody else it says that all of them are.
    """
    if sys.platform != "linux" or opened.st_uid == os.geteuid():
        return True
    with contextlib.suppress(OSError):
        return os.access(path, os.W_OK, effective_ids=True)
    return False
