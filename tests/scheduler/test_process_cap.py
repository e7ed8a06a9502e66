"""The cap on the memory of the program and its workers: what fits under it, and what is said when nothing does."""

import pytest

from hypnos_engine.domain.errors import InsufficientMemory, ProcessMemoryCap
from hypnos_engine.domain.kinds import Tier
from hypnos_engine.domain.model import ModelId
from tests.scheduler.world import GIB, PINNED, World, spec

A, B = ModelId("a"), ModelId("b")


def test_a_load_that_would_exceed_the_cap_lets_others_go_for_that_reason() -> None:
    """[§14.1-28]"""
    world = World({"a": 2 * GIB, "b": 2 * GIB}, budget_bytes=16 * GIB, cap_bytes=4 * GIB)
    world.serve("a")
    world.arrive("b")
    assert (world.unloading[A].reason, world.unloading[A].for_model) == ("process_memory_cap", B)
    world.finish_unload("a")
    assert B in world.loading
    world.check()


def test_without_a_cap_the_budget_is_the_reason() -> None:
    world = World({"a": 2 * GIB, "b": 2 * GIB}, budget_bytes=4 * GIB)
    world.serve("a")
    world.arrive("b")
    assert world.unloading[A].reason == "memory_budget"


def test_a_model_that_never_fits_under_the_cap_is_refused_by_its_name() -> None:
    """[§4-32]"""
    world = World({"a": 6 * GIB}, budget_bytes=16 * GIB, cap_bytes=4 * GIB)
    request = world.arrive("a")
    error = world.refused[request]
    assert isinstance(error, ProcessMemoryCap)
    assert "hardware.max_process_memory_bytes" in error.message


def test_a_model_that_would_not_fit_without_the_cap_either_is_refused_for_its_size() -> None:
    world = World({"a": 60 * GIB}, budget_bytes=16 * GIB, cap_bytes=4 * GIB)
    assert isinstance(world.refused[world.arrive("a")], InsufficientMemory)


def test_a_promotion_beside_a_pinned_model_is_refused_by_the_cap() -> None:
    specs = [spec("a", priority=PINNED), spec("b")]
    world = World({"a": 2 * GIB, "b": 2 * GIB}, specs=specs, budget_bytes=16 * GIB, cap_bytes=4 * GIB)
    world.serve("a")
    move = world.move("b", Tier.GPU)
    assert isinstance(world.refused[move], ProcessMemoryCap)


def test_memory_of_an_accelerator_is_not_under_the_cap() -> None:
    world = World({"a": 6 * GIB}, budget_bytes=16 * GIB, device_bytes=(8 * GIB,), cap_bytes=GIB)
    world.arrive("a")
    assert A in world.loading


@pytest.mark.parametrize(("cap", "reason"), [(3 * GIB, "process_memory_cap"), (None, "memory_budget")])
def test_a_smaller_cap_lets_models_go_for_that_reason(cap: int | None, reason: str) -> None:
    world = World({"a": 2 * GIB, "b": 2 * GIB}, budget_bytes=16 * GIB, cap_bytes=6 * GIB)
    world.serve("a")
    world.serve("b")
    world.set_cap(cap, host_bytes=16 * GIB if cap else 3 * GIB)
    assert [unload.reason for unload in world.unloading.values()] == [reason]
    world.run_dry()
    world.check()
