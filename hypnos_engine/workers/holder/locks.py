"""Decides what to say when the operating system refuses to lock memory, and asks it for all that it allows.

Locks nothing itself, and never asks for more than its user may have.
"""

import contextlib
import errno
import os
import sys
from pathlib import Path

_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
_KEPT_WARM = "so pages that are held can be pushed out when memory runs short; they are kept warm instead"


class LockRefused(Exception):
    """The operating system does not let this process lock so much. `code` is its number for the reason."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


if sys.platform == "win32":

    def raise_limit() -> None:
        """Windows has no such limit: the working set grows with what is locked in it."""

    def why_refused(code: int) -> str:
        """A sentence for a person: what is not locked, why, and what mends it."""
        return (
            f"Windows does not let this program lock more memory (error {code}), so files are not held in memory. "
            'To have them held, give your account the right "Increase a process working set" (run secpol.msc: Local '
            "Policies, User Rights Assignment), then log out and in again; or close other programs."
        )

else:
    import pwd
    import resource

    def raise_limit() -> None:
        """Use all that this user may lock. Nothing changes where that is not allowed."""
        _, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (most, most))

    def why_refused(code: int) -> str:
        """A sentence for a person: what is not locked, why, and what mends it."""
        limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        if sys.platform == "darwin":
            return (
                f"macOS does not let this program lock more memory ({os.strerror(code)}), {_KEPT_WARM}. To have them "
                "locked, raise its limits, which `sysctl vm.user_wire_limit vm.global_user_wire_limit` shows, with "
                "`sudo sysctl vm.global_user_wire_limit=BYTES vm.user_wire_limit=BYTES`."
            )
        if limit == resource.RLIM_INFINITY or code not in (errno.ENOMEM, errno.EPERM, errno.EAGAIN):
            return (
                f"The system does not lock more memory ({os.strerror(code)}), {_KEPT_WARM}. Free memory, or allow "
                "Hypnos more of it."
            )
        return f"This user may lock {_human(limit)} of memory (`ulimit -l`), {_KEPT_WARM}. {_mend_limit()}"

    def _mend_limit() -> str:
        if any(Path(mark).exists() for mark in _CONTAINER_MARKS):
            return "To have them locked, start the container with `--ulimit memlock=-1:-1`."
        return (
            f"To have them locked, run `echo '{_user()} hard memlock unlimited' | sudo tee "
            "/etc/security/limits.d/hypnos.conf`, then log out and in again; under systemd, put "
            "`LimitMEMLOCK=infinity` into the [Service] part of the unit."
        )

    def _user() -> str:
        """As the file of limits spells the user."""
        try:
            return pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            return f":{os.getuid()}"

    def _human(amount_bytes: int) -> str:
        mib = amount_bytes / 2**20
        return f"{mib:.0f} MiB" if mib >= 1 or not amount_bytes else f"{amount_bytes // 1024} KiB"
