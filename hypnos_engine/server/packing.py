"""How a request's body may be packed (`Content-Encoding`), and how it is unpacked within the limit of a body.

Pure. Never holds more unpacked bytes than the limit allows, whatever the packed ones promise.
"""

import zlib
from collections.abc import Iterable
from typing import Final

from hypnos_engine.api.decoding import quoted
from hypnos_engine.domain.errors import InvalidRequest, PayloadTooLarge

GZIP: Final = "gzip"
DEFLATE: Final = "deflate"
_PACKINGS: Final = {"gzip": GZIP, "x-gzip": GZIP, "deflate": DEFLATE}
_PLAIN: Final = {"", "identity"}
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


def unpack(body: bytes, packing: str, limit_bytes: int) -> bytes:
    """Unpack a whole body. Raises InvalidRequest when it does not unpack, PayloadTooLarge beyond the limit."""
    unpacking = zlib.decompressobj(_GZIP_WINDOW if packing == GZIP else _deflate_window(body))
    try:
        unpacked = unpacking.decompress(body, limit_bytes + 1)
    except zlib.error:
        raise _broken(packing) from None
    if len(unpacked) > limit_bytes:
        raise PayloadTooLarge(f"The unpacked body is larger than limits.max_body_bytes ({limit_bytes} bytes).")
    if not unpacking.eof or unpacking.unused_data:
        raise _broken(packing)
    return unpacked


def _deflate_window(body: bytes) -> int:
    """`deflate` is the zlib format; many programs send the bare stream under that name."""
    zlib_format = len(body) >= 2 and body[0] & 0x0F == zlib.DEFLATED and int.from_bytes(body[:2], "big") % 31 == 0
    return zlib.MAX_WBITS if zlib_format else -zlib.MAX_WBITS


def _broken(packing: str) -> InvalidRequest:
    return InvalidRequest(f"The body does not unpack: it is not one complete piece of {packing}, as its header says.")
