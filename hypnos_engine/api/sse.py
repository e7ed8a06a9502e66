"""Server-sent events as bytes, both ways: how one is written, and a reader that takes any pieces of a stream.

Knows nothing of what the events carry and never touches a socket.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

DONE = b"data: [DONE]\n\n"
"""The literal that ends a chat stream (contract §7.4)."""

EVENT_MAX_BYTES = 16 * 1024 * 1024

_LINE_END = re.compile(rb"\r\n|\n|\r")


def event(payload: bytes, number: int | None = None) -> bytes:
    """One event whose data is `payload`, which must hold no line end (JSON as it is encoded here has none).

    `number` becomes its `id`: with it a reader that comes back says where it was.
    """
    head = b"data: " if number is None else b"id: %d\ndata: " % number
    return head + payload + b"\n\n"


def comment(text: str) -> bytes:
    """A line that readers skip; keeps a silent connection visibly alive."""
    return b": " + text.encode() + b"\n\n"


@dataclass(frozen=True, slots=True)
class Event:
    """One received event. `id` is the last one the stream gave, as the standard says."""

    data: str
    name: str = ""
    id: str = ""


@dataclass(slots=True)
class EventReader:
    """Turns the pieces of a stream into events, wherever the pieces were cut. One reader per stream."""

    _buffer: bytearray = field(default_factory=bytearray)
    _searched: int = 0
    """So many bytes of the buffer hold no line end: a long line is not searched again with each piece."""
    _lines: list[str] = field(default_factory=list)
    _size: int = 0
    _name: str = ""
    _id: str = ""
    _at_start: bool = True

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Yield the events that `piece` completes. Raises ValueError when one is larger than EVENT_MAX_BYTES."""
        self._buffer += piece
        start = 0
        for end in _LINE_END.finditer(self._buffer, self._searched):
            if end.group() == b"\r" and end.end() == len(self._buffer):
                break  # the other half of \r\n may be in the next piece
            line = bytes(self._buffer[start : end.start()])
            start = end.end()
            if (complete := self._take(line)) is not None:
                yield complete
        del self._buffer[:start]
        self._searched = len(self._buffer) - self._buffer.endswith(b"\r")
        if self._size + len(self._buffer) > EVENT_MAX_BYTES:
            raise ValueError(f"an event of the stream is larger than {EVENT_MAX_BYTES} bytes")

    def _take(self, line: bytes) -> Event | None:
        text = line.decode("utf-8", "replace")
        if self._at_start:
            self._at_start = False
            text = text.removeprefix("\ufeff")
        if not text:
            return self._finish()
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._lines.append(value)
            self._size += len(line)
        elif name == "event":
            self._name = value
        elif name == "id" and "\0" not in value:
            self._id = value
        return None

    def _finish(self) -> Event | None:
        lines, name = self._lines, self._name
        self._lines, self._name, self._size = [], "", 0
        return Event("\n".join(lines), name, self._id) if lines else None
