"""Downloads for `hypnos models pull`: by the engine when one runs, in this process otherwise; shows how far it is.

An interrupted download is never lost: the engine goes on with it, or the same command does.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from hypnos_engine import presence
from hypnos_engine.api.client import HypnosClient
from hypnos_engine.catalog.downloads.ledger import Ledger
from hypnos_engine.catalog.downloads.queue import Downloads
from hypnos_engine.catalog.downloads.records import JobState
from hypnos_engine.catalog.downloads.specs import files_of
from hypnos_engine.cli.serve import loop_factory
from hypnos_engine.cli.streams import EXIT_INTERRUPTED
from hypnos_engine.config.paths import Folders, prepare, standard_folders, usable_folder
from hypnos_engine.daemon import download_terms

if TYPE_CHECKING:
    from hypnos_engine.catalog.shelf import Shelf
    from hypnos_engine.config.settings import Settings

LOOK_S: Final = 0.5
SAY_S: Final = 10.0
"""Between two lines where nobody watches a terminal."""
_OVER: Final = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED, JobState.PAUSED})


@dataclass(frozen=True, slots=True)
class Wish:
    specs: tuple[str, ...]
    token: str | None = field(repr=False)
    again: bool


@dataclass(frozen=True, slots=True)
class Step:
    """How far a download is."""

    spec: str
    state: str
    done_bytes: int
    total_bytes: int | None
    bytes_per_s: float | None
    eta_s: float | None
    error: str | None


class _Source(Protocol):
    """Who downloads."""

    async def begin(self, spec: str) -> str:
        """Returns the job's id."""
        ...

    async def look(self, job: str) -> Step: ...


def pull(settings: "Settings", shelf: "Shelf", wish: Wish) -> int:
    """Download everything; returns 0 when all of it is here, 1 when not. Raises HypnosError for a refused wish."""
    folders = standard_folders()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        try:
            return runner.run(_pull(settings, shelf, wish, folders))
        except KeyboardInterrupt:
            sys.stdout.write("\nInterrupted. What has come is kept: run the same command again to go on.\n")
            return EXIT_INTERRUPTED


async def _pull(settings: "Settings", shelf: "Shelf", wish: Wish, folders: Folders) -> int:
    running = presence.read(folders.run) if presence.is_locked(folders.run) else None
    if running is not None:
        async with HypnosClient(running.address, running.token) as client:
            return await _follow(_Engine(client, wish), wish.specs)
    prepare(folders)
    usable_folder(shelf.roots[0])
    downloads = Downloads(Ledger(folders.state), download_terms(settings, shelf.roots))
    await downloads.open(go_on=False)
    try:
        return await _follow(_Here(downloads, shelf, wish), wish.specs)
    finally:
        await downloads.close()


class _Engine:
    """The engine of this user."""

    def __init__(self, client: HypnosClient, wish: Wish) -> None:
        self._client, self._wish = client, wish

    async def begin(self, spec: str) -> str:
        return (await self._client.start_download(spec, token=self._wish.token, again=self._wish.again)).id

    async def look(self, job: str) -> Step:
        known = {one.id: one for one in await self._client.downloads()}
        found = known[job]
        return Step(
            found.spec,
            found.state,
            found.bytes_done,
            found.bytes_total,
            found.bytes_per_s,
            found.eta_secs,
            found.error,
        )


class _Here:
    """Jobs of this process."""

    def __init__(self, downloads: Downloads, shelf: "Shelf", wish: Wish) -> None:
        self._downloads, self._shelf, self._wish = downloads, shelf, wish

    async def begin(self, spec: str) -> str:
        files = files_of(spec, self._shelf.catalog(), self._shelf.platform)
        return (await self._downloads.request(spec, files, token=self._wish.token, again=self._wish.again)).id

    async def look(self, job: str) -> Step:
        found = self._downloads.job(job)
        return Step(
            found.spec,
            found.state.value,
            found.done_bytes,
            found.total_bytes,
            found.bytes_per_s,
            found.eta_s,
            found.error,
        )


async def _follow(source: _Source, specs: Sequence[str]) -> int:
    jobs = list(dict.fromkeys([await source.begin(spec) for spec in specs]))
    display = _Display(len(jobs))
    well = True
    while jobs:
        steps = [(job, await source.look(job)) for job in jobs]
        for job, step in steps:
            if JobState(step.state) in _OVER:
                jobs.remove(job)
                display.over(step)
                well = well and step.state == JobState.DONE
        display.show([step for _, step in steps if JobState(step.state) not in _OVER])
        if jobs:
            await asyncio.sleep(LOOK_S)
    return int(not well)


class _Display:
    """One line that changes on a terminal, a line now and then elsewhere."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._live = sys.stdout.isatty()
        self._said_at = -SAY_S
        self._width = 0

    def show(self, steps: Sequence[Step]) -> None:
        if not steps or (not self._live and time.monotonic() - self._said_at < SAY_S):
            return
        self._said_at = time.monotonic()
        text = "; ".join(_text(step) for step in steps)
        if self._live:
            text = text[:118]
            sys.stdout.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def over(self, step: Step) -> None:
        if self._live and self._width:
            sys.stdout.write("\r" + " " * self._width + "\r")
        sys.stdout.write(_last_text(step) + "\n")
        sys.stdout.flush()


def _last_text(step: Step) -> str:
    if step.state == JobState.DONE:
        return f"{step.spec} is here. `hypnos catalog block {step.spec}` prints the configuration that runs it."
    return f"{step.spec}: {step.state}. {step.error or ''}".rstrip()


def _text(step: Step) -> str:
    if step.total_bytes is None:
        return f"{step.spec}: {step.state} {step.error or ''}".rstrip()
    share = 100 * step.done_bytes / step.total_bytes if step.total_bytes else 100.0
    text = f"{step.spec}: {step.state} {share:.0f}% of {step.total_bytes / 1e9:.2f} GB"
    if step.bytes_per_s:
        text += f", {step.bytes_per_s / 1e6:.1f} MB/s"
    if step.eta_s is not None:
        text += f", {_time_text(step.eta_s)} left"
    return f"{text}. {step.error}" if step.error else text


def _time_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
