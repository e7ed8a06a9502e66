"""Quantiles read off buckets: never below the true one, and at most one bucket above it."""

import math
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hypnos_engine.telemetry.quantiles import BOUNDS_MS, Histogram


def histogram(*durations_ms: float) -> Histogram:
    made = Histogram()
    for ms in durations_ms:
        made.record(ms)
    return made


def test_the_bounds_grow_by_a_factor_of_two_at_most() -> None:
    assert list(BOUNDS_MS) == sorted(set(BOUNDS_MS))
    assert all(high <= 2 * low for low, high in pairwise(BOUNDS_MS))


@given(
    st.lists(st.floats(0, 2e6, allow_nan=False), min_size=1, max_size=200),
    st.sampled_from([0.5, 0.95, 0.99, 0.0, 1.0]),
)
@example([BOUNDS_MS[0]], 0.5)
@example([0.0], 0.99)
@example([BOUNDS_MS[-1]] * 3, 0.5)
def test_a_quantile_is_the_upper_bound_of_its_bucket(durations_ms: list[float], share: float) -> None:
    """[§14.1-31]"""
    true_ms = sorted(durations_ms)[max(1, math.ceil(share * len(durations_ms))) - 1]
    found_ms = histogram(*durations_ms).quantile_ms(share)
    if true_ms > BOUNDS_MS[-1]:
        assert found_ms == max(durations_ms)
    else:
        assert found_ms == next(bound for bound in BOUNDS_MS if true_ms <= bound)


@given(st.lists(st.floats(-10, 2e6, allow_nan=False), max_size=100))
def test_every_duration_is_counted_once(durations_ms: list[float]) -> None:
    made = histogram(*durations_ms)
    assert made.count == len(durations_ms) == sum(made.counts)
    assert made.sum_ms == pytest.approx(sum(max(0.0, ms) for ms in durations_ms))


def test_nothing_has_no_quantile() -> None:
    assert histogram().quantile_ms(0.5) == 0.0
