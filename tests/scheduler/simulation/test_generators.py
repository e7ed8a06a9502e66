"""Invented traces: reproducible, valid, at the load that was asked for, and for machines that they make sense on."""

from collections import Counter
from random import Random

import pytest

from hypnos_engine.scheduler.placement import Free, Plan, context_cells, plan
from hypnos_engine.scheduler.simulation.generators import (
    GENERATORS,
    CodingAgent,
    Household,
    Lineup,
    VoiceTurns,
    alone_s,
    work_s,
)
from hypnos_engine.scheduler.simulation.generators_machines import MACHINES, Owned
from hypnos_engine.scheduler.simulation.generators_small import Handful
from hypnos_engine.scheduler.simulation.machine import SimModel, models_of
from hypnos_engine.scheduler.simulation.trace import Trace, check_requests, read_trace, write_trace

KINDS = list(GENERATORS)
CARD = MACHINES["card-24"].lineup


def make(kind: str, seed: int = 1, load: float = 0.7, requests: int = 300, lineup: Lineup = CARD) -> Trace:
    return GENERATORS[kind].trace(lineup, Random(seed), load=load, requests=requests)


def ends_alone(trace: Trace) -> float:
    """When the last request would end if nobody waited."""
    models = {model.id: model for model in trace.models}
    ends: dict[str, float] = {}
    for request in trace.requests:
        begins = max([request.at_s, *(ends[name] + request.after_s for name in request.after)])
        ends[request.id] = begins + alone_s(request, models[request.model])
    return max(ends.values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_trace_and_another_one_does_not(kind: str) -> None:
    assert make(kind, seed=3) == make(kind, seed=3)
    assert make(kind, seed=3) != make(kind, seed=4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("machine", MACHINES)
def test_every_trace_can_be_run(kind: str, machine: str) -> None:
    trace = make(kind, lineup=MACHINES[machine].lineup)
    check_requests(trace.requests, [model.id for model in trace.models])
    assert 300 <= len(trace.requests) < 340


@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_survives_being_written(kind: str) -> None:
    trace = make(kind)
    assert read_trace(write_trace(trace)) == trace


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("load", [0.3, 0.7, 1.2])
@pytest.mark.parametrize("machine", MACHINES)
def test_work_is_offered_at_the_load(kind: str, load: float, machine: str) -> None:
    trace = make(kind, load=load, lineup=MACHINES[machine].lineup, requests=400)
    assert work_s(trace.requests, trace.models) / ends_alone(trace) == pytest.approx(load, rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_another_load_asks_for_the_same_work(kind: str) -> None:
    light, heavy = make(kind, load=0.3), make(kind, load=1.2)
    unlike = {request.id: request for request in light.requests}
    assert len(unlike) == len(heavy.requests)
    for request in heavy.requests:
        other = unlike[request.id]
        assert (request.model, request.tokens, request.after) == (other.model, other.tokens, other.after)


def test_a_coding_task_begins_and_ends_with_the_planner_and_goes_to_two_others() -> None:
    trace = make("coding")
    tasks: dict[str, list[str]] = {}
    for request in trace.requests:
        tasks.setdefault(request.run, []).append(request.model)
    assert all(models[1] == CARD.chat.id and models[-1] == CARD.chat.id for models in tasks.values())
    asked = Counter(request.model for request in trace.requests)
    assert set(asked) == {CARD.chat.id, CARD.coder.id, CARD.small.id, CARD.embeddings.id}
    assert sum(1 for request in trace.requests if request.ends) == len(tasks)
    joins = [request for request in trace.requests if len(request.after) > 1]
    assert joins
    assert {request.model for request in joins} == {CARD.chat.id}


def test_plans_name_the_next_model_only_when_they_announce() -> None:
    assert not any(request.next_model for request in make("coding").requests)
    trace = CodingAgent(announced=1.0).trace(CARD, Random(1), load=0.7, requests=100)
    assert {request.next_model for request in trace.requests} == {"", CARD.coder.id, CARD.chat.id}


def test_a_turn_is_heard_answered_and_spoken() -> None:
    trace = VoiceTurns(lookup_share=0.0, hard_share=0.0, look_share=0.0).trace(CARD, Random(1), load=0.5, requests=30)
    talk = [request for request in trace.requests if request.run == trace.requests[0].run]
    order = [CARD.ears.id, CARD.chat.id, CARD.voice.id]
    assert [request.model for request in talk] == order * (len(talk) // 3)
    assert all(request.after_s > 1.0 for request in talk[3::3])


def test_a_household_has_its_hours() -> None:
    trace = make("household", requests=2000, load=0.4)
    day_s = ends_alone(trace)
    coding = [request.at_s / day_s * 24 for request in trace.requests if request.key == "coding" and not request.after]
    assert sum(8 <= hour < 18 for hour in coding) > 0.6 * len(coding)
    documents = [r.at_s / day_s * 24 for r in trace.requests if r.key == "documents" and not r.after]
    assert sum(hour < 5 or hour > 21 for hour in documents) > 0.5 * len(documents)
    assert {request.key for request in trace.requests} >= {"chat-anna", "chat-ben", "pictures", "house", "camera"}
    assert len({request.model for request in trace.requests}) == 7
    assert Household() == GENERATORS["household"]


@pytest.mark.parametrize("owned", MACHINES.values(), ids=MACHINES)
def test_a_machine_holds_each_model_of_its_lineup_wholly_but_not_all(owned: Owned) -> None:
    budgets = owned.machine.budgets
    room = budgets.host_bytes if budgets.one_pool else budgets.device_bytes[0]
    free = Free(budgets.host_bytes, budgets.device_bytes, budgets.device_layers)
    held = [held_bytes(model, free) for model in models_of(owned.lineup.models)]
    assert max(held) <= room < sum(held)


def held_bytes(model: SimModel, free: Free) -> int:
    made = plan(model.spec, model.shape, context_cells(model.spec, model.shape), free)
    assert isinstance(made, Plan)
    return made.footprint.total if free.unified else made.device_peak_bytes


def test_a_handful_is_small_and_at_set_times() -> None:
    trace = Handful().trace(CARD, Random(2))
    assert len(trace.requests) == 10
    assert not any(request.after for request in trace.requests)
    assert max(Counter(request.model for request in trace.requests).values()) <= 5
    assert len(trace.models) == 4
