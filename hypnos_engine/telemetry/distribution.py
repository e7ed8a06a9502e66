"""Measured values counted in buckets of any scale. Decides the buckets of each scale; keeps no single value."""

import math
from bisect import bisect_left
from typing import Final

RATES: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 750.0,
                1e3, 1.5e3, 2e3, 3e3, 5e3, 7.5e3, 1e4, 2e4, 5e4)  # fmt: skip
"""Tokens per second."""
FACTORS: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Seconds of work for a second of sound."""
SECONDS: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 300.0, 600.0)


class Distribution:
    """Counts of values by bucket."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        """Upper bounds, ascending. Beyond the last there is one more bucket."""
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def record(self, value: float) -> None:
        """Count a value; what is no finite number is left out, a negative one counts as 0."""
        if math.isfinite(value):
            value = max(0.0, value)
            self.counts[bisect_left(self.bounds, value)] += 1
            self.sum += value
