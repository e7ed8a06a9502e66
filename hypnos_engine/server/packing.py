"""How a request's body may be packed (`Content-Encoding`), and how it is unpacked within the limit of a body.

Pure. Never holds more unpacked bytes than one step makes, whatever the packed ones promise.
"""

import zlib
from collections.abc import Iterable, Iterator
from typing import Final

from hypnos_engine.api.decoding import quoted
from hypnos_engine.domain.errors import InvalidRequest

GZIP: Final = "gzip"
DEFLATE: Final = "deflate"
_PACKINGS: Final = {"gzip": GZIP, "x-gzip": GZIP, "deflate": DEFLATE}
_PLAIN: Final = {"", "identity"}
STEP_BYTES: Final = 64 * 1024
"""Unpacked at once."""
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS


def packing_of(content_encodings: Iterable[str]) -> str | None:
    """The packing that the headers name; None = none. Raises InvalidRequest for any other, and for several."""
    named = [name.strip().lower() for header in content_encodings for name in header.split(",")]
    packings = [name for name in named if name not in _PLAIN]
    if not packings:
        return None
    if len(packings) > 1 or packings[0] not in _PACKINGS:
        raise InvalidRequest(
            f"The Content-Encoding {quoted(', '.join(packings))} is not accepted. "
            "Pack the body with gzip or deflate, or send it as it is."
        )
    return _PACKINGS[packings[0]]


class Unpacking:
    """Unpacks one body piece by piece. Never holds more than `STEP_BYTES` that nobody has taken."""

    def __init__(self, packing: str) -> None:
        self._packing = packing
        self._start = b""
        """Of a body in `deflate`: what came before its format was known."""
        self._stream = zlib.decompressobj(_GZIP_WINDOW) if packing == GZIP else None

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield what the piece unpacks to, in parts. Raises InvalidRequest when it does not unpack."""
        if self._stream is None:
            self._start += piece
            if len(self._start) < 2:
                return
            piece = self._start
            self._stream = zlib.decompressobj(_deflate_window(piece))
        stream = self._stream
        if stream.eof and piece:
            raise _broken(self._packing)
        while True:
            try:
                part = stream.decompress(piece, STEP_BYTES)
            except zlib.error:
                raise _broken(self._packing) from None
            if stream.unused_data:
                raise _broken(self._packing)
            if part:
                yield part
            piece = stream.unconsumed_tail
            if not part or (not piece and len(part) < STEP_BYTES):
                return

    def finish(self) -> None:
        """Say that nothing more comes. Raises InvalidRequest when the body was cut."""
        if self._stream is None or not self._stream.eof:
            raise _broken(self._packing)


def _deflate_window(start: bytes) -> int:
    """`deflate` is the zlib format; many programs send the bare stream under that name."""
    zlib_format = start[0] & 0x0F == zlib.DEFLATED and int.from_bytes(start[:2], "big") % 31 == 0
    return zlib.MAX_WBITS if zlib_format else -zlib.MAX_WBITS


def _broken(packing: str) -> InvalidRequest:
    return InvalidRequest(f"The body does not unpack: it is not one complete piece of {packing}, as its header says.")
