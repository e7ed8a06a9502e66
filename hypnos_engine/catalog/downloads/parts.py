"""A file that is on its way: its bytes, and a journal with the digest of every block.

Decides from where a transfer goes on. Never trusts bytes that the journal does not vouch for.
"""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

import msgspec

from hypnos_engine.catalog.downloads.orders import BLOCK_BYTES

NOTE_BYTES: Final = 4 * 1024 * 1024
NOTE_S: Final = 2.0
"""After so many bytes or seconds the end of an unfinished block is noted: a kill costs no more than that."""
_READ_BYTES: Final = 1024 * 1024


class _Head(msgspec.Struct, frozen=True):
    """What the bytes are of; a part of something else is thrown away."""

    source: str
    size_bytes: int | None
    block_bytes: int


class _Block(msgspec.Struct, frozen=True, tag="block"):
    index: int
    sha256: str


class _Note(msgspec.Struct, frozen=True, tag="note"):
    """Where an unfinished block ended, and the digest of what there is of it."""

    offset: int
    sha256: str


_Line = _Block | _Note


class Part:
    """One file that grows from its beginning. Make it with `open`, end it with `close`.

    Used by one thread; `note` may be called from another one.
    """

    def __init__(self, path: Path, journal: Path, head: _Head) -> None:
        self._path, self._journal_path, self._head = path, journal, head
        self._block_bytes = head.block_bytes
        self._blocks: list[str] = []
        self._lock = threading.RLock()
        self._hasher = hashlib.sha256()
        self._noted, self._noted_at = 0, time.monotonic()
        self.offset = 0
        """Bytes that are there."""
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        self._file = os.open(path, flags, 0o644)
        self._journal = -1
        try:
            kept = self._read_journal()
            self._journal = os.open(journal, flags | os.O_APPEND, 0o644)
            self._resume(kept)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls, path: Path, journal: Path, source: str, size_bytes: int | None, *, block_bytes: int = BLOCK_BYTES
    ) -> Self:
        """Go on with a part, or begin one; `source` names exactly what the bytes are of. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls(path, journal, _Head(source, size_bytes, block_bytes))

    @property
    def blocks(self) -> tuple[str, ...]:
        """SHA-256 of each finished block, the last and shorter one included once the part is complete."""
        return tuple(self._blocks)

    def close(self) -> None:
        with self._lock:
            for descriptor in (self._file, self._journal):
                if descriptor >= 0:
                    os.close(descriptor)
            self._file = self._journal = -1

    def write(self, content: bytes) -> None:
        """Append. Raises OSError, also when the disk is full."""
        view = memoryview(content)
        while view:
            piece = view[: self._block_bytes - self.offset % self._block_bytes]
            self._write_at(self.offset, piece)
            with self._lock:
                self._hasher.update(piece)
                self.offset += len(piece)
                if self.offset % self._block_bytes == 0:
                    self._end_block()
            view = view[len(piece) :]
        if self.offset - self._noted >= NOTE_BYTES or time.monotonic() - self._noted_at >= NOTE_S:
            self.note()

    def note(self) -> None:
        """Note where the unfinished block ends, so that the transfer can go on exactly there."""
        with self._lock:
            if self._journal >= 0 and self.offset % self._block_bytes and self.offset != self._noted:
                self._append(_Note(self.offset, self._hasher.hexdigest()))
            self._noted, self._noted_at = self.offset, time.monotonic()

    def finish(self) -> None:
        """All bytes are there: the last block counts as one, and everything is on the disk."""
        if self.offset > len(self._blocks) * self._block_bytes:
            self._end_block()

    def reset(self) -> None:
        """Throw everything away."""
        with self._lock:
            os.ftruncate(self._file, 0)
            os.ftruncate(self._journal, 0)
            self._append(self._head)
            self._blocks.clear()
            self._hasher = hashlib.sha256()
            self.offset = self._noted = 0

    def replace_block(self, index: int, content: bytes) -> bool:
        """Write a block again; returns whether it differs from what the journal says of it."""
        digest = hashlib.sha256(content).hexdigest()
        self._write_at(index * self._block_bytes, memoryview(content))
        os.fsync(self._file)
        if digest == self._blocks[index]:
            return False
        self._blocks[index] = digest
        self._append(_Block(index, digest))
        return True

    def block_span(self, index: int) -> tuple[int, int]:
        """First byte of a block, and the one behind its last."""
        start = index * self._block_bytes
        return start, min(start + self._block_bytes, self.offset)

    def damaged_blocks(self, on_read: Callable[[int], None]) -> list[int]:
        """Blocks that are not on the disk as they were written."""
        return [
            index
            for index, digest in enumerate(self._blocks)
            if hash_file(self._path, hashlib.sha256(), *self.block_span(index), on_read=on_read) != digest
        ]

    def _end_block(self) -> None:
        os.fsync(self._file)  # the digest must not be there before the bytes are
        self._blocks.append(self._hasher.hexdigest())
        self._append(_Block(len(self._blocks) - 1, self._blocks[-1]))
        self._hasher = hashlib.sha256()
        self._noted, self._noted_at = self.offset, time.monotonic()

    def _append(self, line: "_Line | _Head") -> None:
        os.write(self._journal, msgspec.json.encode(line) + b"\n")

    def _write_at(self, start: int, view: memoryview) -> None:
        os.lseek(self._file, start, os.SEEK_SET)
        while view:
            view = view[os.write(self._file, view) :]

    # --- going on ---------------------------------------------------------------------------------------------------

    def _read_journal(self) -> list[_Line] | None:
        """The lines that are whole; None when the journal is of something else, or there is none."""
        try:
            lines = self._journal_path.read_bytes().split(b"\n")[:-1]
            if not lines or msgspec.json.decode(lines[0], type=_Head) != self._head:
                return None
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return list(_whole_lines(lines[1:]))

    def _resume(self, kept: list[_Line] | None) -> None:
        if kept is None:
            self.reset()
            return
        blocks: dict[int, str] = {}
        note: _Note | None = None
        for line in kept:
            if isinstance(line, _Block):
                blocks[line.index] = line.sha256
            else:
                note = line
        present = os.fstat(self._file).st_size
        size, block = self._head.size_bytes, self._block_bytes
        while (index := len(self._blocks)) in blocks:
            end = (index + 1) * block
            if end > present and not (size is not None and present == size and index * block < size):
                break
            self._blocks.append(blocks[index])
        self.offset = min(len(self._blocks) * block, present)
        if note is not None and self.offset < note.offset <= min(present, self.offset + block):
            self._take_up(note)
        os.ftruncate(self._file, self.offset)
        self._noted = self.offset
        # A last line that was cut would spoil the next one.
        self._rewrite_journal(note if self.offset % block else None)

    def _take_up(self, note: _Note) -> None:
        hasher = hashlib.sha256()
        if hash_file(self._path, hasher, self.offset, note.offset, on_read=lambda _: None) == note.sha256:
            self._hasher, self.offset = hasher, note.offset

    def _rewrite_journal(self, note: _Note | None) -> None:
        os.ftruncate(self._journal, 0)
        self._append(self._head)
        for index, digest in enumerate(self._blocks):
            self._append(_Block(index, digest))
        if note is not None and note.offset == self.offset:
            self._append(note)


def _whole_lines(lines: list[bytes]) -> Iterator[_Line]:
    for line in lines:
        try:
            yield msgspec.json.decode(line, type=_Line)
        except msgspec.MsgspecError:
            return  # what stands behind a broken line is worth nothing


def hash_file(path: Path, hasher: "hashlib._Hash", start: int, end: int, *, on_read: Callable[[int], None]) -> str:
    """Feed a span of a file to `hasher` and return the digest; `on_read` is told of each read's bytes. May be short."""
    with path.open("rb") as file:
        file.seek(start)
        left = end - start
        while left > 0 and (piece := file.read(min(left, _READ_BYTES))):
            hasher.update(piece)
            left -= len(piece)
            on_read(len(piece))
    return hasher.hexdigest()
