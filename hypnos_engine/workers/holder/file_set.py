"""The files of one set: decides if they can be held as a whole, how gently they are kept warm, and when they are lost.

All work is cut into steps, so that whoever drives it can hear the supervisor between two of them. Never reads against
memory pressure.
"""

import collections
import time
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias, TypeVar

from hypnos_engine.workers.holder.files import CHUNK_BYTES, FileChanged, HeldFile
from hypnos_engine.workers.holder.shortage import MemoryGauge

WARM_EVERY_S = 300.0
"""Pages that are not locked are used once in so long, so that the system takes them for wanted."""
PAUSES = 9
"""Keeping warm rests so many times as long as it reads: it takes a tenth of the disk's bandwidth at most."""
MOST_MISSING_PART = 10
"""A set of which more than one part in so many is missing is lost; less is read again, gently."""
_ROOM_CHECK_CHUNKS = 16

T = TypeVar("T")
Steps: TypeAlias = Generator[float, None, T]
"""Work in steps; each one gives the seconds to rest after it."""
Range = tuple[HeldFile, int, int]
"""Part of a file: file, start, length."""


class CannotHold(Exception):
    """A sentence that says why a set is not held (any more)."""


class FileSet:
    """Files that are held together or not at all."""

    def __init__(self, number: int, paths: Sequence[bytes], gauge: MemoryGauge) -> None:
        """Raises OSError and FileChanged when one of them cannot be opened."""
        self.number = number
        self.held_bytes = 0
        """In memory, as of the last look."""
        self.done_bytes = 0
        """Read so far by `fill`."""
        self.refusal: int | None = None
        """Why not all of it is locked: the system's number for the reason."""
        self._gauge = gauge
        self._missing: collections.deque[Range] = collections.deque()
        """Was pushed out and is to be read again."""
        self._aging: collections.deque[Range] = collections.deque()
        """Is in memory without a lock and is to be used again."""
        self._used_s: float | None = None
        """When all that is not locked was last put on that list."""
        self._files: list[HeldFile] = []
        try:
            for path in paths:
                file = HeldFile(path)
                if any(known.identity == file.identity for known in self._files):
                    file.close()
                else:
                    self._files.append(file)
        except BaseException:
            self.close()
            raise
        self.size_bytes = sum(file.size_bytes for file in self._files)

    @property
    def locked_bytes(self) -> int:
        """Bytes that cannot leave memory."""
        return sum(file.locked_bytes for file in self._files)

    def fill(self, unlocked_bytes: Callable[[], int]) -> Steps[None]:
        """Read and lock everything.

        `unlocked_bytes` says how much other sets keep in memory without a lock: the system counts that as available.
        Raises CannotHold, FileChanged and OSError.
        """
        if not self.size_bytes:
            raise CannotHold("There is nothing to hold: the files are empty.")
        chunks = 0
        for file in self._files:
            for start in range(0, file.size_bytes, CHUNK_BYTES):
                if chunks % _ROOM_CHECK_CHUNKS == 0:
                    self._check_room(unlocked_bytes())
                chunks += 1
                file.read_at_full_speed(start)
                end = min(start + CHUNK_BYTES, file.size_bytes)
                self._lock(file, end)
                self.done_bytes += end - start
                yield 0.0
            file.end_of_reading()
        yield from self._bring_back()
        if self.held_bytes < self.size_bytes:
            raise CannotHold(
                f"Only {self.held_bytes} of {self.size_bytes} bytes stayed in memory: other programs need it. "
                "Close some, or hold fewer models."
            )

    def look(self) -> Steps[list[Range]]:
        """Look at every page and return the ranges that are missing. Raises CannotHold when a file is not as it was."""
        missing: list[Range] = []
        for file in self._files:
            try:
                file.check_unchanged()
                for found in file.missing():
                    if found is None:
                        yield 0.0
                        continue
                    start, length = found
                    if start < file.locked_bytes:
                        raise CannotHold("Locked pages have left memory: the file was cut short, or its disk is gone.")
                    missing.append((file, start, length))
            except FileChanged as error:
                raise CannotHold(str(error)) from error
            except OSError as error:
                raise CannotHold(f"The pages cannot be looked at: {error}.") from error
        self.held_bytes = self.size_bytes - sum(length for _, _, length in missing)
        return missing

    def tend(self, missing: list[Range], within_s: float) -> Steps[None]:
        """Lock what can be locked by now, bring back what is missing, and now and then use all that is not locked.

        The first use comes right after the fill: the second one of a page is what makes the system keep it. Leaves off
        after `within_s` and while memory is short; the next call goes on. Raises CannotHold when the set is lost.
        """
        if (self.size_bytes - self.held_bytes) * MOST_MISSING_PART > self.size_bytes:
            raise CannotHold(
                f"{self.size_bytes - self.held_bytes} of {self.size_bytes} bytes were pushed out of memory: other "
                "programs needed it."
            )
        if not missing:
            yield from self._lock_more()
        now_s = time.monotonic()
        self._missing = collections.deque(missing)
        if self._used_s is None or now_s - self._used_s >= WARM_EVERY_S:
            self._used_s = now_s
            self._aging = collections.deque(
                (file, file.locked_bytes, file.size_bytes - file.locked_bytes)
                for file in self._files
                if file.locked_bytes < file.size_bytes
            )
        for ranges in (self._missing, self._aging):
            for pause_s in self._warm(ranges):
                yield pause_s
                if time.monotonic() - now_s >= within_s:
                    return

    def close(self) -> None:
        """Let go of everything. Idempotent."""
        for file in self._files:
            file.close()

    def _lock(self, file: HeldFile, end: int) -> None:
        refused = file.lock_up_to(end)
        if refused is not None:
            self.refusal = refused.code

    def _lock_more(self) -> Steps[None]:
        self.refusal = None
        for file in self._files:
            while file.locked_bytes < file.size_bytes:
                self._lock(file, file.locked_bytes + CHUNK_BYTES)
                if self.refusal is not None:
                    return
                yield 0.0

    def _warm(self, ranges: collections.deque[Range]) -> Steps[None]:
        while ranges:
            memory = self._gauge()
            if memory.pressed or not memory.has_room(0):
                return
            file, start, length = ranges.popleft()
            if length > CHUNK_BYTES:
                ranges.appendleft((file, start + CHUNK_BYTES, length - CHUNK_BYTES))
            began_s = time.monotonic()
            try:
                file.read(start, min(CHUNK_BYTES, length))
            except FileChanged as error:
                raise CannotHold(str(error)) from error
            except OSError as error:
                raise CannotHold(f"The file cannot be read any more: {error}.") from error
            yield PAUSES * (time.monotonic() - began_s)

    def _check_room(self, others_bytes: int) -> None:
        wanted_bytes = self.size_bytes - self.done_bytes
        evictable_bytes = others_bytes + self.done_bytes - self.locked_bytes
        memory = self._gauge()
        if not memory.has_room(wanted_bytes + evictable_bytes):
            raise CannotHold(
                f"{wanted_bytes} bytes more do not fit into memory: {max(0, memory.available_bytes - evictable_bytes)} "
                f"are free, and {memory.reserve_bytes} of them are left to other programs. Close some, or hold fewer "
                "models."
            )

    def _bring_back(self) -> Steps[None]:
        """Look whether all is there; read once more what had to leave meanwhile."""
        missing = yield from self.look()
        for file, first, length in missing:
            for start in range(first, first + length, CHUNK_BYTES):
                file.read(start, min(CHUNK_BYTES, first + length - start))
                yield 0.0
        if missing:
            yield from self.look()
