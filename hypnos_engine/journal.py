"""Where the engine's log goes, and how a line of it is spelled: for people, or as JSON, with its request's id.

Decides no message. A slow disk must never hold the loop, so records pass through a queue to a thread that writes a
bounded set of private files.
"""

import copy
import errno
import json
import logging
import os
import queue
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from io import TextIOWrapper
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from typing import Final, NamedTuple

from hypnos_engine.domain.errors import FolderUnusable

FILE_NAME = "hypnos.log"
FILE_BYTES = 5 * 1024 * 1024
FILES_KEPT = 3


class LogFormat(StrEnum):
    """How a line is spelled."""

    TEXT = "text"
    JSON = "json"


class Trace:
    """Ties what is logged to the request for which it happens, until that is over.

    Tasks and timers that a request starts inherit its trace and may outlive it: then they speak for themselves.
    """

    __slots__ = ("_id",)

    def __init__(self, request_id: str) -> None:
        """Begins in the present context."""
        self._id = request_id
        _TRACE.set(self)

    def end(self) -> None:
        """The request is over."""
        self._id = ""

    @property
    def request_id(self) -> str:
        """Empty once the request is over."""
        return self._id


_TRACE: Final[ContextVar["Trace | None"]] = ContextVar("trace", default=None)


class Line(NamedTuple):
    """One of several lines that a record carries, each about another request (`extra={"lines": ...}`)."""

    request_id: str
    text: str


def mark_request(record: logging.LogRecord) -> bool:
    """Note on a record, on the thread that logs it, for which request it is. A filter that lets everything through."""
    trace = _TRACE.get()
    if not hasattr(record, "request_id"):
        record.request_id = "" if trace is None else trace.request_id
    return True


class TextLines(logging.Formatter):
    """Lines for people. On a terminal, which shows when a line comes, without the time."""

    def __init__(self, *, timed: bool = True) -> None:
        super().__init__(f"{'%(asctime)s ' if timed else ''}%(levelname)s %(name)s%(tag)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        request_id = getattr(record, "request_id", "")
        # Many messages name their request themselves, where people look for it.
        named = not request_id or hasattr(record, "lines") or request_id in record.getMessage()
        record.tag = "" if named else f" {request_id}"
        return super().format(record)


class JsonLines(logging.Formatter):
    """JSON objects: `time`, `level`, `logger`, `message`, and `request_id` and `exception` where there are any."""

    def format(self, record: logging.LogRecord) -> str:
        lines: tuple[Line, ...] = getattr(record, "lines", ())
        if lines:
            return "\n".join(self._object(record, line.text, line.request_id) for line in lines)
        return self._object(record, record.getMessage(), getattr(record, "request_id", ""))

    def _object(self, record: logging.LogRecord, message: str, request_id: str) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        if request_id:
            fields["request_id"] = request_id
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            fields["exception"] = record.exc_text
        return json.dumps(fields)


def formatter(log_format: LogFormat, *, timed: bool = True) -> logging.Formatter:
    """What spells lines that way; JSON always has the time."""
    return JsonLines() if log_format is LogFormat.JSON else TextLines(timed=timed)


class _Queued(QueueHandler):
    """Hands copies of records over: the thread that writes spells them."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        record = copy.copy(record)
        record.message = record.getMessage()  # its arguments may change before they are written
        record.msg, record.args = record.message, None
        if record.exc_info:
            record.exc_text = record.exc_text or logging.Formatter().formatException(record.exc_info)
            record.exc_info = None
        return record


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
    folder: Path,
    *,
    log_format: LogFormat = LogFormat.TEXT,
    file_bytes: int = FILE_BYTES,
    make_file: type[PrivateFile] = PrivateFile,
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
    file.setFormatter(formatter(log_format))
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    listener = QueueListener(records, file, respect_handler_level=True)
    handler = _Queued(records)
    handler.addFilter(mark_request)
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
