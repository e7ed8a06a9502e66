"""Jobs outlive the process; a file that cannot be used is said, never lost and never fatal."""

import sqlite3
import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hypnos_engine.catalog.downloads.ledger import FILE_NAME, SCHEMA_VERSION, Ledger
from hypnos_engine.catalog.downloads.orders import Piece
from hypnos_engine.catalog.downloads.queue import Downloads
from hypnos_engine.catalog.downloads.records import Job, JobState
from hypnos_engine.catalog.downloads.terms import Terms
from hypnos_engine.domain.errors import FolderUnusable
from tests.catalog.download_bench import wanted

JOB = Job(
    "dl-1",
    "a:b",
    (wanted(sha256="0" * 64, gated=True), wanted("sub/", "folder ü/")),
    1_790_000_000_000,
    JobState.PAUSED,
    pieces=(Piece("own/er", "m.gguf", "m.gguf", "c" * 40, 7, "0" * 64),),
    done_bytes=3,
    error="because",
    digests=(None,),
)


async def loaded(folder: Path) -> tuple[Job, ...]:
    ledger = Ledger(folder)
    try:
        return await ledger.load()
    finally:
        await ledger.close()


async def test_a_job_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert await ledger.load() == ()
    assert not (tmp_path / FILE_NAME).exists()
    await ledger.save(JOB)
    ledger.save_soon(replace(JOB, id="dl-2", state=JobState.DONE))
    await ledger.save(replace(JOB, done_bytes=5))
    await ledger.close()
    assert await loaded(tmp_path) == (replace(JOB, done_bytes=5), replace(JOB, id="dl-2", state=JobState.DONE))
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600
    ledger = Ledger(tmp_path)
    await ledger.forget("dl-1")
    assert [job.id for job in await ledger.load()] == ["dl-2"]
    await ledger.close()


async def test_a_file_of_a_newer_program_is_left_alone(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    await ledger.save(JOB)
    await ledger.close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as database, database:
        database.execute("UPDATE schema_versions SET version = ?", (SCHEMA_VERSION + 1,))
    with pytest.raises(FolderUnusable, match="newer Hypnos"):
        await loaded(tmp_path)


async def test_other_parts_of_the_program_keep_their_tables(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as database, database:
        database.execute("CREATE TABLE schema_versions (part TEXT PRIMARY KEY, version INTEGER NOT NULL)")
        database.execute("INSERT INTO schema_versions VALUES ('tokens', 9)")
    ledger = Ledger(tmp_path)
    await ledger.save(JOB)
    await ledger.close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as database:
        rows = set(database.execute("SELECT part, version FROM schema_versions"))
    assert rows == {("tokens", 9), ("downloads", SCHEMA_VERSION)}


async def test_a_damaged_file_is_said_by_every_call_and_stops_nothing(tmp_path: Path, expected_log: list[str]) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database at all" * 100)
    expected_log.append("The downloads are kept in")
    downloads = Downloads(Ledger(tmp_path), Terms((tmp_path / "models",)))
    await downloads.open()
    for _ in range(2):
        with pytest.raises(FolderUnusable, match="cannot be used"):
            downloads.jobs()
    with pytest.raises(FolderUnusable):
        await downloads.request("a", [wanted()])
    await downloads.close()
