"""How fast bytes come, from counts that are told now and then; knows no clock of its own."""

from typing import Final

_HALF_LIFE_S: Final = 5.0


class Rate:
    """A mean in which what is older weighs less; it begins with the first count."""

    def __init__(self) -> None:
        self._at_s: float | None = None
        self._count = 0
        self._mean: float | None = None

    def take(self, count: int, now_s: float) -> float | None:
        """Bytes per second, after `count` bytes have come altogether; None while nothing can be said.

        A clock that stands still or goes back changes nothing.
        """
        if self._at_s is None:
            self._at_s, self._count = now_s, count
            return None
        passed_s = now_s - self._at_s
        if passed_s <= 0 or count < self._count:
            return self._mean
        latest = (count - self._count) / passed_s
        weight = 0.5 ** (passed_s / _HALF_LIFE_S)
        self._mean = latest if self._mean is None else weight * self._mean + (1 - weight) * latest
        self._at_s, self._count = now_s, count
        return self._mean
