"""Decides when a worker says too much that is of no use to anybody; a flood costs the supervisor's time, not memory."""

from collections.abc import Callable

BURST = 20_000
"""Messages at once: what may be under way to a supervisor that did not read for a while."""
PER_S = 200.0
"""Messages a second in the long run: progress, signs of life, text of requests that were just given up."""


class Allowance:
    """Counts messages down and refills with time."""

    def __init__(self, clock: Callable[[], float], burst: int = BURST, per_s: float = PER_S) -> None:
        self._clock = clock
        self._burst = burst
        self._per_s = per_s
        self._left = float(burst)
        self._filled_s = clock()

    def spend(self) -> bool:
        """Count one message; False when it is one too many."""
        self._left -= 1.0
        if self._left >= 0.0:
            return True
        now_s = self._clock()
        self._left = min(float(self._burst), self._left + (now_s - self._filled_s) * self._per_s)
        self._filled_s = now_s
        return self._left >= 0.0
