"""Turns one written value into one typed value, or says what was expected; knows no names, files or other settings."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from hypnos_engine.config.choices import AUTO, Auto
from hypnos_engine.config.problems import closest, listed, shown_text

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB

PIB = 1024 * TIB

MOST_BYTES = PIB
"""Above any memory or disk that a size could mean."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E", bound=StrEnum)


class Refused(Exception):
    """A value is not what its setting takes; the message says what was expected and what was found."""

    def __init__(self, message: str, suggestion: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.suggestion = suggestion


class Kind(Protocol[T_co]):
    """What a setting takes. Both methods raise Refused, whatever they are given, and nothing else."""

    @property
    def expected(self) -> str:
        """Noun phrase that follows "expected", and the type in the documentation."""
        ...

    def read(self, value: object) -> T_co:
        """Return the typed value of what a TOML document or a caller gave."""
        ...

    def read_text(self, text: str) -> T_co:
        """Return the typed value of an environment variable or a flag."""
        ...


def found(value: object) -> str:
    """Describe a wrong value in a few words; containers and long values are not shown."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return f"the number {value}" if abs(value) < 10**18 else "a very large number"
        case float():
            return f"the number {value}"
        case str():
            return f"the text {shown_text(value)}"
        case list() | tuple():
            return "a list"
        case dict():
            return "a table"
        case _:
            return "a date or time"


def mistaken(kind: Kind[object], value: object) -> Refused:
    """Return the refusal of a value of another type."""
    return Refused(f"expected {kind.expected}, found {found(value)}")


def _between(low: object, high: object) -> str:
    return f"from {low} to {high}"


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number within bounds, both included."""

    low: int
    high: int

    @property
    def expected(self) -> str:
        return f"a whole number {_between(self.low, self.high)}"

    def read(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise mistaken(self, value)
        if not self.low <= value <= self.high:
            raise mistaken(self, value)
        return value

    def read_text(self, text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,30}", text.strip()):
            raise mistaken(self, text)
        return self.read(int(text))


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number within bounds, both included."""

    low: float
    high: float

    @property
    def expected(self) -> str:
        return f"a number {_between(_plain(self.low), _plain(self.high))}"

    def read(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise mistaken(self, value)
        if not self.low <= value <= self.high:  # also refuses nan
            raise mistaken(self, value)
        return float(value)

    def read_text(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise mistaken(self, text) from None
        if not math.isfinite(number):
            raise mistaken(self, text)
        return self.read(number)


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes: a whole number, or text with a binary suffix such as `24G` (contract §19-37)."""

    low: int = 0
    high: int = MOST_BYTES

    @property
    def expected(self) -> str:
        least = "0" if self.low == 0 else size_text(self.low)
        return f'a size {_between(least, size_text(self.high))}, as bytes or like "24G" or "512MiB"'

    def read(self, value: object) -> int:
        if isinstance(value, str):
            return self.read_text(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise mistaken(self, value)
        if value < 0:
            raise Refused(f"a size cannot be negative, found {found(value)}")
        if not self.low <= value <= self.high:
            raise mistaken(self, value)
        return value

    def read_text(self, text: str) -> int:
        match = _SIZE.fullmatch(text)
        if match is None:
            raise mistaken(self, text)
        if match["sign"]:
            raise Refused(f"a size cannot be negative, found {found(text)}")
        scale = 1024 ** "bkmgt".index((match["unit"] or "b").lower())
        size = Fraction(match["number"]) * scale
        if not self.low <= size <= self.high:
            raise mistaken(self, text)
        return int(size)


_SIZE = re.compile(
    r"\s*(?P<sign>-?)(?P<number>[0-9]{1,19}(\.[0-9]{1,9})?)\s*((?P<unit>[KMGT])(i?B)?|B)?\s*", re.IGNORECASE | re.ASCII
)


def size_text(size_bytes: int) -> str:
    """Return a size as it may be written: `512 MiB` where that is exact, else the number of bytes."""
    for unit, name in ((PIB, "PiB"), (TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes >= unit and size_bytes % unit == 0:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} bytes"


@dataclass(frozen=True, slots=True)
class Switch:
    """true or false."""

    @property
    def expected(self) -> str:
        return "true or false"

    def read(self, value: object) -> bool:
        if not isinstance(value, bool):
            suggestion = "write it without quotation marks" if value in ("true", "false") else ""
            raise Refused(mistaken(self, value).message, suggestion)
        return value

    def read_text(self, text: str) -> bool:
        word = text.strip().lower()
        if word in ("1", "true", "yes", "on"):
            return True
        if word in ("0", "false", "no", "off"):
            return False
        raise mistaken(self, text)


def check_text(text: str, what: str, longest: int = 4096) -> str:
    """Return the text; raises Refused when it is empty, too long or has characters that no name or path holds."""
    if not text.strip():
        raise Refused(f"expected {what}, found nothing between the quotation marks")
    if len(text) > longest:
        raise Refused(f"expected {what}, found a text of {len(text)} characters; at most {longest} are read")
    if any(char < " " or "\x7f" <= char < "\xa0" or "\ud800" <= char <= "\udfff" for char in text):
        raise Refused(f"expected {what}, found control characters or bytes that are no text in it")
    return text


@dataclass(frozen=True, slots=True)
class Text(Generic[T]):
    """Text for which `check` returns the typed value or raises Refused."""

    expected: str
    check: Callable[[str], T]

    def read(self, value: object) -> T:
        if not isinstance(value, str):
            raise mistaken(self, value)
        return self.check(value)

    def read_text(self, text: str) -> T:
        return self.check(text)


@dataclass(frozen=True, slots=True)
class Choice(Generic[E]):
    """One of a closed set of names."""

    names: type[E]

    @property
    def expected(self) -> str:
        return f"one of {listed([shown_text(name) for name in self.names])}"

    def read(self, value: object) -> E:
        if not isinstance(value, str):
            raise mistaken(self, value)
        return self.read_text(value)

    def read_text(self, text: str) -> E:
        try:
            return self.names(text)
        except ValueError:
            near = closest(text, list(self.names))
            raise Refused(mistaken(self, text).message, f'did you mean "{near}"?' if near else "") from None


@dataclass(frozen=True, slots=True)
class Many(Generic[T]):
    """A list; each element is read by `element`, repetitions are dropped."""

    element: Kind[T]
    at_least: int = 0

    @property
    def expected(self) -> str:
        return f"a list, each element {self.element.expected}"

    def read(self, value: object) -> tuple[T, ...]:
        if not isinstance(value, list | tuple):
            suggestion = "put it in square brackets" if isinstance(value, str) else ""
            raise Refused(f"expected {self.expected}, found {_no_content(value)}", suggestion)
        if len(value) < self.at_least:
            raise Refused(f"expected {self.expected}, found an empty list")
        return tuple(dict.fromkeys(self._read_elements(value)))

    def _read_elements(self, values: list[object] | tuple[object, ...]) -> list[T]:
        elements: list[T] = []
        for index, value in enumerate(values):
            try:
                elements.append(self.element.read(value))
            except Refused as refused:
                raise ElementRefused(index, refused) from None
        return elements

    def read_text(self, text: str) -> tuple[T, ...]:
        return self.read([part.strip() for part in text.split(",") if part.strip()])


class ElementRefused(Refused):
    """An element of a list was refused; `index` is its 0-based number."""

    def __init__(self, index: int, refused: Refused) -> None:
        super().__init__(refused.message, refused.suggestion)
        self.index = index


def _no_content(value: object) -> str:
    """Describe a value by its type alone: it may be a key that was written without brackets."""
    return "a text" if isinstance(value, str) else found(value)


@dataclass(frozen=True, slots=True)
class AutoOr(Generic[T]):
    """`"auto"`, or what `explicit` takes."""

    explicit: Kind[T]

    @property
    def expected(self) -> str:
        return f'"{AUTO}" or {self.explicit.expected}'

    def read(self, value: object) -> T | Auto:
        if value == AUTO:
            return AUTO
        if isinstance(value, str):
            raise mistaken(self, value)
        try:
            return self.explicit.read(value)
        except Refused:
            raise mistaken(self, value) from None

    def read_text(self, text: str) -> T | Auto:
        if text.strip().lower() == AUTO:
            return AUTO
        try:
            return self.explicit.read_text(text)
        except Refused:
            raise mistaken(self, text) from None


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment in time; without an offset it is UTC, a date alone is its first moment."""

    @property
    def expected(self) -> str:
        return "a date or a date with time, like 2027-01-31 or 2027-01-31T18:00:00Z"

    def read(self, value: object) -> datetime:
        if isinstance(value, str):
            return self.read_text(value)
        if isinstance(value, datetime):
            return self._utc(value)
        if isinstance(value, date):
            return datetime(value.year, value.month, value.day, tzinfo=UTC)
        raise mistaken(self, value)

    def read_text(self, text: str) -> datetime:
        try:
            return self._utc(datetime.fromisoformat(text))
        except ValueError:
            raise mistaken(self, text) from None

    def _utc(self, moment: datetime) -> datetime:
        try:
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except OverflowError:
            raise Refused(f"expected {self.expected}, found a date outside the calendar") from None


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def path_of(what: str) -> Text[Path]:
    """Return the kind of a folder or file; `~` is the user's own folder, a relative path stays relative."""

    def read(text: str) -> Path:
        path = Path(check_text(text, what))
        try:
            return path.expanduser()
        except RuntimeError:
            raise Refused(f"expected {what}, found the folder of a user who does not exist") from None

    return Text(what, read)
