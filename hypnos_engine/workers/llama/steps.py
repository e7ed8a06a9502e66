"""Decides what one decode step computes: a token for each running answer, then shares of the prompts.

Must never let a long prompt stall the answers that run beside it, and keeps the arithmetic of lone requests repeatable.

Why whole blocks: with a half-precision cache llama.cpp chooses its attention kernel by the number of tokens in a call
and adds up in tiles of 64 cells, so the same position gets other bits in another company (measured on a CPU: up to 1 in
a logit).
The bits agree when a sequence begins at the first cell, is alone in the cache, and its prompt is computed in blocks of
64 from its beginning with the rest in a call of its own. How many blocks a call takes does not matter on a CPU; on an
accelerator it may, so that there every call takes exactly one block.
"""

from dataclasses import dataclass, replace

from hypnos_engine.workers.llama.slots import CPU_BLOCK, Slot, SlotTable

STEP_IN_COMPANY_S = 0.1
"""Longest time that prompts may take of a step while answers run."""
STEP_ALONE_S = 0.3
"""Longest step while several prompts are read and nobody answers: a short one is not to wait for the long ones."""
STEP_LONE_S = 1.0
"""Longest step of the only request: new and cancelled requests are noticed between two steps. Shorter ones cost it
time: reading 500 tokens in calls of 64 takes a tenth longer than at once, with two threads."""
_FEWEST_TOKENS = 8
_FEWEST_UNHEARD = 2 * CPU_BLOCK
"""Tokens of a step while nobody answers, however slow the machine is at this moment: fewer make it slower still, by two
fifths for a prompt that is read eight tokens at a time."""
_LEARN = 0.5
_ENOUGH_TO_LEARN = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of one slot that go into a batch; `last` when a token is drawn from their logits."""

    slot: Slot
    tokens: list[int]
    last: bool
    answers: bool = False
    """The first token is the last of an answer, so that there is no part of a prompt."""
    guessed: int = 0
    """So many tokens at the end are guesses: one is drawn after the token before them and after each of them."""

    def without_guesses(self) -> "Piece":
        """The same piece with only the tokens that are certain."""
        return replace(self, tokens=self.tokens[: len(self.tokens) - self.guessed], guessed=0)


class Pace:
    """How long a prompt token takes, as measured lately."""

    def __init__(self, token_s: float) -> None:
        self._token_s = max(token_s, 1e-6)

    def tokens_in(self, seconds: float) -> int:
        return max(_FEWEST_TOKENS, int(seconds / self._token_s))

    def learn(self, tokens: int, seconds: float) -> None:
        """Take the time of a step of `tokens` tokens into account."""
        if tokens >= _ENOUGH_TO_LEARN and seconds > 0:
            self._token_s += _LEARN * (seconds / tokens - self._token_s)


def plan(table: SlotTable, pace: Pace, turn: int) -> list[Piece]:
    """Return the pieces of the next step; at least one while any slot is active."""
    active = table.active
    answering = [slot for slot in active if slot.job is not None and slot.job.drawn and len(slot.pending) == 1]
    reading = [slot for slot in active if slot not in answering]
    pieces = [Piece(slot, slot.pending, True, answers=True) for slot in answering]
    if not reading:
        return pieces
    room = table.context.batch.capacity - len(pieces)
    if len(active) == 1:
        return [_lone_piece(table, reading[0], min(room, max(_FEWEST_UNHEARD, pace.tokens_in(STEP_LONE_S))))]
    unheard = max(_FEWEST_UNHEARD, pace.tokens_in(STEP_ALONE_S))
    tokens = min(room, pace.tokens_in(STEP_IN_COMPANY_S) if answering else unheard)
    first = turn % len(reading)
    for position, slot in enumerate(reading[first:] + reading[:first]):
        share = max(1, tokens // (len(reading) - position))
        count = slot.up_to_due(min(share, len(slot.pending), room))
        if count == 0:
            break
        pieces.append(Piece(slot, slot.pending[:count], count == len(slot.pending)))
        tokens -= count
        room -= count
    return pieces


def is_canonical(table: SlotTable, slot: Slot) -> bool:
    """True while everything in the slot was computed in whole blocks, alone, from the first cell on."""
    return table.home is slot and slot.canonical == len(slot.cached)


def _lone_piece(table: SlotTable, slot: Slot, tokens: int) -> Piece:
    count = min(tokens, len(slot.pending))
    block = table.block
    assert slot.job is not None
    if is_canonical(table, slot) and (slot.job.reproducible or tokens >= block):
        if len(slot.pending) < block:
            count = len(slot.pending)
        else:
            count = max(block, count // block * block) if block == CPU_BLOCK else block
    count = slot.up_to_due(count)
    return Piece(slot, slot.pending[:count], count == len(slot.pending))
