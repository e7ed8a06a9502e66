"""The download jobs of one engine: which run, which wait and for what, and what becomes of each.

Opens no connection itself and keeps the loop free: a child process works on each job, a thread writes them down.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from hypnos_engine.catalog.downloads.ledger import Ledger
from hypnos_engine.catalog.downloads.orders import (
    End,
    Ended,
    Order,
    PieceDone,
    Progress,
    Replaced,
    Replacing,
    Resolved,
    Said,
    Verifying,
)
from hypnos_engine.catalog.downloads.places import Staging, checked_path
from hypnos_engine.catalog.downloads.processes import Child, ChildProcess
from hypnos_engine.catalog.downloads.rates import Rate
from hypnos_engine.catalog.downloads.records import AT_WORK, ENDED, OWED, Job, JobState
from hypnos_engine.catalog.downloads.replacing import Release, Replacements, nobody_has_them
from hypnos_engine.catalog.downloads.terms import Terms
from hypnos_engine.catalog.entries import CatalogFile
from hypnos_engine.domain.errors import FolderUnusable, HypnosError, InvalidRequest, ModelBusy, NotFound

log: Final = logging.getLogger("hypnos.downloads")

KEPT: Final = 200
"""Jobs that have ended and are still listed; older ones are forgotten."""
MOST_OPEN: Final = 200
"""Jobs that have not ended; one more is refused."""
TELL_S: Final = 0.5
"""Shortest time between two tellings of one job's progress."""


class _Entry:
    """A job and what of it does not outlive the process."""

    def __init__(self, job: Job, now_s: float) -> None:
        self.job = job
        self.child: Child | None = None
        self.task: asyncio.Task[None] | None = None
        self.wish: JobState | None = None
        """What the job is to be once its child has ended."""
        self.token: str | None = None
        self.not_before_s = now_s
        self.failures = 0
        self.byte_at_s = now_s
        """When the last new byte came, or somebody asked for the job."""
        self.told_at_s = now_s - TELL_S
        self.fetched_bytes = 0
        """Over the network, by the child at work."""


class Downloads:
    """All jobs. Used on one loop; `open` before anything else, `close` at the end."""

    def __init__(
        self,
        ledger: Ledger,
        terms: Terms,
        *,
        tell: Callable[[Job], None] = lambda _: None,
        release: Release = nobody_has_them,
        make_child: Callable[[], Child] = ChildProcess,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`tell` is called with every change of a job, on the loop; `release` before files are replaced."""
        self._ledger, self._terms, self._tell, self._release = ledger, terms, tell, release
        self._make_child, self._clock, self._wall = make_child, clock, wall
        self._entries: dict[str, _Entry] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._unusable: FolderUnusable | None = None
        self._closing = False

    async def open(self, *, go_on: bool = True) -> None:
        """Take up what was left; without `go_on` it waits until somebody asks for it again.

        Never raises: what cannot be read is said by every later call.
        """
        try:
            jobs = await self._ledger.load()
        except FolderUnusable as error:
            log.warning("%s", error.message)
            self._unusable = error
            return
        for job in jobs:
            state = (JobState.QUEUED if go_on else JobState.PAUSED) if job.state in OWED else job.state
            self._entries[job.id] = _Entry(replace(job, state=state, bytes_per_s=None), self._clock())
        self._fill()

    async def close(self) -> None:
        """Stop every child and wait for its end; the jobs go on when `open` is called the next time."""
        self._closing = True
        self._set_alarm(None)
        tasks = [entry.task for entry in self._entries.values() if entry.task is not None]
        for entry in self._entries.values():
            if entry.child is not None:
                entry.child.stop()
        if tasks:
            await asyncio.wait(tasks)
        await self._ledger.close()

    # --- what people ask --------------------------------------------------------------------------------------------

    def jobs(self) -> tuple[Job, ...]:
        """Newest first. Raises FolderUnusable."""
        self._check()
        return tuple(entry.job for entry in reversed(self._entries.values()))

    def job(self, name: str) -> Job:
        """Raises NotFound, FolderUnusable."""
        return self._entry(name).job

    async def request(
        self, spec: str, wanted: Sequence[CatalogFile], *, token: str | None = None, again: bool = False
    ) -> Job:
        """Begin a job, or go on with the one that has the same files; returns it as it is then.

        `again` fetches also what is there. Raises InvalidRequest, ModelBusy, FolderUnusable.
        """
        self._check()
        if not wanted:
            raise InvalidRequest(f"{spec} has no files for this machine.")
        for file in wanted:
            checked_path(file.local.rstrip("/"))
        for entry in self._entries.values():
            if entry.job.wanted == tuple(wanted) and entry.job.state not in ENDED:
                return await self.resume(entry.job.id, token=token)
        if sum(entry.job.state not in ENDED for entry in self._entries.values()) >= MOST_OPEN:
            raise ModelBusy(f"{MOST_OPEN} downloads are open already. Cancel some, or wait.")
        job = Job(f"dl-{secrets.token_hex(8)}", spec, tuple(wanted), int(self._wall() * 1000), replace=again)
        await self._ledger.save(job)
        entry = self._entries[job.id] = _Entry(job, self._clock())
        entry.token = token
        await self._forget_the_oldest()
        self._tell(job)
        self._fill()
        return entry.job

    async def pause(self, name: str) -> Job:
        """Stop a job and keep what has come. Raises NotFound, InvalidRequest for one that has ended."""
        return await self._put(self._open_entry(name), JobState.PAUSED)

    async def resume(self, name: str, *, token: str | None = None) -> Job:
        """Go on with a job that was paused or has failed, or do not wait any longer for the next try.

        Raises NotFound, InvalidRequest for one that has ended.
        """
        entry = self._open_entry(name)
        entry.token = token or entry.token
        entry.not_before_s = entry.byte_at_s = self._clock()
        entry.failures = 0
        if entry.wish is JobState.PAUSED:
            entry.wish = None
        if entry.task is None:  # a child that is about to stop is followed by another one
            await self._change(entry, JobState.QUEUED)
            self._fill()
        return entry.job

    async def cancel(self, name: str) -> Job:
        """Stop a job for good and remove what has come. Raises NotFound, InvalidRequest for one that is done."""
        return await self._put(self._open_entry(name), JobState.CANCELLED)

    def _check(self) -> None:
        if self._unusable is not None:
            raise self._unusable

    def _entry(self, name: str) -> _Entry:
        self._check()
        entry = self._entries.get(name)
        if entry is None:
            raise NotFound(f"There is no download {name[:80]!r}. GET /v1/downloads lists them.")
        return entry

    def _open_entry(self, name: str) -> _Entry:
        entry = self._entry(name)
        if entry.job.state in ENDED:
            raise InvalidRequest(f"The download {name} is {entry.job.state} already.")
        return entry

    async def _put(self, entry: _Entry, state: JobState) -> Job:
        """Bring a job to a state; returns once its child has ended."""
        entry.wish = state
        while entry.wish is state and entry.task is not None:
            if entry.child is not None:
                entry.child.stop()
            await asyncio.wait({entry.task})
        if entry.wish is state:
            entry.wish = None
            if entry.job.state not in ENDED:
                await self._settle(entry, state)
        self._fill()
        return entry.job

    async def _forget_the_oldest(self) -> None:
        ended = [entry.job.id for entry in self._entries.values() if entry.job.state in ENDED]
        for name in ended[: max(0, len(ended) - KEPT)]:
            del self._entries[name]
            await self._ledger.forget(name)

    # --- who runs ---------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Start what may run: in the order of asking, no two with a common file."""
        if self._closing:
            return
        now = self._clock()
        running = [entry for entry in self._entries.values() if entry.task is not None]
        taken = {target for entry in running for target in entry.job.targets}
        waits: list[float] = []
        for entry in self._entries.values():
            if entry.job.state is not JobState.QUEUED or entry.task is not None:
                continue
            if entry.not_before_s > now:
                waits.append(entry.not_before_s - now)
            elif len(running) < self._terms.at_once and taken.isdisjoint(entry.job.targets):
                entry.task = asyncio.get_running_loop().create_task(self._run(entry), name=f"download {entry.job.id}")
                running.append(entry)
                taken |= entry.job.targets
        self._set_alarm(min(waits, default=None))

    def _set_alarm(self, wait_s: float | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None if wait_s is None else asyncio.get_running_loop().call_later(wait_s, self._fill)

    async def _run(self, entry: _Entry) -> None:
        try:
            await self._work(entry)
        except HypnosError as error:
            log.warning("download %s: %s", entry.job.id, error.message)
            self._fail(entry, error.message)
        except Exception:
            log.exception("download %s", entry.job.id)
            self._fail(entry, "The download failed inside Hypnos; the log says where. Resume it to try again.")
        finally:
            entry.task = entry.child = None
            self._fill()

    def _fail(self, entry: _Entry, message: str) -> None:
        entry.job = replace(entry.job, state=JobState.FAILED, error=message, bytes_per_s=None)
        self._tell(entry.job)

    async def _work(self, entry: _Entry) -> None:
        entry.child = self._make_child()
        await self._change(entry, JobState.RUNNING)
        if entry.wish is not None or self._closing:
            await self._after(entry, Ended(End.STOPPED))
            return
        rate, entry.fetched_bytes = Rate(), 0
        replacements = Replacements(entry.child, self._terms.roots[0], self._release)
        try:
            ended = await entry.child.run(self._order(entry), lambda said: self._hear(entry, said, rate, replacements))
        finally:
            await replacements.close()
        entry.job = replace(entry.job, bytes_per_s=None)
        if replacements.in_use is not None and ended.end is End.STOPPED:
            ended = Ended(End.RETRY, replacements.in_use)
        await self._after(entry, ended)

    def _order(self, entry: _Entry) -> Order:
        terms, job = self._terms, entry.job
        others = sum(
            max(0, (other.job.total_bytes or 0) - other.job.done_bytes)
            for other in self._entries.values()
            if other is not entry and other.job.state in AT_WORK
        )
        return Order(
            id=job.id,
            root=str(terms.roots[0]),
            roots=tuple(map(str, terms.roots)),
            wanted=job.wanted,
            pieces=job.pieces,
            replace=job.replace,
            token=entry.token,
            network=terms.network,
            floor_bytes=terms.floor_bytes,
            promised_bytes=others,
            stall_s=terms.stall_s,
            block_bytes=terms.block_bytes,
        )

    def _hear(self, entry: _Entry, said: Said, rate: Rate, replacements: Replacements) -> None:
        job = entry.job
        match said:
            case Resolved(pieces):
                self._note(replace(job, pieces=pieces, digests=(job.digests + (None,) * len(pieces))[: len(pieces)]))
            case Replacing(paths):
                replacements.begin(paths)
            case Replaced():
                replacements.ended()
            case Progress():
                self._hear_progress(entry, said, rate)
            case Verifying():
                entry.job = replace(job, state=JobState.VERIFYING, bytes_per_s=None)
                self._tell(entry.job)
            case PieceDone(index, sha256) if index < len(job.pieces):
                done, digests = list(job.pieces), list(job.digests)
                done[index] = msgspec.structs.replace(done[index], done=True)
                digests[index] = sha256 or digests[index]
                self._note(replace(job, pieces=tuple(done), digests=tuple(digests)))

    def _hear_progress(self, entry: _Entry, said: Progress, rate: Rate) -> None:
        now, job = self._clock(), entry.job
        if said.fetched_bytes > entry.fetched_bytes:
            entry.byte_at_s, entry.failures = now, 0
            job = replace(job, state=JobState.RUNNING)
        entry.fetched_bytes = said.fetched_bytes
        speed = rate.take(said.fetched_bytes, now)
        entry.job = replace(job, done_bytes=said.done_bytes, bytes_per_s=speed)
        if now - entry.told_at_s >= TELL_S:
            entry.told_at_s = now
            self._tell(entry.job)

    def _note(self, job: Job) -> None:
        """Take over what the child found out, and have it written down."""
        self._entries[job.id].job = job
        self._ledger.save_soon(job)
        self._tell(job)

    # --- what follows -----------------------------------------------------------------------------------------------

    async def _after(self, entry: _Entry, ended: Ended) -> None:
        """Decide what the job is now that its child has ended.

        1. Everything is there. 2. Somebody wished for its end. 3. The engine ends: it is left as it is.
        4. It may mend itself: later again. 5. Somebody has to do something.
        """
        wish, entry.wish = entry.wish, None
        if ended.end is End.DONE:
            await self._settle(entry, JobState.DONE)
        elif wish is not None:
            await self._settle(entry, wish)
        elif ended.end is End.STOPPED:
            await self._change(entry, JobState.QUEUED)
        elif ended.end in (End.RETRY, End.CRASHED) and not self._is_hopeless(entry, ended.end):
            entry.failures += 1
            wait_s = self._terms.patience.wait_s(entry.failures, ended.retry_after_s)
            entry.not_before_s = self._clock() + wait_s
            log.info("download %s: %s Next try in %.0f s.", entry.job.id, ended.message, wait_s)
            await self._change(entry, JobState.QUEUED, f"{ended.message} It is tried again.")
        else:
            log.info("download %s failed: %s", entry.job.id, ended.message)
            await self._change(entry, JobState.FAILED, ended.message)

    def _is_hopeless(self, entry: _Entry, end: End) -> bool:
        quiet_s = self._clock() - entry.byte_at_s
        return self._terms.patience.is_over(entry.failures, quiet_s, crashed=end is End.CRASHED)

    async def _settle(self, entry: _Entry, state: JobState) -> None:
        if state is JobState.CANCELLED:
            staging = Staging(self._terms.roots[0], entry.job.id)
            await self._ledger.do(staging.remove)
        if state is JobState.DONE:
            entry.job = replace(entry.job, done_bytes=entry.job.total_bytes or entry.job.done_bytes)
        if state in ENDED:
            entry.token = None
        await self._change(entry, state)

    async def _change(self, entry: _Entry, state: JobState, error: str | None = None) -> None:
        entry.job = replace(entry.job, state=state, error=error)
        await self._ledger.save(entry.job)
        self._tell(entry.job)
