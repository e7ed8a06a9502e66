"""Decides which sequence of the cache a request gets and which cached prefixes make room for it.

Must never promise a cell twice: what running requests may come to hold and what idle prefixes hold fits the cache.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hypnos_engine.workers.llama.context import Context, State
from hypnos_engine.workers.llama.job import Job

WORTH_REUSING = 10
"""A prefix counts from a tenth of the prompt on; below, another conversation's cache is not worth losing."""
PARKED_AT_MOST_BYTES = 256 * 1024 * 1024
"""Idle states that may be set aside in host memory for the time of one reproducible answer."""


@dataclass(eq=False, slots=True)
class Slot:
    """One sequence of the cache. `cached` are the tokens whose state it holds, `pending` those still to be decoded."""

    number: int
    scope: str = ""
    cached: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    job: Job | None = None
    used: int = 0
    """When it was last used, as a count of grants."""
    canonical: int = 0
    """Tokens at the beginning that were computed in whole blocks, alone, from the first cell on."""
    parked: State | None = None
    """The state, while it is set aside in host memory and holds no cells."""

    @property
    def cells(self) -> int:
        """Cells of the cache that the slot holds or may come to hold."""
        if self.job is not None:
            return self.job.cells
        return 0 if self.parked is not None else len(self.cached)

    def forget(self) -> None:
        """Nothing is cached any more."""
        self.cached, self.canonical, self.parked = [], 0, None

    def common(self, prompt: list[int], scope: str) -> int:
        """Length of the longest beginning of `prompt` that is cached here for this scope."""
        if self.scope != scope:
            return 0
        known, count = self.cached, min(len(self.cached), len(prompt))
        if known[:count] == prompt[:count]:
            return count
        return next(index for index in range(count) if known[index] != prompt[index])


class SlotTable:
    """All slots of one context and the ledger of its cells."""

    def __init__(self, context: Context, block: int) -> None:
        self.context = context
        self.block = block
        """Tokens whose computation gives the same bits however often it is done (see `steps`)."""
        self.slots = [Slot(number) for number in range(context.shape.slots)]
        self.home: Slot | None = None
        """The only slot with cells, which begin at the first one; None when several share the cache."""
        self._grants = 0

    @property
    def active(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.job is not None]

    def grant(self, job: Job) -> Slot | None:
        """Give a slot to a request that fits the cache, or None when running requests have to end first."""
        idle = [slot for slot in self.slots if slot.job is None]
        if not idle:
            return None
        slot = self._choose(job, idle)
        if not self._make_room(job.cells, slot):
            return None
        alone = len(idle) == len(self.slots)
        if slot.parked is not None and not self._unpark(slot):
            slot.forget()
        job.cached = self._prepare(slot, job, alone)
        self._grants += 1
        slot.used, slot.scope, slot.job = self._grants, job.request.scope, job
        slot.pending = job.prompt[job.cached :]
        return slot

    def release(self, slot: Slot) -> None:
        """The request is over; what it computed stays as an idle prefix."""
        slot.job = None
        slot.pending = []
        if not self.active:
            for other in self.slots:
                if other.parked is not None and not self._unpark(other):
                    other.forget()

    def drop_idle(self) -> bool:
        """Give up all idle prefixes; False when there were none."""
        victims = [slot for slot in self.slots if slot.job is None and slot.cells]
        for slot in victims:
            self._clear(slot)
        return bool(victims)

    def drop(self, slot: Slot) -> None:
        """Give up one slot's cells."""
        self._clear(slot)

    def forget_all(self) -> None:
        """The cache was emptied as a whole."""
        self.context.clear()
        self.home = None
        for slot in self.slots:
            slot.forget()

    # --- choice -----------------------------------------------------------------------------------------------------

    def _choose(self, job: Job, idle: list[Slot]) -> Slot:
        """1 the longest common prefix of the same scope; 2 an empty slot; 3 the least recently used one."""
        prompt, scope = job.prompt, job.request.scope
        longest, best = max(((slot.common(prompt, scope), slot) for slot in idle), key=lambda pair: pair[0])
        if longest and longest * WORTH_REUSING >= len(prompt):
            return best
        return min(idle, key=lambda slot: (bool(slot.cached), slot.used))

    def _make_room(self, cells: int, chosen: Slot) -> bool:
        """Drop idle prefixes, least recently used first, until `cells` are free for the chosen slot."""
        total = self.context.cells
        others = [slot for slot in self.slots if slot is not chosen]
        if cells + sum(slot.cells for slot in others if slot.job is not None) > total:
            return False
        idle = sorted((slot for slot in others if slot.job is None and slot.cells), key=lambda slot: slot.used)
        while cells + sum(slot.cells for slot in others) > total:
            self._clear(idle.pop(0))
        return True

    # --- prefixes ---------------------------------------------------------------------------------------------------

    def _prepare(self, slot: Slot, job: Job, alone: bool) -> int:
        """Bring the slot's cells to the part of the prompt that can be reused; returns its length."""
        # The logits of the last token are not part of the state: at least that token is always decoded.
        reused = min(slot.common(job.prompt, job.request.scope), len(job.prompt) - 1)
        if alone and job.reproducible:
            reused = min(reused, slot.canonical) // self.block * self.block
        if not self.context.truncate(slot.number, reused):
            reused = 0
        slot.cached = slot.cached[:reused]
        slot.canonical = min(slot.canonical, reused)
        if not any(other.cells for other in self.slots if other is not slot):
            if not slot.cached or (job.reproducible and self.home is not slot):
                self._rehome(slot)
        elif alone and job.reproducible:
            self._park_others(slot)
            self._rehome(slot)
        else:
            self.home = None
        return len(slot.cached)

    def _rehome(self, slot: Slot) -> None:
        """Move the slot's cells, the only ones, to the beginning of the cache."""
        state = self.context.save(slot.number) if slot.cached else None
        self.context.clear()
        if slot.cached and (state is None or not self.context.restore(slot.number, state, len(slot.cached))):
            slot.forget()
        self.home = slot

    def _park_others(self, slot: Slot) -> None:
        """Set the idle prefixes aside, most recently used first, as far as the bound allows."""
        room = PARKED_AT_MOST_BYTES
        others = [other for other in self.slots if other is not slot and other.cells]
        for other in sorted(others, key=lambda other: -other.used):
            size = self.context.state_bytes(other.number)
            state = self.context.save(other.number) if size <= room else None
            self._clear(other) if state is None else self._set_aside(other, state)
            room -= size if state is not None else 0

    def _set_aside(self, slot: Slot, state: State) -> None:
        self.context.truncate(slot.number, 0)
        slot.parked = state

    def _unpark(self, slot: Slot) -> bool:
        state, slot.parked = slot.parked, None
        self.home = None
        held = sum(other.cells for other in self.slots if other is not slot)
        if state is None or held + len(slot.cached) > self.context.cells:
            return False
        return self.context.restore(slot.number, state, len(slot.cached))

    def _clear(self, slot: Slot) -> None:
        self.context.truncate(slot.number, 0)
        slot.forget()
        if self.home is slot:
            self.home = None

    # --- another context --------------------------------------------------------------------------------------------

    def save_all(self) -> dict[int, State]:
        """States of all slots that hold cells, as far as they can be saved."""
        saved = (
            (slot.number, self.context.save(slot.number)) for slot in self.slots if slot.cached and slot.parked is None
        )
        return {number: state for number, state in saved if state is not None}

    def move_to(self, context: Context, states: dict[int, State]) -> None:
        """Go on in another context. A running request whose state cannot be had back is computed anew."""
        self.context = context
        self.home = self.home if self.home is not None and len(states) == 1 else None
        for slot in sorted(self.slots, key=lambda slot: slot.job is None):
            if slot.parked is not None:
                continue
            state = states.get(slot.number)
            if slot.cached and (state is None or not context.restore(slot.number, state, len(slot.cached))):
                slot.pending = slot.cached + slot.pending if slot.job is not None else []
                slot.forget()


def in_order(slots: Iterable[Slot]) -> list[Slot]:
    """The slots by the age of their requests, oldest first."""
    return sorted(slots, key=lambda slot: slot.used)
