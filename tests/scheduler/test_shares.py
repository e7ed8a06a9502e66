"""Fair shares: busy keys are served by their weights, and nobody is served later for having been away."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.scheduler.shares import KEPT_KEYS, QUANTUM_S, Shares

weights = st.dictionaries(st.sampled_from("abcde"), st.floats(0.25, 16.0), min_size=2)
services = st.lists(st.floats(0.1, 30.0), min_size=1, max_size=12)


def serve(shares: Shares, key: str, seconds: float, weight: float) -> None:
    """A waiting request of the key is served."""
    shares.leave(key)
    shares.charge(key, seconds, weight)


def whose_turn(shares: Shares, keys: "list[str]") -> str:
    return min(keys, key=lambda key: (shares.turn(key), key))


@given(weights, services)
def test_keys_that_are_always_busy_drift_apart_by_one_service_each_at_most(
    weight: dict[str, float], took: list[float]
) -> None:
    """At every moment, what two keys had over their weights differs by no more than their longest requests do."""
    shares = Shares()
    served = dict.fromkeys(weight, 0.0)
    for key in weight:
        shares.arrive(key)
    for turn in range(200):
        key = whose_turn(shares, sorted(weight))
        seconds = took[turn % len(took)]
        serve(shares, key, seconds, weight[key])
        shares.arrive(key)
        served[key] += seconds
        longest = max(took)
        for one in weight:
            for other in weight:
                apart = served[one] / weight[one] - served[other] / weight[other]
                assert apart <= longest / weight[one] + longest / weight[other] + 1e-6


@given(weights, services, st.integers(1, 50))
def test_a_key_that_comes_back_is_not_ahead_by_more_than_one_request_and_never_behind(
    weight: dict[str, float], took: list[float], away: int
) -> None:
    shares = Shares()
    names = sorted(weight)
    newcomer, busy = names[0], names[1:]
    for key in busy:
        shares.arrive(key)
    for turn in range(away):
        key = whose_turn(shares, busy)
        serve(shares, key, took[turn % len(took)], weight[key])
        shares.arrive(key)
    shares.arrive(newcomer)
    turns = [shares.turn(key) for key in busy]
    assert shares.turn(newcomer) <= min(turns)
    slack = max(took) / min(weight.values())
    assert shares.turn(newcomer) >= min(turns) - slack - 1e-9


@given(st.floats(0.1, 100.0), st.floats(0.1, 100.0), st.floats(0.25, 16.0))
def test_a_correction_leaves_what_was_really_served(charged: float, really: float, weight: float) -> None:
    corrected, right = Shares(), Shares()
    for shares, seconds in ((corrected, charged), (right, really)):
        shares.arrive("a")
        serve(shares, "a", seconds, weight)
    corrected.correct("a", really - charged, weight)
    assert corrected.turn("a") == pytest.approx(right.turn("a"))


def test_a_key_that_nothing_is_known_about_is_corrected_by_nothing() -> None:
    shares = Shares()
    shares.correct("stranger", 100.0, 1.0)
    assert shares.turn("stranger") == 0.0


def test_between_models_keys_that_are_close_are_equal() -> None:
    shares = Shares()
    for key in "ab":
        shares.arrive(key)
        shares.arrive(key)
    serve(shares, "a", QUANTUM_S / 2, 1.0)
    assert shares.rank("a") == shares.rank("b") == 0
    serve(shares, "a", QUANTUM_S, 1.0)
    assert shares.rank("a") > shares.rank("b")


def test_one_waiting_key_is_nothing_to_be_just_about() -> None:
    shares = Shares()
    assert shares.single
    shares.arrive("a")
    shares.arrive("a")
    assert shares.single
    shares.arrive("b")
    assert not shares.single
    shares.leave("b")
    assert shares.single


def test_what_is_remembered_is_bounded_and_a_forgotten_key_starts_where_all_start() -> None:
    shares = Shares()
    shares.arrive("first")
    serve(shares, "first", 1e6, 1.0)
    for number in range(KEPT_KEYS):
        shares.arrive(f"key {number}")
        serve(shares, f"key {number}", 1.0, 1.0)
    shares.arrive("first")
    assert shares.turn("first") < 1e6
