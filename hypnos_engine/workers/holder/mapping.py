"""One file's pages as the operating system sees them: mapped, locked, asked about. Decides nothing.

No mapped byte is ever touched from here: a file that is cut short under a mapping would end the process. What has to be
read is read through the file.
"""

import ctypes
import mmap
import os
import sys

from hypnos_engine.workers.holder.locks import LockRefused

PAGE_BYTES = mmap.PAGESIZE

_ONLY_IN_MEMORY = bytes(value & 1 for value in range(256))
"""Keeps the bit that says that a page is in memory; the others differ from system to system."""


if sys.platform == "win32":
    from hypnos_engine.workers.holder.windows_mapping import FileMapping as FileMapping
else:
    _PROT_READ = 1
    _MAP_SHARED = 1
    _FAILED = ctypes.c_void_p(-1).value

    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_longlong,
    )
    for _name in ("munmap", "mlock", "munlock"):
        getattr(_libc, _name).argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    _libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)

    class FileMapping:
        """The first `size_bytes` of an open file, more than 0. Positions are multiples of PAGE_BYTES."""

        def __init__(self, descriptor: int, size_bytes: int) -> None:
            """Raises OSError when the file cannot be mapped. The mapping outlives the descriptor."""
            self._size_bytes = size_bytes
            address = _libc.mmap(None, size_bytes, _PROT_READ, _MAP_SHARED, descriptor, 0)
            if address is None or address == _FAILED:
                raise _error()
            self._address: int = address

        def lock(self, start: int, length: int) -> None:
            """Keep these pages in memory; those that are missing are read, at full speed. Raises LockRefused."""
            if _libc.mlock(self._address + start, length):
                code = ctypes.get_errno()
                # A lock that failed because a page could not be read counts against the limit all the same.
                _libc.munlock(self._address + start, length)
                raise LockRefused(code)

        def in_memory(self, start: int, length: int) -> bytes:
            """One byte for each page of the range: 1 when it is in memory. Raises OSError."""
            flags = ctypes.create_string_buffer(-(-length // PAGE_BYTES))
            if _libc.mincore(self._address + start, length, flags):
                raise _error()
            return flags.raw.translate(_ONLY_IN_MEMORY)

        def close(self) -> None:
            """Unlock and unmap. Called once."""
            _libc.munmap(self._address, self._size_bytes)

    def _error() -> OSError:
        code = ctypes.get_errno()
        return OSError(code, os.strerror(code))
