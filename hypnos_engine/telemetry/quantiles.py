"""Durations counted in buckets, and quantiles read off them. Decides the buckets, once; keeps no single duration."""

import math
from bisect import bisect_left
from typing import Final

BOUNDS_MS: Final = (
    1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0, 70.0, 100.0, 150.0, 200.0, 300.0, 500.0, 700.0,
    1_000.0, 1_500.0, 2_000.0, 3_000.0, 5_000.0, 7_000.0, 10_000.0, 15_000.0, 20_000.0, 30_000.0, 50_000.0, 70_000.0,
    100_000.0, 150_000.0, 200_000.0, 300_000.0, 500_000.0, 700_000.0, 1_000_000.0,
)  # fmt: skip
"""Upper bounds of the buckets, in ms, each at most twice the one before. Beyond the last there is one more bucket."""


class Histogram:
    """Counts of durations by bucket."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        """By bucket, the last one being what is beyond all bounds."""
        self.count = 0
        self.sum_ms = 0.0
        self.largest_ms = 0.0

    def record(self, ms: float) -> None:
        """Count a duration; one that is negative, as a clock's correction may make it, counts as 0."""
        ms = max(0.0, ms)
        self.counts[bisect_left(BOUNDS_MS, ms)] += 1
        self.count += 1
        self.sum_ms += ms
        self.largest_ms = max(self.largest_ms, ms)

    def quantile_ms(self, share: float) -> float:
        """Upper bound of the bucket in which the `share` (0 to 1) smallest durations end; 0 while there are none.

        Beyond all bounds it is the largest duration that was seen.
        """
        if not self.count:
            return 0.0
        rank = max(1, math.ceil(share * self.count))
        for bound, count in zip(BOUNDS_MS, self.counts, strict=False):
            rank -= count
            if rank <= 0:
                return bound
        return self.largest_ms
