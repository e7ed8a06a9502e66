"""Under which terms downloads run: where files go, how the far side is reached, how patient one is; plain values."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hypnos_engine.catalog.downloads.orders import BLOCK_BYTES, FLOOR_BYTES, STALL_S, Network

AT_ONCE: Final = 2


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is waited after a failure that may mend itself."""

    first_s: float = 1.0
    longest_s: float = 300.0
    most_asked_s: float = 6 * 3600.0
    """The far side may ask for no longer wait."""
    give_up_s: float = 24 * 3600.0
    """Without one new byte, and with `least_tries` tries: a computer that slept for a day has not tried."""
    least_tries: int = 20
    crashes: int = 8
    """Ends of the child without a word or a byte, one after the other."""

    def wait_s(self, failures: int, asked_s: float | None) -> float:
        """Before the next try, after so many failures without progress; never less than the far side asks for."""
        ours = min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 30)) * random.uniform(0.75, 1.0)  # noqa: S311
        return max(ours, min(asked_s or 0.0, self.most_asked_s))

    def is_over(self, failures: int, without_a_byte_s: float, *, crashed: bool) -> bool:
        """Whether one more failure is one too many."""
        if crashed and failures + 1 >= self.crashes:
            return True
        return failures >= self.least_tries and without_a_byte_s > self.give_up_s


@dataclass(frozen=True, slots=True)
class Terms:
    """Under which terms the jobs of an engine run."""

    roots: tuple[Path, ...]
    """Models folders; the first is written to."""
    network: Network = field(default_factory=Network)
    floor_bytes: int = FLOOR_BYTES
    stall_s: float = STALL_S
    block_bytes: int = BLOCK_BYTES
    at_once: int = AT_ONCE
    patience: Patience = field(default_factory=Patience)
