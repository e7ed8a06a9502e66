"""Where the engine's log goes: a bounded set of private files, written by a thread of its own.

Decides no message. A slow disk must never hold the loop, so records pass through a queue.
"""

import errno
import logging
import os
import queue
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path

from hypnos_engine.domain.errors import FolderUnusable

FILE_NAME = "hypnos.log"
FILE_BYTES = 5 * 1024 * 1024
FILES_KEPT = 3
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class PrivateFile(RotatingFileHandler):
    """A rotating file that only its owner can read."""

    def _open(self) -> TextIOWrapper:
        never_wait = getattr(os, "O_NONBLOCK", 0)  # for the reader of a pipe that lies in the file's place
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | never_wait, 0o600)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is no regular file")
        return TextIOWrapper(os.fdopen(descriptor, "ab"), encoding=self.encoding, errors=self.errors)


@contextmanager
def writing_log(
    folder: Path, *, file_bytes: int = FILE_BYTES, make_file: type[PrivateFile] = PrivateFile
) -> Iterator[Path]:
    """Write the records of `hypnos.*` at INFO and above to `folder` for the length of the block.

    Raises FolderUnusable when its file cannot be opened.
    """
    path = folder / FILE_NAME
    try:
        file = make_file(path, maxBytes=file_bytes, backupCount=FILES_KEPT, encoding="utf-8")
    except OSError as error:
        raise FolderUnusable(
            f"The log {path} cannot be written to ({error.strerror}). Remove it, or change its owner or mode."
        ) from error
    file.setFormatter(logging.Formatter(FORMAT))
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    listener = QueueListener(records, file, respect_handler_level=True)
    handler = QueueHandler(records)
    logger = logging.getLogger("hypnos")
    before = logger.level
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    listener.start()
    try:
        yield path
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        listener.stop()
        file.close()
