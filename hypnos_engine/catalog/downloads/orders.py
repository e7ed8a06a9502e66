"""What a download child is told and what it says, as lines of JSON; decides nothing and opens nothing.

An order goes in over the child's stdin, so that a token appears in no argument list, log or record.
"""

from enum import StrEnum
from typing import Final

import msgspec

from hypnos_engine.catalog.entries import CatalogFile

STOP: Final = b"stop\n"
"""The line after the order that asks the child to keep what it has and to end."""

GO: Final = b"go\n"
"""The answer to `Replacing`: nobody has the files open any more."""

FLOOR_BYTES: Final = 1024**3
"""Left free on the disk, whatever is downloaded."""
BLOCK_BYTES: Final = 64 * 1024 * 1024
"""What is hashed, and fetched again when it is damaged, as one."""
STALL_S: Final = 60.0
"""A connection that brings nothing for so long is given up."""


class Piece(msgspec.Struct, frozen=True):
    """One file that is to lie on the disk, with what the far side says about it."""

    repo: str
    """A repository of the hub, or an `https://` base that `remote` is appended to."""
    remote: str
    local: str
    """Path below the models folder."""
    revision: str | None = None
    """Commit of the repository that the download stays with."""
    size_bytes: int | None = None
    """None = the far side does not say."""
    sha256: str | None = None
    git_sha1: str | None = None
    """Digest of a small file that the hub keeps as git does."""
    etag: str | None = None
    folder: str | None = None
    """Path of the whole folder that becomes visible together with it."""
    gated: bool = False
    done: bool = False
    """Verified and in its place."""


class Network(msgspec.Struct, frozen=True):
    """How the far side is reached, where the configuration says so; None = as system and environment say."""

    hub: str | None = None
    proxy: str | None = None
    ca_file: str | None = None


class Order(msgspec.Struct, frozen=True):
    """One job, from wherever it was left."""

    id: str
    root: str
    """The models folder that is written to."""
    roots: tuple[str, ...]
    """All models folders; what one of them holds is not fetched again."""
    wanted: tuple[CatalogFile, ...]
    pieces: tuple[Piece, ...] = ()
    """Empty until the far side was asked."""
    replace: bool = False
    """Fetch also what is there with the right size."""
    token: str | None = None
    """Given by the person for this job."""
    network: Network = Network()
    floor_bytes: int = FLOOR_BYTES
    promised_bytes: int = 0
    """What the other running jobs still have to write."""
    stall_s: float = STALL_S
    block_bytes: int = BLOCK_BYTES


class Resolved(msgspec.Struct, frozen=True, tag=True):
    """What the far side has; the job stays with it from now on."""

    pieces: tuple[Piece, ...]


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Bytes of all pieces together that are on the disk."""

    done_bytes: int
    fetched_bytes: int
    """Bytes that came over the network since this child started."""


class Verifying(msgspec.Struct, frozen=True, tag=True):
    """Everything of a piece is there and is being read again."""

    index: int


class PieceDone(msgspec.Struct, frozen=True, tag=True):
    """A piece is verified. `sha256` is what was read, where it was computed."""

    index: int
    sha256: str | None = None


class Replacing(msgspec.Struct, frozen=True, tag=True):
    """Verified files are about to take the place of others; the child waits for `GO`."""

    paths: tuple[str, ...]
    """Below the models folder."""


class Replaced(msgspec.Struct, frozen=True, tag=True):
    """The files have their names."""


class End(StrEnum):
    """How a child's work ended."""

    DONE = "done"
    STOPPED = "stopped"
    RETRY = "retry"
    """Another try makes sense without anybody doing anything."""
    CRASHED = "crashed"
    """The child ended without a word; said in its place."""
    NEEDS_TOKEN = "needs_token"  # noqa: S105 - no token
    NO_SPACE = "no_space"
    REFUSED = "refused"
    """Another try gives the same."""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The child's last word."""

    end: End
    message: str = ""
    retry_after_s: float | None = None


Said = Resolved | Progress | Verifying | PieceDone | Replacing | Replaced | Ended

_encode: Final = msgspec.json.Encoder().encode
_said: Final = msgspec.json.Decoder(Said)
_order: Final = msgspec.json.Decoder(Order)


def line_of(message: Said | Order) -> bytes:
    """One message with its line's end."""
    return _encode(message) + b"\n"


def read_said(line: bytes) -> Said:
    """Raises msgspec.MsgspecError."""
    return _said.decode(line)


def read_order(line: bytes) -> Order:
    """Raises msgspec.MsgspecError."""
    return _order.decode(line)
