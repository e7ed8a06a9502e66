"""The beginning of a text that goes by, for the request log; decides where it is cut, and keeps nothing beyond that.

All tapes of one log share a bound: when many calls are under way at once, later ones keep less rather than the program
growing.
"""

from typing import Final

MOST_BYTES: Final = 64 * 1024
"""Of one text in a record."""
MARGIN_BYTES: Final = 8 * 1024
"""Kept beyond that until the end, so that what has to be blanked is also found where the text is cut."""


class Room:
    """The bytes that calls under way may keep together. Used on one loop."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, size_bytes: int) -> bool:
        """Take bytes; False when there are not so many."""
        if self.used_bytes + size_bytes > self._limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """Let go of bytes that were taken."""
        self.used_bytes -= size_bytes


class Tape:
    """One text, of which the first bytes are kept."""

    __slots__ = ("_kept", "_room", "cut")

    def __init__(self, room: Room) -> None:
        self._room = room
        self._kept = bytearray()
        self.cut = False
        """True once something was left out."""

    def add(self, piece: bytes) -> None:
        """Keep a piece, as far as there is room for it."""
        if self.cut:
            return
        left_bytes = MOST_BYTES + MARGIN_BYTES - len(self._kept)
        if len(piece) > left_bytes:
            piece = piece[:left_bytes]
            self.cut = True
        if self._room.take(len(piece)):
            self._kept += piece
        else:
            self.cut = True

    def text(self) -> str:
        """What was kept, the margin included; bytes that are no UTF-8 are replaced."""
        return self._kept.decode("utf-8", "replace")

    def close(self) -> None:
        """Let go of the bytes."""
        self._room.give_back(len(self._kept))
        self._kept = bytearray()


def shortened(text: str) -> tuple[str, bool]:
    """A text as a record may hold it, and whether it had to be cut."""
    if len(text) * 4 <= MOST_BYTES:
        return text, False
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= MOST_BYTES:
        return text, False
    return encoded[:MOST_BYTES].decode("utf-8", "ignore"), True
