"""Every message between the supervisor and the holder of pages, and nothing else.

A set of files has a number, given by the supervisor and never used again within one process. Each `Fill` is answered
with any number of `FillProgress` and then one `Filled`, each `Drop` with one `Dropped`; a set whose `Filled` says 0
bytes is dropped already.
"""

from typing import Final

import msgspec

from hypnos_engine.ipc.messages import Hello, Message

KIND: Final = "holder"
"""What the program of the workers is asked for, and what its `Hello` says."""


class CheckEvery(Message, frozen=True):
    """How often the pages are looked at. Sent first, before any set."""

    interval_s: float


class Fill(Message, frozen=True):
    """Read a set of files into memory and keep it there. Sets are read one after another."""

    number: int
    paths: tuple[bytes, ...]
    """As the operating system spells them."""


class Drop(Message, frozen=True):
    """Let go of a set, also of one that is being read or waits for it; unknown numbers are answered too."""

    number: int


ToHolder = CheckEvery | Fill | Drop


class FillProgress(Message, frozen=True):
    """At most ten a second."""

    number: int
    fraction: float


class Filled(Message, frozen=True):
    number: int
    held_bytes: int
    """Bytes in memory now; 0 when the set could not be held as a whole."""
    why: str = ""
    """A sentence about what is missing."""


class Dropped(Message, frozen=True):
    number: int


class Lost(Message, frozen=True):
    """The pages of a set did not stay in memory, or its files are others now: it was dropped."""

    number: int
    why: str


class HeldSet(msgspec.Struct, frozen=True, array_like=True):
    """What is held of one set, as of the last look."""

    number: int
    size_bytes: int
    held_bytes: int
    locked_bytes: int


class Holding(Message, frozen=True):
    """All sets that are held; sent whenever something about them changed."""

    held: tuple[HeldSet, ...] = ()
    why_not_locked: str | None = None
    """A sentence, when not all of their bytes are locked."""


FromHolder = Hello | FillProgress | Filled | Dropped | Lost | Holding
