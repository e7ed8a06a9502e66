"""Windows only: a job object that ends a worker and its children when they are told to, or when this program is gone.

Not run by this project's tests yet, which have no Windows machine; written from the documented interfaces. Imported on
Windows alone.
"""

import sys

if sys.platform == "win32":
    import ctypes
    import subprocess
    from ctypes import wintypes

    _CREATE_SUSPENDED = 0x00000004
    _JOB_OBJECT_EXTENDED_LIMIT_INFORMATION = 9
    _JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE = 0x00002000
    _PROCESS_TERMINATE = 0x0001
    _PROCESS_SET_QUOTA = 0x0100
    _PROCESS_SUSPEND_RESUME = 0x0800

    class _BasicLimits(ctypes.Structure):
        _fields_ = (
            ("per_process_user_time_limit", wintypes.LARGE_INTEGER),
            ("per_job_user_time_limit", wintypes.LARGE_INTEGER),
            ("limit_flags", wintypes.DWORD),
            ("minimum_working_set_size", ctypes.c_size_t),
            ("maximum_working_set_size", ctypes.c_size_t),
            ("active_process_limit", wintypes.DWORD),
            ("affinity", ctypes.c_size_t),
            ("priority_class", wintypes.DWORD),
            ("scheduling_class", wintypes.DWORD),
        )

    class _ExtendedLimits(ctypes.Structure):
        _fields_ = (
            ("basic", _BasicLimits),
            ("io_counters", ctypes.c_ulonglong * 6),
            ("process_memory_limit", ctypes.c_size_t),
            ("job_memory_limit", ctypes.c_size_t),
            ("peak_process_memory_used", ctypes.c_size_t),
            ("peak_job_memory_used", ctypes.c_size_t),
        )

    _kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    _kernel32.CreateJobObjectW.argtypes = (ctypes.c_void_p, wintypes.LPCWSTR)
    _kernel32.CreateJobObjectW.restype = wintypes.HANDLE
    _kernel32.SetInformationJobObject.argtypes = (wintypes.HANDLE, ctypes.c_int, ctypes.c_void_p, wintypes.DWORD)
    _kernel32.SetInformationJobObject.restype = wintypes.BOOL
    _kernel32.AssignProcessToJobObject.argtypes = (wintypes.HANDLE, wintypes.HANDLE)
    _kernel32.AssignProcessToJobObject.restype = wintypes.BOOL
    _kernel32.TerminateJobObject.argtypes = (wintypes.HANDLE, wintypes.UINT)
    _kernel32.TerminateJobObject.restype = wintypes.BOOL
    _kernel32.OpenProcess.argtypes = (wintypes.DWORD, wintypes.BOOL, wintypes.DWORD)
    _kernel32.OpenProcess.restype = wintypes.HANDLE
    _kernel32.CloseHandle.argtypes = (wintypes.HANDLE,)
    _kernel32.CloseHandle.restype = wintypes.BOOL
    _ntdll = ctypes.WinDLL("ntdll")
    _ntdll.NtResumeProcess.argtypes = (wintypes.HANDLE,)
    _ntdll.NtResumeProcess.restype = ctypes.c_long

    def create_flags() -> int:
        """Flags for Popen: suspended until the job holds the process, and without a console window."""
        return _CREATE_SUSPENDED | subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP

    class Job:
        """A job object with kill-on-close; the only handle to it is here, so it goes with this program."""

        def __init__(self) -> None:
            self._handle = _kernel32.CreateJobObjectW(None, None)
            if not self._handle:
                raise ctypes.WinError(ctypes.get_last_error())
            limits = _ExtendedLimits()
            limits.basic.limit_flags = _JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
            if not _kernel32.SetInformationJobObject(
                self._handle, _JOB_OBJECT_EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), ctypes.sizeof(limits)
            ):
                error = ctypes.WinError(ctypes.get_last_error())
                self.close()
                raise error

        @classmethod
        def holding(cls, popen: "subprocess.Popen[bytes]") -> "Job":
            """Put a suspended process into a new job, then let it run. Kills it and raises OSError when that fails."""
            try:
                job = cls()
                try:
                    job._take(popen.pid)
                except BaseException:
                    job.close()
                    raise
            except BaseException:
                popen.kill()
                popen.wait()
                raise
            return job

        def terminate(self) -> None:
            """End every process of the job at once; harmless when none is left."""
            if self._handle:
                _kernel32.TerminateJobObject(self._handle, 1)

        def close(self) -> None:
            """Give the job up, which ends what is left in it. Idempotent."""
            handle, self._handle = self._handle, None
            if handle:
                _kernel32.CloseHandle(handle)

        def __del__(self) -> None:
            self.close()

        def _take(self, pid: int) -> None:
            access = _PROCESS_SET_QUOTA | _PROCESS_TERMINATE | _PROCESS_SUSPEND_RESUME
            process = _kernel32.OpenProcess(access, False, pid)
            if not process:
                raise ctypes.WinError(ctypes.get_last_error())
            try:
                if not _kernel32.AssignProcessToJobObject(self._handle, process):
                    raise ctypes.WinError(ctypes.get_last_error())
                if _ntdll.NtResumeProcess(process) != 0:
                    raise OSError("the worker's process could not be resumed")
            finally:
                _kernel32.CloseHandle(process)
