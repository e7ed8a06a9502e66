"""Decides what one decode step computes: a token for each running answer, then shares of the prompts.

Must never let a long prompt stall the answers that run beside it, and keeps the arithmetic of lone requests repeatable.

Why whole blocks: with a half-precision cache llama.cpp chooses its attention kernel by the number of tokens in a call
and adds up in tiles of 64 cells, so the same position gets other bits in another company (measured on a CPU: up to 1 in
a logit).
The bits agree when a sequence begins at the first cell, is alone in the cache, and its prompt is computed in blocks of
64 from its beginning with the rest in a call of its own. How many blocks a call takes does not matter on a CPU; on an
accelerator it may, so that there every call takes exactly one block.
"""

from dataclasses import dataclass

from hypnos_engine.workers.llama.slots import Slot, SlotTable

CPU_BLOCK = 64
STEP_IN_COMPANY_S = 0.1
"""Longest time that prompts may take of a step while answers run."""
STEP_ALONE_S = 0.3
"""Longest step otherwise: new and cancelled requests are noticed between two steps."""
_FEWEST_TOKENS = 8
_LEARN = 0.5
_ENOUGH_TO_LEARN = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of one slot that go into a batch; `last` when a token is drawn from their logits."""

    slot: Slot
    tokens: list[int]
    last: bool


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
    pieces = [Piece(slot, slot.pending, True) for slot in answering]
    if not reading:
        return pieces
    room = table.context.batch.capacity - len(pieces)
    tokens = min(room, pace.tokens_in(STEP_IN_COMPANY_S if answering else STEP_ALONE_S))
    if len(active) == 1:
        return [_lone_piece(table, reading[0], tokens)]
    first = turn % len(reading)
    for position, slot in enumerate(reading[first:] + reading[:first]):
        share = max(1, tokens // (len(reading) - position))
        count = min(share, len(slot.pending), room)
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
    return Piece(slot, slot.pending[:count], count == len(slot.pending))
