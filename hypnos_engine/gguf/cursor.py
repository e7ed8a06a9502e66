"""Moves through a file that may lie about itself; never reads past its end and never holds more than one window of it.

Plain reads instead of a memory map: a map whose file is cut short by another program ends the process that looks at it.
"""

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hypnos_engine.domain.errors import LoadFailed

WINDOW_BYTES = 1 << 20
MAX_READ_BYTES = 128 << 20
"""Bytes read of one header; the largest vocabularies take a quarter of it."""
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

DOWNLOAD_AGAIN = "Download it again."


def display_name(path: Path) -> str:
    """Return the file's name for a message, whatever bytes it is made of."""
    return os.fsencode(path.name).decode("utf-8", "replace") or str(path)


class Cursor:
    """A position in an open file. Every method that runs out of bytes raises LoadFailed, whatever the file claims."""

    def __init__(self, file: BinaryIO, name: str, file_bytes: int) -> None:
        self.name = name
        self.file_bytes = file_bytes
        self._file = file
        self._window = b""
        self._window_start = 0
        self._at = 0
        self._read_bytes = 0

    @property
    def position(self) -> int:
        """Bytes from the start of the file."""
        return self._window_start + self._at

    @property
    def remaining_bytes(self) -> int:
        return self.file_bytes - self.position

    def refuse(self, problem: str, remedy: str = DOWNLOAD_AGAIN) -> LoadFailed:
        """Return the error that names this file, what is wrong with it and what to do."""
        return LoadFailed(f"{self.name}: {problem} {remedy}")

    def cut_short(self) -> LoadFailed:
        return self.refuse(f"the file ends inside its header, after {self.file_bytes:,} bytes.")

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes; the caller has bounded `size`."""
        if len(self._window) - self._at < size:
            self._refill(size)
        start = self._at
        self._at = start + size
        return self._window[start : self._at]

    def u32(self) -> int:
        value: int = _U32.unpack(self.take(4))[0]
        return value

    def u64(self) -> int:
        value: int = _U64.unpack(self.take(8))[0]
        return value

    def skip(self, size: int) -> None:
        """Step over `size` bytes without reading them."""
        if size > self.remaining_bytes:
            raise self.cut_short()
        self._at += size

    def skip_strings(self, count: int) -> None:
        """Step over `count` strings, each a 64-bit length and that many bytes, at about 0.1 µs each."""
        read_length = _U64.unpack_from
        while count:
            window, at = self._window, self._at
            done = 0
            try:
                for done in range(count):  # noqa: B007 - how many were complete is what the error path needs
                    at += 8 + read_length(window, at)[0]
                self._at = at
                count = 0
            except (struct.error, OverflowError):
                self._at = at
                count -= done
            if self.position > self.file_bytes:
                raise self.cut_short()
            if count:
                self._refill(8)

    def _refill(self, size: int) -> None:
        start = self.position
        if size > self.file_bytes - start:
            raise self.cut_short()
        self._read_bytes += max(size, WINDOW_BYTES)
        if self._read_bytes > MAX_READ_BYTES:
            raise self.refuse("its header is larger than that of any model.")
        self._file.seek(start)
        self._window = self._file.read(max(size, WINDOW_BYTES))
        self._window_start, self._at = start, 0
        if len(self._window) < size:
            raise self.refuse("the file became shorter while it was read.")


@contextmanager
def open_cursor(path: Path) -> Iterator[Cursor]:
    """Open `path` at its start. Raises LoadFailed for whatever is not a readable, non-empty regular file."""
    name = display_name(path)
    try:
        with _open(path, name) as file:
            yield Cursor(file, name, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise _unreadable(name, error.strerror or str(error)) from error


def _open(path: Path, name: str) -> BinaryIO:
    try:
        # Asked before opening: a pipe without a writer would hold the open call for ever.
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise LoadFailed(f"{name}: this is a folder. Give the path of the .gguf file inside it.")
        if not stat.S_ISREG(status.st_mode):
            raise LoadFailed(f"{name}: this is not a regular file. Give the path of a .gguf file.")
        if status.st_size == 0:
            raise LoadFailed(f"{name}: the file is empty. {DOWNLOAD_AGAIN}")
        return path.open("rb", buffering=0)
    except FileNotFoundError:
        raise LoadFailed(f"{name}: there is no such file. Check weights_path or download the model.") from None
    except ValueError as error:
        raise _unreadable(name, str(error)) from error


def _unreadable(name: str, reason: str) -> LoadFailed:
    return LoadFailed(f"{name}: the file cannot be read: {reason}. Check its path and its permissions.")
