"""Decides which sequence of the cache a request gets and which cached prefixes make room for it.

Must never promise a cell twice: what running requests may come to hold and what idle prefixes hold fits the cache.

Idle prefixes are dropped least valuable first, and no more of them than needed. A prefix is worth its tokens, which are
what computing it again costs, times its warmth: 1 for each request that went on from it, halved with every
`HALF_LIFE` requests that went by since. So a long document outlives a few short questions, and a conversation that goes
on outlives a document that nobody asks about any more.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from hypnos_engine.workers.llama.checkpoints import MOST_BYTES, Checkpoint, Shelf, points
from hypnos_engine.workers.llama.context import Context, State
from hypnos_engine.workers.llama.job import Job

CPU_BLOCK = 64
"""Tokens whose computation on a processor gives the same bits however often it is done (see `steps`)."""
WORTH_REUSING = 10
"""A prefix counts from a tenth of the prompt on; below, another conversation's cache is not worth losing."""
HALF_LIFE = 8
"""Requests of the whole worker after which one use of a prefix counts half: two rounds of the usual four slots."""
MIB = 1024 * 1024
PARKED_AT_MOST_BYTES = 256 * MIB
"""Idle states that may be set aside in host memory for the time of one reproducible answer."""
CLEARED_AT_MOST_BYTES = 96 * MIB
"""Idle states that are set aside for the time of any lone answer: more are not worth the copying, and on an accelerator
none are. Attention goes over all cells up to the last one in use: 1300 idle ones cost a lone request a tenth of its
prompt and a twentieth of its answer, and copying them costs a few milliseconds."""
CLEARED_FROM_CELLS = 256


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
    warmth: float = 0.0
    """How much the cached tokens were used, as of the grant `used`."""
    due: list[int] = field(default_factory=list)
    """Lengths at which a checkpoint is to be taken, ascending."""
    idle_since_s: float = 0.0
    """When its last request ended, on the monotonic clock."""

    @property
    def cells(self) -> int:
        """Cells of the cache that the slot holds or may come to hold."""
        if self.job is not None:
            return self.job.cells
        return 0 if self.parked is not None else len(self.cached)

    def forget(self) -> None:
        """Nothing is cached any more."""
        self.cached, self.canonical, self.parked = [], 0, None

    def warmth_at(self, grant: int) -> float:
        """How much the cached tokens are used, as of a later grant."""
        return float(self.warmth * 0.5 ** ((grant - self.used) / HALF_LIFE))

    def up_to_due(self, tokens: int) -> int:
        """So many of the pending tokens, or as many as come before the next checkpoint."""
        return min(tokens, self.due[0] - len(self.cached)) if self.due else tokens

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

    def __init__(
        self,
        context: Context,
        block: int,
        control: Collection[int] = (),
        idle_limit_s: float | None = None,
    ) -> None:
        self.context = context
        self.block = block
        """Tokens whose computation gives the same bits however often it is done (see `steps`)."""
        self._control = control
        """Ids of the control tokens."""
        self._idle_limit_s = idle_limit_s
        """How long a conversation may be idle before it is forgotten; None = for ever."""
        self.shelf = Shelf(_cache_bytes(context))
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
            self._forget(slot)
        job.cached = self._prepare(slot, job, alone)
        self._grants += 1
        slot.warmth = 1 + (slot.warmth_at(self._grants) if job.cached else 0)
        slot.used, slot.scope, slot.job = self._grants, job.request.scope, job
        slot.pending = job.prompt[job.cached :]
        if self._has_uncuttable(job):
            slot.due = points(job.prompt, self._control, job.cached, self.block if job.reproducible else 1)
        return slot

    def tidy(self, slot: Slot) -> None:
        """Clear the way for the rest of an answer, between its first token and the second, if it is the only one."""
        job = slot.job
        if job is None or len(self.active) > 1 or job.reproducible or self._has_uncuttable(job):
            return
        known = slot.cached
        self._clear_the_way(slot)
        if not slot.cached:  # its own state could not be had back: it is computed anew
            slot.pending = known + slot.pending

    def advanced(self, slot: Slot) -> None:
        """More of the slot's tokens are cached: take the checkpoint that may be due at this length."""
        while slot.due and slot.due[0] <= len(slot.cached):
            if slot.due.pop(0) == len(slot.cached):
                self._take_checkpoint(slot)

    def release(self, slot: Slot) -> None:
        """The request is over; what it computed stays as an idle prefix."""
        slot.job = None
        slot.pending, slot.due = [], []
        slot.idle_since_s = time.monotonic()
        if not self.active:
            for other in self.slots:
                if other.parked is not None and not self._unpark(other):
                    self._forget(other)

    def used(self) -> list[Slot]:
        """Slots that hold a conversation and serve no request, most valuable first."""
        idle = [slot for slot in self.slots if slot.job is None and slot.cached]
        return sorted(idle, key=self._worth, reverse=True)

    def next_idle_s(self) -> float | None:
        """When the next conversation will have been idle for too long, on the monotonic clock; None for none."""
        if self._idle_limit_s is None:
            return None
        idle = [slot.idle_since_s for slot in self.slots if slot.job is None and slot.cached]
        return min(idle) + self._idle_limit_s if idle else None

    def clear_idle(self) -> None:
        """Forget the conversations that have been idle for too long, and give their cells back."""
        if self._idle_limit_s is None:
            return
        latest_s = time.monotonic() - self._idle_limit_s
        for slot in self.slots:
            if slot.job is None and slot.cached and slot.idle_since_s <= latest_s:
                self._clear(slot)

    def warmth(self, slot: Slot) -> float:
        """How much a slot is used, as of now."""
        return slot.warmth_at(self._grants)

    def settle(self, slot: Slot, cached: Sequence[int], state: State, checkpoints: Sequence[Checkpoint]) -> bool:
        """Put a conversation of another context into a slot that has none.

        False leaves the slot empty: it is not, it has no room, or the library does not take the state.
        """
        held = sum(other.cells for other in self.slots)
        if slot.job is not None or slot.cached or held + len(cached) > self.context.cells:
            return False
        if not self.context.restore(slot.number, state, len(cached)):
            return False
        self.home = None
        slot.cached, slot.used, slot.idle_since_s = list(cached), self._grants, time.monotonic()
        for checkpoint in checkpoints:
            self.shelf.keep(slot.number, checkpoint, lambda number: self.slots[number].warmth_at(self._grants))
        return True

    def drop_idle(self) -> bool:
        """Give up the least valuable idle prefix; False when there is none."""
        victims = [slot for slot in self.slots if slot.job is None and slot.cells]
        if victims:
            self._clear(min(victims, key=self._worth))
        return bool(victims)

    def drop(self, slot: Slot) -> None:
        """Give up one slot's cells."""
        self._clear(slot)

    def forget_all(self) -> None:
        """The cache was emptied as a whole."""
        self.context.clear()
        self.home = None
        for slot in self.slots:
            self._forget(slot)

    # --- choice -----------------------------------------------------------------------------------------------------

    def _choose(self, job: Job, idle: list[Slot]) -> Slot:
        """1 the slot that saves the most tokens; 2 an empty slot; 3 the one whose prefix is worth least."""
        longest, best = max(((self._reusable(slot, job), slot) for slot in idle), key=lambda pair: pair[0])
        if longest and longest * WORTH_REUSING >= len(job.prompt):
            return best
        return min(idle, key=lambda slot: (bool(slot.cached), self._worth(slot), slot.number))

    def _make_room(self, cells: int, chosen: Slot) -> bool:
        """Drop idle prefixes, least valuable first, until `cells` are free for the chosen slot."""
        others = [slot for slot in self.slots if slot is not chosen]
        missing = cells + sum(slot.cells for slot in others) - self.context.cells
        idle = sorted((slot for slot in others if slot.job is None and slot.cells), key=self._worth)
        if missing > sum(slot.cells for slot in idle):
            return False
        victims: list[Slot] = []
        while missing > 0:
            victims.append(idle.pop(0))
            missing -= victims[-1].cells
        for victim in reversed(victims):  # the last one may have been large enough to spare earlier ones
            if missing + victim.cells <= 0:
                missing += victim.cells
            else:
                self._clear(victim)
        return True

    def _worth(self, slot: Slot) -> float:
        return len(slot.cached) * slot.warmth_at(self._grants)

    def _reusable(self, slot: Slot, job: Job) -> int:
        """Length of the longest beginning of the prompt that an idle slot can go on from."""
        # The logits of the last token are not part of the state: at least that token is always decoded.
        common = min(slot.common(job.prompt, job.request.scope), len(job.prompt) - 1)
        at_hand = slot.parked is None and self.context.can_shorten(slot.number, common)
        plain = not self.context.model.recurrent and not self.context.model.window
        if at_hand or plain or common == len(slot.cached):
            return common
        checkpoint = self.shelf.best(slot.number, common)
        return checkpoint.length if checkpoint is not None else 0

    # --- prefixes ---------------------------------------------------------------------------------------------------

    def _prepare(self, slot: Slot, job: Job, alone: bool) -> int:
        """Bring the slot's cells to the part of the prompt that can be reused; returns its length."""
        reused = min(slot.common(job.prompt, job.request.scope), len(job.prompt) - 1)
        exact = alone and job.reproducible
        if exact:
            # Moved home, what is left of a window closes up: other tiles, other bits.
            stays = self.home is slot or not self.context.model.window
            reused = min(reused, slot.canonical) // self.block * self.block if stays else 0
        reused = self._return_to(slot, reused, exact=exact)
        self.shelf.cut(slot.number, reused)
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
            if alone and len(job.prompt) - len(slot.cached) >= CLEARED_FROM_CELLS and not self._has_uncuttable(job):
                self._clear_the_way(slot)  # else it waits until the first token is out: see `tidy`
        return len(slot.cached)

    def _return_to(self, slot: Slot, length: int, *, exact: bool) -> int:
        """Cut the slot's sequence to at most `length` tokens; returns how many remain.

        1 the memory can be cut there; 2 the longest checkpoint before; 3 nothing. With `exact` a sequence must lie in
        the cache as if it had just been computed: a window whose cells were used again does not, nor does a copy of it.
        """
        if self.context.can_shorten(slot.number, length, untouched=exact) and self.context.shorten(slot.number, length):
            return length
        checkpoint = self.shelf.best(slot.number, length)
        if checkpoint is None or (exact and (self.context.model.window or checkpoint.length % self.block)):
            self.context.truncate(slot.number, 0)
            return 0
        return checkpoint.length if self.context.go_back(slot.number, checkpoint.state, checkpoint.length) else 0

    def _rehome(self, slot: Slot) -> None:
        """Move the slot's cells, the only ones, to the beginning of the cache."""
        state = self.context.save(slot.number) if slot.cached else None
        self.context.clear()
        if slot.cached and (state is None or not self.context.restore(slot.number, state, len(slot.cached))):
            self._forget(slot)
        self.home = slot

    def _park_others(self, slot: Slot) -> None:
        """Set the idle prefixes aside, most valuable first, as far as the bound allows."""
        room = PARKED_AT_MOST_BYTES
        others = [other for other in self.slots if other is not slot and other.cells]
        for other in sorted(others, key=self._worth, reverse=True):
            size = self.context.state_bytes(other.number)
            state = self.context.save(other.number) if size <= room else None
            self._clear(other) if state is None else self._set_aside(other, state)
            room -= size if state is not None else 0

    def _clear_the_way(self, slot: Slot) -> None:
        """Set all idle prefixes aside, and move the slot's own cells to the beginning, where that is cheap."""
        others = [other for other in self.slots if other is not slot and other.cells]
        if self.block != CPU_BLOCK or sum(other.cells for other in others) < CLEARED_FROM_CELLS:
            return
        if sum(self.context.state_bytes(one.number) for one in (slot, *others)) > CLEARED_AT_MOST_BYTES:
            return
        states = [(other, self.context.save(other.number)) for other in others]
        if any(state is None for _, state in states):
            return
        for other, state in states:
            if state is not None:
                self._set_aside(other, state)
        self._rehome(slot)

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
        self._forget(slot)
        if self.home is slot:
            self.home = None

    def _forget(self, slot: Slot) -> None:
        slot.forget()
        self.shelf.cut(slot.number, 0)

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def _has_uncuttable(self, job: Job) -> bool:
        """True when the job's sequence will not be cut at will: states that run, windows that it outgrows."""
        model = self.context.model
        return model.recurrent or 0 < model.window < job.cells

    def _take_checkpoint(self, slot: Slot) -> None:
        if self.context.uncuttable_bytes(slot.number) > self.shelf.limit_bytes:
            return
        state = self.context.save_uncuttable(slot.number)
        if state is not None:
            checkpoint = Checkpoint(len(slot.cached), state)
            self.shelf.keep(slot.number, checkpoint, lambda number: self.slots[number].warmth_at(self._grants))

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
        self.shelf.limit_bytes = min(_cache_bytes(context), MOST_BYTES)
        moved_alike = len(states) == 1 and not context.model.window
        self.home = self.home if moved_alike else None
        for slot in sorted(self.slots, key=lambda slot: slot.job is None):
            if slot.parked is not None:
                continue
            state = states.get(slot.number)
            if slot.cached and (state is None or not context.restore(slot.number, state, len(slot.cached))):
                slot.pending = slot.cached + slot.pending if slot.job is not None else []
                self._forget(slot)


def _cache_bytes(context: Context) -> int:
    """What the library says the cache and the recurrent states take, in whole MiB upwards: it rounds."""
    return MIB + context.buffers.by_kind.get("KV", 0) + context.buffers.by_kind.get("RS", 0)
