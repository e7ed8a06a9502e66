"""Keeps the jobs in `state.db`, so that they outlive the process; decides nothing about them.

One SQLite file for everything that must survive a restart. Each part of the program has its tables and, in
`schema_versions`, a version of its own. Used through one thread: SQLite waits for the disk.
"""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from hypnos_engine.catalog.downloads.records import Job
from hypnos_engine.config.problems import shown_path
from hypnos_engine.domain.errors import FolderUnusable

T = TypeVar("T")

log: Final = logging.getLogger("hypnos.downloads")

FILE_NAME: Final = "state.db"
PART: Final = "downloads"
SCHEMA_VERSION: Final = 1
_BUSY_S: Final = 10.0


class Ledger:
    """The jobs on the disk. `close` it."""

    def __init__(self, state_folder: Path) -> None:
        self._path = state_folder / FILE_NAME
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hypnos-ledger")
        self._database: sqlite3.Connection | None = None

    async def load(self) -> tuple[Job, ...]:
        """Every job, oldest first. Raises FolderUnusable."""
        return await self._on_thread(self._load)

    async def save(self, job: Job) -> None:
        """Keep a job as it is now. Raises FolderUnusable."""
        await self._on_thread(lambda: self._save(job))

    def save_soon(self, job: Job) -> None:
        """Keep a job as it is now, before any later `save`; a failure is logged, because the next one will be said."""
        self._thread.submit(self._save_quietly, job)

    async def forget(self, job: str) -> None:
        """Raises FolderUnusable."""
        await self._on_thread(lambda: self._write("DELETE FROM downloads WHERE id = ?", job))

    async def close(self) -> None:
        await self._on_thread(self._close)
        self._thread.shutdown()

    async def do(self, work: Callable[[], T]) -> T:
        """Do something else on the ledger's thread that waits for the disk. Raises what `work` raises."""
        return await asyncio.wrap_future(self._thread.submit(work))

    async def _on_thread(self, work: Callable[[], T]) -> T:
        try:
            return await self.do(work)
        except (sqlite3.Error, msgspec.MsgspecError, OSError) as error:
            raise FolderUnusable(
                f"The downloads are kept in {shown_path(self._path)}, which cannot be used ({error}). Mend it, or "
                "move it away to begin a new one."
            ) from error

    def _load(self) -> tuple[Job, ...]:
        if not self._path.exists():
            return ()  # nobody has asked for anything yet
        with closing(self._opened().execute("SELECT job FROM downloads ORDER BY created_unix_ms, rowid")) as rows:
            return tuple(msgspec.json.decode(row[0], type=Job) for row in rows)

    def _save(self, job: Job) -> None:
        self._write(
            "INSERT INTO downloads (id, created_unix_ms, state, job) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET state = excluded.state, job = excluded.job",
            job.id,
            job.created_unix_ms,
            job.state.value,
            msgspec.json.encode(job),
        )

    def _save_quietly(self, job: Job) -> None:
        try:
            self._save(job)
        except (sqlite3.Error, OSError) as error:
            log.warning("%s cannot be written: %s", self._path, error)

    def _write(self, statement: str, *values: object) -> None:
        database = self._opened()
        with database:
            database.execute(statement, values)

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            database = sqlite3.connect(self._path, timeout=_BUSY_S, check_same_thread=False)
            try:
                _prepare(database)
            except BaseException:
                database.close()
                raise
            self._database = database
        return self._database

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def _prepare(database: sqlite3.Connection) -> None:
    """Make the tables that are not there. Raises sqlite3.Error for a file of a newer program."""
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    with database:
        database.execute("BEGIN IMMEDIATE")
        database.execute("CREATE TABLE IF NOT EXISTS schema_versions (part TEXT PRIMARY KEY, version INTEGER NOT NULL)")
        found = database.execute("SELECT version FROM schema_versions WHERE part = ?", (PART,)).fetchone()
        if found is not None and found[0] > SCHEMA_VERSION:
            raise sqlite3.DatabaseError(f"it was written by a newer Hypnos, version {found[0]} of its downloads")
        if found is None:
            database.execute(
                "CREATE TABLE downloads (id TEXT PRIMARY KEY, created_unix_ms INTEGER NOT NULL, state TEXT NOT NULL, "
                "job BLOB NOT NULL)"
            )
            database.execute("INSERT INTO schema_versions VALUES (?, ?)", (PART, SCHEMA_VERSION))
