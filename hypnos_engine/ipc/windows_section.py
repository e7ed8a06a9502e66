"""Windows only: unnamed sections of shared memory, mapped, and duplicated into a worker's process.

Not run by this project's tests yet, which have no Windows machine; written from the documented interfaces. Imported on
Windows alone, by `blocks`.
"""

import sys

if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    _PAGE_READWRITE = 0x04
    _FILE_MAP_WRITE = 0x0002
    _PROCESS_DUP_HANDLE = 0x0040
    _DUPLICATE_SAME_ACCESS = 0x0002

    _kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    _HANDLE, _DWORD, _BOOL = wintypes.HANDLE, wintypes.DWORD, wintypes.BOOL
    _kernel32.CreateFileMappingW.argtypes = (_HANDLE, ctypes.c_void_p, _DWORD, _DWORD, _DWORD, wintypes.LPCWSTR)
    _kernel32.CreateFileMappingW.restype = _HANDLE
    _kernel32.MapViewOfFile.argtypes = (_HANDLE, _DWORD, _DWORD, _DWORD, ctypes.c_size_t)
    _kernel32.MapViewOfFile.restype = ctypes.c_void_p
    _kernel32.UnmapViewOfFile.argtypes = (ctypes.c_void_p,)
    _kernel32.UnmapViewOfFile.restype = _BOOL
    _kernel32.CloseHandle.argtypes = (_HANDLE,)
    _kernel32.CloseHandle.restype = _BOOL
    _kernel32.GetCurrentProcess.argtypes = ()
    _kernel32.GetCurrentProcess.restype = _HANDLE
    _kernel32.OpenProcess.argtypes = (_DWORD, _BOOL, _DWORD)
    _kernel32.OpenProcess.restype = _HANDLE
    _kernel32.DuplicateHandle.argtypes = (_HANDLE, _HANDLE, _HANDLE, ctypes.c_void_p, _DWORD, _BOOL, _DWORD)
    _kernel32.DuplicateHandle.restype = _BOOL

    class Mapping:
        """A section's bytes in this process."""

        def __init__(self, handle: int, size_bytes: int) -> None:
            """Raises OSError when the section cannot be mapped, also when it is smaller than `size_bytes`."""
            self._address = _kernel32.MapViewOfFile(handle, _FILE_MAP_WRITE, 0, 0, size_bytes)
            if not self._address:
                raise ctypes.WinError(ctypes.get_last_error())
            self._size_bytes = size_bytes

        def view(self) -> memoryview:
            """All bytes; must not be touched after `close`, which cannot notice it."""
            return memoryview((ctypes.c_ubyte * self._size_bytes).from_address(self._address)).cast("B")

        def close(self) -> None:
            """Unmap; idempotent."""
            address, self._address = self._address, None
            if address:
                _kernel32.UnmapViewOfFile(address)

    def create_handle(size_bytes: int) -> int:
        """Make a zeroed section without a name; returns its handle. Raises OSError."""
        high, low = size_bytes >> 32, size_bytes & 0xFFFFFFFF
        handle = _kernel32.CreateFileMappingW(_HANDLE(-1), None, _PAGE_READWRITE, high, low, None)
        if not handle:
            raise ctypes.WinError(ctypes.get_last_error())
        return int(handle)

    def close_handle(handle: int) -> None:
        """Give a handle up."""
        _kernel32.CloseHandle(handle)

    def duplicate_into(handle: int, pid: int) -> int:
        """Give process `pid` its own handle of a section; returns the number valid in that process. Raises OSError.

        The number travels in an ordinary message, and the worker makes `Block(number, size_bytes)` from it.
        """
        process = _kernel32.OpenProcess(_PROCESS_DUP_HANDLE, False, pid)
        if not process:
            raise ctypes.WinError(ctypes.get_last_error())
        try:
            theirs = wintypes.HANDLE()
            here = _kernel32.GetCurrentProcess()
            if not _kernel32.DuplicateHandle(
                here, handle, process, ctypes.byref(theirs), 0, False, _DUPLICATE_SAME_ACCESS
            ):
                raise ctypes.WinError(ctypes.get_last_error())
            return int(theirs.value or 0)
        finally:
            _kernel32.CloseHandle(process)
