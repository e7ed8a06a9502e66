"""How much a worker may say that is of no use."""

from hypnos_engine.engines.allowance import Allowance


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_burst_is_allowed_and_the_next_one_after_a_while() -> None:
    clock = Clock()
    allowance = Allowance(clock, burst=5, per_s=2.0)
    assert [allowance.spend() for _ in range(7)] == [True] * 5 + [False] * 2
    clock.now_s += 3.0
    assert [allowance.spend() for _ in range(5)].count(True) in (4, 5)
    assert not allowance.spend()


def test_a_steady_trickle_is_never_too_much() -> None:
    clock = Clock()
    allowance = Allowance(clock, burst=5, per_s=2.0)
    for _ in range(1000):
        clock.now_s += 0.5
        assert allowance.spend()


def test_idle_time_is_not_saved_up_beyond_the_burst() -> None:
    clock = Clock()
    allowance = Allowance(clock, burst=5, per_s=2.0)
    clock.now_s += 3600.0
    assert [allowance.spend() for _ in range(20)].count(True) <= 11
