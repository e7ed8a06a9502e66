"""Decides where copies are taken of what a cache cannot go back to, and which are kept; knows no context.

A sliding window forgets what left it, and a recurrent state knows only the present. A checkpoint holds both as they
were at one length of one slot's tokens. It must never outlive those tokens, nor serve another slot's: `Shelf.cut` has
to be called whenever a slot gives up tokens.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_BYTES = 512 * 1024 * 1024
"""Checkpoints of all slots together: four of a model like Gemma 3 4B (29 layers with a window of 1024 tokens: 120 MB
each), ten of one like Qwen3.5 4B (24 recurrent layers: 50 MB each). They never take more than the cache itself does."""
MOST_PER_SLOT = 8
"""Two for each of the last turns, the common beginning, and some in a long text."""
SPACING = 8192
"""In a long prompt, a change costs at most these many tokens again."""
LEAST_GAIN = 64
"""Computing fewer tokens again is cheaper than to keep a copy for them."""

_LONGEST_TAIL = 64
"""What may follow the last control token of a prompt: the header of the answer, an opened thought."""
_BLIND_TAIL = 16
"""Tokens at the end that the next turn may change, where no control token tells: a written header such as a name."""
_NEAR = 8
"""Control tokens with no more than this between them belong to one header."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a slot's sequence was at its first `length` tokens, as far as it cannot be cut."""

    length: int
    state: NDArray[np.uint8]


class Shelf:
    """All checkpoints of one worker, by the number of the slot whose tokens they belong to."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = min(limit_bytes, MOST_BYTES)
        self._kept: dict[int, list[Checkpoint]] = {}

    @property
    def held_bytes(self) -> int:
        return sum(checkpoint.state.nbytes for kept in self._kept.values() for checkpoint in kept)

    def lengths(self, slot: int) -> list[int]:
        """Lengths at which the slot has a checkpoint, ascending."""
        return [checkpoint.length for checkpoint in self._kept.get(slot, ())]

    def of(self, slot: int) -> tuple[Checkpoint, ...]:
        """The slot's checkpoints, by ascending length."""
        return tuple(self._kept.get(slot, ()))

    def best(self, slot: int, at_most: int) -> Checkpoint | None:
        """The slot's longest checkpoint of no more than so many tokens."""
        found = bisect_right(self.lengths(slot), at_most)
        return self._kept[slot][found - 1] if found else None

    def cut(self, slot: int, length: int) -> None:
        """The slot keeps only its first `length` tokens."""
        kept = [checkpoint for checkpoint in self._kept.pop(slot, ()) if checkpoint.length <= length]
        if kept:
            self._kept[slot] = kept

    def keep(self, slot: int, checkpoint: Checkpoint, warmth: Callable[[int], float]) -> bool:
        """Take a slot's checkpoint and give up others for it, least valuable first; False when it is too large.

        A checkpoint is worth the tokens from the next shorter one on, which would have to be computed again, times how
        often and how recently its slot is used: `warmth` of the slot's number.
        """
        if checkpoint.state.nbytes > self.limit_bytes:
            return False
        kept = [other for other in self._kept.get(slot, ()) if other.length != checkpoint.length]
        self._kept[slot] = sorted([*kept, checkpoint], key=lambda each: each.length)
        while len(self._kept[slot]) > MOST_PER_SLOT:
            self._give_up([slot], checkpoint, warmth)
        while self.held_bytes > self.limit_bytes:
            self._give_up(self._kept, checkpoint, warmth)
        return True

    def _give_up(self, slots: Collection[int], spared: Checkpoint, warmth: Callable[[int], float]) -> None:
        worth: list[tuple[float, int, Checkpoint]] = []
        for slot in slots:
            shorter = 0
            for checkpoint in self._kept[slot]:
                if checkpoint is not spared:
                    worth.append(((checkpoint.length - shorter) * warmth(slot), slot, checkpoint))
                shorter = checkpoint.length
        _, slot, least = min(worth, key=lambda each: each[0])
        self._kept[slot].remove(least)
        if not self._kept[slot]:
            del self._kept[slot]


def points(prompt: Sequence[int], control: Collection[int], reused: int, block: int) -> list[int]:
    """Lengths at which checkpoints of a prompt are to be taken while it is computed from `reused` tokens on, ascending.

    1 Before the header of the answer, which is written differently once the answer is known (a thought that was opened
      is left out, for one): the next turn goes on from here.
    2 Before the header of the last message, for a client that changes or repeats it.
    3 After the first message, the beginning that conversations of one program have in common.
    4 Every `SPACING` tokens.
    All but the last kind lie before a control token, where every tokeniser cuts: what precedes it has the same tokens
    whatever follows. Of two that are close only the later is taken. All lengths are multiples of `block`.
    """
    headers = _headers(prompt, control)
    if headers and len(prompt) - headers[-1] <= 2 * _LONGEST_TAIL:
        wanted = {headers[-1], *headers[-2:-1], *headers[1:2]}
    else:
        wanted = {len(prompt) - _BLIND_TAIL, *headers[-1:], *headers[1:2]}
    wanted.update(range(SPACING, len(prompt), SPACING))
    taken: list[int] = []
    for length in sorted((length // block * block for length in wanted), reverse=True):
        if length > reused and length >= LEAST_GAIN and (not taken or taken[-1] - length >= LEAST_GAIN):
            taken.append(length)
    return taken[::-1]


def _headers(prompt: Sequence[int], control: Collection[int]) -> list[int]:
    """Where groups of control tokens begin. Even a conversation of single words is divided every now and then."""
    starts: list[int] = []
    last = -1
    for position, token in enumerate(prompt):
        if token in control:
            if not starts or position - last > _NEAR or position - starts[-1] > _LONGEST_TAIL:
                starts.append(position)
            last = position
    return starts
