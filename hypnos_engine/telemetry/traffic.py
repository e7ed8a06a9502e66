"""How many requests came by route and by key, and what they took; decides how many names are counted apart.

Names come from the table of routes and from the configuration: nothing that a client wrote becomes a name here.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

DAY_S: Final = 86_400
ELSEWHERE: Final = "other"
"""The route of what no route serves."""


@dataclass(slots=True)
class Took:
    """Times of one route. Milliseconds."""

    sum_ms: float = 0.0
    largest_ms: float = 0.0


class Traffic:
    """Answers by route and class of status, since the start. Used on one loop."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, str]] = Counter()
        """By route and class (`2xx`, `4xx` and so on)."""
        self.times: dict[str, Took] = {}

    def answered(self, route: str, status: int, duration_s: float, *, endless: bool) -> None:
        """Count an answer; how long a reader followed a stream without an end is no time of a route."""
        self.answers[route, f"{status // 100}xx"] += 1
        if endless:
            return
        took = self.times.get(route)
        if took is None:
            took = self.times[route] = Took()
        ms = max(0.0, duration_s * 1e3)
        took.sum_ms += ms
        took.largest_ms = max(took.largest_ms, ms)


class KeyCounts:
    """Requests, rejections and tokens by the label of the key, since the start. Used on one loop."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.requests: Counter[str] = Counter()
        self.rejections: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self._today: Counter[str] = Counter()
        self._day = self._present_day()

    def came(self, label: str, *, rejected: bool) -> None:
        """Count a request that showed the key, or needed none."""
        self.requests[label] += 1
        if rejected:
            self.rejections[label] += 1

    def used(self, label: str, tokens: int) -> None:
        """Count tokens of prompts and answers."""
        self._turn()
        self.tokens[label] += tokens
        self._today[label] += tokens

    def today(self) -> dict[str, int]:
        """Tokens of this UTC day, as far as the program has run in it."""
        self._turn()
        return {label: self._today[label] for label in self.requests}

    def _turn(self) -> None:
        # A clock that is set back does not begin the day anew.
        if (day := self._present_day()) > self._day:
            self._day = day
            self._today.clear()

    def _present_day(self) -> int:
        return int(self._clock() // DAY_S)
