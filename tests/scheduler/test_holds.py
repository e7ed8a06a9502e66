"""Give me my GPU: what a hold drives away, what it refuses meanwhile, and what comes back when it is over."""

from dataclasses import replace

import pytest

from hypnos_engine.domain.errors import ModelNotAvailable
from hypnos_engine.domain.kinds import EngineKind, Residency, Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import events as ev
from tests.scheduler.world import GIB, LIMITS, World, spec

A, B = ModelId("a"), ModelId("b")
ON_THE_PROCESSOR = replace(LIMITS, hold_uses_cpu=True)


def accelerated(**changes: object) -> World:
    settings: dict[str, object] = {"budget_bytes": 16 * GIB, "device_bytes": (8 * GIB,), **changes}
    return World({"a": 3 * GIB, "b": 3 * GIB}, **settings)  # type: ignore[arg-type]


def residency(world: World, name: str) -> Residency:
    return world.scheduler.state.models[ModelId(name)].residency


# --- while it lasts -------------------------------------------------------------------------------------------------


def test_what_is_on_the_accelerator_leaves_and_is_kept_in_ram() -> None:
    world = accelerated(tier2_bytes=4 * GIB)
    world.serve("a")
    world.send(ev.HoldStarted())
    assert (world.unloading[A].reason, world.unloading[A].to_tier) == ("hold", Tier.RAM)
    world.finish_unload("a")
    world.finish_fill("a.gguf")
    assert world.scheduler.tier(A) is Tier.RAM


def test_running_requests_end_first_and_nobody_is_let_in_behind_them() -> None:
    world = accelerated()
    running = world.arrive("a")
    world.finish_load("a")
    world.send(ev.HoldStarted())
    late = world.arrive("a")
    assert not world.unloading
    assert late not in world.leases
    world.end(running)
    assert set(world.unloading) == {A}


def test_a_load_that_is_under_way_ends_and_leaves_again() -> None:
    world = accelerated()
    request = world.arrive("a")
    world.send(ev.HoldStarted())
    world.finish_load("a")
    assert set(world.unloading) == {A}
    world.finish_unload("a")
    assert isinstance(world.refused[request], ModelNotAvailable)


def test_requests_are_refused_with_the_way_out() -> None:
    world = accelerated()
    world.send(ev.HoldStarted())
    error = world.refused[world.arrive("a")]
    assert isinstance(error, ModelNotAvailable)
    assert "POST /v1/memory/restore" in error.message
    assert "hardware.hold_policy" in error.message
    assert error.retry_after_s is not None
    world.send(ev.HoldStarted(world.now + 60.0))
    assert "for a while" in world.refused[world.arrive("a")].message


def test_a_promotion_by_hand_is_refused_during_a_hold() -> None:
    world = accelerated()
    world.send(ev.HoldStarted())
    assert isinstance(world.refused[world.move("a", Tier.GPU)], ModelNotAvailable)


def test_a_promotion_that_is_making_room_when_the_hold_begins_is_refused() -> None:
    world = accelerated(device_bytes=(4 * GIB,))
    world.serve("a")
    wish = world.move("b", Tier.GPU)
    world.send(ev.HoldStarted())
    world.finish_unload("a")
    assert isinstance(world.refused[wish], ModelNotAvailable)


def test_if_the_owner_says_so_models_run_on_the_processor_meanwhile() -> None:
    world = accelerated(limits=ON_THE_PROCESSOR)
    world.send(ev.HoldStarted())
    request = world.arrive("a")
    plan = world.loading[A].plan
    assert not plan.devices
    assert plan.footprint.device == 0
    world.finish_load("a")
    assert request in world.leases


def test_an_engine_that_uses_no_accelerator_stays() -> None:
    specs = [spec("a", engine=EngineKind.FAKE), spec("b")]
    world = World({"b": 3 * GIB}, budget_bytes=16 * GIB, device_bytes=(8 * GIB,), specs=specs)
    world.serve("a")
    world.serve("b")
    world.send(ev.HoldStarted())
    assert set(world.unloading) == {B}
    world.run_dry()
    world.send(ev.HoldEnded())
    world.send(ev.DeviceLost(0))
    world.run_dry()
    assert residency(world, "a") is Residency.READY


def test_on_a_machine_without_an_accelerator_a_hold_changes_nothing() -> None:
    world = World({"a": 3 * GIB}, budget_bytes=8 * GIB)
    world.serve("a")
    world.send(ev.HoldStarted())
    assert not world.unloading
    world.serve("a")


def test_on_one_pool_everything_that_the_accelerator_works_on_leaves() -> None:
    world = World({"a": 3 * GIB, "b": 3 * GIB}, budget_bytes=8 * GIB)
    world.budgets = replace(world.budgets, device_layers=True)
    world.send(ev.BudgetsSet(world.budgets))
    world.serve("a")
    world.send(ev.HoldStarted())
    assert set(world.unloading) == {A}
    assert isinstance(world.refused[world.arrive("b")], ModelNotAvailable)


def test_on_one_pool_what_the_processor_runs_meanwhile_stays_and_moves_over_afterwards() -> None:
    world = World({"a": 3 * GIB}, budget_bytes=8 * GIB, limits=ON_THE_PROCESSOR)
    world.budgets = replace(world.budgets, device_layers=True)
    world.send(ev.BudgetsSet(world.budgets))
    world.serve("a")
    world.send(ev.HoldStarted())
    world.finish_unload("a")
    world.arrive("a")
    world.finish_load("a")
    assert not world.unloading
    assert world.ready[A].plan.footprint.device == 0
    assert len(world.leases) == 1
    world.end(next(iter(world.leases)))
    world.send(ev.HoldEnded())
    world.run_dry()
    assert world.ready[A].plan.footprint.device > 0


# --- its end --------------------------------------------------------------------------------------------------------


def test_what_was_driven_away_comes_back() -> None:
    world = accelerated()
    world.serve("a")
    world.send(ev.HoldStarted())
    world.finish_unload("a")
    world.send(ev.HoldEnded())
    assert set(world.loading) == {A}
    world.finish_load("a")
    assert world.scheduler.tier(A) is Tier.GPU
    assert world.recorded("restore", "a")


def test_what_was_not_there_is_not_loaded_afterwards() -> None:
    world = accelerated()
    world.serve("a")
    world.send(ev.HoldStarted())
    world.finish_unload("a")
    world.send(ev.HoldEnded())
    world.run_dry()
    assert residency(world, "b") is Residency.COLD


def test_what_has_not_gone_yet_simply_stays() -> None:
    world = accelerated()
    running = world.arrive("a")
    world.finish_load("a")
    world.send(ev.HoldStarted())
    world.send(ev.HoldEnded())
    next_one = world.arrive("a")
    assert set(world.leases) == {running, next_one}
    world.end(running)
    assert not world.unloading


def test_what_is_just_leaving_comes_back_when_it_has_left() -> None:
    world = accelerated()
    world.serve("a")
    world.send(ev.HoldStarted())
    world.send(ev.HoldEnded())
    assert not world.loading
    world.finish_unload("a")
    assert set(world.loading) == {A}


def test_a_hold_ends_by_itself_when_its_time_is_up() -> None:
    world = accelerated()
    world.serve("a")
    world.send(ev.HoldStarted(world.now + 60.0))
    world.finish_unload("a")
    world.pass_time(59.0)
    assert not world.loading
    world.pass_time(1.0)
    assert set(world.loading) == {A}


def test_a_second_hold_replaces_the_first_and_forgets_nobody() -> None:
    world = accelerated()
    world.serve("a")
    world.send(ev.HoldStarted(world.now + 60.0))
    world.finish_unload("a")
    world.send(ev.HoldStarted(world.now + 600.0))
    world.pass_time(60.0)
    assert not world.loading
    world.pass_time(540.0)
    assert set(world.loading) == {A}


def test_an_accelerator_that_returns_during_a_hold_brings_nobody_back_before_its_end() -> None:
    world = accelerated()
    world.serve("a")
    world.send(ev.DeviceLost(0))
    world.finish_unload("a")
    world.send(ev.HoldStarted())
    world.send(ev.DeviceReturned(0))
    assert not world.loading
    world.send(ev.HoldEnded())
    assert set(world.loading) == {A}


def test_ending_a_hold_that_there_is_not_changes_nothing() -> None:
    world = accelerated()
    world.serve("a")
    assert world.send(ev.HoldEnded()) == []
    assert residency(world, "a") is Residency.READY


def test_what_was_switched_off_meanwhile_does_not_come_back() -> None:
    world = accelerated()
    world.serve("a")
    world.send(ev.HoldStarted())
    world.finish_unload("a")
    world.send(ev.ModelSwitched(A, enabled=False))
    world.send(ev.HoldEnded())
    world.run_dry()
    assert residency(world, "a") is Residency.COLD


@pytest.mark.parametrize("busy", [False, True])
def test_what_was_loaded_for_the_processor_meanwhile_moves_to_the_accelerator(busy: bool) -> None:
    world = accelerated(limits=ON_THE_PROCESSOR)
    world.send(ev.HoldStarted())
    request = world.arrive("a")
    world.finish_load("a")
    if not busy:
        world.end(request)
    world.send(ev.HoldEnded())
    if busy:
        assert not world.unloading
        world.end(request)
    assert world.unloading[A].reason == "full_gpu_placement"
    world.finish_unload("a")
    assert world.loading[A].plan.placement.gpu_layers == 4
    world.finish_load("a")
    assert world.scheduler.tier(A) is Tier.GPU


def test_what_is_too_large_for_the_accelerator_stays_with_the_processor() -> None:
    specs = [spec("a", min_gpu_layer_ratio=0.0), spec("b")]
    world = World({"a": 9 * GIB, "b": GIB}, budget_bytes=16 * GIB, device_bytes=(2 * GIB,), specs=specs)
    world.send(ev.LimitsSet(ON_THE_PROCESSOR))
    world.send(ev.HoldStarted())
    world.serve("a")
    world.send(ev.HoldEnded())
    assert residency(world, "a") is Residency.READY


def test_a_worker_that_dies_on_its_way_to_the_accelerator_is_loaded_there_all_the_same() -> None:
    world = accelerated(limits=ON_THE_PROCESSOR)
    world.send(ev.HoldStarted())
    request = world.arrive("a")
    world.finish_load("a")
    world.send(ev.HoldEnded())
    world.die("a")
    assert world.loading[A].plan.devices
    world.cancel(request)
    world.finish_load("a")


def test_what_was_switched_off_meanwhile_stays_away_also_when_it_is_switched_on_again() -> None:
    world = accelerated()
    world.serve("a")
    world.send(ev.HoldStarted())
    world.send(ev.ModelSwitched(A, False))
    world.finish_unload("a")
    world.send(ev.HoldEnded())
    assert not world.scheduler.state.models[A].staged
    world.send(ev.ModelSwitched(A, True))
    assert not world.loading
