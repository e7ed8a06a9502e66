"""Who held the loop for too long: every token of every stream waits while a handler runs.

Records only; never interrupts anybody and never logs the same offender more than once a minute.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

log = logging.getLogger("hypnos.app")

LIMIT_S = 0.010
"""Longest time that a slot, a paint or a callback may take."""
KEPT = 64
QUIET_S = 60.0
QT_ITSELF = "Qt's own layout and painting"

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Stall:
    """One time that the loop was held."""

    who: str
    held_s: float


class Stalls:
    """The record of one loop. `clock` gives seconds that only ever grow."""

    def __init__(self, limit_s: float = LIMIT_S, clock: Callable[[], float] = time.perf_counter) -> None:
        self.limit_s = limit_s
        self.recent: deque[Stall] = deque(maxlen=KEPT)
        self.count = 0
        self._clock = clock
        self.named_s = 0.0
        """Time that handlers with a name have taken so far."""
        self._beat_named_s = 0.0
        self._told_at: dict[str, float] = {}

    def ran(self, who: Callable[[], str], held_s: float) -> None:
        """A handler has run. `who` is asked for its name only when it took too long."""
        self.named_s += held_s
        if held_s > self.limit_s:
            self._record(who(), held_s)

    def beat(self, late_s: float, used_s: float) -> None:
        """The loop came to a beat so late, and its thread had used so much processor time since the last one.

        What no named handler took of that was Qt's own work, layout and painting; a busy machine counts for nothing.
        """
        unnamed_s = min(late_s, used_s - (self.named_s - self._beat_named_s))
        self._beat_named_s = self.named_s
        if unnamed_s > self.limit_s:
            self._record(QT_ITSELF, unnamed_s)

    def timed(self, who: str, handler: Callable[[], R]) -> R:
        """Run a handler under a name."""
        began, named_before_s = self._clock(), self.named_s
        try:
            return handler()
        finally:
            held_s = self._clock() - began
            self.named_s = named_before_s  # what it called in turn is a part of it
            self.ran(lambda: who, held_s)

    def _record(self, who: str, held_s: float) -> None:
        self.count += 1
        self.recent.append(Stall(who, held_s))
        now = self._clock()
        if now - self._told_at.get(who, -QUIET_S) >= QUIET_S:
            self._told_at[who] = now
            log.info("the loop was held for %.0f ms by %s", held_s * 1e3, who)


HERE = Stalls()
"""The record of this process, which has one loop at most."""


def watched(method: Callable[P, R]) -> Callable[P, R]:
    """Time a slot or an event handler of a widget and record it by its name when it takes too long."""
    name = method.__qualname__

    @wraps(method)
    def timed(*args: P.args, **kwargs: P.kwargs) -> R:
        return HERE.timed(name, lambda: method(*args, **kwargs))

    return timed
