"""Pinned models never leave: that they fit together is seen at the start, and said with the bytes."""

from hypnos_engine.domain.errors import InsufficientMemory, LoadFailed
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import events as ev
from tests.scheduler.world import GIB, PINNED, World, spec


def pinned(sizes: dict[str, int], *, budget_bytes: int = 5 * GIB, device_bytes: tuple[int, ...] = ()) -> World:
    specs = [spec(name, priority=PINNED, min_gpu_layer_ratio=1.0) for name in sizes]
    return World(sizes, budget_bytes=budget_bytes, specs=specs, device_bytes=device_bytes)


def test_pins_that_fit_together_are_no_problem() -> None:
    assert pinned({"a": 2 * GIB, "b": 2 * GIB}).scheduler.pins_problem() is None


def test_pins_that_do_not_fit_together_are_said_with_the_bytes_of_each() -> None:
    problem = pinned({"a": 2 * GIB, "b": GIB, "c": 3 * GIB}).scheduler.pins_problem()
    assert isinstance(problem, InsufficientMemory)
    assert "'c' does not fit beside a (2.0 GiB), b (1.0 GiB)" in problem.message
    assert "it needs 3.0 GiB" in problem.message
    assert "context_len" in problem.message


def test_a_pin_that_does_not_fit_alone_is_said_without_others() -> None:
    problem = pinned({"a": 9 * GIB}).scheduler.pins_problem()
    assert isinstance(problem, InsufficientMemory)
    assert "'a' does not fit: it needs 9.0 GiB" in problem.message


def test_other_models_do_not_count() -> None:
    specs = [spec("a", priority=PINNED), spec("b")]
    world = World({"a": 3 * GIB, "b": 30 * GIB}, budget_bytes=5 * GIB, specs=specs)
    assert world.scheduler.pins_problem() is None


def test_what_is_switched_off_or_cannot_be_used_does_not_count() -> None:
    world = pinned({"a": 3 * GIB, "b": 3 * GIB, "c": 3 * GIB})
    world.send(ev.ModelSwitched(ModelId("a"), enabled=False))
    world.send(ev.ModelInspected(ModelId("b"), None, LoadFailed("damaged")))
    assert world.scheduler.pins_problem() is None


def test_two_accelerators_hold_one_pin_each() -> None:
    cards = (4 * GIB, 4 * GIB)
    assert (
        pinned({"a": 3 * GIB, "b": 3 * GIB}, budget_bytes=32 * GIB, device_bytes=cards).scheduler.pins_problem() is None
    )
    three = pinned({"a": 3 * GIB, "b": 3 * GIB, "c": 3 * GIB}, budget_bytes=32 * GIB, device_bytes=cards)
    assert isinstance(three.scheduler.pins_problem(), InsufficientMemory)


def test_the_question_changes_nothing() -> None:
    world = pinned({"a": 2 * GIB, "b": 2 * GIB})
    before = list(world.effects)
    world.scheduler.pins_problem()
    assert world.effects == before
    assert not world.loading
    world.serve("a")
    assert world.scheduler.pins_problem() is None
