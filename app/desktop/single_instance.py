"""Why there is one desktop program per user: a lock says who is the first, a local socket lets a second raise it.

The lock ends with its process, however that ends. A second start can say no more than "show yourself".
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock
from PySide6.QtNetwork import QLocalServer, QLocalSocket

from app.desktop.stalls import watched
from hypnos_engine.domain.errors import FolderUnusable

LOCK_NAME = "app.lock"
SOCKET_NAME = "app.socket"
LONGEST_PATH_BYTES = 100
"""A Unix socket's path may have 108 bytes on Linux and 104 on macOS."""
ANSWER_MS = 3000


class FirstInstance:
    """The right to be this user's desktop program. `raised` is called when another start asked for it."""

    def __init__(self, folder: Path, raised: Callable[[], None]) -> None:
        self._raised = raised
        self._server = QLocalServer()
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.newConnection.connect(self._greet)
        name = socket_name(folder)
        # Who holds the lock knows that a socket of that name belongs to a process that was killed.
        QLocalServer.removeServer(name)
        self.can_be_raised = self._server.listen(name)

    @watched
    def _greet(self) -> None:
        while (caller := self._server.nextPendingConnection()) is not None:
            caller.disconnected.connect(caller.deleteLater)
            caller.write(b"shown\n")
            caller.disconnectFromServer()
            self._raised()

    def close(self) -> None:
        self._server.close()


def socket_name(folder: Path) -> str:
    """Where the first one listens: in its own folder, or in the temporary one when that path is too long."""
    if os.name == "nt":
        return f"hypnos-app-{_digest(folder)}"
    path = folder / SOCKET_NAME
    if len(os.fsencode(path)) <= LONGEST_PATH_BYTES:
        return str(path)
    return str(Path(tempfile.gettempdir()) / f"hypnos-app-{_digest(folder)}")


def _digest(folder: Path) -> str:
    return hashlib.sha256(os.fsencode(folder)).hexdigest()[:20]


@contextmanager
def first_instance(folder: Path, raised: Callable[[], None]) -> Iterator[FirstInstance | None]:
    """This process as the first, for the length of the block; None when there is one already, which was raised.

    Raises FolderUnusable when there can be no lock.
    """
    lock = filelock.FileLock(folder / LOCK_NAME, mode=0o600, blocking=False)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise_first(folder)
        yield None
        return
    except (OSError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or "the disk knows no locks"
        raise FolderUnusable(
            f"The file {folder / LOCK_NAME} cannot be used ({reason}). Remove it, or change its owner or mode."
        ) from error
    try:
        first = FirstInstance(folder, raised)
        try:
            yield first
        finally:
            first.close()
    finally:
        lock.release()


def raise_first(folder: Path) -> bool:
    """Ask the running one to show itself. False when it did not answer, as while it starts or ends."""
    caller = QLocalSocket()
    caller.connectToServer(socket_name(folder))
    try:
        return caller.waitForConnected(ANSWER_MS) and caller.waitForReadyRead(ANSWER_MS)
    finally:
        caller.abort()
