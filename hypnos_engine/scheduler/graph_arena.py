"""Places buffers as ggml's graph allocator (ggml-alloc.c) places them; knows nothing of models and allocates nothing.

Every hole that is too small for the next buffer stays empty, so a sum of sizes would be wrong by up to a third.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

MICRO_BATCH = 512
"""Tokens that a worker computes at once when it generates."""
FLOAT_BYTES = 4
ALIGNMENT = 32
_ENDLESS = 1 << 120

Weights = Mapping[str, tuple[int, ...]]
"""Dimensions of a block's weights by name, row length first."""


@dataclass(frozen=True, slots=True)
class Block:
    """A buffer that is in use."""

    offset: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.size_bytes


@dataclass(slots=True)
class Arena:
    """Takes the smallest hole that is large enough (the last of equals), else the endless space behind all buffers."""

    peak_bytes: int = 0
    _free: list[Block] = field(default_factory=lambda: [Block(0, _ENDLESS)])
    """Holes by address; the last one is endless."""

    def take(self, size_bytes: int) -> Block:
        size_bytes = -(-size_bytes // ALIGNMENT) * ALIGNMENT
        chosen = last = len(self._free) - 1
        for index in range(last):
            hole = self._free[index].size_bytes
            if hole >= size_bytes and (chosen == last or hole <= self._free[chosen].size_bytes):
                chosen = index
        hole_at = self._free[chosen]
        taken = Block(hole_at.offset, size_bytes)
        rest = Block(taken.end, hole_at.size_bytes - size_bytes)
        self._free[chosen : chosen + 1] = [rest] if rest.size_bytes else []
        self.peak_bytes = max(self.peak_bytes, taken.end)
        return taken

    def give(self, block: Block) -> None:
        """Free a buffer; neighbouring holes become one."""
        if not block.size_bytes:
            return
        index = next(i for i, hole in enumerate(self._free) if hole.offset >= block.end)
        first, end = index, self._free[index]
        start, stop = block.offset, block.end
        if end.offset == stop:
            stop, index = end.end, index + 1
        if first and self._free[first - 1].end == start:
            first -= 1
            start = self._free[first].offset
        self._free[first:index] = [Block(start, stop - start)]


class Buffers:
    """The buffers of a graph that computes one micro-batch of `tokens` tokens, in elements instead of bytes."""

    def __init__(self, tokens: int = MICRO_BATCH) -> None:
        self.tokens = tokens
        self._arena = Arena()

    @property
    def peak_bytes(self) -> int:
        return self._arena.peak_bytes

    def take(self, width: int) -> Block:
        """A buffer of `width` elements for each token of the micro-batch."""
        return self._arena.take(width * self.tokens * FLOAT_BYTES)

    def once(self, elements: int) -> Block:
        """A buffer of so many elements in all."""
        return self._arena.take(elements * FLOAT_BYTES)

    def give(self, *blocks: Block) -> None:
        for block in blocks:
            self._arena.give(block)

    def again(self, block: Block) -> Block:
        """An operation on a view: its result needs a buffer of its own."""
        result = self._arena.take(block.size_bytes)
        self._arena.give(block)
        return result

    def half(self, block: Block) -> Block:
        """A copy with half the bytes per element."""
        result = self._arena.take(block.size_bytes // 2)
        self._arena.give(block)
        return result


def rows(weights: Weights, name: str) -> int:
    """Elements that a weight makes per token; 0 without that weight."""
    dimensions = weights.get(name, ())
    return dimensions[1] if len(dimensions) > 1 else 0


def columns(weights: Weights, name: str) -> int:
    """Elements that a weight takes per token; 0 without that weight."""
    dimensions = weights.get(name, ())
    return dimensions[0] if dimensions else 0
