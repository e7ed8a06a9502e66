"""Where a model's experts run, changed by hand: at once for a model that nobody uses, else at its next load."""

from dataclasses import replace

from hypnos_engine.domain.kinds import MoeOffload, Residency, Tier
from hypnos_engine.domain.model import ModelId, ModelShape
from hypnos_engine.scheduler import events as ev
from tests.scheduler.world import GIB, World, shape

A = ModelId("a")


def with_experts(weight_bytes: int) -> ModelShape:
    dense = shape(weight_bytes)
    layers = tuple(
        replace(layer, weight_bytes=layer.weight_bytes // 8, expert_bytes=layer.weight_bytes * 7 // 8)
        for layer in dense.layers
    )
    return replace(dense, layers=layers, expert_count=8, expert_used_count=2)


def world_with_experts() -> World:
    world = World({"a": 4 * GIB}, budget_bytes=16 * GIB, device_bytes=(8 * GIB,), tier2_bytes=8 * GIB, park_bytes=GIB)
    world.send(ev.ModelInspected(A, with_experts(4 * GIB), None))
    return world


def test_a_loaded_model_that_nobody_uses_drops_to_ram_and_takes_it_up_at_its_next_load() -> None:
    """[§6.6-14] [§6.6-15]"""
    world = world_with_experts()
    world.serve("a")
    whole = world.ready[A].plan.footprint.device
    world.send(ev.OffloadSet(A, MoeOffload.ON))
    assert (world.unloading[A].reason, world.unloading[A].to_tier) == ("offload", Tier.RAM)
    world.finish_unload("a")
    while world.go_on():
        pass
    model = world.scheduler.state.models[A]
    assert model.residency is Residency.COLD
    assert world.scheduler.tier(A) is Tier.RAM
    world.serve("a")
    assert world.ready[A].plan.placement.cpu_expert_layers == 4
    assert world.ready[A].plan.footprint.device < whole / 2
    world.check()


def test_its_parked_conversations_stay() -> None:
    """[§6.6-16]"""
    world = world_with_experts()
    world.serve("a")
    world.send(ev.OffloadSet(A, MoeOffload.ON))
    assert world.unloading[A].park_bytes
    world.finish_unload("a")
    assert world.scheduler.state.models[A].parked_bytes


def test_a_model_in_use_goes_on_as_it_is() -> None:
    """[§6.6-17]"""
    world = world_with_experts()
    request = world.arrive("a")
    world.finish_load("a")
    world.send(ev.OffloadSet(A, MoeOffload.ON))
    world.end(request)
    assert not world.unloading
    assert world.scheduler.state.models[A].spec.moe_offload is MoeOffload.ON


def test_a_dense_model_has_no_use_for_it() -> None:
    """[§6.6-18]"""
    world = World({"a": 4 * GIB}, budget_bytes=16 * GIB, device_bytes=(8 * GIB,))
    world.serve("a")
    world.send(ev.OffloadSet(A, MoeOffload.ON))
    assert not world.unloading
    assert world.scheduler.state.models[A].spec.moe_offload is MoeOffload.ON


def test_the_same_again_changes_nothing() -> None:
    world = world_with_experts()
    world.serve("a")
    world.send(ev.OffloadSet(A, MoeOffload.OFF))
    world.send(ev.OffloadSet(ModelId("nobody"), MoeOffload.ON))
    assert not world.unloading


def test_a_replacement_that_waits_keeps_the_newest_wish() -> None:
    world = world_with_experts()
    request = world.arrive("a")
    world.finish_load("a")
    world.change(ev.ModelReplaced(replace(world.specs[0], slots=3), with_experts(4 * GIB)))
    world.send(ev.OffloadSet(A, MoeOffload.AUTO))
    world.end(request)
    world.finish_unload("a")
    spec = world.scheduler.state.models[A].spec
    assert (spec.slots, spec.moe_offload) == (3, MoeOffload.AUTO)
