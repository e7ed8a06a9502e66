"""Guesses how a text goes on by looking up where its last tokens stood before; knows nothing of any model.

Must never take longer for a longer text, and never keep more than a few numbers for each of its tokens.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

LONGEST_MATCH = 32
"""A match is not followed further back; longer ones are no surer."""
CANDIDATES = 16
"""Earlier places that are looked at, latest first."""
_LENGTHS = (4, 2)
"""Tokens that a place must share with the end of the text: first the surer kind, then the shortest that counts."""
_BUCKETS = 1 << 14


@dataclass(frozen=True, slots=True)
class Guess:
    """How the text may go on, and how many of its last tokens stood before the same words earlier."""

    tokens: list[int]
    matched: int


NOTHING = Guess([], 0)


class History:
    """A text as tokens, growing at its end, with an index of its places."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._tokens: list[int] = []
        self._chains = tuple(_Chain(length) for length in _LENGTHS)
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens; the time for each is the same however long the text is."""
        text = self._tokens
        for token in tokens:
            for chain in self._chains:
                chain.enter(text)  # only now has this place a token that follows it
            text.append(token)

    def guess(self, most: int) -> Guess:
        """Return up to `most` tokens that followed the longest match, the latest of equals; none without a match.

        Where the match overlaps the end of the text, the text repeats itself, and so does the guess.
        """
        if most < 1:
            return NOTHING
        place, matched = self._find()
        if not matched:
            return NOTHING
        period = len(self._tokens) - place
        return Guess([self._tokens[place + index % period] for index in range(most)], matched)

    def _find(self) -> tuple[int, int]:
        """The place whose past agrees longest with the end of the text, and for how many tokens."""
        best, longest = 0, 0
        for chain in self._chains:
            for place in chain.places(self._tokens):
                matched = self._agreement(place)
                if matched > longest and matched >= chain.length:
                    best, longest = place, matched
                    if matched == LONGEST_MATCH:
                        break
            if longest:
                break
        return best, longest

    def _agreement(self, place: int) -> int:
        text, end = self._tokens, len(self._tokens)
        most = min(place, LONGEST_MATCH)
        count = 0
        while count < most and text[place - 1 - count] == text[end - 1 - count]:
            count += 1
        return count


class _Chain:
    """Places by the `length` tokens before them: the latest of each bucket, and for every place the one before it."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._latest = array("i", [-1]) * _BUCKETS
        self._earlier = array("i")

    def enter(self, text: list[int]) -> None:
        """Make the end of the text a place."""
        if len(text) < self.length:
            self._earlier.append(-1)
            return
        bucket = self._bucket(text)
        self._earlier.append(self._latest[bucket])
        self._latest[bucket] = len(text)

    def places(self, text: list[int]) -> list[int]:
        """Places that may have the same tokens before them as the end of the text has, latest first."""
        found: list[int] = []
        if len(text) < self.length:
            return found
        place = self._latest[self._bucket(text)]
        while place >= 0 and len(found) < CANDIDATES:
            found.append(place)
            place = self._earlier[place]
        return found

    def _bucket(self, text: list[int]) -> int:
        return hash(tuple(text[-self.length :])) % _BUCKETS
