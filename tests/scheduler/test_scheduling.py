"""One rule of the scheduler a test: waiting, refusing, evicting, draining, estimating, backing off."""

import pytest

from hypnos_engine.domain.errors import (
    Cancelled,
    DeadlineUnmeetable,
    InsufficientMemory,
    LoadFailed,
    ModelBusy,
    ModelDisabled,
    ModelNotAvailable,
    ModelNotFound,
)
from hypnos_engine.domain.kinds import EngineKind, Priority, Tier
from hypnos_engine.domain.memory import Footprint
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler import ledger
from tests.scheduler.world import GIB, LIMITS, PINNED, World, shape, spec

A, B, C = ModelId("a"), ModelId("b"), ModelId("c")


def two_that_do_not_fit_together() -> World:
    return World({"a": 3 * GIB, "b": 3 * GIB}, budget_bytes=5 * GIB)


def test_first_request_loads_the_model_and_is_granted_when_it_is_ready() -> None:
    world = two_that_do_not_fit_together()
    request = world.arrive("a")
    assert set(world.loading) == {A}
    assert not world.leases
    world.pass_time(1.5)
    world.finish_load("a")
    assert world.leases == {request: A}
    grant = world.granted[-1]
    assert grant.previous_tier is Tier.DISK
    assert grant.loaded_s == pytest.approx(1.5)


def test_two_first_requests_load_once() -> None:
    world = two_that_do_not_fit_together()
    first, second = world.arrive("a"), world.arrive("a")
    world.finish_load("a")
    assert set(world.leases) == {first, second}


def test_a_request_on_a_ready_model_reports_no_switch() -> None:
    world = two_that_do_not_fit_together()
    world.end(*[world.arrive("a")] and [_served(world, "a")])
    world.pass_time(5.0)
    world.arrive("a")
    grant = world.granted[-1]
    assert (grant.previous_tier, grant.loaded_s, grant.evicted) == (Tier.GPU, 0.0, ())


def _served(world: World, name: str) -> int:
    """Bring a request that was just sent to its lease; return it."""
    if ModelId(name) in world.loading:
        world.finish_load(name)
    return next(request for request, model in world.leases.items() if model == name)


def test_requests_beyond_the_slots_wait_in_order() -> None:
    world = two_that_do_not_fit_together()
    requests = [world.arrive("a") for _ in range(4)]
    world.finish_load("a")
    assert set(world.leases) == set(requests[:2])
    world.end(requests[1])
    assert set(world.leases) == {requests[0], requests[2]}


def test_the_queue_counts_waiting_and_running_requests() -> None:
    """A-13: with the limit at four, the fifth request of a model is refused, whoever of the four already runs."""
    world = two_that_do_not_fit_together()
    for _ in range(4):
        world.arrive("a")
    refused = world.arrive("a")
    assert isinstance(world.refused[refused], ModelBusy)
    assert world.refused[refused].retry_after_s is None


def test_an_idle_model_makes_room() -> None:
    world = two_that_do_not_fit_together()
    world.arrive("a")
    world.end(_served(world, "a"))
    world.arrive("b")
    assert set(world.unloading) == {A}
    assert not world.loading
    world.finish_unload("a")
    world.finish_load("b")
    assert world.granted[-1].evicted == (A,)


def test_a_busy_model_is_waited_for() -> None:
    world = two_that_do_not_fit_together()
    running = world.arrive("a")
    world.finish_load("a")
    world.arrive("b")
    assert not world.unloading
    world.end(running)
    assert set(world.unloading) == {A}


def test_only_as_many_models_leave_as_are_needed() -> None:
    world = World({"a": GIB, "b": 3 * GIB, "c": 3 * GIB}, budget_bytes=5 * GIB)
    for name in ("a", "b"):
        world.arrive(name)
        world.end(_served(world, name))
    world.arrive("c")
    assert set(world.unloading) == {B}


def test_lower_priority_leaves_first() -> None:
    specs = [spec("a", priority=Priority.HIGH), spec("b", priority=Priority.LOW), spec("c")]
    world = World({"a": 2 * GIB, "b": 2 * GIB, "c": 2 * GIB}, budget_bytes=5 * GIB, specs=specs)
    for name in ("b", "a"):
        world.arrive(name)
        world.end(_served(world, name))
        world.pass_time(1.0)
    world.arrive("b")
    world.end(_served(world, "b"))
    world.arrive("c")
    assert set(world.unloading) == {B}


def test_a_pinned_model_never_leaves() -> None:
    specs = [spec("a", priority=PINNED), spec("b")]
    world = World({"a": 3 * GIB, "b": 3 * GIB}, budget_bytes=5 * GIB, specs=specs)
    world.arrive("a")
    world.end(_served(world, "a"))
    refused = world.arrive("b")
    error = world.refused[refused]
    assert isinstance(error, InsufficientMemory)
    assert "3." in error.message
    assert "a holds 3." in error.message


def test_a_model_larger_than_the_machine_is_refused_at_once_with_the_bytes() -> None:
    world = World({"a": 40 * GIB}, budget_bytes=5 * GIB)
    error = world.refused[world.arrive("a")]
    assert isinstance(error, InsufficientMemory)
    assert "40." in error.message
    assert "5.0 GiB" in error.message


def test_memory_that_other_programs_hold_is_not_planned_with() -> None:
    world = two_that_do_not_fit_together()
    world.send(ev.MachineSampled(GIB))
    assert isinstance(world.refused[world.arrive("a")], InsufficientMemory)


def test_a_waiter_past_its_bound_stops_further_grants_of_the_model_in_its_way() -> None:
    world = two_that_do_not_fit_together()
    first = world.arrive("a")
    world.finish_load("a")
    starving = world.arrive("b")
    for _ in range(LIMITS.max_overtakes):
        world.pass_time(1.0)
        overtaking = world.arrive("a")
        world.end(overtaking)
    world.pass_time(1.0)
    late = world.arrive("a")
    assert late in world.waiting, "a free slot must not be granted while somebody is past the bound"
    world.end(first)
    world.finish_unload("a")
    world.finish_load("b")
    assert starving in world.leases
    assert late in world.waiting


def test_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    world = two_that_do_not_fit_together()
    requests = [world.arrive("a"), world.arrive("a")]
    world.finish_load("a")
    world.pass_time(10.0)
    world.end(requests[0])
    world.arrive("a")
    error = world.refused[world.arrive("a", deadline_s=0.5)]
    assert isinstance(error, DeadlineUnmeetable)
    assert error.retry_after_s is not None
    assert error.retry_after_s >= 10.0


def test_deadline_that_passes_while_waiting_ends_the_wait() -> None:
    world = two_that_do_not_fit_together()
    request = world.arrive("a", deadline_s=20.0)
    world.pass_time(21.0)
    assert isinstance(world.refused[request], DeadlineUnmeetable)


def test_the_estimate_is_unknown_until_something_was_served() -> None:
    world = two_that_do_not_fit_together()
    assert world.scheduler.estimated_wait_s(A) is None
    world.arrive("a")
    request = _served(world, "a")
    world.pass_time(4.0)
    world.end(request)
    assert world.scheduler.estimated_wait_s(A) == 0.0
    world.arrive("a")
    world.arrive("a")
    assert world.scheduler.estimated_wait_s(A) == pytest.approx(4.0)


def test_unknown_and_disabled_models_are_told_apart() -> None:
    world = World({"a": GIB}, budget_bytes=5 * GIB, specs=[spec("a", enabled=False)])
    assert isinstance(world.refused[world.arrive("a")], ModelDisabled)
    assert isinstance(world.refused[world.arrive("nobody")], ModelNotFound)


def test_a_failed_load_tells_all_its_waiters_why() -> None:
    world = two_that_do_not_fit_together()
    requests = [world.arrive("a"), world.arrive("a")]
    world.fail_load("a")
    assert [type(world.refused[request]) for request in requests] == [LoadFailed, LoadFailed]
    assert not world.scheduler.state.models[A].footprint.total


def test_a_model_that_keeps_failing_rests_and_says_for_how_long() -> None:
    world = two_that_do_not_fit_together()
    for _ in range(3):
        world.arrive("a")
        world.pass_time(5.0)
        world.fail_load("a")
    error = world.refused[world.arrive("a")]
    assert isinstance(error, ModelNotAvailable)
    assert error.retry_after_s == pytest.approx(2.0)
    world.pass_time(2.0)
    world.arrive("a")
    world.finish_load("a")
    world.end(next(iter(world.leases)))
    assert world.scheduler.state.models[A].failures == 0


def test_waiters_survive_the_death_of_a_worker() -> None:
    world = two_that_do_not_fit_together()
    requests = [world.arrive("a") for _ in range(3)]
    world.finish_load("a")
    world.die("a")
    assert requests[2] in world.waiting
    assert set(world.loading) == {A}
    world.end(requests[0], ok=False)
    world.end(requests[1], ok=False)
    world.finish_load("a")
    assert requests[2] in world.leases


def test_the_memory_of_a_worker_that_died_is_anybodys_while_its_requests_still_end() -> None:
    world = two_that_do_not_fit_together()
    running = world.arrive("a")
    world.finish_load("a")
    waiting = world.arrive("b")
    world.die("a")
    assert set(world.loading) == {B}
    world.finish_load("b")
    assert waiting in world.leases
    world.end(running, ok=False)


def test_a_cancelled_request_loads_nothing_later() -> None:
    world = two_that_do_not_fit_together()
    running = world.arrive("a")
    world.finish_load("a")
    world.cancel(world.arrive("b"))
    world.end(running)
    world.cancel(world.arrive("b"))
    world.run_dry()
    assert len(world.recorded("load")) == 1


def test_draining_refuses_waiters_and_lets_leases_run() -> None:
    world = two_that_do_not_fit_together()
    requests = [world.arrive("a") for _ in range(3)]
    world.finish_load("a")
    world.send(ev.DrainStarted())
    assert isinstance(world.refused[requests[2]], Cancelled)
    assert set(world.leases) == set(requests[:2])
    assert isinstance(world.refused[world.arrive("a")], Cancelled)


def test_context_grows_when_the_bytes_are_there_and_not_otherwise() -> None:
    world = two_that_do_not_fit_together()
    world.arrive("a")
    world.finish_load("a")
    world.send(ev.ContextWanted(A, 4096))
    assert world.resizing == {A: 4096}
    world.finish_resize("a")
    assert world.scheduler.state.models[A].placement.allocated_context_len == 4096
    world.send(ev.ContextWanted(A, 1 << 30))
    assert not world.resizing
    assert world.records[-1].kind == "context_denied"


def test_busy_models_share_the_cores() -> None:
    world = World({"a": GIB, "b": GIB}, budget_bytes=8 * GIB)
    first = world.arrive("a")
    world.finish_load("a")
    assert world.threads[A] == 4
    second = world.arrive("b")
    world.finish_load("b")
    assert (world.threads[A], world.threads[B]) == (2, 2)
    world.end(second)
    assert world.threads[A] == 4
    world.end(first)


def test_staging_loads_without_a_request_and_never_evicts() -> None:
    world = two_that_do_not_fit_together()
    world.send(ev.StageRequested(A))
    world.finish_load("a")
    world.send(ev.StageRequested(B))
    assert not world.unloading
    assert not world.scheduler.state.models[B].staged


def test_same_events_give_the_same_effects() -> None:
    def story() -> list[object]:
        world = two_that_do_not_fit_together()
        world.arrive("a")
        world.arrive("b")
        world.finish_load("a")
        world.pass_time(40.0)
        world.run_dry()
        return [*world.granted, *world.records]

    assert story() == story()


def test_a_model_whose_context_is_being_rebuilt_is_not_evicted() -> None:
    world = two_that_do_not_fit_together()
    request = world.arrive("a")
    world.finish_load("a")
    world.send(ev.ContextWanted(A, 2048))
    world.end(request)
    world.arrive("b")
    assert not world.unloading
    world.finish_resize("a")
    assert set(world.unloading) == {A}


def test_a_plan_that_was_too_small_is_larger_the_next_time() -> None:
    world = two_that_do_not_fit_together()
    world.arrive("a")
    planned = world.loading[A].plan.footprint
    taken = Footprint(file_pages=planned.file_pages, anonymous=planned.total - planned.file_pages + GIB // 4)
    world.finish_load("a", measured=taken)
    assert world.scheduler.state.models[A].footprint.total == taken.total
    assert world.records[-1].kind == "loaded"
    world.end(_served(world, "a"))
    world.die("a")
    world.arrive("a")
    assert world.loading[A].plan.footprint.total == planned.total + GIB // 4


def test_compute_buffers_that_nobody_touched_yet_stay_booked() -> None:
    world = two_that_do_not_fit_together()
    world.arrive("a")
    planned = world.loading[A].plan.footprint
    seen = Footprint(file_pages=planned.file_pages, anonymous=planned.total - planned.file_pages - planned.workspace)
    world.finish_load("a", measured=seen)
    assert world.scheduler.state.models[A].footprint.total == planned.total


# --- at the edges ---------------------------------------------------------------------------------------------------


def test_what_nobody_knows_is_ignored() -> None:
    world = two_that_do_not_fit_together()
    assert world.send(ev.RequestCancelled(99)) == []
    assert world.send(ev.LeaseEnded(99)) == []


def test_an_event_that_nobody_answers_is_a_mistake_of_the_program() -> None:
    world = two_that_do_not_fit_together()
    with pytest.raises(AssertionError, match="without an answer"):
        world.scheduler.on("nonsense", 0.0)  # type: ignore[arg-type]  # that is the point


def test_a_worker_that_is_leaving_or_gone_gets_no_larger_context() -> None:
    world = two_that_do_not_fit_together()
    world.serve("a")
    world.move("a", Tier.DISK)
    world.send(ev.ContextWanted(A, 4096))
    assert not world.resizing
    world.finish_unload("a")
    world.serve("a")
    world.send(ev.ContextWanted(A, 4096))
    footprint = world.scheduler.state.models[A].footprint
    world.die("a")
    world.send(ev.ContextResized(A, 4096, footprint))
    assert not world.scheduler.state.models[A].footprint.total


def test_an_engine_without_a_file_is_measured_and_learnt_nothing_from() -> None:
    world = World({}, budget_bytes=8 * GIB, specs=[spec("a", engine=EngineKind.FAKE)])
    world.serve("a")
    assert world.scheduler.state.models[A].footprint.total > 0
    assert world.scheduler.state.models[A].placement.primary_tier is Tier.GPU


def test_a_model_without_a_worker_is_placed_on_the_disk_with_all_its_layers() -> None:
    world = two_that_do_not_fit_together()
    placement = world.scheduler.state.models[A].placement
    assert (placement.primary_tier, placement.ssd_layers, placement.gpu_layers) == (Tier.DISK, 4, 0)


def test_a_smaller_budget_lets_go_of_pages_before_workers_and_of_no_more_than_needed() -> None:
    specs = [spec("a", initial_tier=Tier.RAM), spec("b", initial_tier=Tier.RAM), spec("c")]
    world = World({"a": GIB, "b": GIB, "c": GIB}, budget_bytes=8 * GIB, tier2_bytes=4 * GIB, specs=specs)
    world.finish_fill("a.gguf")
    world.finish_fill("b.gguf")
    world.serve("c")
    world.set_budget(5 * GIB // 2)
    assert len(world.dropping) == 1
    world.run_dry()
    assert not world.recorded("shrink")
    assert set(world.ready) == {C}


def test_a_waiter_at_its_bound_that_can_never_fit_any_more_stops_nobody() -> None:
    specs = [spec("a"), spec("b")]
    world = World({"a": GIB, "b": 4 * GIB}, budget_bytes=5 * GIB, specs=specs)
    world.arrive("a")
    world.finish_load("a")
    starving = world.arrive("b")
    for _ in range(LIMITS.max_overtakes):
        world.pass_time(1.0)
        world.end(world.arrive("a"))
    world.others_bytes = 4 * GIB
    world.sample()
    assert isinstance(world.refused[starving], InsufficientMemory)
    assert world.arrive("a") in world.leases


def test_another_file_clears_what_failed_before() -> None:
    world = two_that_do_not_fit_together()
    for _ in range(3):
        world.arrive("a")
        world.pass_time(5.0)
        world.fail_load("a")
    assert isinstance(world.refused[world.arrive("a")], ModelNotAvailable)
    world.send(ev.ModelInspected(A, shape(GIB), None))
    assert world.arrive("a") in world.waiting
    assert set(world.loading) == {A}


def test_inspecting_the_same_file_again_changes_nothing() -> None:
    world = two_that_do_not_fit_together()
    for _ in range(3):
        world.arrive("a")
        world.pass_time(5.0)
        world.fail_load("a")
    world.send(ev.ModelInspected(A, shape(3 * GIB), None))
    assert isinstance(world.refused[world.arrive("a")], ModelNotAvailable)


def test_a_budget_that_holds_nobody_sends_everybody_away_the_busy_ones_when_they_are_done() -> None:
    world = World({"a": GIB, "b": GIB}, budget_bytes=8 * GIB)
    world.serve("b")
    running = world.arrive("a")
    world.finish_load("a")
    world.set_budget(GIB // 2)
    assert set(world.unloading) == {B}
    world.end(running)
    assert set(world.unloading) == {A, B}


def test_a_request_that_wants_more_cells_than_the_model_has_gets_a_load_with_twice_as_many() -> None:
    world = two_that_do_not_fit_together()
    world.arrive("a", cells=1500)
    assert world.loading[A].plan.placement.allocated_context_len == 2048


def test_if_there_is_no_room_for_that_the_model_is_loaded_as_configured() -> None:
    sizes = {"a": 3 * GIB}
    configured = World(sizes, budget_bytes=8 * GIB)
    configured.serve("a")
    taken_bytes = ledger.host_booked(configured.scheduler.state)
    world = World(sizes, budget_bytes=taken_bytes + 2**20)
    world.arrive("a", cells=8192)
    assert world.loading[A].plan.placement.allocated_context_len == 1024


def test_no_model_gets_more_cells_than_it_was_trained_for() -> None:
    world = two_that_do_not_fit_together()
    world.arrive("a", cells=1_000_000)
    assert world.loading[A].plan.placement.allocated_context_len == 8192


def test_models_that_are_to_be_loaded_at_the_start_come_after_requests_and_by_priority() -> None:
    specs = [spec("a"), spec("b", priority=Priority.HIGH), spec("c")]
    world = World({"a": GIB, "b": GIB, "c": GIB}, budget_bytes=8 * GIB, specs=specs)
    world.arrive("c")
    for name in (A, B):
        world.send(ev.StageRequested(name))
    assert set(world.loading) == {C}
    world.finish_load("c")
    assert set(world.loading) == {B}
    world.finish_load("b")
    assert set(world.loading) == {A}


def test_a_person_comes_before_everybody_who_waits() -> None:
    world = World({"a": 3 * GIB, "b": 3 * GIB, "c": 3 * GIB}, budget_bytes=5 * GIB)
    world.serve("a")
    world.move("b", Tier.GPU)
    world.arrive("c")
    world.finish_unload("a")
    assert set(world.loading) == {B}
