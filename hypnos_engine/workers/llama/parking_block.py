"""How parked conversations lie in a block: the library's states as they are, a list of them, and a header.

The header is written last: a worker that is killed half way leaves none. Everything is summed, so that a block which is
not what it was is noticed. Decides nothing about what is parked.
"""

import struct
import zlib
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from hypnos_engine.workers.llama.context import State
from hypnos_engine.workers.llama.parking_identity import Identity

_MAGIC = b"HYPNOSKV"
_HEADER = struct.Struct("<8sQQQ")
"""What it is, where the list begins, its bytes and its sum."""
_ALIGNMENT = 64
_ROW_WORDS = 8192
"""Words that are added up at once; the sums of the rows are summed in their order."""
LISTED_BYTES, LISTED_CHECKPOINT_BYTES, TOKEN_BYTES = 256, 64, 4
"""Room in the list for a conversation without its tokens and its label, for a checkpoint, and for a token."""


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of the block."""

    offset: int
    size_bytes: int
    checksum: int


class ParkedCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    length: int
    state: Stretch


class Conversation(msgspec.Struct, frozen=True):
    """What one slot held."""

    slot: int
    scope: str
    tokens: bytes
    """int32, little-endian."""
    canonical: int
    warmth: float
    state: Stretch
    checkpoints: tuple[ParkedCheckpoint, ...]

    @property
    def cached(self) -> list[int]:
        return [int(token) for token in np.frombuffer(self.tokens, "<i4")]


class Contents(msgspec.Struct, frozen=True):
    """The list of a block."""

    identity: Identity
    home: int | None
    """The slot whose cells began at the first one, when no other slot held any."""
    conversations: tuple[Conversation, ...]


class NotUsable(Exception):
    """A block or a conversation in it cannot be taken back; the message is the end of a sentence."""


class Writer:
    """Fills a block from its beginning, and keeps room for the list at the end of what it wrote."""

    def __init__(self, view: memoryview, listed_bytes: int) -> None:
        """`listed_bytes` is what the list takes without any entry."""
        self._view = view
        self._end = _HEADER.size
        self._listed_bytes = listed_bytes

    def put(self, size_bytes: int, listed_bytes: int, fill: Callable[[State], bool]) -> Stretch | None:
        """Let `fill` write so many bytes; None when the block has no room for them and their entry, or it fails."""
        offset = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        if size_bytes < 1 or offset + size_bytes + self._listed_bytes + listed_bytes > len(self._view):
            return None
        room = _bytes_of(self._view, offset, size_bytes)
        if not fill(room):
            return None
        self._end = offset + size_bytes
        self._listed_bytes += listed_bytes
        return Stretch(offset, size_bytes, _checksum(room))

    def finish(self, contents: Contents) -> int:
        """Write the list and the header; returns the bytes that are in use."""
        listed = msgspec.msgpack.encode(contents)
        end = self._end + len(listed)
        self._view[self._end : end] = listed
        self._view[: _HEADER.size] = _HEADER.pack(_MAGIC, self._end, len(listed), zlib.crc32(listed))
        return end


def read_contents(view: memoryview) -> Contents:
    """The list of a block. Raises NotUsable when it is none or damaged."""
    if len(view) < _HEADER.size:
        raise NotUsable("the block is cut")
    magic, offset, size_bytes, summed = _HEADER.unpack(view[: _HEADER.size])
    if magic != _MAGIC:
        raise NotUsable("the block was not finished")
    if offset + size_bytes > len(view):
        raise NotUsable("the block is cut")
    listed = bytes(view[offset : offset + size_bytes])
    if zlib.crc32(listed) != summed:
        raise NotUsable("the block is damaged")
    try:
        return msgspec.msgpack.decode(listed, type=Contents)
    except msgspec.MsgspecError as error:
        raise NotUsable("the block is damaged") from error


def intact(view: memoryview, stretch: Stretch) -> State:
    """Bytes of the block, where they lie. Raises NotUsable when they are not those that were written."""
    if stretch.offset < 0 or stretch.size_bytes < 1 or stretch.offset + stretch.size_bytes > len(view):
        raise NotUsable("the block is cut")
    state = _bytes_of(view, stretch.offset, stretch.size_bytes)
    if _checksum(state) != stretch.checksum:
        raise NotUsable("the block is damaged")
    return state


def _bytes_of(view: memoryview, offset: int, size_bytes: int) -> State:
    return np.frombuffer(view, np.uint8, size_bytes, offset)


def _checksum(content: NDArray[np.uint8]) -> int:
    """A sum that notices damage, at the speed of memory: one of whole rows, in which their order counts."""
    words = content[: len(content) // 8 * 8].view(np.uint64)
    rows = len(words) // _ROW_WORDS
    whole = words[: rows * _ROW_WORDS].reshape(rows, _ROW_WORDS)
    sums = np.add.reduce(whole, axis=1, dtype=np.uint64)
    return zlib.crc32(content[rows * _ROW_WORDS * 8 :].tobytes(), zlib.crc32(sums.tobytes()))
