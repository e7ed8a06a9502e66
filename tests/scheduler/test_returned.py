"""A request whose worker died before it was sent anything waits again, first in line, once."""

from dataclasses import replace

import pytest

from hypnos_engine.domain.errors import Cancelled, DeadlineUnmeetable, WorkerDied
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import events as ev
from tests.scheduler.world import GIB, LIMITS, World, spec

A = ModelId("a")


def one_slot() -> World:
    limits = replace(LIMITS, max_queue_per_model=20)
    return World({"a": 3 * GIB}, budget_bytes=5 * GIB, specs=[spec("a", slots=1)], limits=limits)


@pytest.mark.parametrize("deadline_s", [None, 20.0])
def test_it_is_served_before_those_that_waited_behind_it(deadline_s: float | None) -> None:
    world = one_slot()
    first, second = world.arrive("a"), world.arrive("a", deadline_s=deadline_s)
    world.finish_load("a")
    world.die("a")
    world.bring_back(first)
    world.finish_load("a")
    assert set(world.leases) == {first}
    assert second in world.waiting


def test_it_waits_for_a_model_that_has_to_be_loaded_again() -> None:
    world = one_slot()
    request = world.arrive("a")
    world.finish_load("a")
    world.die("a")
    assert not world.loading
    world.bring_back(request)
    assert set(world.loading) == {A}
    world.finish_load("a")
    assert world.leases == {request: A}
    assert [grant.request for grant in world.granted] == [request, request]


def test_the_second_time_it_is_refused() -> None:
    world = one_slot()
    request = world.arrive("a")
    for _ in range(2):
        world.finish_load("a")
        world.die("a")
        world.bring_back(request)
    assert isinstance(world.refused[request], WorkerDied)
    assert not world.loading
    assert world.recorded("refuse", "a")


def test_several_come_back_in_the_order_in_which_they_came() -> None:
    world = World({"a": 3 * GIB}, budget_bytes=5 * GIB, specs=[spec("a", slots=3)])
    requests = [world.arrive("a") for _ in range(3)]
    world.finish_load("a")
    world.die("a")
    for request in requests:
        world.bring_back(request)
    world.change(ev.ModelReplaced(spec("a", slots=1), world.scheduler.state.models[A].shape, None))
    world.run_dry()
    again = [grant.request for grant in world.granted[3:]]
    assert again == requests


def test_its_key_pays_for_what_it_got_not_for_the_try_that_failed() -> None:
    world = one_slot()
    world.serve("a", takes_s=10.0)
    unlucky = world.arrive("a", key="one")
    world.die("a")
    world.bring_back(unlucky)
    world.finish_load("a")
    world.pass_time(10.0)
    turn = world.scheduler.state.shares.turn("one")
    world.end(unlucky)
    assert turn == world.scheduler.state.shares.turn("one") == 10.0


def test_its_deadline_still_counts() -> None:
    world = one_slot()
    request = world.arrive("a", deadline_s=10.0)
    world.finish_load("a")
    world.pass_time(11.0)
    world.die("a")
    world.bring_back(request)
    assert isinstance(world.refused[request], DeadlineUnmeetable)


def test_nobody_comes_back_while_the_program_ends_or_the_model_is_switched_off() -> None:
    for event in (ev.DrainStarted(), ev.ModelSwitched(A, enabled=False)):
        world = one_slot()
        request = world.arrive("a")
        world.finish_load("a")
        world.send(event)
        world.die("a")
        world.bring_back(request)
        assert isinstance(world.refused[request], WorkerDied)


def test_who_left_meanwhile_does_not_come_back() -> None:
    world = one_slot()
    request = world.arrive("a")
    world.finish_load("a")
    world.die("a")
    world.cancel(request)
    assert world.send(ev.RequestReturned(request, Cancelled("gone"))) == []
    waiting = world.arrive("a")
    world.send(ev.RequestReturned(waiting, Cancelled("never had a lease")))
    assert waiting in world.waiting
