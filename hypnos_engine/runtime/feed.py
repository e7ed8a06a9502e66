"""What changed, in order, for any number of readers: models, sums, loads and decisions, each change with a number.

Decides what counts as a change and what a slow reader gets. Changes are found by looking, not by being told: whoever
changes something calls `touch`, and a moment later the present view is compared with the one last published. So a
change that nobody announced is found by the next look, and what `refresh` returns is always what a reader has who
followed up to its number. Never waits for a reader and never keeps more than RING changes.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, Literal, NamedTuple

from hypnos_engine.catalog.downloads.records import Job
from hypnos_engine.domain.errors import ModelNotAvailable
from hypnos_engine.domain.model import ModelId
from hypnos_engine.runtime.snapshot import Decision, MemoryView, ModelView

RING: Final = 256
"""Changes that are kept; a reader further behind gets a snapshot instead."""
MOST_READERS: Final = 64
FIRST_BELOW: Final = 2**52
"""Numbers stay whole in every language's floating point."""
GAP_S: Final = 0.1
"""Shortest time between two looks, and between two steps of one load."""
SOON_S: Final = 0.01
"""From the first touch after a quiet time to the look: what happens at once is told at once."""


class ChangeKind(Enum):
    SNAPSHOT = auto()
    """Everything; what was known before counts no more."""
    MODEL = auto()
    TOTALS = auto()
    """Everything but the models; their names, however, in their order."""
    LOAD = auto()
    DECISION = auto()
    DOWNLOAD = auto()
    """A download that began or has changed; at most two a second for each but for changes of its state."""


@dataclass(frozen=True, slots=True)
class LoadStep:
    """How far the load of a model is."""

    model: ModelId
    phase: str
    progress: float


@dataclass(frozen=True, slots=True)
class Change:
    seq: int
    kind: ChangeKind
    body: MemoryView | ModelView | LoadStep | Decision | Job
    """MemoryView for SNAPSHOT and TOTALS."""

    @property
    def is_snapshot(self) -> bool:
        """Whether what was known before counts no more."""
        return self.kind is ChangeKind.SNAPSHOT


class Seen(NamedTuple):
    """A view, and the number of the last change that is in it."""

    seq: int
    view: MemoryView


class ChangeFeed:
    """The changes of one runtime. Used on one loop.

    `look` returns the present view; it is called often while somebody reads, so it must be cheap. It may call `touch`.
    """

    def __init__(self, look: Callable[[], MemoryView], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._look = look
        self._clock = clock
        # A reader that followed an earlier process must not find its number here, whatever the clock says.
        self._seq = secrets.randbelow(FIRST_BELOW)
        self._ring: deque[Change] = deque(maxlen=RING)
        self._totals: tuple[MemoryView, tuple[ModelId, ...]] | None = None
        self._models: dict[ModelId, ModelView] = {}
        """As published, without what changes all the time."""
        self._load_told_at: dict[ModelId, float] = {}
        self._readers: set[_Reader] = set()
        self._looked_at = -GAP_S
        self._timer: asyncio.TimerHandle | None = None
        self._looking = False

    @property
    def readers(self) -> int:
        """How many follow at this moment."""
        return len(self._readers)

    # --- what is told -----------------------------------------------------------------------------------------------

    def touch(self) -> None:
        """Say that something may have changed. Costs next to nothing; the look follows in a moment, if anybody reads.

        Call it after every batch of events, also for progress of a load.
        """
        if self._readers and self._timer is None and not self._looking:
            wait_s = max(SOON_S, self._looked_at + GAP_S - self._clock())
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._timed_look)

    def publish(self, kind: Literal[ChangeKind.DECISION, ChangeKind.DOWNLOAD], body: Decision | Job) -> None:
        """Tell of something that is no part of the view: a decision, once, when it was made; a download."""
        self._add(kind, body)
        self._wake()

    def refresh(self) -> Seen:
        """Look now, publish what has changed, and return what was seen."""
        self._looking = True
        try:
            view = self._look()
        finally:
            self._looking = False
        self._looked_at = self._clock()
        before = self._seq
        view = replace(view, models=tuple(self._compare_model(model) for model in view.models))
        names = tuple(model.spec.id for model in view.models)
        for gone in self._models.keys() - set(names):
            del self._models[gone]
            self._load_told_at.pop(gone, None)
        totals = _steady_totals(view), names
        if totals != self._totals:
            self._totals = totals
            self._add(ChangeKind.TOTALS, view)
        if self._seq != before:
            self._wake()
        return Seen(self._seq, view)

    def _compare_model(self, model: ModelView) -> ModelView:
        """Publish what is new about a model; returns it as it is published now."""
        name = model.spec.id
        known = self._models.get(name)
        now = _steady(model)
        if now == known:
            return model
        if known is None or known.load_phase is None or model.load_phase is None or not _same_but_load(now, known):
            self._models[name] = now
            self._load_told_at[name] = self._clock()
            self._add(ChangeKind.MODEL, model)
            return model
        due_s = self._load_told_at.get(name, 0.0) + GAP_S - self._clock()
        if due_s > 0:
            self._look_again(due_s)
            return replace(model, load_phase=known.load_phase, load_progress=known.load_progress)
        self._models[name] = now
        self._load_told_at[name] = self._clock()
        self._add(ChangeKind.LOAD, LoadStep(name, model.load_phase, model.load_progress or 0.0))
        return model

    def _look_again(self, wait_s: float) -> None:
        if self._readers and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._timed_look)

    def _timed_look(self) -> None:
        self._timer = None
        self.refresh()

    def _add(self, kind: ChangeKind, body: MemoryView | ModelView | LoadStep | Decision | Job) -> None:
        self._seq += 1
        self._ring.append(Change(self._seq, kind, body))

    def _wake(self) -> None:
        for reader in self._readers:
            reader.news.set()

    # --- who reads --------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def subscribe(self, last_id: int | None = None) -> AsyncIterator[AsyncIterator[Change]]:
        """Follow from after the change `last_id`, or from a snapshot (None, or a number that is not kept any more).

        The iterator never ends by itself. Raises ModelNotAvailable when too many read already.
        """
        if len(self._readers) >= MOST_READERS:
            raise ModelNotAvailable(
                f"{MOST_READERS} readers follow the events already; close one, or ask GET /v1/memory/status.",
                retry_after_s=5.0,
            )
        reader = _Reader(self, last_id)
        self._readers.add(reader)
        try:
            self.refresh()
            yield reader
        finally:
            self._readers.discard(reader)
            if not self._readers and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def after(self, seq: int | None) -> Change | None:
        """The change after that one, a snapshot where that one is not known any more; None when there is none yet."""
        if seq is None or not self._seq - len(self._ring) <= seq <= self._seq:
            seen = self.refresh()
            return Change(seen.seq, ChangeKind.SNAPSHOT, seen.view)
        behind = self._seq - seq
        return self._ring[-behind] if behind else None


class _Reader:
    """One who follows: a place in the ring, no queue of its own."""

    def __init__(self, feed: ChangeFeed, last_id: int | None) -> None:
        self.news = asyncio.Event()
        self._feed = feed
        self._seq = last_id

    def __aiter__(self) -> "_Reader":
        return self

    async def __anext__(self) -> Change:
        while (change := self._feed.after(self._seq)) is None:
            self.news.clear()
            await self.news.wait()
        self._seq = change.seq
        return change


def _steady(model: ModelView) -> ModelView:
    """A model without what changes by the passing of time alone."""
    return replace(model, idle_s=0.0, requests_per_minute=0.0, estimated_wait_ms=None)


def _same_but_load(one: ModelView, other: ModelView) -> bool:
    return replace(one, load_phase=None, load_progress=None) == replace(other, load_phase=None, load_progress=None)


def _steady_totals(view: MemoryView) -> MemoryView:
    """A view without its models, and without what changes by the passing of time alone."""
    parking = view.parking
    if parking is not None:
        parking = replace(parking, models=tuple(replace(model, parked_secs_ago=0.0) for model in parking.models))
    return replace(view, models=(), parking=parking)
