"""Tier 2: which files are kept in RAM, what that costs of the budget, and for whom they are let go again."""

from dataclasses import replace

from hypnos_engine.domain.kinds import Pages, Priority, Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler import ledger
from tests.scheduler.world import GIB, World, shape, spec

A, B, C = ModelId("a"), ModelId("b"), ModelId("c")


def tier(world: World, name: str) -> Tier:
    return world.scheduler.tier(ModelId(name))


def accelerated(**changes: object) -> World:
    """An accelerator for one of two models, and RAM for both."""
    settings: dict[str, object] = {
        "budget_bytes": 16 * GIB,
        "device_bytes": (4 * GIB,),
        "tier2_bytes": 8 * GIB,
        **changes,
    }
    return World({"a": 3 * GIB, "b": 3 * GIB}, **settings)  # type: ignore[arg-type]


# --- at the start ---------------------------------------------------------------------------------------------------


def test_a_model_that_starts_in_ram_is_read_once_its_size_is_known() -> None:
    world = World({"a": 3 * GIB}, budget_bytes=8 * GIB, tier2_bytes=4 * GIB, specs=[spec("a", initial_tier=Tier.RAM)])
    assert world.filling == {"a.gguf": 3 * GIB}
    assert tier(world, "a") is Tier.DISK, "not before all of it is held"
    world.finish_fill("a.gguf")
    assert tier(world, "a") is Tier.RAM
    assert ledger.host_booked(world.scheduler.state) == 3 * GIB


def test_one_file_set_is_read_at_a_time() -> None:
    specs = [spec(name, initial_tier=Tier.RAM) for name in ("a", "b")]
    world = World({"a": 2 * GIB, "b": 2 * GIB}, budget_bytes=8 * GIB, tier2_bytes=4 * GIB, specs=specs)
    assert set(world.filling) == {"a.gguf"}
    world.finish_fill("a.gguf")
    assert set(world.filling) == {"b.gguf"}


def test_without_a_second_tier_nothing_is_held() -> None:
    specs = [spec("a", initial_tier=Tier.RAM), spec("b", keep_warm_in_ram=True)]
    world = World({"a": GIB, "b": GIB}, budget_bytes=8 * GIB, specs=specs)
    world.serve("a")
    assert not world.filling


def test_a_model_that_is_switched_off_or_cannot_be_used_is_not_read() -> None:
    specs = [spec("a", keep_warm_in_ram=True, enabled=False)]
    world = World({"a": GIB}, budget_bytes=8 * GIB, tier2_bytes=4 * GIB, specs=specs)
    assert not world.filling


def test_what_is_kept_warm_is_read_at_the_start_and_after_a_change_of_the_budgets() -> None:
    world = World({"a": GIB}, budget_bytes=8 * GIB, specs=[spec("a", keep_warm_in_ram=True)])
    assert not world.filling
    world.budgets = replace(world.budgets, tier2_bytes=4 * GIB)
    world.send(ev.BudgetsSet(world.budgets))
    assert set(world.filling) == {"a.gguf"}


# --- leaving tier 1 -------------------------------------------------------------------------------------------------


def test_an_evicted_model_is_kept_in_ram_where_there_is_room() -> None:
    world = accelerated()
    world.serve("a")
    world.arrive("b")
    assert world.unloading[A].to_tier is Tier.RAM
    world.finish_unload("a")
    world.finish_fill("a.gguf")
    assert tier(world, "a") is Tier.RAM


def test_an_evicted_model_goes_to_disk_where_there_is_none() -> None:
    world = accelerated(tier2_bytes=2 * GIB)
    world.serve("a")
    world.arrive("b")
    assert world.unloading[A].to_tier is Tier.DISK
    world.run_dry()
    assert tier(world, "a") is Tier.DISK


def test_pages_are_not_read_into_the_room_that_the_model_evicted_for_needs() -> None:
    """On one pool a's pages and b's worker do not fit together: reading them would only make b wait."""
    world = World({"a": 3 * GIB, "b": 3 * GIB}, budget_bytes=5 * GIB, tier2_bytes=4 * GIB)
    world.serve("a")
    world.arrive("b")
    assert world.unloading[A].to_tier is Tier.DISK
    assert not world.filling
    world.finish_unload("a")
    assert set(world.loading) == {B}


def test_pages_are_read_while_a_model_waits_that_could_not_be_loaded_anyway() -> None:
    """b waits for the accelerator, where a is at work; the RAM is free meanwhile, for b itself and then for others."""
    world = accelerated(specs=[spec("a", min_gpu_layer_ratio=1.0), spec("b", min_gpu_layer_ratio=1.0)])
    world.arrive("a")
    world.finish_load("a")
    world.arrive("b")
    world.send(ev.ModelAdded(spec("c", keep_warm_in_ram=True)))
    world.send(ev.ModelInspected(C, shape(GIB), None))
    assert set(world.filling) == {"b.gguf"}
    world.finish_fill("b.gguf")
    assert set(world.filling) == {"c.gguf"}


def test_pages_that_were_wanted_for_a_load_are_not_read_once_that_load_has_begun() -> None:
    specs = [spec(name, min_gpu_layer_ratio=1.0) for name in ("a", "b")] + [spec("c", initial_tier=Tier.RAM)]
    world = World(
        dict.fromkeys("abc", 3 * GIB),
        budget_bytes=32 * GIB,
        device_bytes=(4 * GIB,),
        tier2_bytes=12 * GIB,
        specs=specs,
    )
    running = world.arrive("a")
    world.finish_fill("c.gguf")
    world.send(ev.PagesLost("c.gguf"))
    world.finish_load("a")
    world.finish_drop("c.gguf")
    world.move("c", Tier.RAM)
    world.arrive("b")
    assert set(world.filling) == {"c.gguf"}
    world.end(running)
    world.finish_unload("a")
    assert set(world.loading) == {B}
    world.finish_fill("c.gguf")
    world.finish_load("b")
    assert "b.gguf" not in world.filling
    world.run_dry()
    assert "b.gguf" not in world.held


def test_nothing_is_read_for_tier_2_while_a_model_is_loaded_from_the_disk() -> None:
    world = accelerated()
    world.serve("a")
    world.arrive("b")
    assert set(world.filling) == {"a.gguf"}, "the unload does not read"
    world.finish_fill("a.gguf")
    world.finish_unload("a")
    assert world.loading[B].from_tier is Tier.DISK
    world.send(ev.PagesLost("a.gguf"))
    world.finish_drop("a.gguf")
    world.move("a", Tier.RAM)
    assert not world.filling
    world.finish_load("b")
    assert set(world.filling) == {"a.gguf"}


def test_a_load_from_ram_does_not_keep_others_from_being_read() -> None:
    world = World(
        {"a": GIB, "b": GIB},
        budget_bytes=16 * GIB,
        device_bytes=(4 * GIB,),
        tier2_bytes=8 * GIB,
        specs=[spec("a", initial_tier=Tier.RAM), spec("b")],
    )
    world.finish_fill("a.gguf")
    world.arrive("a")
    assert world.loading[A].from_tier is Tier.RAM
    world.move("b", Tier.RAM)
    assert set(world.filling) == {"b.gguf"}


# --- one line per file ----------------------------------------------------------------------------------------------


def test_a_file_that_is_held_and_mapped_is_booked_once() -> None:
    world = World({"a": 3 * GIB}, budget_bytes=8 * GIB, tier2_bytes=4 * GIB, specs=[spec("a", keep_warm_in_ram=True)])
    world.finish_fill("a.gguf")
    world.arrive("a")
    state = world.scheduler.state
    assert ledger.host_booked(state) == world.loading[A].plan.footprint.total
    world.finish_load("a")
    assert ledger.host_booked(state) == 3 * GIB + state.models[A].private_bytes


def test_two_models_with_the_same_file_map_it_once() -> None:
    """Two of 3 GiB with room for one and a half."""
    specs = [spec("a", weights_path="same.gguf"), spec("b", weights_path="same.gguf")]
    world = World({"a": 3 * GIB, "b": 3 * GIB}, budget_bytes=4 * GIB, specs=specs)
    world.serve("a")
    world.arrive("b")
    world.finish_load("b")
    assert set(world.ready) == {A, B}
    state = world.scheduler.state
    private = sum(model.private_bytes for model in state.models.values())
    assert ledger.host_booked(state) == 3 * GIB + private
    assert not world.recorded("evict")


def test_pages_stay_in_the_books_as_long_as_one_of_two_models_maps_them() -> None:
    specs = [spec("a", weights_path="same.gguf"), spec("b", weights_path="same.gguf"), spec("c")]
    world = World({"a": 3 * GIB, "b": 3 * GIB, "c": 2 * GIB}, budget_bytes=4 * GIB, specs=specs)
    world.serve("a")
    world.pass_time(60.0)
    world.serve("b")
    world.arrive("c")
    assert set(world.unloading) == {A, B}, "the file's 3 GiB are free only when both have left"


def test_both_models_of_a_held_file_are_in_ram() -> None:
    specs = [spec("a", weights_path="same.gguf", initial_tier=Tier.RAM), spec("b", weights_path="same.gguf")]
    world = World({"a": GIB, "b": GIB}, budget_bytes=4 * GIB, tier2_bytes=2 * GIB, specs=specs)
    world.finish_fill("same.gguf")
    assert (tier(world, "a"), tier(world, "b")) == (Tier.RAM, Tier.RAM)
    world.move("b", Tier.RAM)
    assert len(world.moved) == 1


# --- room for others ------------------------------------------------------------------------------------------------


def test_held_pages_leave_for_a_worker_that_needs_the_memory() -> None:
    world = World(
        {"a": 3 * GIB, "b": 4 * GIB},
        budget_bytes=5 * GIB,
        tier2_bytes=4 * GIB,
        specs=[spec("a", initial_tier=Tier.RAM), spec("b")],
    )
    world.finish_fill("a.gguf")
    world.arrive("b")
    assert world.dropping == {"a.gguf"}
    assert not world.loading
    world.finish_drop("a.gguf")
    assert set(world.loading) == {B}
    (record,) = world.recorded("drop_pages")
    assert record.because.endswith("leave the RAM for b.")


def test_pages_and_workers_leave_together_where_neither_is_enough() -> None:
    specs = [spec("a", initial_tier=Tier.RAM), spec("b"), spec("c")]
    world = World({"a": 2 * GIB, "b": 2 * GIB, "c": 4 * GIB}, budget_bytes=5 * GIB, tier2_bytes=2 * GIB, specs=specs)
    world.finish_fill("a.gguf")
    world.serve("b")
    world.arrive("c")
    assert world.dropping == {"a.gguf"}
    assert set(world.unloading) == {B}
    world.finish_drop("a.gguf")
    assert not world.loading
    world.finish_unload("b")
    assert set(world.loading) == {C}


def test_pages_alone_leave_where_they_are_enough_and_workers_alone_where_pages_are_no_help() -> None:
    world = accelerated(specs=[spec("a"), spec("b", min_gpu_layer_ratio=1.0), spec("c", initial_tier=Tier.RAM)])
    world.send(ev.ModelInspected(C, shape(GIB), None))
    world.move("c", Tier.RAM)
    world.finish_fill("c.gguf")
    world.serve("a")
    world.arrive("b")
    assert not world.dropping, "what lies in RAM is not in the way on the accelerator"
    assert set(world.unloading) == {A}


def test_a_models_own_pages_never_leave_for_it() -> None:
    world = World(
        {"a": 3 * GIB, "b": 3 * GIB},
        budget_bytes=5 * GIB,
        tier2_bytes=4 * GIB,
        specs=[spec("a", initial_tier=Tier.RAM), spec("b")],
    )
    world.finish_fill("a.gguf")
    world.arrive("a")
    assert not world.dropping
    assert set(world.loading) == {A}


def test_pages_of_less_worth_leave_for_pages_of_more() -> None:
    specs = [spec("a", priority=Priority.LOW, initial_tier=Tier.RAM), spec("b", priority=Priority.HIGH)]
    world = accelerated(specs=specs, tier2_bytes=4 * GIB, device_bytes=(4 * GIB,))
    world.finish_fill("a.gguf")
    world.serve("b")
    world.arrive("a")
    assert world.unloading[B].to_tier is Tier.DISK, "not without anybody leaving"
    world.finish_unload("b")
    world.finish_load("a")
    assert world.dropping == set()
    world.end(next(iter(world.leases)))
    world.move("a", Tier.DISK)
    world.run_dry()
    assert tier(world, "a") is Tier.DISK


def test_a_wish_drops_what_is_worth_less_and_is_filled_afterwards() -> None:
    specs = [spec("a", initial_tier=Tier.RAM), spec("b", keep_warm_in_ram=True)]
    world = World({"a": 3 * GIB, "b": 3 * GIB}, budget_bytes=16 * GIB, tier2_bytes=4 * GIB, specs=specs)
    world.run_dry()
    assert set(world.held) == {"b.gguf"}
    assert [type(effect) for effect in world.effects if isinstance(effect, fx.FillPages | fx.DropPages)] == [
        fx.FillPages,
        fx.DropPages,
        fx.FillPages,
    ]


def test_as_many_cheaper_sets_leave_as_the_dearer_one_needs() -> None:
    specs = [spec("a", initial_tier=Tier.RAM), spec("b", initial_tier=Tier.RAM), spec("c", keep_warm_in_ram=True)]
    world = World({"a": GIB, "b": GIB, "c": 2 * GIB}, budget_bytes=16 * GIB, tier2_bytes=2 * GIB, specs=specs[:2])
    world.finish_fill("a.gguf")
    world.finish_fill("b.gguf")
    world.change(ev.ModelReplaced(specs[2], shape(2 * GIB), None))
    world.sample()
    world.send(ev.BudgetsSet(world.budgets))
    assert world.dropping == {"a.gguf", "b.gguf"}
    world.run_dry()
    assert set(world.held) == {"c.gguf"}


def test_pages_that_a_worker_is_just_loaded_from_leave_for_nobody() -> None:
    specs = [spec("a", initial_tier=Tier.RAM), spec("b", priority=Priority.HIGH)]
    world = accelerated(specs=specs, tier2_bytes=4 * GIB)
    world.finish_fill("a.gguf")
    world.arrive("a")
    assert world.loading[A].from_tier is Tier.RAM
    world.change(ev.ModelReplaced(replace(specs[1], keep_warm_in_ram=True), shape(3 * GIB), None))
    world.send(ev.BudgetsSet(world.budgets))
    assert not world.dropping
    world.finish_load("a")
    assert world.dropping == {"a.gguf"}


def test_a_wish_that_only_dearer_pages_could_make_room_for_is_forgotten() -> None:
    specs = [spec("a", keep_warm_in_ram=True), spec("b", initial_tier=Tier.RAM)]
    world = World({"a": 3 * GIB, "b": 3 * GIB}, budget_bytes=16 * GIB, tier2_bytes=4 * GIB, specs=specs)
    world.run_dry()
    assert set(world.held) == {"a.gguf"}
    assert not world.scheduler.state.wanted_pages


def test_what_is_kept_warm_waits_for_its_room() -> None:
    specs = [spec("a", keep_warm_in_ram=True), spec("b", keep_warm_in_ram=True)]
    world = World({"a": 3 * GIB, "b": 3 * GIB}, budget_bytes=16 * GIB, tier2_bytes=4 * GIB, specs=specs)
    world.run_dry()
    assert set(world.held) == {"a.gguf"}
    world.send(ev.ModelSwitched(A, enabled=False))
    world.run_dry()
    assert set(world.held) == {"b.gguf"}


def test_kept_pages_that_had_to_leave_come_back_when_there_is_room_again() -> None:
    specs = [spec("a", keep_warm_in_ram=True), spec("b")]
    world = World({"a": 3 * GIB, "b": 4 * GIB}, budget_bytes=5 * GIB, tier2_bytes=4 * GIB, specs=specs)
    world.finish_fill("a.gguf")
    world.serve("b")
    assert tier(world, "a") is Tier.DISK
    world.die("b")
    world.run_dry()
    assert tier(world, "a") is Tier.RAM


def test_of_two_held_sets_the_cheaper_one_leaves() -> None:
    specs = [spec("a", initial_tier=Tier.RAM), spec("b", initial_tier=Tier.RAM), spec("c")]
    world = World({"a": 2 * GIB, "b": 2 * GIB, "c": 3 * GIB}, budget_bytes=6 * GIB, tier2_bytes=4 * GIB, specs=specs)
    world.finish_fill("a.gguf")
    world.finish_fill("b.gguf")
    world.serve("a")
    world.move("a", Tier.RAM)
    world.run_dry()
    world.arrive("c")
    assert world.dropping == {"b.gguf"}, "nobody ever asked for b"


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_pages_of_which_a_part_could_not_be_held_are_dropped() -> None:
    world = World({"a": 3 * GIB}, budget_bytes=8 * GIB, tier2_bytes=4 * GIB, specs=[spec("a", initial_tier=Tier.RAM)])
    world.finish_fill("a.gguf", share=0.5)
    assert world.dropping == {"a.gguf"}
    assert tier(world, "a") is Tier.DISK
    assert ledger.held_bytes(world.scheduler.state) == 3 * GIB // 2
    world.finish_drop("a.gguf")
    assert ledger.held_bytes(world.scheduler.state) == 0


def test_lost_pages_are_dropped_and_read_again_only_where_they_are_to_be_kept() -> None:
    specs = [spec("a", keep_warm_in_ram=True), spec("b", initial_tier=Tier.RAM)]
    world = World({"a": GIB, "b": GIB}, budget_bytes=8 * GIB, tier2_bytes=4 * GIB, specs=specs)
    world.run_dry()
    for name in ("a", "b"):
        world.send(ev.PagesLost(f"{name}.gguf"))
        assert tier(world, name) is Tier.DISK
    world.run_dry()
    assert (tier(world, "a"), tier(world, "b")) == (Tier.RAM, Tier.DISK)


def test_reports_about_files_that_nobody_holds_are_ignored() -> None:
    world = World({"a": GIB}, budget_bytes=8 * GIB, tier2_bytes=4 * GIB)
    assert world.send(ev.PagesLost("other.gguf")) == []
    assert world.send(ev.PagesFilled("other.gguf", 5)) == []
    world.move("a", Tier.RAM)
    world.finish_fill("a.gguf")
    assert world.send(ev.PagesFilled("a.gguf", GIB)) == []
    world.move("a", Tier.DISK)
    assert world.send(ev.PagesLost("a.gguf")) == []
    assert world.scheduler.state.files["a.gguf"].pages is Pages.DROPPING


def test_pages_of_models_that_left_the_pool_are_let_go() -> None:
    world = World({"a": GIB}, budget_bytes=8 * GIB, tier2_bytes=4 * GIB, specs=[spec("a", keep_warm_in_ram=True)])
    world.finish_fill("a.gguf")
    world.change(ev.ModelRemoved(A))
    assert world.dropping == {"a.gguf"}
    record = world.recorded("drop_pages")[-1]
    assert record.because.endswith("because nobody uses them any more.")


def test_a_wish_for_a_model_that_left_the_pool_is_forgotten() -> None:
    specs = [spec("a", keep_warm_in_ram=True), spec("b", keep_warm_in_ram=True)]
    world = World({"a": 3 * GIB, "b": 3 * GIB}, budget_bytes=16 * GIB, tier2_bytes=4 * GIB, specs=specs)
    world.finish_fill("a.gguf")
    world.change(ev.ModelRemoved(B))
    assert not world.scheduler.state.wanted_pages


def test_a_file_that_cannot_be_read_is_not_held() -> None:
    world = World({}, budget_bytes=8 * GIB, tier2_bytes=4 * GIB, specs=[spec("a", keep_warm_in_ram=True)])
    assert not world.filling
    world.sizes = {"a": GIB}
    world.send(ev.ModelInspected(A, shape(GIB), None))
    assert set(world.filling) == {"a.gguf"}
