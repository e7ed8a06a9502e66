"""Collects everything that is wrong with a configuration and words it for a person; never shows a key."""

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hypnos_engine.domain.errors import ConfigurationInvalid

MOST_SHOWN = 50
"""Problems that are worded; the rest are only counted."""

_LONGEST_NAME = 64
_LONGEST_VALUE = 60


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written: a file and a line, an environment variable, or a flag."""

    source: str
    line: int | None = None
    """1-based; None where lines mean nothing."""

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, or (as a warning) one thing worth knowing."""

    origin: Origin
    name: str
    """Dotted name of the setting; empty when the whole file is meant."""
    message: str
    suggestion: str = ""
    """What to write instead; empty when the message already says it."""

    def __str__(self) -> str:
        subject = f"{self.name}: " if self.name else ""
        text = f"{self.origin}: {subject}{self.message}"
        return f"{text}; {self.suggestion}" if self.suggestion else text


class Problems:
    """An append-only collection; reading goes on after a problem so that all are reported together."""

    def __init__(self) -> None:
        self._found: list[Problem] = []
        self._more = 0

    def __bool__(self) -> bool:
        return bool(self._found)

    @property
    def full(self) -> bool:
        """True once further problems are only counted: then a costly suggestion is not worth making."""
        return len(self._found) >= MOST_SHOWN

    def add(self, origin: Origin, name: str, message: str, suggestion: str = "") -> None:
        """Record a problem."""
        if self.full:
            self._more += 1
        else:
            self._found.append(Problem(origin, name, message, suggestion))

    def extend(self, others: "Problems") -> None:
        """Add what another collection holds."""
        for problem in others.found():
            self.add(problem.origin, problem.name, problem.message, problem.suggestion)
        self._more += others._more

    def found(self) -> tuple[Problem, ...]:
        """Return the problems in the order in which they stand in the files, files in the order they were read."""
        order = {source: at for at, source in enumerate(dict.fromkeys(p.origin.source for p in self._found))}
        return tuple(sorted(self._found, key=lambda p: (order[p.origin.source], p.origin.line or 0)))

    def error(self, subject: str = "The configuration", outcome: str = "nothing was started") -> ConfigurationInvalid:
        """Return the one error that names every problem; `subject` begins its first line, `outcome` ends it."""
        found = self.found()
        count = len(found) + self._more
        counted = "a problem" if count == 1 else f"{count} problems"
        lines = [f"{subject} has {counted}; {outcome}.", *(f"  {problem}" for problem in found)]
        if self._more:
            lines.append(f"  and {self._more} more")
        return ConfigurationInvalid("\n".join(lines))


def printable(text: str) -> str:
    """Return text that can be printed anywhere: bytes that are no text and control characters are escaped."""
    whole = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(char if char >= " " and char != "\x7f" else f"\\x{ord(char):02x}" for char in whole)


def shown_path(path: Path) -> str:
    """Return a path for a message."""
    return printable(str(path))


def shown_text(text: str) -> str:
    """Return text in quotation marks, shortened, with control characters escaped."""
    shortened = text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "…"
    escaped = json.dumps(shortened, ensure_ascii=False).replace("\x7f", "\\u007f")
    return escaped.encode("utf-8", "backslashreplace").decode("utf-8")


def shown_name(name: str) -> str:
    """Return a setting's name as TOML would write it, shortened."""
    bare = name.isascii() and name.replace("-", "_").replace("_", "a").isalnum() and len(name) <= _LONGEST_NAME
    return name if bare else shown_text(name)


def closest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that was probably meant; None when nothing is near."""
    near = difflib.get_close_matches(name[:_LONGEST_NAME].lower(), list(candidates), n=1, cutoff=0.6)
    return near[0] if near else None


def listed(names: Sequence[str], last: str = "or") -> str:
    """Return `a, b or c`."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {last} {names[-1]}"
