"""What a check of `hypnos doctor` can say; plain values."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a check came out. Only `broken` makes the command fail."""

    FINE = "fine"
    NOTE = "note"
    BROKEN = "broken"


@dataclass(frozen=True)
class Check:
    """One finding. `mend` is a command or an instruction, None when there is nothing to do."""

    name: str
    verdict: Verdict
    says: str
    mend: str | None = None


def fine(name: str, says: str) -> Check:
    """All is well."""
    return Check(name, Verdict.FINE, says)


def note(name: str, says: str, mend: str | None = None) -> Check:
    """Worth knowing."""
    return Check(name, Verdict.NOTE, says, mend)


def broken(name: str, says: str, mend: str | None) -> Check:
    """Has to be mended."""
    return Check(name, Verdict.BROKEN, says, mend)
