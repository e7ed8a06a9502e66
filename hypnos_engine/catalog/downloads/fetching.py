"""Fetches a piece into its part with huggingface-hub's resumable transfer, and refetches what turns out to be damaged.

Runs in the child. Decides how much is asked for at once; never decides when to try again after a failure.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final, cast

from huggingface_hub.file_download import http_get

from hypnos_engine.catalog.downloads.hub import Hub
from hypnos_engine.catalog.downloads.network import RangeIgnored, SourceChanged, Watch
from hypnos_engine.catalog.downloads.orders import Piece
from hypnos_engine.catalog.downloads.parts import Part, hash_file
from hypnos_engine.domain.errors import InvalidRequest

WINDOW_BYTES: Final = 8 * 1024**3
"""Asked for at once: signed addresses do not live long, and the library refuses 50 GB in one request."""
_FROM_THE_BEGINNING: Final = 3
"""How often a file whose transfer cannot go on is begun again before it is called a broken connection."""


class Damaged(InvalidRequest):
    """The bytes that the far side sends are not those that were listed."""


@dataclass(frozen=True, slots=True)
class Fetcher:
    """What fetching needs; `on_bytes` is told of every chunk and may raise to end the transfer."""

    hub: Hub
    watch: Watch
    on_bytes: Callable[[int], None]

    def fetch(self, piece: Piece, part: Part) -> None:
        """Bring the part to the piece's size. Raises what http_get, the watch and `on_bytes` raise."""
        if piece.size_bytes is None:
            part.reset()
            self._get(piece, _Appending(part, None, self.on_bytes), 0, None)
            return
        begun = 0
        while part.offset < piece.size_bytes:
            end = min(piece.size_bytes, part.offset + WINDOW_BYTES)
            try:
                self._get(piece, _Appending(part, end, self.on_bytes), part.offset, end)
            except RangeIgnored:
                begun += 1
                part.reset()
                if begun == _FROM_THE_BEGINNING:
                    raise ConnectionError("the transfer cannot be continued and broke several times") from None

    def refetch_block(self, piece: Piece, part: Part, index: int) -> bool:
        """Fetch one block again; returns whether it is another than before."""
        start, end = part.block_span(index)
        block = _Block(end - start, self.on_bytes)
        self._get(piece, block, start, end, fresh=True)
        return part.replace_block(index, block.getvalue())

    def _get(self, piece: Piece, sink: "_Sink", start: int, end: int | None, *, fresh: bool = False) -> None:
        headers = self.hub.headers_for(piece)
        if fresh:
            headers["Cache-Control"] = "no-cache"
        expected = None if end is None else end - start
        if end is not None and (start or end != piece.size_bytes):
            headers["Range"] = f"bytes={start}-{end - 1}"
        self.watch.size_bytes = piece.size_bytes
        self.watch.etag = piece.etag if piece.revision is None else None
        try:
            # The library wants a file; ours takes what it uses of one.
            http_get(self.hub.address_of(piece), cast("BytesIO", sink), headers=headers, expected_size=expected)
        finally:
            self.watch.size_bytes = self.watch.etag = None


class _Appending:
    """The end of a part as the library sees it: a file that begins where the part ended."""

    def __init__(self, part: Part, end: int | None, on_bytes: Callable[[int], None]) -> None:
        self._part, self._end, self._on_bytes = part, end, on_bytes
        self._start = part.offset

    def write(self, content: bytes) -> int:
        if self._end is not None and self._part.offset + len(content) > self._end:
            raise SourceChanged
        self._part.write(content)
        self._on_bytes(len(content))
        return len(content)

    def tell(self) -> int:
        return self._part.offset - self._start

    def seek(self, position: int) -> int:
        """Back to the beginning: the far side began to send the whole again."""
        if position or self._start:
            raise RangeIgnored
        self._part.reset()
        return 0

    def truncate(self) -> int:
        return self.tell()


class _Block(BytesIO):
    """One block in memory."""

    def __init__(self, size_bytes: int, on_bytes: Callable[[int], None]) -> None:
        super().__init__()
        self._size_bytes, self._on_bytes = size_bytes, on_bytes

    def write(self, content: bytes) -> int:  # type: ignore[override]
        if self.tell() + len(content) > self._size_bytes:
            raise RangeIgnored  # the whole file comes in place of the block
        self._on_bytes(len(content))
        return super().write(content)


_Sink = _Appending | _Block


def verify(piece: Piece, part: Part, path: Path, fetcher: Fetcher, on_read: Callable[[int], None]) -> str:
    """Read the whole part again and mend what is wrong; returns its SHA-256.

    1. What the journal says was written and the disk does not give back is fetched again.
    2. If the digest is still another, every block is asked for once more, past all caches, until it fits.

    Raises Damaged when it does not, and what fetching raises.
    """
    part.finish()
    found = _digests(piece, path, on_read)
    if found.fits and (found.is_proof or not part.damaged_blocks(on_read)):
        return found.sha256
    for index in part.damaged_blocks(on_read):
        fetcher.refetch_block(piece, part, index)
    found = _digests(piece, path, on_read)
    for index in range(len(part.blocks)):
        if found.fits:
            break
        if fetcher.refetch_block(piece, part, index):
            found = _digests(piece, path, on_read)
    if not found.fits:
        raise Damaged(
            f"{piece.remote} came twice with other bytes than those listed for it. It was not kept; its publisher may "
            "have replaced it, or something on the way changes it."
        )
    return found.sha256


@dataclass(frozen=True, slots=True)
class _Digests:
    sha256: str
    fits: bool
    is_proof: bool
    """Whether there was anything to compare with."""


def _digests(piece: Piece, path: Path, on_read: Callable[[int], None]) -> _Digests:
    size = path.stat().st_size
    sha256 = hash_file(path, hashlib.sha256(), 0, size, on_read=on_read)
    if piece.sha256 is not None:
        return _Digests(sha256, sha256 == piece.sha256, True)
    if piece.git_sha1 is not None:
        return _Digests(sha256, _git_sha1(path, size, on_read) == piece.git_sha1, True)
    return _Digests(sha256, piece.size_bytes in (None, size), False)


def _git_sha1(path: Path, size: int, on_read: Callable[[int], None]) -> str:
    """The name that git has for the content."""
    hasher = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    return hash_file(path, hasher, 0, size, on_read=on_read)
