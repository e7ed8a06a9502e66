"""The next model is loaded ahead of time when it was announced or is foretold, if that costs nobody more."""

from hypnos_engine.domain.kinds import LoadMode, Priority, Residency, Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.core import MOST_CALLERS
from hypnos_engine.scheduler.room import ANNOUNCED_S
from tests.scheduler.world import GIB, PINNED, World, shape, spec

A, B, C = ModelId("a"), ModelId("b"), ModelId("c")


def roomy() -> World:
    return World({"a": 3 * GIB, "b": 3 * GIB, "c": 3 * GIB}, budget_bytes=16 * GIB)


def tight(**settings: dict[str, object]) -> World:
    """Room for two of the three."""
    specs = [spec(name, **settings.get(name, {})) for name in ("a", "b", "c")]
    return World({"a": 3 * GIB, "b": 3 * GIB, "c": 3 * GIB}, budget_bytes=7 * GIB, specs=specs)


def residency(world: World, name: str) -> Residency:
    return world.scheduler.state.models[ModelId(name)].residency


# --- announced ------------------------------------------------------------------------------------------------------


def test_the_announced_model_is_loaded_while_the_request_still_runs() -> None:
    world = roomy()
    running = world.arrive("a", next_model=B)
    world.finish_load("a")
    assert running in world.leases
    assert set(world.loading) == {B}
    world.finish_load("b")
    assert world.arrive("b") in world.leases


def test_an_announcement_counts_from_the_grant_on() -> None:
    """Before, it would take the memory that the request itself waits for."""
    world = roomy()
    world.arrive("a", next_model=B)
    assert set(world.loading) == {A}
    world.finish_load("a")
    assert set(world.loading) == {B}


def test_unknown_models_and_the_model_itself_are_no_announcement() -> None:
    world = roomy()
    world.serve("a", next_model=ModelId("nobody"))
    world.serve("a", next_model=A)
    assert set(world.ready) == {A}
    assert not world.loading


def test_a_model_that_is_switched_off_is_not_loaded_ahead() -> None:
    world = roomy()
    world.send(ev.ModelSwitched(B, enabled=False))
    world.serve("a", next_model=B)
    assert not world.loading


def test_a_real_request_comes_before_an_announced_one() -> None:
    world = roomy()
    first = world.arrive("a", next_model=B)
    second = world.arrive("c")
    world.finish_load("a")
    assert set(world.loading) == {C}
    world.end(first)
    world.finish_load("c")
    assert set(world.loading) == {B}
    world.end(second)


def test_the_latest_announcement_comes_first() -> None:
    world = roomy()
    world.serve("a")
    loading = world.arrive("c")
    first = world.arrive("a", next_model=B)
    world.send(ev.ModelAdded(spec("d")))
    world.send(ev.ModelInspected(ModelId("d"), shape(GIB), None))
    world.pass_time(1.0)
    world.arrive("a", next_model=ModelId("d"))
    world.cancel(loading)
    world.finish_load("c")
    assert set(world.loading) == {ModelId("d")}
    world.end(first)


def test_an_announcement_that_was_fulfilled_loads_nothing_again() -> None:
    world = roomy()
    world.serve("a", next_model=B)
    world.run_dry()
    world.serve("b")
    world.send(ev.ModelSwitched(B, enabled=False))
    world.run_dry()
    world.send(ev.ModelSwitched(B, enabled=True))
    world.run_dry()
    assert residency(world, "b") is Residency.COLD


def test_an_announced_model_that_rests_after_failures_is_loaded_when_its_rest_is_over() -> None:
    world = roomy()
    for _ in range(2):
        world.arrive("b")
        world.pass_time(5.0)
        world.fail_load("b")
    world.serve("a", next_model=B)
    assert not world.loading
    assert world.wake_at is not None
    world.pass_until(world.wake_at)
    assert set(world.loading) == {B}


def test_what_was_expected_of_a_caller_is_of_no_use_once_it_asks_for_something_else() -> None:
    world = tight()
    world.arrive("a", key="mine", next_model=C)
    world.arrive("b", key="other")
    world.finish_load("a")
    assert set(world.loading) == {B}
    world.arrive("a", key="mine")
    world.finish_load("b")
    world.run_dry()
    assert residency(world, "c") is Residency.COLD


def test_however_many_callers_there_are_the_announcements_of_the_latest_are_remembered() -> None:
    world = World({"a": GIB, "b": GIB}, budget_bytes=8 * GIB)
    for run in range(MOST_CALLERS + 1):
        world.serve("a", key=str(run), next_model=B)
    assert len(world.scheduler.state.announced_by) == MOST_CALLERS


# --- what it may cost -----------------------------------------------------------------------------------------------


def test_an_idle_model_that_nobody_asks_for_leaves_for_it() -> None:
    world = tight()
    world.serve("a")
    world.pass_time(3000.0)
    running = world.arrive("b", next_model=C)
    world.finish_load("b")
    assert set(world.unloading) == {A}
    assert world.unloading[A].for_model == C
    world.finish_unload("a")
    assert set(world.loading) == {C}
    assert running in world.leases


def test_parked_conversations_give_way_at_once() -> None:
    specs = [spec("a"), spec("b"), spec("c", load_mode=LoadMode.READ)]
    world = World(
        {"a": GIB, "b": GIB, "c": 3 * GIB}, budget_bytes=6 * GIB, tier2_bytes=GIB, park_bytes=2 * GIB, specs=specs
    )
    world.serve("a")
    world.move("a", Tier.RAM)
    world.run_dry()
    world.send(ev.KvParked(A, 2 * GIB))
    world.move("a", Tier.DISK)
    world.run_dry()
    world.pass_time(3000.0)
    world.arrive("b", next_model=C)
    world.finish_load("b")
    assert set(world.loading) == {C}


def test_a_leased_model_never_leaves_for_it() -> None:
    world = tight()
    world.arrive("a")
    world.finish_load("a")
    world.pass_time(3000.0)
    world.arrive("b", next_model=C)
    world.finish_load("b")
    assert not world.unloading
    assert world.recorded("prefetch_skipped", "c")


def test_a_pinned_model_never_leaves_for_it() -> None:
    world = tight(a={"priority": PINNED}, b={"priority": PINNED})
    world.serve("a")
    world.serve("b", next_model=C)
    assert not world.unloading
    assert world.recorded("prefetch_skipped", "c")


def test_a_model_that_is_worth_more_does_not_leave_for_it() -> None:
    world = tight()
    for _ in range(100):
        world.serve("a", takes_s=0.5, load_s=2.0)
    world.arrive("b", next_model=C)
    world.finish_load("b")
    assert not world.unloading
    assert world.recorded("prefetch_skipped", "c")


def test_who_was_announced_is_not_driven_out_by_the_next_announcement() -> None:
    world = tight()
    world.serve("a", next_model=B, load_s=2.0, key="one")
    world.pass_time(2.0)
    world.finish_load("b")
    world.serve("a", next_model=C, key="two")
    assert residency(world, "b") is Residency.READY
    assert residency(world, "c") is Residency.COLD


def test_nothing_is_loaded_ahead_while_another_model_is_on_its_way() -> None:
    world = roomy()
    world.serve("a")
    world.arrive("b")
    world.arrive("a", next_model=C)
    assert set(world.loading) == {B}
    world.finish_load("b")
    assert set(world.loading) == {C}


def test_nothing_is_loaded_ahead_onto_an_accelerator_on_hold() -> None:
    world = World({"a": GIB, "b": GIB}, budget_bytes=8 * GIB, device_bytes=(4 * GIB,))
    world.arrive("a")
    world.finish_load("a")
    world.send(ev.HoldStarted())
    world.end(next(iter(world.leases)))
    world.run_dry()
    assert not world.ready


def test_an_announcement_expires() -> None:
    world = tight()
    first = world.arrive("a", next_model=C)
    world.arrive("b")
    world.finish_load("a")
    assert set(world.loading) == {B}
    world.pass_time(ANNOUNCED_S)
    world.finish_load("b")
    world.end(first)
    world.run_dry()
    assert residency(world, "c") is Residency.COLD
    assert world.scheduler.state.models[C].announced_at is None


def test_room_that_vanished_while_it_was_made_loads_nothing() -> None:
    world = tight()
    world.serve("a")
    world.pass_time(3000.0)
    world.arrive("b", next_model=C)
    world.finish_load("b")
    world.others_bytes = 4 * GIB
    world.sample()
    world.finish_unload("a")
    assert not world.loading
    assert world.recorded("stage_skipped", "c")


# --- foretold -------------------------------------------------------------------------------------------------------


def one_after_the_other(world: World, times: int, *, key: str) -> None:
    for _ in range(times):
        for name in ("a", "b"):
            world.serve(name, key=key)
            world.pass_time(1.0)


def test_what_a_task_usually_does_next_is_loaded_ahead() -> None:
    world = roomy()
    for run in range(4):
        for name in ("a", "b"):
            world.serve(name, workflow=ev.Workflow("summary", str(run), ends=name == "b"))
    world.die("b")
    world.arrive("a", workflow=ev.Workflow("summary", "next"))
    assert set(world.loading) == {B}


def test_what_a_key_usually_does_next_is_loaded_ahead_for_that_key_only() -> None:
    world = roomy()
    one_after_the_other(world, 4, key="mine")
    world.die("b")
    world.serve("a", key="other")
    assert not world.loading
    world.serve("a", key="mine")
    assert set(world.loading) == {B}


def test_what_is_not_usual_is_not_foretold() -> None:
    world = roomy()
    for name in ("a", "b", "a", "c", "a", "b", "a", "c", "a", "c", "a", "b"):
        world.serve(name, key="mine")
    world.pass_time(ANNOUNCED_S)
    world.die("b")
    world.die("c")
    world.serve("a", key="mine")
    assert not world.loading


def test_two_are_too_few_to_be_a_habit() -> None:
    world = roomy()
    one_after_the_other(world, 2, key="mine")
    world.die("b")
    world.serve("a", key="mine")
    assert not world.loading


def test_a_word_counts_more_than_a_habit() -> None:
    world = roomy()
    one_after_the_other(world, 5, key="mine")
    world.die("b")
    world.serve("a", key="mine", next_model=C)
    assert set(world.loading) == {C}


def test_a_low_model_is_not_favoured_over_what_is_used() -> None:
    world = tight(c={"priority": Priority.LOW})
    for _ in range(100):
        world.serve("a", takes_s=0.1, load_s=2.0)
        world.serve("b", takes_s=0.1, load_s=2.0)
    world.arrive("a", next_model=C)
    assert not world.unloading
