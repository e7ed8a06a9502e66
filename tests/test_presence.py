"""One engine a user, found through a private file."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hypnos_engine import presence
from hypnos_engine.domain.errors import AlreadyRunning, FolderUnusable
from hypnos_engine.presence import Presence


def test_the_file_tells_where_the_engine_is_and_goes_with_it(tmp_path: Path) -> None:
    with Presence.claimed(tmp_path) as claimed:
        claimed.publish("http://127.0.0.1:1234")
        running = presence.read(tmp_path)
        assert running is not None
        assert (running.address, running.pid) == ("http://127.0.0.1:1234", os.getpid())
        assert hashlib.sha256(running.token.encode()).hexdigest() == claimed.token_sha256
        assert (tmp_path / presence.FILE_NAME).stat().st_mode & 0o077 == 0
        assert presence.is_locked(tmp_path)
    assert presence.read(tmp_path) is None
    assert not presence.is_locked(tmp_path)


def test_a_second_claim_names_the_first(tmp_path: Path) -> None:
    with Presence.claimed(tmp_path) as first:
        first.publish("http://127.0.0.1:1234")
        with pytest.raises(AlreadyRunning, match=f"http://127.0.0.1:1234 \\(process {os.getpid()}\\)"):
            Presence.claimed(tmp_path).__enter__()


def test_an_engine_that_was_killed_does_not_block_the_next(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from hypnos_engine.presence import Presence\n"
        "with Presence.claimed(Path(sys.argv[1])) as p:\n"
        "    p.publish('http://127.0.0.1:1'); print('claimed', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"claimed\n"
        assert presence.is_locked(tmp_path)
        other.kill()
    with Presence.claimed(tmp_path):
        assert presence.is_locked(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[" * 100_000, "[]", '{"address": 1}', '{"address": "x", "pid": "y"}'])
def test_an_unreadable_file_is_no_engine(tmp_path: Path, content: str) -> None:
    (tmp_path / presence.FILE_NAME).write_text(content, encoding="utf-8")
    assert presence.read(tmp_path) is None


def test_a_folder_in_the_place_of_the_lock_is_told(tmp_path: Path) -> None:
    (tmp_path / presence.LOCK_NAME).mkdir()
    with pytest.raises(FolderUnusable, match=rf"{presence.LOCK_NAME} cannot be used .*Remove it"):
        Presence.claimed(tmp_path).__enter__()


def test_a_folder_in_the_place_of_the_file_is_told_and_no_draft_is_left(tmp_path: Path) -> None:
    (tmp_path / presence.FILE_NAME).mkdir()
    with Presence.claimed(tmp_path) as claimed, pytest.raises(FolderUnusable, match="Remove it"):
        claimed.publish("http://127.0.0.1:1234")
    assert {path.name for path in tmp_path.iterdir()} <= {presence.FILE_NAME, presence.LOCK_NAME}
