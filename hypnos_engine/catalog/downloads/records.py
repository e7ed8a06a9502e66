"""What is known of a download job: its state, its files, how far it is; plain values."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hypnos_engine.catalog.downloads.orders import Piece
from hypnos_engine.catalog.entries import CatalogFile


class JobState(StrEnum):
    """Where a job is; the values are those of the wire."""

    QUEUED = "queued"
    """Waits for its turn, or for the time of its next try."""
    RUNNING = "running"
    PAUSED = "paused"
    VERIFYING = "verifying"
    DONE = "done"
    FAILED = "failed"
    """Somebody has to do something; `resume` tries again with what has come."""
    CANCELLED = "cancelled"


ENDED: Final = frozenset({JobState.DONE, JobState.CANCELLED})
"""Nothing follows on these."""
OWED: Final = frozenset({JobState.QUEUED, JobState.RUNNING, JobState.VERIFYING})
"""To be worked on without being asked again, also after a restart."""
AT_WORK: Final = frozenset({JobState.RUNNING, JobState.VERIFYING})


@dataclass(frozen=True, slots=True)
class Job:
    """One download. The token that it may need is no part of it."""

    id: str
    spec: str
    """What was asked for: `<id>` or `<id>:<quant>` of the catalog."""
    wanted: tuple[CatalogFile, ...]
    created_unix_ms: int
    state: JobState = JobState.QUEUED
    pieces: tuple[Piece, ...] = ()
    """Empty until the far side was asked."""
    replace: bool = False
    done_bytes: int = 0
    error: str | None = None
    """Why it is not running as it should, a sentence for a person."""
    digests: tuple[str | None, ...] = ()
    """SHA-256 of each piece, as far as it was read."""
    bytes_per_s: float | None = None
    """None unless bytes are coming."""

    @property
    def total_bytes(self) -> int | None:
        """Bytes of all files; None while some size is not known."""
        sizes = [piece.size_bytes for piece in self.pieces] or [file.size_bytes for file in self.wanted]
        return None if any(size is None for size in sizes) else sum(size or 0 for size in sizes)

    @property
    def eta_s(self) -> float | None:
        """Seconds that are left at the present rate."""
        if self.total_bytes is None or not self.bytes_per_s:
            return None
        return max(0, self.total_bytes - self.done_bytes) / self.bytes_per_s

    @property
    def targets(self) -> frozenset[str]:
        """Paths below the models folder that it writes to."""
        return frozenset(file.local.rstrip("/") for file in self.wanted)
