"""What a request is told about its wait: the estimate, and refusals of deadlines that cannot be met."""

from dataclasses import replace

import pytest

from hypnos_engine.domain.errors import DeadlineUnmeetable, ModelBusy
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import events as ev
from tests.scheduler.world import GIB, LIMITS, World, spec

A, B = ModelId("a"), ModelId("b")
LOAD_S = 0.4 + 3 * GIB / 1.5e9
"""3 GiB from the disk, as guessed before it was ever done."""
ROOMY = replace(LIMITS, max_queue_per_model=100)


def two_that_do_not_fit_together() -> World:
    return World({"a": 3 * GIB, "b": 3 * GIB}, budget_bytes=5 * GIB, limits=ROOMY)


# --- the estimate ---------------------------------------------------------------------------------------------------


def test_there_is_no_estimate_until_the_model_has_answered_something() -> None:
    world = two_that_do_not_fit_together()
    first = world.arrive("a")
    world.finish_load("a")
    assert world.granted[-1].estimated_wait_s is None
    world.end(first, ok=False)
    assert world.scheduler.estimated_wait_s(A) is None, "what failed says nothing about how long an answer takes"


def test_the_estimate_counts_those_in_excess_of_the_slots_the_newcomer_included() -> None:
    world = two_that_do_not_fit_together()
    world.serve("a", takes_s=4.0)
    estimates = []
    for _ in range(5):
        estimates.append(world.scheduler.estimated_wait_s(A))
        world.arrive("a")
    assert estimates == pytest.approx([0.0, 0.0, 4.0, 8.0, 12.0])


def test_the_grant_carries_the_estimate_of_the_arrival() -> None:
    world = two_that_do_not_fit_together()
    world.serve("a", takes_s=4.0)
    requests = [world.arrive("a") for _ in range(3)]
    world.pass_time(1.0)
    world.end(requests[0])
    assert world.granted[-1].request == requests[2]
    assert world.granted[-1].estimated_wait_s == pytest.approx(4.0)
    assert world.granted[-1].waited_s == pytest.approx(1.0)


def test_the_estimate_adds_the_load_of_a_model_that_is_not_there() -> None:
    world = World(
        {"a": 3 * GIB, "b": 3 * GIB}, budget_bytes=5 * GIB, specs=[spec("a", slots=1), spec("b")], limits=ROOMY
    )
    first = world.arrive("a")
    world.pass_time(2.0)
    world.finish_load("a")
    world.pass_time(4.0)
    world.end(first)
    world.arrive("b")
    world.arrive("a")
    assert world.scheduler.estimated_wait_s(A) == pytest.approx(4.0 + 2.0)


def test_the_load_counts_as_it_was_measured_the_last_time_and_only_what_is_left_of_it() -> None:
    world = two_that_do_not_fit_together()
    first = world.arrive("a")
    world.pass_time(8.0)
    world.finish_load("a")
    world.pass_time(2.0)
    world.end(first)
    world.die("a")
    assert world.scheduler.estimated_wait_s(A) == pytest.approx(8.0)
    world.arrive("a")
    world.send(ev.LoadProgressed(A, 0.75))
    assert world.scheduler.estimated_wait_s(A) == pytest.approx(2.0)
    world.send(ev.LoadProgressed(A, 7.0))
    assert world.scheduler.estimated_wait_s(A) == pytest.approx(0.0)


def test_progress_of_a_model_that_is_gone_is_ignored() -> None:
    world = two_that_do_not_fit_together()
    assert world.send(ev.LoadProgressed(ModelId("nobody"), 0.5)) == []


def test_service_times_are_averaged_with_more_weight_on_the_newest() -> None:
    world = two_that_do_not_fit_together()
    for seconds in (10.0, 20.0):
        world.serve("a", takes_s=seconds)
    assert world.scheduler.state.models[A].service_s == pytest.approx(12.0)


# --- deadlines ------------------------------------------------------------------------------------------------------


def test_a_deadline_within_the_estimate_is_admitted_and_bounds_the_start_only() -> None:
    world = two_that_do_not_fit_together()
    request = world.arrive("a", deadline_s=LOAD_S + 0.1)
    world.pass_time(LOAD_S)
    world.finish_load("a")
    assert request in world.leases
    world.pass_time(100.0)
    assert request in world.leases


def test_a_deadline_shorter_than_the_load_is_refused_and_loads_nothing() -> None:
    world = two_that_do_not_fit_together()
    error = world.refused[world.arrive("a", deadline_s=LOAD_S - 0.1)]
    assert isinstance(error, DeadlineUnmeetable)
    assert error.retry_after_s == pytest.approx(LOAD_S)
    assert "its deadline" in error.message
    assert not world.loading


def test_a_deadline_of_nothing_is_met_by_a_model_that_is_ready() -> None:
    """[§1.2-15]"""
    world = two_that_do_not_fit_together()
    world.serve("a")
    assert world.arrive("a", deadline_s=0.0) in world.leases


def test_a_deadline_of_nothing_is_over_at_once_where_the_request_would_wait() -> None:
    world = World({"a": 3 * GIB}, budget_bytes=5 * GIB, limits=ROOMY, specs=[spec("a", slots=1)])
    world.serve("a")
    world.arrive("a")
    late = world.arrive("a", deadline_s=0.0)
    world.pass_time(0.001)
    assert isinstance(world.refused[late], DeadlineUnmeetable)
    assert late not in world.waiting


def test_a_refused_deadline_never_enters_the_queue() -> None:
    world = two_that_do_not_fit_together()
    world.serve("a", takes_s=4.0)
    for _ in range(3):
        world.arrive("a")
    world.arrive("a", deadline_s=1.0)
    assert world.scheduler.estimated_wait_s(A) == pytest.approx(8.0)


def test_a_full_queue_is_said_before_an_unmeetable_deadline() -> None:
    world = World({"a": 3 * GIB}, budget_bytes=5 * GIB, limits=replace(LIMITS, max_queue_per_model=1))
    world.arrive("a")
    assert isinstance(world.refused[world.arrive("a", deadline_s=0.0)], ModelBusy)


def test_a_deadline_that_passes_in_the_queue_ends_the_wait_at_that_moment() -> None:
    world = two_that_do_not_fit_together()
    running = world.arrive("a")
    world.finish_load("a")
    waiting = world.arrive("b", deadline_s=5.0)
    world.pass_until(4.99)
    assert waiting in world.waiting
    world.pass_until(5.01)
    error = world.refused[waiting]
    assert isinstance(error, DeadlineUnmeetable)
    assert error.retry_after_s is not None
    assert error.retry_after_s >= 1.0
    world.end(running)
    assert not world.unloading, "nobody waits for b any more"


def test_of_many_waiters_only_the_late_ones_are_refused() -> None:
    world = two_that_do_not_fit_together()
    late, patient = world.arrive("a", deadline_s=5.0), world.arrive("a")
    world.pass_time(6.0)
    world.finish_load("a")
    assert late in world.refused
    assert set(world.leases) == {patient}


# --- load shedding --------------------------------------------------------------------------------------------------


def test_under_shedding_the_objective_is_the_deadline_of_those_that_bring_none() -> None:
    world = two_that_do_not_fit_together()
    world.send(ev.LimitsSet(replace(ROOMY, shed_s=1.0)))
    error = world.refused[world.arrive("a")]
    assert isinstance(error, DeadlineUnmeetable)
    assert "objective" in error.message
    patient = world.arrive("a", deadline_s=60.0)
    assert patient in world.waiting, "a deadline of its own counts instead"


def test_under_shedding_a_wait_ends_at_the_objective() -> None:
    world = two_that_do_not_fit_together()
    world.send(ev.LimitsSet(replace(ROOMY, shed_s=LOAD_S + 1.0)))
    request = world.arrive("a")
    world.pass_time(LOAD_S + 2.0)
    assert isinstance(world.refused[request], DeadlineUnmeetable)


def test_without_shedding_nobody_has_a_deadline_that_brings_none() -> None:
    world = two_that_do_not_fit_together()
    request = world.arrive("a")
    world.pass_time(10_000.0)
    assert request in world.waiting


def test_the_scheduler_asks_to_be_woken_when_a_deadline_begins_to_count_and_when_it_passes() -> None:
    world = World({"a": GIB}, budget_bytes=5 * GIB, specs=[spec("a", slots=1)])
    world.serve("a", takes_s=10.0)
    world.arrive("a")
    world.arrive("a", deadline_s=50.0)
    assert world.wake_at == pytest.approx(world.now + 30.0), "twice the service time before it"
    world.pass_time(30.0)
    assert world.wake_at == pytest.approx(world.now + 20.0)
