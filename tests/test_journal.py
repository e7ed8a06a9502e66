"""The log: private files, bounded, never written by the thread that logs."""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hypnos_engine.domain.errors import FolderUnusable
from hypnos_engine.journal import FILE_NAME, FILES_KEPT, PrivateFile, writing_log


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
