"""Models that are added, replaced, removed and switched off while they are used: nobody who waits is forgotten."""

from dataclasses import replace

import pytest

from hypnos_engine.domain.errors import LoadFailed, ModelBusy, ModelDisabled, ModelNotFound
from hypnos_engine.domain.kinds import Priority, Residency, Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from tests.scheduler.world import GIB, World, shape, spec

A, B = ModelId("a"), ModelId("b")


def one_model(**changes: object) -> World:
    settings: dict[str, object] = {"budget_bytes": 8 * GIB, **changes}
    return World({"a": 3 * GIB}, **settings)  # type: ignore[arg-type]


def replaced(world: World, **changes: object) -> None:
    """New settings for the model, with a file of another size."""
    world.change(ev.ModelReplaced(spec("a", **changes), shape(2 * GIB), None))


# --- adding ---------------------------------------------------------------------------------------------------------


def test_a_model_that_is_added_is_served_once_its_files_are_known() -> None:
    world = one_model()
    world.change(ev.ModelAdded(spec("b")))
    assert world.changed == [fx.PoolChanged(B, done=True)]
    world.send(ev.ModelInspected(B, shape(GIB), None))
    world.serve("b")


def test_the_tier_of_the_start_does_not_count_for_a_model_that_is_added_later() -> None:
    world = one_model(tier2_bytes=4 * GIB)
    world.change(ev.ModelAdded(spec("b", initial_tier=Tier.RAM)))
    world.send(ev.ModelInspected(B, shape(GIB), None))
    assert not world.filling


def test_adding_what_is_there_replaces_it() -> None:
    world = one_model()
    world.change(ev.ModelAdded(spec("a", priority=Priority.HIGH)))
    assert world.changed == [fx.PoolChanged(A, done=True)]
    assert world.scheduler.state.models[A].spec.priority is Priority.HIGH


def test_replacing_what_is_not_there_adds_it() -> None:
    world = one_model()
    world.change(ev.ModelReplaced(spec("b"), shape(GIB), None))
    assert world.changed == [fx.PoolChanged(B, done=True)]
    world.serve("b")


# --- replacing ------------------------------------------------------------------------------------------------------


def test_an_idle_model_leaves_and_has_its_new_settings_afterwards() -> None:
    world = one_model()
    world.serve("a")
    replaced(world, slots=1)
    assert world.unloading[A].reason == "pool"
    assert not world.changed
    world.finish_unload("a")
    assert world.changed == [fx.PoolChanged(A, done=True)]
    world.arrive("a")
    assert world.loading[A].plan.footprint.file_pages == 2 * GIB


def test_running_requests_end_with_the_old_model_and_waiting_ones_get_the_new() -> None:
    world = one_model()
    running = [world.arrive("a"), world.arrive("a")]
    world.finish_load("a")
    waiting = world.arrive("a")
    replaced(world)
    late = world.arrive("a")
    world.end(running[0])
    assert set(world.leases) == {running[1]}, "the old one takes nobody any more"
    assert not world.unloading
    world.end(running[1])
    world.finish_unload("a")
    assert world.loading[A].plan.footprint.file_pages == 2 * GIB
    world.finish_load("a")
    assert set(world.leases) == {waiting, late}


def test_a_model_that_is_just_loading_serves_nobody_with_its_old_settings() -> None:
    world = one_model()
    request = world.arrive("a")
    replaced(world)
    world.finish_load("a")
    assert not world.leases
    assert set(world.unloading) == {A}
    world.finish_unload("a")
    world.finish_load("a")
    assert request in world.leases


def test_a_cold_model_is_replaced_at_once() -> None:
    world = one_model()
    replaced(world)
    assert world.changed == [fx.PoolChanged(A, done=True)]


def test_what_was_learnt_about_the_old_model_is_forgotten() -> None:
    world = one_model()
    world.serve("a", takes_s=100.0)
    assert world.scheduler.estimated_wait_s(A) is not None
    replaced(world)
    world.run_dry()
    assert world.scheduler.estimated_wait_s(A) is None


def test_a_model_that_kept_failing_gets_a_fresh_start() -> None:
    world = one_model()
    for _ in range(4):
        world.arrive("a")
        world.fail_load("a")
        world.pass_time(60.0)
    replaced(world)
    world.serve("a")


def test_held_pages_stay_if_the_file_is_the_same_and_go_if_it_is_another() -> None:
    specs = [spec("a", keep_warm_in_ram=True)]
    world = one_model(tier2_bytes=4 * GIB, specs=specs)
    world.finish_fill("a.gguf")
    world.serve("a")
    world.change(ev.ModelReplaced(replace(specs[0], slots=1), shape(3 * GIB), None))
    assert world.unloading[A].to_tier is Tier.RAM
    world.run_dry()
    assert world.scheduler.tier(A) is Tier.RAM
    world.change(ev.ModelReplaced(replace(specs[0], weights_path="other.gguf"), shape(2 * GIB), None))
    assert world.dropping == {"a.gguf"}


def test_a_replacement_that_cannot_be_used_tells_those_who_wait() -> None:
    world = one_model()
    running = world.arrive("a")
    world.finish_load("a")
    world.change(ev.ModelReplaced(spec("a"), None, LoadFailed("the file is cut off")))
    late = world.arrive("a")
    world.end(running)
    world.finish_unload("a")
    assert isinstance(world.refused[late], LoadFailed)
    assert isinstance(world.refused[world.arrive("a")], LoadFailed)


def test_a_replacement_that_is_switched_off_tells_those_who_wait() -> None:
    world = one_model()
    request = world.arrive("a")
    replaced(world, enabled=False)
    world.finish_load("a")
    world.finish_unload("a")
    assert isinstance(world.refused[request], ModelDisabled)


def test_a_second_replacement_takes_the_place_of_the_first() -> None:
    world = one_model()
    running = world.arrive("a")
    world.finish_load("a")
    replaced(world, slots=1)
    replaced(world, slots=3)
    world.end(running)
    world.finish_unload("a")
    assert world.scheduler.state.models[A].spec.slots == 3
    assert world.changed == [fx.PoolChanged(A, done=True)]


def test_a_worker_that_dies_while_it_is_to_be_replaced_is_replaced() -> None:
    world = one_model()
    world.serve("a")
    running = world.arrive("a")
    replaced(world)
    world.die("a")
    assert not world.changed, "a request still ends with the old one"
    world.end(running, ok=False)
    assert world.changed == [fx.PoolChanged(A, done=True)]


def test_a_load_that_fails_while_it_is_to_be_replaced_leads_to_the_new_one() -> None:
    world = one_model()
    world.arrive("a")
    replaced(world)
    world.fail_load("a")
    assert world.changed == [fx.PoolChanged(A, done=True)]


# --- removing -------------------------------------------------------------------------------------------------------


def test_a_removed_model_goes_when_its_requests_have_ended() -> None:
    world = one_model()
    running = [world.arrive("a"), world.arrive("a")]
    world.finish_load("a")
    waiting = world.arrive("a")
    world.change(ev.ModelRemoved(A))
    late = world.arrive("a")
    assert late not in world.refused, "who comes during a removal waits [§6.4-34]"
    for request in running:
        world.end(request)
    assert world.unloading[A].to_tier is Tier.DISK
    world.finish_unload("a")
    assert isinstance(world.refused[waiting], ModelNotFound)
    assert isinstance(world.refused[late], ModelNotFound)
    assert isinstance(world.refused[world.arrive("a")], ModelNotFound)
    assert world.changed == [fx.PoolChanged(A, done=True)]
    assert A not in world.scheduler.state.models


def test_removing_what_is_not_there_is_answered() -> None:
    world = one_model()
    world.change(ev.ModelRemoved(B))
    assert world.changed == [fx.PoolChanged(B, done=False)]


def test_a_removed_model_can_be_added_again() -> None:
    world = one_model()
    world.change(ev.ModelRemoved(A))
    world.change(ev.ModelReplaced(spec("a"), shape(GIB), None))
    world.serve("a")


def test_a_move_by_hand_ends_with_the_model() -> None:
    world = one_model()
    wish = world.move("a", Tier.GPU)
    world.change(ev.ModelRemoved(A))
    world.finish_load("a")
    world.finish_unload("a")
    assert isinstance(world.refused[wish], ModelNotFound)


def test_reports_about_a_model_that_was_removed_are_ignored() -> None:
    world = one_model()
    world.change(ev.ModelRemoved(A))
    late: list[ev.Event] = [
        ev.ModelInspected(A, shape(GIB), None),
        ev.ModelSwitched(A, enabled=True),
        ev.KvParked(A, 5),
        ev.StageRequested(A),
        ev.ChangeAbandoned(A),
        ev.LoadProgressed(A, 0.5),
    ]
    assert [world.send(event) for event in late] == [[]] * len(late)


# --- giving up ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [ev.ModelRemoved(A), ev.ModelReplaced(spec("a"), shape(GIB), None)])
def test_a_change_that_took_too_long_is_given_up_and_the_model_goes_on(
    event: ev.ModelRemoved | ev.ModelReplaced,
) -> None:
    world = one_model()
    world.arrive("a")
    world.finish_load("a")
    world.change(event)
    world.send(ev.ChangeAbandoned(A))
    assert world.changed == [fx.PoolChanged(A, done=False)]
    assert world.arrive("a") in world.leases


def test_who_came_during_a_removal_that_was_given_up_is_served() -> None:
    """[§17-08]"""
    world = one_model()
    running = world.arrive("a")
    world.finish_load("a")
    world.change(ev.ModelRemoved(A))
    late = world.arrive("a")
    world.send(ev.ChangeAbandoned(A))
    assert {running, late} <= set(world.leases)


def test_a_change_whose_model_is_leaving_already_is_not_given_up() -> None:
    world = one_model()
    world.serve("a")
    replaced(world)
    world.send(ev.ChangeAbandoned(A))
    assert not world.changed
    world.finish_unload("a")
    assert world.changed == [fx.PoolChanged(A, done=True)]


# --- switching ------------------------------------------------------------------------------------------------------


def test_switched_off_a_model_refuses_its_waiters_and_goes_when_it_is_idle() -> None:
    world = one_model()
    running = [world.arrive("a"), world.arrive("a")]
    world.finish_load("a")
    waiting = world.arrive("a")
    world.send(ev.ModelSwitched(A, enabled=False))
    assert isinstance(world.refused[waiting], ModelDisabled)
    assert isinstance(world.refused[world.arrive("a")], ModelDisabled)
    world.end(running[0])
    assert not world.unloading
    world.end(running[1])
    assert (world.unloading[A].reason, world.unloading[A].to_tier) == ("disabled", Tier.DISK)


def test_switched_on_again_in_time_it_simply_stays() -> None:
    world = one_model()
    running = world.arrive("a")
    world.finish_load("a")
    world.send(ev.ModelSwitched(A, enabled=False))
    world.send(ev.ModelSwitched(A, enabled=True))
    world.end(running)
    assert world.scheduler.state.models[A].residency is Residency.READY
    assert world.arrive("a") in world.leases


def test_switched_off_while_it_loads_it_leaves_as_soon_as_it_is_there() -> None:
    world = one_model()
    world.arrive("a")
    world.send(ev.ModelSwitched(A, enabled=False))
    world.finish_load("a")
    assert set(world.unloading) == {A}


def test_switched_off_a_replacement_is_off_too() -> None:
    world = one_model()
    running = world.arrive("a")
    world.finish_load("a")
    replaced(world)
    world.send(ev.ModelSwitched(A, enabled=False))
    world.end(running)
    world.finish_unload("a")
    assert not world.scheduler.state.models[A].spec.enabled


def test_switched_off_a_model_that_is_being_moved_says_so() -> None:
    world = one_model()
    wish = world.move("a", Tier.GPU)
    world.send(ev.ModelSwitched(A, enabled=False))
    assert isinstance(world.refused[wish], ModelDisabled)


def test_a_model_whose_change_is_pending_is_busy_for_a_move_only_while_it_is_used() -> None:
    world = one_model()
    world.arrive("a")
    world.finish_load("a")
    replaced(world)
    assert isinstance(world.refused[world.move("a", Tier.DISK)], ModelBusy)


# --- files that change on disk --------------------------------------------------------------------------------------


def test_whatever_has_files_open_goes_while_they_change_and_requests_wait() -> None:
    world = one_model(tier2_bytes=4 * GIB, specs=[spec("a", keep_warm_in_ram=True)])
    world.finish_fill("a.gguf")
    running = world.arrive("a")
    world.finish_load("a")
    world.send(ev.FilesTaken(frozenset({"a.gguf"})))
    late = world.arrive("a")
    assert set(world.leases) == {running}
    world.end(running)
    assert world.unloading[A].reason == "files"
    world.finish_unload("a")
    assert world.dropping == {"a.gguf"}
    world.run_dry()
    assert not world.loading, "nothing is loaded from files that change"
    assert late not in world.refused
    world.send(ev.FilesReturned(frozenset({"a.gguf"})))
    world.finish_load("a")
    assert late in world.leases


def test_no_model_is_moved_while_its_files_change() -> None:
    world = one_model()
    world.send(ev.FilesTaken(frozenset({"a.gguf"})))
    assert isinstance(world.refused[world.move("a", Tier.GPU)], ModelBusy)
    world.send(ev.FilesReturned(frozenset({"a.gguf"})))
    wish = world.move("a", Tier.GPU)
    world.finish_load("a")
    assert wish not in world.refused


def test_a_replaced_model_begins_on_disk_though_its_file_stays_the_same() -> None:
    """[§6.4-41]"""
    world = one_model(tier2_bytes=4 * GIB)
    world.serve("a")
    wish = world.move("a", Tier.RAM)
    world.finish_unload("a")
    world.finish_fill("a.gguf")
    assert wish not in world.refused
    assert world.scheduler.tier(A) is Tier.RAM
    world.change(ev.ModelReplaced(spec("a", slots=1), shape(3 * GIB), None))
    assert world.dropping == {"a.gguf"}
    assert world.scheduler.tier(A) is Tier.DISK


def test_pages_stay_for_another_model_with_the_same_file() -> None:
    specs = [spec("a"), spec("b", weights_path="a.gguf")]
    world = World({"a": 3 * GIB, "b": 3 * GIB}, budget_bytes=8 * GIB, tier2_bytes=4 * GIB, specs=specs)
    world.move("a", Tier.RAM)
    world.finish_fill("a.gguf")
    world.change(ev.ModelReplaced(spec("a", weights_path="other.gguf"), shape(GIB), None))
    assert not world.dropping
