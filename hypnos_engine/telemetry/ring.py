"""The newest records of the request log, each kept as the JSON that is answered, within a number and within bytes.

Decides which leave: the oldest. Knows no field of a record but those that are asked for by name, and never waits.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

BESIDE_BYTES: Final = 600
"""What a record takes beside its JSON, roughly."""
LOOKED_AT_ONCE: Final = 2000
"""Records that one call of `page` looks at: some milliseconds at most, whatever is asked for."""


class Kept(NamedTuple):
    """One record."""

    id: str
    key: str
    """Label of the key that called."""
    model: str
    """Empty where the call never named one."""
    route: str
    status: int
    failed: bool
    """Also true for an answer whose status was out before it failed."""
    encoded: bytes
    """JSON of the whole record."""


Wanted = Callable[[Kept], bool]


class Page(NamedTuple):
    """A part of an answer: JSON of records, newest first, and where the next part begins (None: that was all)."""

    records: list[bytes]
    below: int | None


class RecordRing:
    """At most `entries` records that take at most `max_bytes`. Used on one loop."""

    def __init__(self, entries: int, max_bytes: int) -> None:
        self.entries = entries
        self._max_bytes = max_bytes
        self._kept: dict[int, Kept] = {}
        """By number, in the order of the numbers."""
        self._numbers: dict[str, int] = {}
        self._by_key: Counter[str] = Counter()
        self._bytes = 0
        self._last = 0

    @property
    def bytes(self) -> int:
        """What the records take, roughly."""
        return self._bytes

    def stored(self, key: str | None = None) -> int:
        """How many records there are; with a label, of that key."""
        return len(self._kept) if key is None else self._by_key[key]

    def add(self, record: Kept) -> None:
        """Keep a record; one that is larger than everything may be is not kept."""
        size_bytes = _bytes_of(record)
        if not self.entries or size_bytes > self._max_bytes:
            return
        self._last += 1
        self._kept[self._last] = record
        self._numbers[record.id] = self._last
        self._by_key[record.key] += 1
        self._bytes += size_bytes
        self._bound()

    def replace(self, record: Kept) -> None:
        """Put a record in the place of the one with its id, of the same key; one that is gone stays gone."""
        number = self._numbers.get(record.id)
        if number is not None:
            self._bytes += _bytes_of(record) - _bytes_of(self._kept[number])
            self._kept[number] = record
            self._bound()

    def get(self, name: str) -> Kept | None:
        """The record of a request's id."""
        return self._kept.get(self._numbers.get(name, 0))

    def clear(self, key: str | None = None) -> None:
        """Forget everything; with a label, what that key called."""
        if key is None:
            self._kept.clear()
            self._numbers.clear()
            self._by_key.clear()
            self._bytes = 0
            return
        for number in [number for number, record in self._kept.items() if record.key == key]:
            self._drop(number)

    def page(self, wanted: Wanted, *, most: int, most_bytes: int, below: int | None = None) -> Page:
        """Up to `most` records that are `wanted`, newest first, of those before the number `below`.

        Ends early when it has so many bytes, or has looked at many; what is gone by the next call is left out there.
        """
        number = self._last if below is None else below - 1
        oldest = next(iter(self._kept), self._last + 1)
        found: list[bytes] = []
        found_bytes = 0
        for _ in range(LOOKED_AT_ONCE):
            if number < oldest or len(found) >= most:
                return Page(found, None)
            if found_bytes >= most_bytes:
                break
            record = self._kept.get(number)
            if record is not None and wanted(record):
                found.append(record.encoded)
                found_bytes += len(record.encoded)
            number -= 1
        return Page(found, number + 1)

    def _bound(self) -> None:
        while len(self._kept) > self.entries or self._bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, number: int) -> None:
        record = self._kept.pop(number)
        if self._numbers.get(record.id) == number:
            del self._numbers[record.id]
        self._by_key[record.key] -= 1
        if not self._by_key[record.key]:
            del self._by_key[record.key]
        self._bytes -= _bytes_of(record)


def _bytes_of(record: Kept) -> int:
    return len(record.encoded) + BESIDE_BYTES
