"""Every decision leaves a record: which model, why in one sentence, the numbers it went by, and what else there was."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from hypnos_engine.domain.errors import DeviceOutOfMemory, WorkerDied
from hypnos_engine.domain.kinds import Residency, Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from tests.scheduler.world import GIB, LIMITS, World, spec

A, B, C = ModelId("a"), ModelId("b"), ModelId("c")


def two_that_do_not_fit_together(**changes: object) -> World:
    settings: dict[str, object] = {"budget_bytes": 5 * GIB, **changes}
    return World({"a": 3 * GIB, "b": 3 * GIB}, **settings)  # type: ignore[arg-type]


def numbers(record: fx.Record) -> dict[str, float]:
    return dict(record.numbers)


def reads_well(record: fx.Record) -> None:
    """One sentence or two for a person, about the model, without a number that only a program can read."""
    assert record.because.endswith("."), record
    assert record.model in record.because, record
    assert "None" not in record.because
    assert "00000000" not in record.because


# --- one by one -----------------------------------------------------------------------------------------------------


def test_a_load() -> None:
    world = two_that_do_not_fit_together()
    world.arrive("a")
    (record,) = world.recorded("load", "a")
    assert record.because == "a is loaded: 3.0 GiB fit, 1 waiting."
    assert numbers(record)["waiting"] == 1
    assert numbers(record)["peak_bytes"] == world.loading[A].plan.footprint.peak
    assert record.chosen == Tier.DISK.value


def test_a_load_for_an_accelerator_says_how_many_layers_it_gets() -> None:
    world = two_that_do_not_fit_together(device_bytes=(4 * GIB,), budget_bytes=16 * GIB)
    world.send(ev.StageRequested(A))
    assert world.recorded("load")[-1].because.endswith("4 layers on the accelerator, nobody waits yet.")


def test_a_load_that_ended() -> None:
    world = two_that_do_not_fit_together()
    world.serve("a", load_s=2.0)
    (record,) = world.recorded("loaded", "a")
    assert numbers(record)["load_s"] == 2.0
    assert numbers(record)["plan_error"] == 0.0
    assert "is ready after 2.0 s" in record.because


def test_an_eviction_lists_who_could_have_gone_instead_and_what_that_would_have_cost() -> None:
    world = World({"a": 2 * GIB, "b": 2 * GIB, "c": 2 * GIB}, budget_bytes=5 * GIB)
    for _ in range(3):
        world.serve("b", load_s=2.0)
    world.serve("a", load_s=2.0)
    world.arrive("c")
    (record,) = world.recorded("evict")
    assert (record.model, record.chosen) == (A, A)
    assert "makes room for c" in record.because
    assert numbers(record)["needed_bytes"] > numbers(record)["free_bytes"]
    (other,) = record.alternatives
    assert other.model == B
    assert other.cost > numbers(record)["cost"]
    assert other.why_not


def test_a_refusal_for_want_of_memory() -> None:
    world = World({"a": 30 * GIB}, budget_bytes=5 * GIB)
    for _ in range(2):
        world.arrive("a")
    record = world.recorded("refuse", "a")[-1]
    assert numbers(record)["needed_bytes"] > 30 * GIB
    assert numbers(record)["free_bytes"] == 5 * GIB
    assert numbers(record)["requests"] == 1


def _unknown(world: World) -> str:
    world.arrive("nobody")
    return "nobody"


def _queue_is_full(world: World) -> str:
    for _ in range(LIMITS.max_queue_per_model + 1):
        world.arrive("a")
    return "a"


def _no_deadline_can_be_met(world: World) -> str:
    world.arrive("a", deadline_s=0.1)
    return "a"


def _deadline_passes(world: World) -> str:
    world.arrive("a", deadline_s=10.0)
    world.pass_time(10.0)
    return "a"


def _program_ends(world: World) -> str:
    world.arrive("a")
    world.send(ev.DrainStarted())
    return "a"


def _switched_off(world: World) -> str:
    world.arrive("a")
    world.send(ev.ModelSwitched(A, enabled=False))
    return "a"


def _load_fails(world: World) -> str:
    world.arrive("a")
    world.fail_load("a")
    return "a"


def _move_is_refused(world: World) -> str:
    world.arrive("a")
    world.move("a", Tier.DISK)
    return "a"


def _twice_without_a_worker(world: World) -> str:
    request = world.arrive("a")
    for _ in range(2):
        world.finish_load("a")
        world.die("a")
        world.bring_back(request)
    return "a"


@pytest.mark.parametrize(
    "story",
    [
        _unknown,
        _queue_is_full,
        _no_deadline_can_be_met,
        _deadline_passes,
        _program_ends,
        _switched_off,
        _load_fails,
        _move_is_refused,
        _twice_without_a_worker,
    ],
)
def test_every_refusal(story: Callable[[World], str]) -> None:
    world = two_that_do_not_fit_together()
    name = story(world)
    assert world.refused
    record = world.recorded("refuse", name)[-1]
    assert record.because == next(reversed(world.refused.values())).message


def test_a_refusal_on_hold() -> None:
    world = two_that_do_not_fit_together(device_bytes=(4 * GIB,))
    world.send(ev.HoldStarted())
    world.arrive("a")
    assert "on hold" in world.recorded("refuse", "a")[-1].because


def test_a_wait_says_for_what() -> None:
    world = World({"a": 3 * GIB, "b": 3 * GIB, "c": 3 * GIB}, budget_bytes=5 * GIB)
    running = [world.arrive("a")]
    world.arrive("b")
    world.finish_load("a")
    running.append(world.arrive("a"))
    world.arrive("a")
    world.arrive("c")
    world.end(running[0])
    world.cancel(running[1])
    world.end(next(iter(world.leases)))
    world.arrive("c")
    world.finish_unload("a")
    world.fail_load("b") if B in world.loading else None
    said = [record.because.split("waits: ")[1] for record in world.recorded("wait")]
    assert said[:5] == [
        "it is being loaded.",
        "a is loaded first.",
        "its 2 slots are taken.",
        "its memory is held by models at work (a).",
        "memory is being freed for it.",
    ]
    words = [record.reason for record in world.recorded("wait")]
    assert words[:5] == ["loading", "other_load", "slots", "memory", "freeing"]


def test_a_wait_gives_its_place_and_how_long_it_may_take() -> None:
    world = two_that_do_not_fit_together()
    world.serve("a", takes_s=4.0)
    for _ in range(4):
        world.arrive("a")
    record = world.recorded("wait", "a")[-1]
    assert numbers(record) == {"waiting_before": 1, "expected_s": pytest.approx(12.0)}


def test_a_wait_for_a_model_that_drains_or_leaves_or_rests() -> None:
    world = two_that_do_not_fit_together(limits=replace(LIMITS, max_overtakes=0, max_queue_per_model=20))
    running = world.arrive("a")
    world.finish_load("a")
    world.pass_time(1.0)
    world.arrive("b")
    world.pass_time(1.0)
    world.arrive("a")
    assert world.recorded("wait")[-1].because.endswith("older requests wait for memory that a holds.")
    world.change(ev.ModelReplaced(spec("a"), world.scheduler.state.models[A].shape, None))
    world.arrive("a")
    assert world.recorded("wait")[-1].because.endswith("the model is about to leave tier 1 (pool).")
    world.end(running)
    world.run_dry()
    for _ in range(2):
        world.arrive("b")
        if B in world.loading:
            world.fail_load("b")


def test_a_wait_for_the_next_try_of_a_load_that_failed() -> None:
    world = two_that_do_not_fit_together()
    for _ in range(2):
        world.arrive("a")
        world.fail_load("a")
    world.arrive("a")
    assert world.recorded("wait")[-1].because.endswith("its last load failed, the next one is tried in a moment.")
    world.pass_time(2.0)
    assert set(world.loading) == {A}


def test_a_wait_for_pages_that_leave() -> None:
    specs = [spec("a", initial_tier=Tier.RAM), spec("b")]
    world = two_that_do_not_fit_together(tier2_bytes=4 * GIB, specs=specs)
    world.finish_fill("a.gguf")
    world.arrive("b")
    assert world.recorded("wait")[-1].because.endswith("memory is being freed for it.")


def test_a_drain_says_for_whom_and_how_often_that_was_overtaken() -> None:
    world = two_that_do_not_fit_together(limits=replace(LIMITS, max_overtakes=2, max_queue_per_model=20))
    world.arrive("a")
    world.finish_load("a")
    world.arrive("b")
    for _ in range(4):
        world.pass_time(1.0)
        request = world.arrive("a")
        if request in world.leases:
            world.end(request)
    (record,) = world.recorded("drain")
    assert (record.model, record.chosen) == (A, B)
    assert numbers(record)["overtaken"] == 2
    assert "2 times" in record.because


def test_a_hold_and_its_end() -> None:
    world = two_that_do_not_fit_together(device_bytes=(8 * GIB,), budget_bytes=16 * GIB)
    world.serve("a")
    world.send(ev.HoldStarted())
    (record,) = world.recorded("hold", "a")
    assert numbers(record)["bytes"] == world.scheduler.state.models[A].footprint.total
    world.send(ev.HoldEnded())
    assert world.recorded("restore", "a")


def test_a_worker_that_died_and_memory_that_was_not_there() -> None:
    world = two_that_do_not_fit_together(device_bytes=(4 * GIB,), budget_bytes=16 * GIB)
    world.serve("a")
    world.die("a", WorkerDied("a was killed."))
    assert world.recorded("worker_died", "a")
    world.serve("a")
    world.die("a", DeviceOutOfMemory("the accelerator is full."))
    assert numbers(world.recorded("device_out_of_memory", "a")[-1])["doubted_bytes"] > 0


def test_a_larger_context_that_is_denied() -> None:
    world = two_that_do_not_fit_together()
    world.serve("a")
    world.send(ev.ContextWanted(A, 2**30))
    (record,) = world.recorded("context_denied", "a")
    assert numbers(record)["needed_bytes"] > numbers(record)["free_bytes"]


# --- all of them ----------------------------------------------------------------------------------------------------


def test_every_load_and_every_unload_has_a_record_that_a_person_can_read() -> None:
    world = two_that_do_not_fit_together(
        device_bytes=(4 * GIB,), budget_bytes=16 * GIB, tier2_bytes=8 * GIB, park_bytes=GIB
    )
    world.serve("a", load_s=1.0)
    world.serve("b", load_s=1.0)
    world.move("b", Tier.RAM)
    world.run_dry()
    world.serve("a", load_s=1.0)
    world.send(ev.HoldStarted())
    world.run_dry()
    world.send(ev.HoldEnded())
    world.run_dry()
    world.send(ev.DeviceLost(0))
    world.run_dry()
    world.send(ev.DeviceReturned(0))
    world.run_dry()
    world.change(ev.ModelReplaced(spec("a"), world.scheduler.state.models[A].shape, None))
    world.run_dry()
    world.serve("a", load_s=1.0)
    world.send(ev.ModelSwitched(A, enabled=False))
    world.run_dry()
    assert world.scheduler.state.models[A].residency is Residency.COLD
    loads = sum(isinstance(effect, fx.Load) for effect in world.effects)
    assert len(world.recorded("load")) == loads
    unloads = [effect for effect in world.effects if isinstance(effect, fx.Unload)]
    assert len(world.recorded("evict")) + len(world.recorded("unload")) == len(unloads)
    for record in world.records:
        reads_well(record)
