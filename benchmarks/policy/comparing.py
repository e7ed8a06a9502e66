"""Compares two policies over the same seeds: paired intervals and a verdict; knows nothing of traces or machines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev

_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t for a two-sided 95 % interval with 1 to 30 degrees of freedom."""
_T_LARGE = 1.96
SAME = 0.01
"""Means that differ by no more than this share of the larger one are equal whatever the interval says."""


class Verdict(StrEnum):
    BETTER = "better"
    EQUAL = "equal"
    WORSE = "worse"


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and the 95 % interval around it."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours against a peer, seed by seed; smaller values are better."""

    ours: Interval
    peer: Interval
    difference: Interval
    """Ours minus the peer's."""
    gain: float
    """Share of the peer's mean that ours saves; negative when ours is worse."""
    verdict: Verdict


def interval(values: Sequence[float]) -> Interval:
    """Mean and t interval of independent values; at least one."""
    mean = fmean(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    degrees = len(values) - 1
    t = _T_975[degrees - 1] if degrees <= len(_T_975) else _T_LARGE
    half = t * stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def compare(ours: Sequence[float], peer: Sequence[float]) -> Comparison:
    """Compare values of the same seeds in the same order.

    Equal means: the interval of the paired differences holds zero, or the means differ by no more than `SAME`.
    """
    mine, theirs = interval(ours), interval(peer)
    difference = interval([a - b for a, b in zip(ours, peer, strict=True)])
    larger = max(mine.mean, theirs.mean)
    if difference.low <= 0.0 <= difference.high or abs(difference.mean) <= SAME * larger:
        verdict = Verdict.EQUAL
    else:
        verdict = Verdict.BETTER if difference.mean < 0 else Verdict.WORSE
    gain = 1.0 - mine.mean / theirs.mean if theirs.mean > 0 else 0.0
    return Comparison(mine, theirs, difference, gain, verdict)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0
