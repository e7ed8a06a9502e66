"""The log: private files, bounded, never written by the thread that logs."""

import contextvars
import json
import logging
import os
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from hypnos_engine.domain.errors import FolderUnusable
from hypnos_engine.journal import FILE_NAME, FILES_KEPT, Line, LogFormat, PrivateFile, Trace, writing_log


def test_records_reach_a_private_file(tmp_path: Path) -> None:
    with writing_log(tmp_path) as path:
        logging.getLogger("hypnos.test").info("for %s", "people")
        logging.getLogger("hypnos.test").debug("not for people")
    text = path.read_text(encoding="utf-8")
    assert "INFO hypnos.test: for people" in text
    assert "not for people" not in text
    assert path.stat().st_mode & 0o077 == 0


def test_the_logging_thread_never_writes(tmp_path: Path) -> None:
    writers: list[str] = []

    class Watched(PrivateFile):
        def emit(self, record: logging.LogRecord) -> None:
            writers.append(threading.current_thread().name)
            super().emit(record)

    with writing_log(tmp_path, make_file=Watched):
        logging.getLogger("hypnos.test").info("one")
    assert writers
    assert threading.current_thread().name not in writers


def test_old_files_are_thrown_away(tmp_path: Path) -> None:
    with writing_log(tmp_path, file_bytes=2_000):
        for number in range(500):
            logging.getLogger("hypnos.test").info("line %d with some text to fill the file", number)
    files = list(tmp_path.iterdir())
    assert len(files) == FILES_KEPT + 1
    assert all(file.stat().st_size <= 2_000 for file in files)
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)


def test_nothing_is_left_installed(tmp_path: Path) -> None:
    logger = logging.getLogger("hypnos")
    before = (list(logger.handlers), logger.level, threading.active_count())
    with writing_log(tmp_path):
        pass
    assert (list(logger.handlers), logger.level, threading.active_count()) == before


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_in_its_place_is_told_and_not_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / FILE_NAME)
    with pytest.raises(FolderUnusable, match=r"hypnos\.log cannot be written to .*Remove it"):
        writing_log(tmp_path).__enter__()


def logged(tmp_path: Path, log_format: LogFormat) -> list[str]:
    """Lines about two requests, one of which is over, of a record of several, and of a failure."""
    logger = logging.getLogger("hypnos.test")
    with writing_log(tmp_path, log_format=log_format) as path:
        logger.info("before")
        trace = Trace("req-1")
        logger.info("during %s", "é")
        later = contextvars.copy_context()
        logger.info("req-1 names itself")
        lines = (Line("req-7", "GET /a 200"), Line("req-8", "GET /b 404"))
        logger.info("%s", "req-7 GET /a 200\nreq-8 GET /b 404", extra={"lines": lines})
        try:
            raise ValueError("no")
        except ValueError:
            logger.info("failed", exc_info=True)
        trace.end()
        later.run(logger.info, "long after")
    return path.read_text(encoding="utf-8").splitlines()


def test_a_line_names_its_request_while_that_runs(tmp_path: Path) -> None:
    found = contextvars.copy_context().run(logged, tmp_path, LogFormat.TEXT)
    lines = [line.partition(" INFO ")[2] or line for line in found]
    assert lines[:5] == [
        "hypnos.test: before",
        "hypnos.test req-1: during é",
        "hypnos.test: req-1 names itself",
        "hypnos.test: req-7 GET /a 200",
        "req-8 GET /b 404",
    ]
    assert lines[5] == "hypnos.test req-1: failed"
    assert lines[-1] == "hypnos.test: long after"
    assert "ValueError: no" in lines


def test_json_has_one_object_a_line_with_the_request(tmp_path: Path) -> None:
    objects = [json.loads(line) for line in contextvars.copy_context().run(logged, tmp_path, LogFormat.JSON)]
    assert [(one["message"], one.get("request_id")) for one in objects] == [
        ("before", None),
        ("during é", "req-1"),
        ("req-1 names itself", "req-1"),
        ("GET /a 200", "req-7"),
        ("GET /b 404", "req-8"),
        ("failed", "req-1"),
        ("long after", None),
    ]
    assert all(datetime.fromisoformat(one["time"]).utcoffset() == timedelta(0) for one in objects)
    assert {(one["level"], one["logger"]) for one in objects} == {("info", "hypnos.test")}
    assert objects[5]["exception"].endswith("ValueError: no")
