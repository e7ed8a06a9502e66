"""One set-up at a time per folder: a lock that the system drops when its last holder is gone, however it ended."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def only_one(path: Path, waiting: Callable[[], None]) -> Iterator[int]:
    """Hold the lock at `path` and yield its descriptor; `waiting` is called once when another holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        if not _take(descriptor, wait=False):
            waiting()
            _take(descriptor, wait=True)
        yield descriptor
    finally:
        os.close(descriptor)


def _take(descriptor: int, *, wait: bool) -> bool:
    if sys.platform == "win32":
        import msvcrt

        while True:
            try:
                # LK_LOCK gives up after ten seconds, so waiting is a loop of its own.
                msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            except OSError:
                if not wait:
                    return False
            else:
                return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return True  # a network folder without locks: better unguarded than unusable
    return True
