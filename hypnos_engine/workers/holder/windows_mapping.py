"""Windows only: one file's pages, mapped, locked into the working set, asked about.

Not run by this project's tests yet, which have no Windows machine; written from the documented interfaces. Imported on
Windows alone, by `mapping`.
"""

import sys

if sys.platform == "win32":
    import ctypes
    import msvcrt
    from ctypes import wintypes

    from hypnos_engine.workers.holder.locks import LockRefused

    _PAGE_BYTES = 4096
    _PAGE_READONLY = 0x02
    _FILE_MAP_READ = 0x0004
    _QUOTA_LIMITS_HARDWS_MIN_DISABLE = 0x2
    _QUOTA_LIMITS_HARDWS_MAX_DISABLE = 0x8
    _ERROR_WORKING_SET_QUOTA = 1453
    _VALID = 0x1
    """In the attributes of a page: it is in the working set of this process, where locked pages are."""
    _GROWTH_BYTES = 256 * 1024 * 1024

    class _PageState(ctypes.Structure):
        _fields_ = (("address", ctypes.c_void_p), ("attributes", ctypes.c_size_t))

    _kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    _HANDLE, _DWORD, _BOOL, _SIZE = wintypes.HANDLE, wintypes.DWORD, wintypes.BOOL, ctypes.c_size_t
    _kernel32.CreateFileMappingW.argtypes = (_HANDLE, ctypes.c_void_p, _DWORD, _DWORD, _DWORD, wintypes.LPCWSTR)
    _kernel32.CreateFileMappingW.restype = _HANDLE
    _kernel32.MapViewOfFile.argtypes = (_HANDLE, _DWORD, _DWORD, _DWORD, _SIZE)
    _kernel32.MapViewOfFile.restype = ctypes.c_void_p
    _kernel32.UnmapViewOfFile.argtypes = (ctypes.c_void_p,)
    _kernel32.UnmapViewOfFile.restype = _BOOL
    _kernel32.CloseHandle.argtypes = (_HANDLE,)
    _kernel32.CloseHandle.restype = _BOOL
    _kernel32.GetCurrentProcess.argtypes = ()
    _kernel32.GetCurrentProcess.restype = _HANDLE
    _kernel32.VirtualLock.argtypes = (ctypes.c_void_p, _SIZE)
    _kernel32.VirtualLock.restype = _BOOL
    _kernel32.GetProcessWorkingSetSize.argtypes = (_HANDLE, ctypes.POINTER(_SIZE), ctypes.POINTER(_SIZE))
    _kernel32.GetProcessWorkingSetSize.restype = _BOOL
    _kernel32.SetProcessWorkingSetSizeEx.argtypes = (_HANDLE, _SIZE, _SIZE, _DWORD)
    _kernel32.SetProcessWorkingSetSizeEx.restype = _BOOL
    _kernel32.K32QueryWorkingSetEx.argtypes = (_HANDLE, ctypes.c_void_p, _DWORD)
    _kernel32.K32QueryWorkingSetEx.restype = _BOOL

    class FileMapping:
        """The first `size_bytes` of an open file, more than 0; as its namesake of the other systems."""

        def __init__(self, descriptor: int, size_bytes: int) -> None:
            """Raises OSError when the file cannot be mapped. Meanwhile nobody can cut it short or delete it."""
            handle = msvcrt.get_osfhandle(descriptor)
            section = _kernel32.CreateFileMappingW(
                handle, None, _PAGE_READONLY, size_bytes >> 32, size_bytes & 0xFFFFFFFF, None
            )
            if not section:
                raise ctypes.WinError(ctypes.get_last_error())
            self._address = _kernel32.MapViewOfFile(section, _FILE_MAP_READ, 0, 0, size_bytes)
            code = ctypes.get_last_error()
            _kernel32.CloseHandle(section)  # the view keeps the section
            if not self._address:
                raise ctypes.WinError(code)

        def lock(self, start: int, length: int) -> None:
            """Keep these pages in the working set, which grows for it. Raises LockRefused."""
            grown = False
            while not _kernel32.VirtualLock(self._address + start, length):
                code = ctypes.get_last_error()
                if code != _ERROR_WORKING_SET_QUOTA or grown or not _grow_working_set(length):
                    raise LockRefused(code)
                grown = True

        def in_memory(self, start: int, length: int) -> bytes:
            """One byte for each page of the range: 1 when it is in the working set of this process. Raises OSError.

            Windows tells nobody whether a page is in its cache, so pages that are not locked count as missing once
            they have left the working set.
            """
            count = -(-length // _PAGE_BYTES)
            states = (_PageState * count)()
            for index, state in enumerate(states):
                state.address = self._address + start + index * _PAGE_BYTES
            if not _kernel32.K32QueryWorkingSetEx(_kernel32.GetCurrentProcess(), states, ctypes.sizeof(states)):
                raise ctypes.WinError(ctypes.get_last_error())
            return bytes(state.attributes & _VALID for state in states)

        def close(self) -> None:
            """Unlock and unmap. Called once."""
            _kernel32.UnmapViewOfFile(self._address)

    def _grow_working_set(length: int) -> bool:
        """Raise the least size of the working set, which bounds what may be locked; False when that is refused."""
        process = _kernel32.GetCurrentProcess()
        least, most = ctypes.c_size_t(), ctypes.c_size_t()
        if not _kernel32.GetProcessWorkingSetSize(process, ctypes.byref(least), ctypes.byref(most)):
            return False
        wanted = least.value + max(length, _GROWTH_BYTES)
        flags = _QUOTA_LIMITS_HARDWS_MIN_DISABLE | _QUOTA_LIMITS_HARDWS_MAX_DISABLE
        return bool(_kernel32.SetProcessWorkingSetSizeEx(process, wanted, wanted + _GROWTH_BYTES, flags))
