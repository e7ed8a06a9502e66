"""Several accelerators, accelerators that go away, and accelerators that have less memory than they say."""

from dataclasses import replace

import pytest

from hypnos_engine.domain.errors import DeviceOutOfMemory, InsufficientMemory, LoadFailed, ModelNotAvailable
from hypnos_engine.domain.kinds import Residency, Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler import ledger
from hypnos_engine.scheduler.loads import LEAST_DOUBT_BYTES
from tests.scheduler.world import GIB, World, spec

A, B, C, D = (ModelId(name) for name in "abcd")
NO_MEMORY = DeviceOutOfMemory("the accelerator has no memory left")


def two_cards(sizes: dict[str, int], **changes: object) -> World:
    """Each of the two holds one model of 3 GiB."""
    settings: dict[str, object] = {"budget_bytes": 32 * GIB, "device_bytes": (4 * GIB, 4 * GIB), **changes}
    settings.setdefault("specs", [spec(name, min_gpu_layer_ratio=1.0) for name in sizes])
    return World(sizes, **settings)  # type: ignore[arg-type]


def one_card_that_just_holds(size_bytes: int) -> World:
    """10 MiB more than a model takes there, all in all."""
    roomy = one_card({"a": size_bytes}, device_bytes=(32 * GIB,))
    roomy.arrive("a")
    return one_card({"a": size_bytes}, device_bytes=(roomy.loading[A].plan.device_peak_bytes + 10 * 2**20,))


def one_card(sizes: dict[str, int], **changes: object) -> World:
    return two_cards(sizes, **{"device_bytes": (4 * GIB,), **changes})


# --- several --------------------------------------------------------------------------------------------------------


def test_two_models_load_at_once_on_two_accelerators() -> None:
    world = two_cards({"a": 3 * GIB, "b": 3 * GIB})
    first, second = world.arrive("a"), world.arrive("b")
    assert [sorted(load.plan.devices) for load in world.loading.values()] == [[0], [1]]
    world.finish_load("b")
    world.finish_load("a")
    assert world.leases == {first: A, second: B}


def test_one_accelerator_is_loaded_by_one_model_at_a_time() -> None:
    world = two_cards({"a": GIB, "b": GIB, "c": 3 * GIB})
    for name in "abc":
        world.arrive(name)
    assert set(world.loading) == {A, C}, "b belongs beside a, c does not fit there"
    world.finish_load("a")
    assert set(world.loading) == {B, C}


def test_two_loads_for_the_processor_alone_come_one_after_the_other() -> None:
    specs = [spec("a", min_gpu_layer_ratio=0.0), spec("b", min_gpu_layer_ratio=0.0)]
    world = two_cards({"a": 18 * GIB, "b": 18 * GIB}, budget_bytes=64 * GIB, device_bytes=(2**28, 2**28), specs=specs)
    world.arrive("a")
    world.arrive("b")
    assert set(world.loading) == {A}
    assert not world.loading[A].plan.devices
    world.finish_load("a")
    assert set(world.loading) == {B}


def test_a_model_that_no_accelerator_holds_alone_is_spread_over_several() -> None:
    world = two_cards({"a": 6 * GIB})
    world.arrive("a")
    plan = world.loading[A].plan
    assert plan.devices == {0, 1}
    assert sum(plan.device_layers) == 4
    world.finish_load("a")
    state = world.scheduler.state
    assert [ledger.device_booked(state, device) for device in (0, 1)] == list(plan.device_shares)


def test_what_a_spread_model_holds_is_booked_on_each_as_planned() -> None:
    """A worker reports one sum; it is divided like the plan."""
    world = two_cards({"a": 6 * GIB})
    world.arrive("a")
    plan = world.loading[A].plan
    world.finish_load("a", measured=replace(plan.footprint, device=plan.footprint.device // 2, peak=0))
    state = world.scheduler.state
    booked = [ledger.device_booked(state, device) for device in (0, 1)]
    assert sum(booked) == pytest.approx(state.models[A].device_bytes, abs=2)
    assert booked[0] / booked[1] == pytest.approx(plan.device_shares[0] / plan.device_shares[1], rel=1e-6)


def test_what_is_in_the_way_leaves_both_of_them() -> None:
    world = two_cards({"a": 3 * GIB, "b": 3 * GIB, "c": 6 * GIB})
    for name in "ab":
        world.serve(name)
    world.arrive("c")
    assert set(world.unloading) == {A, B}


def test_only_the_accelerator_that_is_needed_is_cleared() -> None:
    world = two_cards({"a": 3 * GIB, "b": 3 * GIB, "c": 3 * GIB})
    world.serve("a")
    world.pass_time(10.0)
    world.serve("b")
    world.arrive("c")
    assert set(world.unloading) == {A}
    world.finish_unload("a")
    assert world.loading[C].plan.devices == {0}


def test_what_waits_for_one_accelerator_does_not_keep_others_from_loading_on_another() -> None:
    world = two_cards({"a": 3 * GIB, "b": 6 * GIB, "c": 3 * GIB})
    world.arrive("a")
    world.arrive("b")
    world.arrive("c")
    assert set(world.loading) == {A, C}, "b needs both"


def test_a_busy_accelerator_does_not_keep_the_other_from_serving() -> None:
    world = two_cards({"a": 3 * GIB, "b": 3 * GIB, "c": 3 * GIB})
    world.arrive("a")
    world.finish_load("a")
    world.serve("b")
    request = world.arrive("c")
    world.finish_unload("b")
    world.finish_load("c")
    assert request in world.leases


def test_what_the_accelerator_really_has_left_counts_not_only_the_budget() -> None:
    world = one_card({"a": 3 * GIB})
    world.send(ev.MachineSampled(32 * GIB, (2 * GIB,)))
    assert isinstance(world.refused[world.arrive("a")], InsufficientMemory)
    world.send(ev.MachineSampled(32 * GIB, ()))
    assert isinstance(world.refused[world.arrive("a")], InsufficientMemory), "what is not known is not given away"


# --- lost and returned ----------------------------------------------------------------------------------------------


def test_models_of_a_lost_accelerator_go_and_come_back_with_it() -> None:
    world = two_cards({"a": 3 * GIB, "b": 3 * GIB})
    world.serve("a")
    world.serve("b")
    world.send(ev.DeviceLost(0))
    assert set(world.unloading) == {A}
    assert world.unloading[A].reason == "device_lost"
    assert world.recorded("device_lost", "a")
    world.finish_unload("a")
    assert not world.loading
    world.send(ev.DeviceReturned(0))
    assert set(world.loading) == {A}


def test_requests_of_a_lost_accelerator_go_to_the_one_that_is_left() -> None:
    world = two_cards({"a": 3 * GIB, "b": 3 * GIB})
    world.serve("a")
    world.send(ev.DeviceLost(0))
    world.finish_unload("a")
    world.arrive("a")
    assert world.loading[A].plan.devices == {1}


def test_a_load_on_an_accelerator_that_is_lost_meanwhile_ends_and_goes() -> None:
    world = two_cards({"a": 3 * GIB})
    request = world.arrive("a")
    world.send(ev.DeviceLost(0))
    world.finish_load("a")
    assert set(world.unloading) == {A}
    world.finish_unload("a")
    assert world.loading[A].plan.devices == {1}
    world.finish_load("a")
    assert request in world.leases


def test_without_any_accelerator_nothing_falls_to_the_processor_in_silence() -> None:
    specs = [spec("a", min_gpu_layer_ratio=0.0)]
    world = one_card({"a": 3 * GIB}, specs=specs)
    world.serve("a")
    world.send(ev.DeviceLost(0))
    world.finish_unload("a")
    error = world.refused[world.arrive("a")]
    assert isinstance(error, ModelNotAvailable)
    assert "hardware.backend" in error.message
    assert error.retry_after_s is not None
    assert isinstance(world.refused[world.move("a", Tier.GPU)], ModelNotAvailable)
    world.send(ev.DeviceReturned(0))
    world.finish_load("a")
    assert world.arrive("a") in world.leases


def test_a_model_that_needs_both_waits_for_neither_when_one_is_lost() -> None:
    world = two_cards({"a": 6 * GIB})
    world.serve("a")
    world.send(ev.DeviceLost(1))
    world.finish_unload("a")
    assert isinstance(world.refused[world.arrive("a")], InsufficientMemory)
    world.send(ev.DeviceReturned(1))
    assert set(world.loading) == {A}


def test_the_return_of_an_accelerator_that_was_never_lost_changes_nothing() -> None:
    world = two_cards({"a": 3 * GIB})
    world.serve("a")
    assert world.send(ev.DeviceReturned(0)) == []


def test_a_lost_accelerator_takes_the_only_pool_with_it() -> None:
    world = World({"a": 3 * GIB}, budget_bytes=8 * GIB)
    world.budgets = replace(world.budgets, device_layers=True)
    world.send(ev.BudgetsSet(world.budgets))
    world.serve("a")
    world.send(ev.DeviceLost(0))
    assert set(world.unloading) == {A}


def test_a_smaller_budget_for_an_accelerator_makes_models_leave_it() -> None:
    world = one_card({"a": GIB, "b": GIB})
    world.serve("a")
    world.pass_time(1.0)
    world.serve("b")
    world.serve("b")
    world.shrinking = True
    world.budgets = replace(world.budgets, device_bytes=(5 * GIB // 2,))
    world.send(ev.BudgetsSet(world.budgets))
    assert set(world.unloading) == {A}
    assert world.recorded("shrink", "a")
    world.finish_unload("a")
    world.run_dry()
    assert set(world.ready) == {B}


# --- out of memory --------------------------------------------------------------------------------------------------


def test_a_load_that_finds_no_memory_is_tried_once_more_with_less_believed_free() -> None:
    world = one_card({"a": 2 * GIB})
    request = world.arrive("a")
    world.fail_load("a", NO_MEMORY)
    assert set(world.loading) == {A}
    assert request in world.waiting
    assert world.scheduler.state.doubted_bytes[0] >= LEAST_DOUBT_BYTES
    (record,) = world.recorded("device_out_of_memory")
    assert "less are planned with" in record.because
    world.finish_load("a")
    assert request in world.leases


def test_before_the_second_try_what_is_idle_leaves() -> None:
    """Both were believed to fit; the second load showed that they do not."""
    world = one_card({"a": GIB, "b": 3 * GIB // 2})
    free = 4 * GIB - 20 * 2**20
    world.serve("a")
    world.send(ev.MachineSampled(32 * GIB, (free - ledger.device_booked(world.scheduler.state, 0),)))
    world.arrive("b")
    world.fail_load("b", NO_MEMORY)
    while B not in world.loading:
        assert set(world.unloading) == {A}
        world.finish_unload("a")
    world.finish_load("b")
    assert set(world.leases.values()) == {B}


def test_a_load_that_finds_no_memory_twice_is_refused() -> None:
    world = one_card({"a": 2 * GIB})
    request = world.arrive("a")
    world.fail_load("a", NO_MEMORY)
    world.fail_load("a", NO_MEMORY)
    assert world.refused[request] is NO_MEMORY
    assert not world.loading


def test_a_promotion_by_hand_is_tried_once_more_too() -> None:
    world = one_card({"a": 2 * GIB})
    wish = world.move("a", Tier.GPU)
    world.fail_load("a", NO_MEMORY)
    assert not world.refused
    world.fail_load("a", NO_MEMORY)
    assert world.refused[wish] is NO_MEMORY


def test_what_does_not_fit_with_less_believed_free_is_refused_with_the_bytes() -> None:
    world = one_card_that_just_holds(3 * GIB)
    request = world.arrive("a")
    world.fail_load("a", NO_MEMORY)
    assert isinstance(world.refused[request], InsufficientMemory)


def test_an_accelerator_that_nothing_of_ours_is_left_on_is_believed_again() -> None:
    """However often it failed: another program may have gone meanwhile."""
    world = one_card({"a": 2 * GIB})
    for _ in range(20):
        world.arrive("a")
        while A in world.loading:
            world.fail_load("a", NO_MEMORY)
        world.pass_time(60.0)
    request = world.arrive("a")
    world.finish_load("a")
    assert request in world.leases
    world.end(request)
    world.move("a", Tier.DISK)
    world.finish_unload("a")
    assert not world.scheduler.state.doubted_bytes


def test_a_model_that_did_not_fit_for_a_doubt_gets_another_try_the_next_time() -> None:
    world = one_card_that_just_holds(3 * GIB)
    world.arrive("a")
    world.fail_load("a", NO_MEMORY)
    request = world.arrive("a")
    world.finish_load("a")
    assert request in world.leases


def test_a_worker_that_dies_for_want_of_memory_is_placed_with_less_believed_free() -> None:
    world = one_card({"a": 2 * GIB})
    requests = [world.arrive("a") for _ in range(3)]
    world.finish_load("a")
    world.die("a", NO_MEMORY)
    assert world.scheduler.state.doubted_bytes[0] >= LEAST_DOUBT_BYTES
    assert set(world.loading) == {A}
    for request in requests[:2]:
        world.end(request, ok=False)
    world.finish_load("a")
    assert requests[2] in world.leases


def test_a_doubt_stays_while_something_of_ours_is_left_there() -> None:
    world = one_card({"a": GIB, "b": GIB})
    world.serve("a")
    world.arrive("b")
    world.fail_load("b", NO_MEMORY)
    world.fail_load("b", NO_MEMORY)
    assert world.scheduler.state.doubted_bytes
    world.die("a")
    world.serve("b")
    world.move("b", Tier.DISK)
    world.finish_unload("b")
    assert not world.scheduler.state.doubted_bytes


def test_a_load_that_needs_no_accelerator_and_fails_for_memory_doubts_none() -> None:
    world = World({"a": 2 * GIB}, budget_bytes=8 * GIB)
    world.arrive("a")
    world.fail_load("a", NO_MEMORY)
    assert not world.scheduler.state.doubted_bytes
    world.fail_load("a", LoadFailed("damaged"))
    assert world.scheduler.state.models[A].residency is Residency.COLD
