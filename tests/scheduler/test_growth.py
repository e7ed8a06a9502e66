"""Workers that hold more than they began with: what is booked, and when they are started anew."""

from hypnos_engine.domain.kinds import Residency, Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.loads import GROWN, GROWN_LEAST_BYTES
from tests.scheduler.world import GIB, World

A = ModelId("a")
MIB = 2**20


def loaded(*, budget_bytes: int = 12 * GIB, tier2_bytes: int = 0) -> World:
    world = World({"a": GIB, "b": GIB}, budget_bytes=budget_bytes, tier2_bytes=tier2_bytes)
    world.serve("a")
    return world


def grown_bytes(world: World) -> int:
    """More than a worker may hold without being started anew."""
    baseline = world.scheduler.state.models[A].baseline_bytes
    return int((GROWN - 1) * baseline) + GROWN_LEAST_BYTES + MIB


def test_growth_is_booked_at_once_and_never_taken_back() -> None:
    world = loaded()
    before = world.scheduler.state.models[A].private_bytes
    world.grow("a", 10 * MIB)
    assert world.scheduler.state.models[A].private_bytes == before + 10 * MIB
    world.send(ev.WorkerMeasured(A, before))
    assert world.scheduler.state.models[A].private_bytes == before + 10 * MIB
    assert not world.unloading


def test_a_worker_that_has_grown_far_is_started_anew_once_nobody_uses_it() -> None:
    world = loaded(tier2_bytes=4 * GIB)
    running = world.arrive("a")
    world.grow("a", grown_bytes(world))
    assert world.recorded("grown", "a")
    assert not world.unloading
    late = world.arrive("a")
    assert late in world.leases, "it serves on until it is idle"
    world.end(running)
    world.end(late)
    assert (world.unloading[A].reason, world.unloading[A].to_tier) == ("grown", Tier.RAM)
    world.finish_unload("a")
    assert A in world.loading
    world.finish_load("a")
    model = world.scheduler.state.models[A]
    assert model.residency is Residency.READY
    assert not model.grown
    world.check()


def test_a_worker_that_has_grown_does_not_come_back_where_others_would_have_to_leave() -> None:
    world = loaded(budget_bytes=3 * GIB)
    world.serve("b")
    world.grow("a", 2 * GIB)
    while world.go_on():
        pass
    assert world.scheduler.state.models[ModelId("b")].residency is Residency.READY
    world.check()


def test_growth_beyond_the_budget_lets_others_go() -> None:
    world = loaded(budget_bytes=4 * GIB)
    world.serve("b")
    running = world.arrive("a")
    world.grow("a", 2 * GIB)
    assert ModelId("b") in world.unloading
    world.finish_unload("b")
    world.end(running)
    world.run_dry()
    world.check()


def test_what_is_measured_of_a_worker_that_is_gone_is_ignored() -> None:
    world = loaded()
    world.die("a")
    world.send(ev.WorkerMeasured(A, 50 * GIB))
    world.send(ev.WorkerMeasured(ModelId("nobody"), 50 * GIB))
    world.check()
