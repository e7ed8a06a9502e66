"""How long requests take beside others."""

import pytest

from hypnos_engine.scheduler.simulation.service import Services, Station


def ends(*plan: tuple[float, Station, int, float]) -> dict[int, float]:
    """Start requests (when, where, who, work) and let everything run out; when each one ends."""
    services, found = Services(), dict[int, float]()
    asked: list[tuple[float, Station]] = []
    starts = sorted(plan, key=lambda entry: entry[0])
    while starts or asked:
        soonest = min(asked, key=lambda entry: entry[0], default=None)
        if starts and (soonest is None or starts[0][0] < soonest[0]):
            at, station, request, work = starts.pop(0)
            asked += services.begin(station, request, work, at)
        elif soonest is not None:
            asked.remove(soonest)
            ended, more = services.look(soonest[1], soonest[0])
            asked += more
            if ended is not None:
                assert ended not in found
                found[ended] = soonest[0]
    return found


def test_a_request_alone_takes_its_time() -> None:
    assert ends((2.0, Station(4.0, 1.0, ("device",)), 1, 10.0)) == {1: 12.0}


def test_two_requests_of_a_model_without_gain_take_twice_as_long() -> None:
    station = Station(1.0, 1.0, ("device",))
    assert ends((0.0, station, 1, 10.0), (0.0, station, 2, 10.0)) == {1: 20.0, 2: 20.0}


def test_the_gain_bounds_what_many_get_done() -> None:
    station = Station(4.0, 1.0, ("device",))
    # Five at once: 4 / (4 + 5 - 1) = half the speed of one alone, together two and a half times its work.
    assert ends(*((0.0, station, number, 10.0) for number in range(5))) == pytest.approx(dict.fromkeys(range(5), 20.0))


def test_who_comes_later_slows_only_what_is_left() -> None:
    station = Station(1.0, 1.0, ("device",))
    # 1 is half done when 2 comes; both go at half speed until 1 ends at 15, then 2 has 5 left of 10.
    assert ends((0.0, station, 1, 10.0), (5.0, station, 2, 10.0)) == pytest.approx({1: 15.0, 2: 20.0})


def test_models_on_the_same_device_share_it_and_others_do_not() -> None:
    first, second = Station(1.0, 1.0, ("device 0",)), Station(1.0, 1.0, ("device 0",))
    elsewhere = Station(1.0, 1.0, ("device 1",))
    found = ends((0.0, first, 1, 10.0), (0.0, second, 2, 10.0), (0.0, elsewhere, 3, 10.0))
    assert found == pytest.approx({1: 20.0, 2: 20.0, 3: 10.0})


def test_a_model_that_is_split_waits_for_the_busier_of_its_places() -> None:
    split, other = Station(1.0, 0.5, ("device 0", "host")), Station(1.0, 1.0, ("host",))
    assert ends((0.0, split, 1, 5.0), (0.0, other, 2, 20.0)) == pytest.approx({1: 20.0, 2: 30.0})


def test_work_is_conserved() -> None:
    station = Station(1.0, 1.0, ("device",))
    work = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0]
    found = ends(*((0.0, station, number, amount) for number, amount in enumerate(work)))
    assert max(found.values()) == pytest.approx(sum(work))
    assert max(found, key=lambda number: found[number]) == 5


def test_speeding_up_is_noticed_at_once_and_slowing_down_in_time() -> None:
    first, second = Station(1.0, 1.0, ("device",)), Station(1.0, 1.0, ("device",))
    # 1 alone until 2, shared until 2 has done its 3 at 8, then 1 alone with 5 of 10 left.
    assert ends((0.0, first, 1, 10.0), (2.0, second, 2, 3.0)) == pytest.approx({2: 8.0, 1: 13.0})
