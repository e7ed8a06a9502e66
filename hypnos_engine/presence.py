"""How a running engine is found by its user's own programs, and why there is only one: `run/engine.json` and its lock.

The token in the file lives as long as the process. Nothing here is readable by other users.
"""

import contextlib
import hashlib
import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import filelock

from hypnos_engine.domain.errors import AlreadyRunning, FolderUnusable

PROTOCOL_VERSION = 1
LOCK_NAME = "engine.lock"
FILE_NAME = "engine.json"


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """What the file says about an engine of this user."""

    address: str
    pid: int
    protocol: int
    token: str


class Presence:
    """The right to be this user's engine. Made by `claimed`; gone when its block is left or the process ends."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE_NAME
        self._token = secrets.token_urlsafe(32)

    @classmethod
    @contextmanager
    def claimed(cls, folder: Path) -> Iterator["Presence"]:
        """Hold the lock for the length of the block.

        Raises AlreadyRunning with the address that serves, and FolderUnusable when there can be no lock.
        """
        lock = filelock.FileLock(folder / LOCK_NAME, mode=0o600, blocking=False)
        try:
            lock.acquire()
        except filelock.Timeout:
            running = read(folder)
            where = f" at {running.address} (process {running.pid})" if running else ""
            raise AlreadyRunning(
                f"Hypnos already serves{where}. Use that one, or stop it before starting another."
            ) from None
        except (OSError, NotImplementedError) as error:
            raise _unusable(folder / LOCK_NAME, error) from error
        presence = cls(folder)
        try:
            yield presence
        finally:
            presence.withdraw()
            lock.release()

    @property
    def token_sha256(self) -> str:
        """SHA-256 of the local admin token, hexadecimal."""
        return hashlib.sha256(self._token.encode()).hexdigest()

    def publish(self, address: str) -> None:
        """Write the file, whole or not at all, readable by this user only. Raises FolderUnusable."""
        content = {"address": address, "pid": os.getpid(), "protocol": PROTOCOL_VERSION, "token": self._token}
        draft = self._file.with_name(f".{FILE_NAME}.{os.getpid()}")
        try:
            draft.unlink(missing_ok=True)  # of an engine with the same process id that was killed
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(content, file)
            draft.replace(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise _unusable(self._file, error) from error

    def withdraw(self) -> None:
        """Take the file away; what cannot be taken away stays."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)


def _unusable(file: Path, error: OSError | NotImplementedError) -> FolderUnusable:
    reason = getattr(error, "strerror", None) or "the disk knows no locks"
    return FolderUnusable(f"The file {file} cannot be used ({reason}). Remove it, or change its owner or mode.")


def read(folder: Path) -> RunningEngine | None:
    """What the last engine of this user published; None when there is nothing readable. It may be dead by now."""
    try:
        content = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
        return RunningEngine(
            str(content["address"]), int(content["pid"]), int(content["protocol"]), str(content["token"])
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def is_locked(folder: Path) -> bool:
    """Whether an engine of this user runs now. Leaves no lock behind."""
    lock = filelock.FileLock(folder / LOCK_NAME, mode=0o600, blocking=False)
    try:
        with lock:
            return False
    except filelock.Timeout:
        return True
    except OSError:
        return sys.platform == "win32"
