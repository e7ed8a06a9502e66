"""Who is served next: the bound on overtaking, deadlines, priority, shares between keys, grouping, arrival."""

from dataclasses import replace

import pytest

from hypnos_engine.domain.kinds import Priority
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import events as ev
from tests.scheduler.world import GIB, LIMITS, World, spec

A, B, C = ModelId("a"), ModelId("b"), ModelId("c")
ROOMY = replace(LIMITS, max_queue_per_model=500)
UNBOUND = replace(ROOMY, max_overtakes=10_000, max_overtaken_s=1e9)


def one_at_a_time(**changes: object) -> World:
    """One model with a single slot, loaded and known to take ten seconds a request."""
    world = World({"a": GIB}, budget_bytes=5 * GIB, specs=[spec("a", slots=1)], limits=UNBOUND, **changes)  # type: ignore[arg-type]
    world.serve("a", takes_s=10.0)
    return world


def served_in_order(world: World, takes_s: float = 1.0) -> list[int]:
    """Let every request run for so long, one after the other; returns them as they were granted."""
    before = len(world.granted) - len(world.leases)
    while world.leases:
        world.pass_time(takes_s)
        world.end(next(iter(world.leases)))
    return [grant.request for grant in world.granted[before:]]


# --- the bound ------------------------------------------------------------------------------------------------------


def test_nobody_is_overtaken_more_often_than_the_bound_allows() -> None:
    """A key with a thousand times the weight would otherwise come first for ever."""
    world = one_at_a_time()
    world.send(ev.LimitsSet(replace(ROOMY, max_overtakes=3, max_overtaken_s=1e9)))
    world.arrive("a", key="rich", weight=1000.0)
    poor = [world.arrive("a", key="poor") for _ in range(3)]
    for _ in range(30):
        world.arrive("a", key="rich", weight=1000.0)
    served_in_order(world)
    assert all(grant.overtaken <= 3 for grant in world.granted if grant.request in poor)


def test_among_waiters_at_their_bound_the_oldest_comes_first() -> None:
    world = one_at_a_time()
    world.send(ev.LimitsSet(replace(ROOMY, max_overtakes=1, max_overtaken_s=1e9)))
    world.arrive("a", key="poor")
    poor = world.arrive("a", key="poor")
    world.pass_time(1.0)
    rich = [world.arrive("a", key="rich", weight=1000.0) for _ in range(2)]
    world.pass_time(1.0)
    urgent = world.arrive("a", key="rich", weight=1000.0, deadline_s=45.0)
    world.pass_time(25.0)
    order = served_in_order(world)
    assert order.index(urgent) < order.index(poor) < order.index(rich[0]) < order.index(rich[1])


def test_seconds_of_service_count_for_the_bound_as_well() -> None:
    """Two requests of 20 s that came later are as much as a waiter has to bear of them, however few they are."""
    limits = replace(ROOMY, max_overtakes=1000, max_overtaken_s=40.0)
    world = World({"a": 3 * GIB, "b": 3 * GIB}, budget_bytes=5 * GIB, limits=limits)
    world.serve("a", takes_s=20.0)
    running = world.arrive("a")
    starving = world.arrive("b")
    for _ in range(2):
        world.pass_time(1.0)
        overtaking = world.arrive("a")
        assert overtaking in world.leases
        world.end(overtaking, ok=False)
    world.pass_time(1.0)
    assert world.arrive("a") in world.waiting, "40 s of service have overtaken"
    world.end(running)
    world.finish_unload("a")
    world.finish_load("b")
    assert world.leases == {starving: B}


def test_an_overtaking_by_priority_counts() -> None:
    """A low model that waits for memory is loaded before further requests of the high one that has it."""
    specs = [spec("a", priority=Priority.HIGH), spec("b", priority=Priority.LOW)]
    world = World({"a": 3 * GIB, "b": 3 * GIB}, budget_bytes=5 * GIB, specs=specs)
    running = world.arrive("a")
    world.finish_load("a")
    low = world.arrive("b")
    for _ in range(LIMITS.max_overtakes):
        world.pass_time(1.0)
        world.end(world.arrive("a"))
    world.pass_time(1.0)
    high = world.arrive("a")
    world.end(running)
    world.finish_unload("a")
    assert set(world.loading) == {B}
    world.finish_load("b")
    assert world.leases == {low: B}
    assert high in world.waiting


def test_what_a_drained_model_already_serves_and_what_came_earlier_goes_on() -> None:
    world = World({"a": 3 * GIB, "b": 3 * GIB}, budget_bytes=5 * GIB, limits=ROOMY)
    first, second = world.arrive("a"), world.arrive("a")
    world.pass_time(1.0)
    earlier = world.arrive("a")
    world.pass_time(1.0)
    world.finish_load("a")
    starving = world.arrive("b")
    world.send(ev.LimitsSet(replace(ROOMY, max_overtakes=0)))
    world.pass_time(1.0)
    later = world.arrive("a")
    world.end(first)
    assert set(world.leases) == {second, earlier}, "who came before the waiter is served before it"
    world.end(second)
    assert set(world.leases) == {earlier}
    world.end(earlier)
    world.finish_unload("a")
    world.finish_load("b")
    assert set(world.leases) == {starving}
    assert later in world.waiting


def test_a_model_that_is_not_in_the_way_goes_on_while_others_drain() -> None:
    world = World({"a": 3 * GIB, "b": 3 * GIB, "c": GIB}, budget_bytes=6 * GIB, limits=replace(LIMITS, max_overtakes=0))
    world.serve("c", takes_s=5.0)
    world.arrive("a")
    world.finish_load("a")
    world.pass_time(1.0)
    world.arrive("b")
    world.pass_time(1.0)
    assert world.arrive("c") in world.leases, "b fits once a has left, whether or not c stays"
    assert world.arrive("a") in world.waiting


def test_a_pinned_model_is_in_nobodys_way() -> None:
    specs = [spec("a", priority=Priority.REALTIME_PINNED), spec("b"), spec("c")]
    world = World({"a": GIB, "b": 3 * GIB, "c": 3 * GIB}, budget_bytes=6 * GIB, specs=specs)
    world.serve("a")
    world.arrive("b")
    world.finish_load("b")
    starving = world.arrive("c")
    for _ in range(10):
        world.pass_time(1.0)
        world.end(world.arrive("a"))
    world.end(next(iter(world.leases)))
    world.finish_unload("b")
    world.finish_load("c")
    assert starving in world.leases
    assert world.granted[-1].overtaken == 0


def test_a_full_model_is_not_crowded_out_by_what_runs_beside_it() -> None:
    """Both have their memory, but the cores are shared: b stops when its later requests have taken the bound's time."""
    limits = replace(ROOMY, max_overtaken_s=30.0)
    specs = [spec("a", slots=1), spec("b", slots=1)]
    world = World({"a": GIB, "b": GIB}, budget_bytes=8 * GIB, specs=specs, limits=limits)
    world.serve("b", takes_s=10.0)
    running = world.arrive("a")
    world.finish_load("a")
    held_up = world.arrive("a")
    for _ in range(3):
        world.pass_time(1.0)
        later = world.arrive("b")
        assert later in world.leases
        world.end(later, ok=False)
    world.pass_time(1.0)
    stopped = world.arrive("b")
    assert stopped in world.waiting
    world.end(running)
    assert set(world.leases) == {held_up, stopped}


def test_what_came_before_crowds_nobody_out() -> None:
    limits = replace(ROOMY, max_overtaken_s=15.0)
    specs = [spec("a", slots=1), spec("b", slots=1)]
    world = World({"a": GIB, "b": GIB}, budget_bytes=8 * GIB, specs=specs, limits=limits)
    world.serve("b", takes_s=10.0)
    earlier = [world.arrive("b") for _ in range(4)]
    world.arrive("a")
    world.finish_load("a")
    world.pass_time(1.0)
    world.arrive("a")
    for request in earlier:
        assert request in world.leases
        world.end(request, ok=False)
    world.pass_time(1.0)
    assert world.arrive("b") in world.leases


# --- deadlines ------------------------------------------------------------------------------------------------------


def test_a_deadline_that_would_soon_be_missed_comes_first() -> None:
    world = one_at_a_time()
    world.arrive("a")
    patient = world.arrive("a")
    world.pass_time(1.0)
    hurried = world.arrive("a", deadline_s=25.0)
    world.pass_time(9.0)
    assert served_in_order(world)[-2:] == [hurried, patient]


def test_a_deadline_that_is_far_away_does_not_count_yet() -> None:
    world = one_at_a_time()
    world.arrive("a")
    patient = world.arrive("a")
    world.pass_time(1.0)
    calm = world.arrive("a", deadline_s=3600.0)
    assert served_in_order(world)[-2:] == [patient, calm]


def test_of_two_deadlines_the_nearer_comes_first() -> None:
    world = one_at_a_time()
    world.arrive("a")
    later = world.arrive("a", deadline_s=29.0)
    sooner = world.arrive("a", deadline_s=28.0)
    world.pass_time(15.0)
    assert served_in_order(world)[-2:] == [sooner, later]


def test_a_deadline_that_a_load_would_miss_is_no_reason_to_come_first() -> None:
    """b needs 2.5 s to load; what cannot be in time any more does not keep c, whose request is older, from loading."""
    world = World({"a": 3 * GIB, "b": 3 * GIB, "c": 3 * GIB}, budget_bytes=5 * GIB, limits=UNBOUND)
    running = world.arrive("a")
    world.finish_load("a")
    world.arrive("c")
    world.pass_time(1.0)
    world.arrive("b", deadline_s=6.0)
    world.pass_time(5.0)
    world.end(running)
    world.finish_unload("a")
    assert set(world.loading) == {C}


def test_a_deadline_that_a_load_can_meet_brings_the_model_forward() -> None:
    world = World({"a": 3 * GIB, "b": 3 * GIB, "c": 3 * GIB}, budget_bytes=5 * GIB, limits=UNBOUND)
    running = world.arrive("a")
    world.finish_load("a")
    world.arrive("c")
    world.pass_time(1.0)
    world.arrive("b", deadline_s=6.0)
    world.pass_time(2.0)
    world.end(running)
    world.finish_unload("a")
    assert set(world.loading) == {B}


# --- priority -------------------------------------------------------------------------------------------------------


def test_the_model_of_higher_priority_is_loaded_first() -> None:
    specs = [spec("a"), spec("b", priority=Priority.LOW), spec("c", priority=Priority.HIGH)]
    world = World({"a": 3 * GIB, "b": 3 * GIB, "c": 3 * GIB}, budget_bytes=5 * GIB, specs=specs, limits=UNBOUND)
    running = world.arrive("a")
    world.finish_load("a")
    world.arrive("b")
    world.pass_time(1.0)
    world.arrive("c")
    world.end(running)
    world.finish_unload("a")
    assert set(world.loading) == {C}


def test_room_that_was_made_for_a_model_is_taken_by_it() -> None:
    """Whoever comes meanwhile: else models would leave for nothing."""
    specs = [spec("a"), spec("b"), spec("c", priority=Priority.HIGH)]
    world = World({"a": 3 * GIB, "b": 3 * GIB, "c": 3 * GIB}, budget_bytes=5 * GIB, specs=specs)
    world.serve("a")
    world.arrive("b")
    world.arrive("c")
    world.finish_unload("a")
    assert set(world.loading) == {B}


def test_room_that_was_made_for_a_request_that_left_promises_its_model_nothing() -> None:
    specs = [spec("a"), spec("b"), spec("c", priority=Priority.HIGH)]
    for gone_by in ("cancel", "deadline"):
        world = World({"a": 3 * GIB, "b": 3 * GIB, "c": 3 * GIB}, budget_bytes=5 * GIB, specs=specs)
        world.serve("a")
        left = world.arrive("b", deadline_s=5.0)
        if gone_by == "cancel":
            world.cancel(left)
        world.pass_time(6.0)
        world.finish_unload("a")
        running = world.arrive("a")
        world.finish_load("a")
        world.arrive("b")
        world.pass_time(1.0)
        world.arrive("c")
        world.end(running)
        world.finish_unload("a")
        assert set(world.loading) == {C}, gone_by


# --- shares between keys --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [1.0, 3.0, 10.0])
def test_two_busy_keys_get_the_service_of_their_weights(weight: float) -> None:
    """Within 10 %, on one model; nobody may be overtaken for longer than the bound, so that is out of the way here."""
    world = one_at_a_time()
    requests = {world.arrive("a", key="heavy", weight=weight): "heavy", world.arrive("a", key="light"): "light"}
    served = {"heavy": 0.0, "light": 0.0}
    for turn in range(330):
        running = next(iter(world.leases))
        key = requests[running]
        requests[world.arrive("a", key=key, weight=weight if key == "heavy" else 1.0)] = key
        seconds = 1.0 + turn % 3
        world.pass_time(seconds)
        world.end(running)
        served[key] += seconds
    assert served["heavy"] / served["light"] == pytest.approx(weight, rel=0.1)


def test_a_key_pays_for_what_its_requests_took_not_for_what_was_expected() -> None:
    """Each of them is expected to take the average; the long ones have to weigh more in the end."""
    world = one_at_a_time()
    requests = {world.arrive("a", key="long"): "long", world.arrive("a", key="short"): "short"}
    served = {"long": 0.0, "short": 0.0}
    for _ in range(300):
        running = next(iter(world.leases))
        key = requests[running]
        requests[world.arrive("a", key=key)] = key
        seconds = 9.0 if key == "long" else 1.0
        world.pass_time(seconds)
        world.end(running)
        served[key] += seconds
    assert served["long"] / served["short"] == pytest.approx(1.0, rel=0.1)


def test_a_key_that_was_away_neither_saved_up_service_nor_owes_any() -> None:
    world = one_at_a_time()
    for _ in range(50):
        world.serve("a", takes_s=10.0, key="busy")
    world.arrive("a", key="busy")
    mine = [world.arrive("a", key="busy") for _ in range(4)]
    theirs = [world.arrive("a", key="back") for _ in range(4)]
    order = [request for request in served_in_order(world, takes_s=10.0) if request in mine + theirs]
    first_four = order[:4]
    assert len(set(first_four) & set(theirs)) <= 3, "not everything of the newcomer comes first"
    assert len(set(first_four) & set(mine)) <= 3


def test_between_models_the_key_that_had_much_waits_for_the_one_that_had_little() -> None:
    world = World({"a": 3 * GIB, "b": 3 * GIB, "c": 3 * GIB}, budget_bytes=5 * GIB, limits=UNBOUND)
    world.serve("a", takes_s=1.0, key="small")
    for _ in range(20):
        big = world.arrive("a", key="big")
        small = world.arrive("a", key="small")
        world.pass_time(10.0)
        world.end(big)
        world.end(small, ok=False)
        world.serve("a", takes_s=100.0, key="big")
    running = world.arrive("a")
    world.arrive("b", key="big")
    world.pass_time(1.0)
    world.arrive("c", key="small")
    world.end(running)
    world.finish_unload("a")
    assert set(world.loading) == {C}


# --- grouping and arrival -------------------------------------------------------------------------------------------


def test_requests_of_one_model_are_served_together() -> None:
    """A B A B becomes A A B B."""
    world = World({"a": 3 * GIB, "b": 3 * GIB}, budget_bytes=5 * GIB, limits=UNBOUND)
    requests = []
    for _ in range(2):
        for name in ("a", "b"):
            requests.append(world.arrive(name))
            world.pass_time(0.1)
    world.run_dry()
    assert [grant.model for grant in world.granted] == [A, A, B, B]


def test_the_model_for_which_more_wait_is_loaded_first() -> None:
    world = World({"a": 3 * GIB, "b": 3 * GIB, "c": 3 * GIB}, budget_bytes=5 * GIB, limits=UNBOUND)
    running = world.arrive("a")
    world.finish_load("a")
    world.arrive("b")
    world.pass_time(1.0)
    for _ in range(3):
        world.arrive("c")
    world.end(running)
    world.finish_unload("a")
    assert set(world.loading) == {C}


def test_what_takes_less_than_the_clock_can_tell_is_ordered_all_the_same() -> None:
    world = World({"a": 3 * GIB, "b": 3 * GIB, "c": 3 * GIB}, budget_bytes=5 * GIB, limits=UNBOUND)
    for name in ("b", "c", "a"):
        world.serve(name)
    running = world.arrive("a")
    world.arrive("b")
    world.arrive("c")
    world.end(running)
    world.run_dry()
    assert [grant.model for grant in world.granted[-2:]] == [B, C]


def test_else_who_came_first_is_served_first() -> None:
    world = World({"a": 3 * GIB, "b": 3 * GIB, "c": 3 * GIB}, budget_bytes=5 * GIB, limits=UNBOUND)
    running = world.arrive("a")
    world.finish_load("a")
    world.arrive("c")
    world.pass_time(1.0)
    world.arrive("b")
    world.end(running)
    world.finish_unload("a")
    assert set(world.loading) == {C}
