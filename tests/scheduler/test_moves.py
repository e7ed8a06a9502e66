"""Tiers by hand (contract §14.2): done at once where that is possible, else refused at once; never queued."""

from hypnos_engine.domain.errors import (
    InsufficientMemory,
    LoadFailed,
    ModelBusy,
    ModelDisabled,
    ModelNotAvailable,
    ModelNotFound,
)
from hypnos_engine.domain.kinds import LoadMode, Priority, Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler import ledger
from tests.scheduler.world import GIB, PINNED, World, shape, spec

A, B = ModelId("a"), ModelId("b")


def two_that_do_not_fit_together(*, tier2_bytes: int = 0, budget_bytes: int = 5 * GIB) -> World:
    return World({"a": 3 * GIB, "b": 3 * GIB}, budget_bytes=budget_bytes, tier2_bytes=tier2_bytes)


def tier(world: World, name: str) -> Tier:
    return world.scheduler.tier(ModelId(name))


# --- to tier 1 ------------------------------------------------------------------------------------------------------


def test_a_promotion_is_answered_when_the_load_is_done() -> None:
    world = two_that_do_not_fit_together()
    wish = world.move("a", Tier.GPU)
    assert set(world.loading) == {A}
    assert not world.moved
    world.finish_load("a")
    assert world.moved == [wish]


def test_a_promotion_of_a_model_that_is_there_is_done_already() -> None:
    world = two_that_do_not_fit_together()
    world.serve("a")
    wish = world.move("a", Tier.GPU)
    assert world.moved == [wish]
    assert not world.unloading


def test_a_promotion_makes_idle_models_leave() -> None:
    world = two_that_do_not_fit_together()
    world.serve("a")
    wish = world.move("b", Tier.GPU)
    assert set(world.unloading) == {A}
    world.run_dry()
    assert world.moved == [wish]
    assert tier(world, "b") is Tier.GPU


def test_a_promotion_that_would_have_to_wait_for_a_model_at_work_is_refused_at_once() -> None:
    world = two_that_do_not_fit_together()
    world.arrive("a")
    world.finish_load("a")
    error = world.refused[world.move("b", Tier.GPU)]
    assert isinstance(error, InsufficientMemory)
    assert "a holds 3.0 GiB" in error.message
    assert "3.0 GiB" in error.message


def test_a_promotion_that_can_never_fit_is_refused_and_nobody_leaves_for_it() -> None:
    world = World({"a": 3 * GIB, "b": 30 * GIB}, budget_bytes=5 * GIB)
    world.serve("a")
    assert isinstance(world.refused[world.move("b", Tier.GPU)], InsufficientMemory)
    assert tier(world, "a") is Tier.GPU


def test_a_promotion_beside_a_pinned_model_is_refused() -> None:
    specs = [spec("a", priority=PINNED), spec("b", priority=Priority.HIGH)]
    world = World({"a": 3 * GIB, "b": 3 * GIB}, budget_bytes=5 * GIB, specs=specs)
    world.serve("a")
    assert isinstance(world.refused[world.move("b", Tier.GPU)], InsufficientMemory)


def test_while_another_model_is_on_its_way_a_promotion_is_refused() -> None:
    world = World({"a": GIB, "b": GIB}, budget_bytes=5 * GIB)
    world.arrive("a")
    assert isinstance(world.refused[world.move("b", Tier.GPU)], ModelBusy)


def test_a_promotion_whose_load_fails_says_why() -> None:
    world = two_that_do_not_fit_together()
    wish = world.move("a", Tier.GPU)
    world.fail_load("a")
    assert isinstance(world.refused[wish], LoadFailed)


def test_a_larger_context_rebuilds_the_worker() -> None:
    world = two_that_do_not_fit_together()
    world.serve("a")
    wish = world.move("a", Tier.GPU, context_len=4096)
    assert set(world.unloading) == {A}
    assert not world.moved
    world.finish_unload("a")
    assert world.loading[A].plan.placement.allocated_context_len == 4096
    world.finish_load("a")
    assert world.moved == [wish]


def test_a_context_that_the_worker_has_already_changes_nothing() -> None:
    world = two_that_do_not_fit_together()
    world.serve("a")
    wish = world.move("a", Tier.GPU, context_len=512)
    assert world.moved == [wish]
    assert not world.unloading


def test_a_context_that_does_not_fit_is_refused_and_the_model_stays() -> None:
    """8192 cells are what it was trained for; beside the pinned model there is room for a few hundred."""
    specs = [spec("a", context_len=256), spec("b", context_len=256, priority=PINNED)]
    sizes = {"a": 3 * GIB, "b": GIB}
    roomy = World(sizes, budget_bytes=8 * GIB, specs=specs)
    for name in sizes:
        roomy.serve(name)
    taken_bytes = ledger.host_booked(roomy.scheduler.state)
    world = World(sizes, budget_bytes=taken_bytes + 2**20, specs=specs)
    for name in sizes:
        world.serve(name)
    error = world.refused[world.move("a", Tier.GPU, context_len=8192)]
    assert isinstance(error, InsufficientMemory)
    assert "b holds 1." in error.message
    assert set(world.ready) == {A, B}, "a wish that cannot be fulfilled takes nothing away"
    world.run_dry()
    assert world.scheduler.state.models[A].placement.allocated_context_len == 256


# --- to tier 2 ------------------------------------------------------------------------------------------------------


def test_a_cold_model_is_read_into_ram() -> None:
    world = two_that_do_not_fit_together(tier2_bytes=4 * GIB)
    wish = world.move("a", Tier.RAM)
    assert not world.loading
    assert set(world.filling) == {"a.gguf"}
    world.finish_fill("a.gguf")
    assert world.moved == [wish]
    assert tier(world, "a") is Tier.RAM


def test_a_loaded_model_is_unloaded_and_its_pages_are_held() -> None:
    world = two_that_do_not_fit_together(tier2_bytes=4 * GIB)
    world.serve("a")
    wish = world.move("a", Tier.RAM)
    assert set(world.unloading) == {A}
    world.run_dry()
    assert world.moved == [wish]
    assert tier(world, "a") is Tier.RAM


def test_a_model_that_is_in_ram_is_there_already() -> None:
    world = two_that_do_not_fit_together(tier2_bytes=4 * GIB)
    world.move("a", Tier.RAM)
    world.finish_fill("a.gguf")
    wish = world.move("a", Tier.RAM)
    assert world.moved[-1] == wish


def test_without_a_second_tier_nothing_can_be_moved_there_and_the_model_stays() -> None:
    world = two_that_do_not_fit_together()
    world.serve("a")
    for name in ("a", "b"):
        error = world.refused[world.move(name, Tier.RAM)]
        assert isinstance(error, InsufficientMemory)
        assert "hardware.tier2_bytes" in error.message
    assert tier(world, "a") is Tier.GPU


def test_pages_that_do_not_fit_beside_the_others_are_refused() -> None:
    world = two_that_do_not_fit_together(tier2_bytes=4 * GIB, budget_bytes=8 * GIB)
    world.move("a", Tier.RAM)
    world.finish_fill("a.gguf")
    assert isinstance(world.refused[world.move("b", Tier.RAM)], InsufficientMemory)


def test_the_memory_that_the_worker_itself_holds_counts_as_free_for_its_pages() -> None:
    """Read into private memory, the worker leaves no room for the pages until it has gone."""
    world = World({"a": 3 * GIB}, budget_bytes=4 * GIB, tier2_bytes=4 * GIB, specs=[spec("a", load_mode=LoadMode.READ)])
    world.serve("a")
    wish = world.move("a", Tier.RAM)
    assert set(world.unloading) == {A}
    assert not world.filling
    world.run_dry()
    assert world.moved == [wish]
    assert tier(world, "a") is Tier.RAM


def test_pages_that_could_not_be_held_in_the_end_are_said() -> None:
    world = two_that_do_not_fit_together(tier2_bytes=4 * GIB)
    wish = world.move("a", Tier.RAM)
    world.finish_fill("a.gguf", share=0.5)
    world.finish_drop("a.gguf")
    error = world.refused[wish]
    assert isinstance(error, ModelNotAvailable), "there is room for them"
    assert "could not be read" in error.message


def test_pages_whose_room_others_took_meanwhile_are_said_to_lack_it() -> None:
    world = two_that_do_not_fit_together(tier2_bytes=4 * GIB)
    wish = world.move("a", Tier.RAM)
    world.others_bytes = 4 * GIB
    world.sample()
    world.finish_fill("a.gguf", share=0.5)
    world.finish_drop("a.gguf")
    assert isinstance(world.refused[wish], InsufficientMemory)


def test_room_that_has_gone_while_the_model_left_is_said_even_where_the_pages_are_to_be_kept() -> None:
    specs = [spec("a", keep_warm_in_ram=True, load_mode=LoadMode.READ), spec("b")]
    world = World({"a": 3 * GIB, "b": GIB}, budget_bytes=4 * GIB, tier2_bytes=4 * GIB, specs=specs)
    world.finish_fill("a.gguf")
    world.change(ev.ModelReplaced(specs[0], shape(3 * GIB), None))
    world.move("a", Tier.DISK)
    world.run_dry()
    world.serve("a")
    wish = world.move("a", Tier.RAM)
    world.others_bytes = 4 * GIB
    world.sample()
    world.finish_unload("a")
    assert isinstance(world.refused[wish], InsufficientMemory)


def test_a_model_that_is_asked_for_while_it_is_moved_is_served() -> None:
    world = two_that_do_not_fit_together(tier2_bytes=4 * GIB)
    world.serve("a")
    wish = world.move("a", Tier.RAM)
    request = world.arrive("a")
    world.finish_unload("a")
    world.finish_load("a")
    assert request in world.leases
    assert isinstance(world.refused[wish], ModelBusy)


# --- to tier 3 ------------------------------------------------------------------------------------------------------


def test_a_loaded_model_goes_to_disk_pages_and_all() -> None:
    world = World({"a": 3 * GIB}, budget_bytes=5 * GIB, tier2_bytes=4 * GIB, specs=[spec("a", initial_tier=Tier.RAM)])
    world.finish_fill("a.gguf")
    world.serve("a")
    wish = world.move("a", Tier.DISK)
    world.finish_unload("a")
    assert world.dropping == {"a.gguf"}
    assert not world.moved
    world.finish_drop("a.gguf")
    assert world.moved == [wish]
    assert tier(world, "a") is Tier.DISK


def test_pages_that_are_just_being_read_are_dropped_afterwards() -> None:
    world = World({"a": 3 * GIB}, budget_bytes=5 * GIB, tier2_bytes=4 * GIB, specs=[spec("a", initial_tier=Tier.RAM)])
    wish = world.move("a", Tier.DISK)
    assert not world.moved
    world.run_dry()
    assert world.moved == [wish]
    assert tier(world, "a") is Tier.DISK


def test_a_model_on_disk_is_there_already() -> None:
    world = two_that_do_not_fit_together()
    wish = world.move("a", Tier.DISK)
    assert world.moved == [wish]


def test_a_model_that_is_to_be_kept_warm_stays_on_disk_once_a_person_moved_it_there() -> None:
    world = World({"a": 3 * GIB}, budget_bytes=8 * GIB, tier2_bytes=4 * GIB, specs=[spec("a", keep_warm_in_ram=True)])
    world.finish_fill("a.gguf")
    world.move("a", Tier.DISK)
    world.run_dry()
    world.sample()
    assert not world.filling
    assert tier(world, "a") is Tier.DISK


# --- whom it does not concern ---------------------------------------------------------------------------------------


def test_unknown_and_disabled_models_are_not_moved() -> None:
    world = World({"a": GIB}, budget_bytes=5 * GIB, specs=[spec("a", enabled=False)])
    assert isinstance(world.refused[world.move("a", Tier.GPU)], ModelDisabled)
    assert isinstance(world.refused[world.move("nobody", Tier.GPU)], ModelNotFound)


def test_a_model_in_use_is_not_moved_to_any_tier() -> None:
    world = two_that_do_not_fit_together(tier2_bytes=4 * GIB)
    world.arrive("a")
    world.finish_load("a")
    for target in Tier:
        assert isinstance(world.refused[world.move("a", target)], ModelBusy)


def test_a_model_that_somebody_waits_for_is_not_moved() -> None:
    world = two_that_do_not_fit_together()
    world.arrive("a")
    world.finish_load("a")
    world.arrive("b")
    assert isinstance(world.refused[world.move("b", Tier.DISK)], ModelBusy)


def test_a_model_is_moved_by_one_person_at_a_time() -> None:
    world = two_that_do_not_fit_together(tier2_bytes=4 * GIB)
    world.move("a", Tier.RAM)
    assert isinstance(world.refused[world.move("a", Tier.DISK)], ModelBusy)


def test_a_model_that_cannot_be_used_says_why() -> None:
    world = two_that_do_not_fit_together()
    world.send(ev.ModelInspected(A, None, LoadFailed("the file is cut off")))
    assert isinstance(world.refused[world.move("a", Tier.GPU)], LoadFailed)


def test_a_model_that_cannot_be_used_may_leave_all_the_same() -> None:
    world = two_that_do_not_fit_together(tier2_bytes=4 * GIB)
    world.serve("a")
    world.send(ev.ModelInspected(A, None, LoadFailed("the file is cut off")))
    wish = world.move("a", Tier.DISK)
    world.run_dry()
    assert wish in world.moved
    assert tier(world, "a") is Tier.DISK


def test_a_model_that_is_about_to_be_removed_may_stay_and_is_busy() -> None:
    world = two_that_do_not_fit_together()
    world.arrive("a")
    world.finish_load("a")
    world.change(ev.ModelRemoved(A))
    assert isinstance(world.refused[world.move("a", Tier.DISK)], ModelBusy)


def test_who_is_being_moved_is_nobodys_victim() -> None:
    world = two_that_do_not_fit_together()
    world.move("a", Tier.GPU)
    world.arrive("b")
    world.finish_load("a")
    assert world.moved
    world.run_dry()
    assert tier(world, "b") is Tier.GPU
