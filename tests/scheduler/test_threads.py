"""Busy models share the cores; those that somebody waits for get what does not divide; nobody gets less than one."""

from hypnos_engine.domain.kinds import EngineKind, Modality, Priority
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from tests.scheduler.world import GIB, World, spec

A, B, C = ModelId("a"), ModelId("b"), ModelId("c")


def on(cores: int, *specs: ModelId, **settings: dict[str, object]) -> World:
    models = [spec(name, **settings.get(name, {})) for name in specs]
    return World(dict.fromkeys(specs, GIB), budget_bytes=32 * GIB, specs=models, cores=cores)


def busy(world: World, name: str) -> int:
    request = world.arrive(name)
    if ModelId(name) in world.loading:
        world.finish_load(name)
    return request


def test_a_model_alone_has_all_cores() -> None:
    world = on(6, A)
    busy(world, "a")
    assert world.threads[A] == 6


def test_two_share_and_get_back_what_the_other_leaves() -> None:
    world = on(6, A, B)
    busy(world, "a")
    second = busy(world, "b")
    assert (world.threads[A], world.threads[B]) == (3, 3)
    world.end(second)
    assert world.threads[A] == 6


def test_what_does_not_divide_goes_to_those_that_somebody_waits_for() -> None:
    world = on(5, A, B, b={"priority": Priority.LOW})
    busy(world, "a")
    busy(world, "b")
    assert (world.threads[A], world.threads[B]) == (3, 2)


def test_work_that_nobody_waits_for_leaves_a_core_free() -> None:
    world = on(4, A, a={"modality": Modality.DOCUMENTS})
    busy(world, "a")
    assert world.threads[A] == 3
    single = on(1, A, a={"modality": Modality.DOCUMENTS})
    busy(single, "a")
    assert single.threads[A] == 1


def test_nobody_gets_less_than_one() -> None:
    world = on(2, A, B, C)
    for name in "abc":
        busy(world, name)
    assert set(world.threads.values()) == {1}


def test_an_engine_that_keeps_its_threads_is_loaded_with_half_of_the_cores_at_most() -> None:
    world = on(8, A, a={"engine": EngineKind.ONNX})
    world.arrive("a")
    assert world.loading[A].threads == 4
    world.finish_load("a")
    assert world.threads[A] == 4
    assert not [effect for effect in world.effects if isinstance(effect, fx.SetThreads)]


def test_the_others_share_what_such_an_engine_leaves() -> None:
    world = on(8, A, B, C, a={"engine": EngineKind.ONNX})
    for name in "abc":
        busy(world, name)
    assert (world.threads[A], world.threads[B], world.threads[C]) == (4, 2, 2)


def test_a_model_that_comes_while_others_work_starts_with_its_share() -> None:
    world = on(8, A, B)
    busy(world, "a")
    world.arrive("b")
    assert world.loading[B].threads == 4


def test_threads_are_not_told_again_when_nothing_changed() -> None:
    world = on(4, A)
    busy(world, "a")
    told = len([effect for effect in world.effects if isinstance(effect, fx.SetThreads)])
    busy(world, "a")
    assert len([effect for effect in world.effects if isinstance(effect, fx.SetThreads)]) == told


def test_a_worker_that_died_leaves_its_cores_to_the_others() -> None:
    world = on(4, A, B)
    busy(world, "a")
    busy(world, "b")
    world.die("b")
    assert world.threads[A] == 4


def test_a_worker_that_comes_back_while_its_old_leases_end_takes_its_share_from_the_others() -> None:
    world = on(4, A, B)
    busy(world, "a")
    old = busy(world, "b")
    world.die("b")
    busy(world, "b")
    assert world.threads[A] + world.threads[B] <= 4
    world.end(old, ok=False)
    assert (world.threads[A], world.threads[B]) == (2, 2)


def test_a_worker_that_is_leaving_or_loading_takes_no_part() -> None:
    world = on(4, A, B)
    busy(world, "a")
    world.arrive("b")
    assert world.threads[A] == 4
    world.send(ev.ModelSwitched(B, enabled=False))
    world.finish_load("b")
    assert world.threads[A] == 4
