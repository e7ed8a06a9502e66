"""The watch over who holds the loop, with a clock of its own."""

import logging

import pytest

from app.desktop.stalls import HERE, KEPT, QT_ITSELF, QUIET_S, Stalls, watched


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def work(self, seconds: float) -> str:
        self.now_s += seconds
        return "done"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stalls(clock: Clock) -> Stalls:
    return Stalls(limit_s=0.010, clock=clock)


def test_a_handler_within_the_limit_is_not_recorded(stalls: Stalls, clock: Clock) -> None:
    assert stalls.timed("quick", lambda: clock.work(0.009)) == "done"
    assert stalls.count == 0


def test_a_handler_over_the_limit_is_recorded_by_name(stalls: Stalls, clock: Clock) -> None:
    stalls.timed("slow", lambda: clock.work(0.025))
    (stall,) = stalls.recent
    assert stall.who == "slow"
    assert stall.held_s == pytest.approx(0.025)


def test_a_handler_that_raises_is_recorded_too(stalls: Stalls, clock: Clock) -> None:
    def fail() -> None:
        clock.work(0.030)
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        stalls.timed("failing", fail)
    assert [stall.who for stall in stalls.recent] == ["failing"]


def test_what_no_named_handler_took_before_a_late_beat_is_qt_s_own(stalls: Stalls, clock: Clock) -> None:
    stalls.timed("named", lambda: clock.work(0.008))
    stalls.beat(late_s=0.020, used_s=0.023)
    (stall,) = stalls.recent
    assert stall.who == QT_ITSELF
    assert stall.held_s == pytest.approx(0.015)


def test_a_busy_machine_is_not_qt(stalls: Stalls) -> None:
    stalls.beat(late_s=0.500, used_s=0.002)
    assert stalls.count == 0


def test_work_that_delays_nothing_is_no_stall(stalls: Stalls) -> None:
    stalls.beat(late_s=0.001, used_s=0.018)
    assert stalls.count == 0


def test_many_short_handlers_before_a_late_beat_are_no_stall(stalls: Stalls, clock: Clock) -> None:
    for number in range(20):
        stalls.timed(f"token {number}", lambda: clock.work(0.002))
    stalls.beat(late_s=0.030, used_s=0.041)
    assert stalls.count == 0


def test_handlers_inside_handlers_are_counted_once(stalls: Stalls, clock: Clock) -> None:
    stalls.timed("outer", lambda: stalls.timed("inner", lambda: clock.work(0.009)))
    assert stalls.named_s == pytest.approx(0.009)


def test_the_record_is_bounded_and_its_count_is_not(stalls: Stalls, clock: Clock) -> None:
    for number in range(KEPT + 10):
        stalls.timed(f"slow {number}", lambda: clock.work(1))
    assert stalls.count == KEPT + 10
    assert len(stalls.recent) == KEPT


def test_the_log_has_each_offender_once_a_minute(
    stalls: Stalls, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "hypnos.app"):
        for _ in range(5):
            stalls.timed("painter", lambda: clock.work(0.020))
        assert len(caplog.records) == 1
        clock.work(QUIET_S)
        stalls.timed("painter", lambda: clock.work(0.020))
        assert len(caplog.records) == 2
    assert "20 ms by painter" in caplog.text


def test_a_watched_method_keeps_its_name_and_its_result() -> None:
    class Widget:
        @watched
        def paint(self, colour: str) -> str:
            return f"painted {colour}"

    before = HERE.count
    assert Widget().paint("blue") == "painted blue"
    assert Widget.paint.__qualname__.endswith("Widget.paint")
    assert HERE.count == before
