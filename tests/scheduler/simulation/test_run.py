"""The simulator itself: hand-computed times, what every run conserves, and what it refuses a policy to do."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypnos_engine.domain.errors import ConfigurationInvalid, ModelBusy
from hypnos_engine.domain.kinds import Residency, Tier
from hypnos_engine.domain.memory import Footprint, Placement
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.placement import Plan
from hypnos_engine.scheduler.simulation.machine import OtherUse, SimMachine, SimModel, models_of
from hypnos_engine.scheduler.simulation.policies import llama_router, llama_swap, ollama
from hypnos_engine.scheduler.simulation.policies.catalog import POLICIES
from hypnos_engine.scheduler.simulation.policies.policy import Policy
from hypnos_engine.scheduler.simulation.result import Outcome, SimResult, quantile, spread
from hypnos_engine.scheduler.simulation.run import simulate
from hypnos_engine.scheduler.simulation.trace import TraceModel, TraceRequest
from tests.scheduler.simulation.bench import (
    GB,
    LIMITS,
    Watched,
    ask,
    loads,
    machine,
    most_at_once,
    outcomes,
    pool,
    residency_at,
    run,
    specs,
    waits,
)


def one_at_a_time(models: Sequence[SimModel]) -> Policy:
    return llama_swap.make_default(specs(models), LIMITS)


def swapping(requests: Sequence[TraceRequest], models: Sequence[SimModel], on: SimMachine | None = None) -> SimResult:
    return run(requests, models, one_at_a_time(models), on)


# --- times ----------------------------------------------------------------------------------------------------------


def test_a_first_request_waits_for_start_and_disk() -> None:
    result = swapping([ask("r", "a")], pool({"a": 4}))
    assert waits(result) == {"r": 5.0}
    assert result.end_s == 15.0
    (model,) = result.models
    assert (model.loads, model.served, model.evictions) == (1, 1, 0)
    assert (model.loading_s, model.disk_bytes) == (5.0, 4 * GB)
    assert 3 * GB < model.device_bytes <= 4 * GB


def test_the_second_load_of_a_model_reads_nothing_from_disk() -> None:
    models = pool({"a": 4, "b": 6})
    result = swapping([ask("r1", "a"), ask("r2", "b"), ask("r3", "a", at_s=30)], models)
    # r1: 5 to load, 10 to serve; r2: 1 to stop a, 7 to load b, served from 23 to 33; r3: 1 to stop b, 1 to start a.
    assert waits(result) == {"r1": 5.0, "r2": 23.0, "r3": 5.0}
    assert result.disk_bytes == 10 * GB


def test_a_small_host_has_to_read_again_what_it_could_not_keep() -> None:
    requests = [ask("r1", "a"), ask("r2", "b"), ask("r3", "a", at_s=30)]
    small = machine(host_bytes=8 * GB, host_reserve_bytes=0)
    result = swapping(requests, pool({"a": 4, "b": 6}), small)
    (a, _) = result.models
    assert 6 * GB < a.disk_bytes < 6.1 * GB  # of a's 4 GB a little more than 2 had to make way for b's 6


def test_copying_counts_when_it_is_slower_than_the_disk() -> None:
    slow = machine(device_bytes_per_s=0.5e9)
    result = swapping([ask("r", "a")], pool({"a": 4}), slow)
    assert waits(result)["r"] == pytest.approx(1 + 2 * result.device_bytes / GB)


def test_two_loads_at_once_share_the_disk() -> None:
    models = pool({"a": 4, "b": 4})
    result = run([ask("r1", "a"), ask("r2", "b")], models, llama_router.make_default(specs(models), LIMITS))
    assert waits(result) == {"r1": 5.0, "r2": 9.0}


def test_layers_on_the_processor_make_a_model_slower() -> None:
    models = pool({"a": 10})
    whole, split = swapping([ask("r", "a")], models, machine(20)), swapping([ask("r", "a")], models, machine(6))
    assert whole.requests[0].service_s == 10.0
    placed = split.models[0].device_bytes / (10 * GB)
    assert 0.4 < placed < 0.7
    service_s = split.requests[0].service_s
    assert service_s is not None
    assert 10 * 3 < service_s < 10 * 5


def test_thinking_begins_when_what_came_before_was_served() -> None:
    models = pool({"a": 4})
    steps = [
        ask("r1", "a", service_s=2),
        ask("r2", "a", service_s=3),
        ask("r3", "a", service_s=1, after=("r1", "r2"), after_s=4),
        ask("r4", "a", service_s=1, after=("r1",), at_s=100),
    ]
    result = swapping(steps, models)
    assert [request.arrived_s for request in result.requests] == [0.0, 0.0, 14.0, 100.0]
    assert [request.finished_s for request in result.requests] == [7.0, 10.0, 15.0, 101.0]


def test_the_run_of_a_workflow_lasts_from_its_first_arrival_to_its_last_end() -> None:
    steps = [
        ask("r1", "a", at_s=3, workflow="tidy", run="1"),
        ask("r2", "a", after=("r1",), after_s=2, workflow="tidy", run="1", ends=True),
    ]
    result = swapping(steps, pool({"a": 4}))
    (ran,) = result.runs
    assert (ran.workflow, ran.run, ran.requests, ran.complete) == ("tidy", "1", 2, True)
    assert ran.duration_s == 5 + 10 + 2 + 10


def test_what_comes_after_a_refused_request_is_skipped() -> None:
    models = pool({"a": 4, "huge": 500})
    steps = [ask("r1", "huge"), ask("r2", "a", after=("r1",)), ask("r3", "a", after=("r2",)), ask("r4", "a")]
    small = machine(host_bytes=20 * GB)
    result = swapping(steps, models, small)
    assert outcomes(result) == {
        "r1": Outcome.REFUSED,
        "r2": Outcome.SKIPPED,
        "r3": Outcome.SKIPPED,
        "r4": Outcome.SERVED,
    }
    assert result.requests[0].error == "insufficient_memory"


def test_a_caller_who_has_no_patience_leaves() -> None:
    models = pool({"a": 4})
    requests = [ask("r1", "a"), ask("r2", "a", at_s=6, deadline_ms=1000), ask("r3", "a", at_s=14)]
    result = simulate(requests, models, machine(), one_at_a_time(models), patience_s=5.5)
    assert outcomes(result) == {"r1": Outcome.SERVED, "r2": Outcome.TIMED_OUT, "r3": Outcome.SERVED}
    assert result.requests[1].finished_s == 11.5
    assert result.requests[1].late
    assert result.late == 1


def test_other_programs_take_memory_and_the_policy_is_told() -> None:
    models = pool({"a": 4})
    taken = machine(10, others=(OtherUse(7.0, 8 * GB, 0), OtherUse(8.0, 3 * GB, None), OtherUse(9.0, 0, 0)))
    watched = Watched(one_at_a_time(models))
    run([ask("r1", "a")], models, watched, taken)
    samples = [event for event in watched.events if isinstance(event, ev.MachineSampled)]
    free = [sample.device_free_bytes[0] for sample in samples]
    assert free[0] == 10 * GB
    assert free[-1] == free[-4]
    assert free[-3] == free[-4] - 8 * GB if free[-4] > 8 * GB else free[-3] == 0
    assert samples[-2].host_available_bytes == samples[-3].host_available_bytes - 3 * GB


# --- what is conserved ----------------------------------------------------------------------------------------------

NAMES = "abcd"


@st.composite
def traces(draw: st.DrawFn) -> list[TraceRequest]:
    found: list[TraceRequest] = []
    for number in range(draw(st.integers(1, 25))):
        after: list[TraceRequest] = []
        follows: bool = draw(st.booleans())
        if found and follows:
            after = draw(st.lists(st.sampled_from(found), max_size=2))
        found.append(
            TraceRequest(
                id=str(number),
                model=draw(st.sampled_from(NAMES)),
                at_s=draw(st.floats(0, 60)),
                prompt_tokens=draw(st.integers(1, 5000)),
                output_tokens=draw(st.integers(0, 300)),
                after=tuple(request.id for request in after),
                after_s=draw(st.floats(0, 5)) if after else 0.0,
                deadline_ms=draw(st.none() | st.floats(10, 60_000)),
                workflow="task",
                run=draw(st.sampled_from("12")),
            )
        )
    return found


MACHINES = {
    "one device": SimMachine(host_bytes=40 * GB, devices=(10 * GB,), others=(OtherUse(20.0, 2 * GB, 0),)),
    "two devices": SimMachine(host_bytes=40 * GB, devices=(7 * GB, 6 * GB)),
    "one pool": SimMachine(host_bytes=20 * GB, unified=True),
    "processor": SimMachine(host_bytes=20 * GB),
}
MODELS = models_of(
    TraceModel(id=name, weight_bytes=int(size * GB), slots=slots)
    for name, size, slots in (("a", 1, 4), ("b", 3, 2), ("c", 5, 1), ("d", 8, 4))
)


@pytest.mark.parametrize("where", MACHINES)
@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=6, deadline=None)
@given(requests=traces(), patience_s=st.none() | st.floats(5, 100))
def test_every_request_ends_once_and_no_memory_is_used_twice(
    name: str, where: str, requests: list[TraceRequest], patience_s: float | None
) -> None:
    on = MACHINES[where]
    result = simulate(requests, MODELS, on, POLICIES[name](specs(MODELS), LIMITS), patience_s=patience_s)
    assert [request.id for request in result.requests] == [request.id for request in requests]
    assert sum(result.count(outcome) for outcome in Outcome) == len(requests)
    assert result.count(Outcome.STRANDED) == 0
    device, host = most_at_once(result)
    assert device <= sum(on.devices)
    assert host <= on.host_bytes
    for asked, request in zip(requests, result.requests, strict=True):
        if request.outcome is Outcome.SERVED:
            assert request.arrived_s is not None
            assert request.granted_s is not None
            assert request.service_s is not None
            assert asked.at_s <= request.arrived_s <= request.granted_s
            assert request.service_s >= request.alone_s - 1e-6
    again = simulate(requests, MODELS, on, POLICIES[name](specs(MODELS), LIMITS), patience_s=patience_s)
    assert repr(again) == repr(result)


# --- what a policy must not do --------------------------------------------------------------------------------------


class Scripted:
    """Answers every arrival with the same effects."""

    def __init__(self, *effects: fx.Effect) -> None:
        self._effects = effects

    def on(self, event: ev.Event, now: float) -> Sequence[fx.Effect]:
        return self._effects if isinstance(event, ev.RequestArrived) else ()


def grant(request: int, model: str) -> fx.Grant:
    return fx.Grant(request, ModelId(model), Tier.GPU, 0.0, False, 0.0, (), None)


def load(model: str, *, device_bytes: int = 0) -> fx.Load:
    footprint = Footprint(device=device_bytes, peak=device_bytes)
    return fx.Load(ModelId(model), Plan(Placement(), footprint, (device_bytes,)), 1, Tier.DISK)


@pytest.mark.parametrize(
    ("effects", "said"),
    [
        ((grant(1, "a"),), "granted although it is cold"),
        ((load("a"), grant(1, "a")), "granted although it is loading"),
        ((load("a"), load("a")), "loaded although it is loading"),
        ((fx.Unload(ModelId("a"), None, "idle", Tier.DISK),), "unloaded although it is cold"),
    ],
)
def test_rules_that_hold_for_every_policy_are_checked(effects: tuple[fx.Effect, ...], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        run([ask("r", "a")], pool({"a": 1}), Scripted(*effects))


def test_a_request_nobody_ever_answers_is_told_as_stranded() -> None:
    result = run([ask("r1", "a"), ask("r2", "a", after=("r1",))], pool({"a": 1}), Scripted())
    assert outcomes(result) == {"r1": Outcome.STRANDED, "r2": Outcome.SKIPPED}


class Restless:
    """Never serves anybody, and always wants to be woken again."""

    def on(self, event: ev.Event, now: float) -> Sequence[fx.Effect]:
        return (fx.WakeAt(now + 1.0),)


def test_a_policy_that_only_wakes_comes_to_an_end() -> None:
    assert outcomes(run([ask("r", "a")], pool({"a": 1}), Restless())) == {"r": Outcome.STRANDED}


def test_a_load_for_which_there_is_no_memory_fails_after_the_start() -> None:
    watched = Watched(Scripted(load("a", device_bytes=11 * GB)))
    result = run([ask("r", "a")], pool({"a": 1}), watched)
    (failed,) = [event for event in watched.events if isinstance(event, ev.LoadFailed)]
    assert failed.error.code == "device_out_of_memory"
    assert result.models[0].failed_loads == 1
    assert residency_at(result, "a", 0.5) is Residency.LOADING
    assert residency_at(result, "a", 1.0) is Residency.COLD


def test_refusals_are_told_with_their_code() -> None:
    result = run([ask("r", "a")], pool({"a": 1}), Scripted(fx.Refuse(1, ModelBusy("Full."))))
    assert (result.requests[0].outcome, result.requests[0].error) == (Outcome.REFUSED, "model_busy")
    assert result.end_s == 0.0


def test_requests_for_unknown_models_are_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigurationInvalid, match="which is no model here"):
        run([ask("r", "b")], pool({"a": 1}), Scripted())


# --- pages and contexts ---------------------------------------------------------------------------------------------


class Warming:
    """Fills a model's pages when asked to, and drops them at the next request."""

    def __init__(self) -> None:
        self.told: list[ev.Event] = []

    def on(self, event: ev.Event, now: float) -> Sequence[fx.Effect]:
        if isinstance(event, ev.PagesFilled | ev.PagesDropped | ev.MachineSampled):
            self.told.append(event)
        match event:
            case ev.RequestArrived(1):
                return (fx.FillPages("a", ModelId("a"), 4 * GB),)
            case ev.RequestArrived(2):
                return (fx.DropPages("a", None),)
        return ()


def test_pages_are_filled_at_the_disks_speed_and_are_the_policys_until_dropped() -> None:
    policy = Warming()
    result = run([ask("r1", "a"), ask("r2", "a", at_s=20)], pool({"a": 4}), policy)
    told = [event for event in policy.told if not isinstance(event, ev.MachineSampled)]
    assert told == [ev.PagesFilled("a", 4 * GB), ev.PagesDropped("a")]
    available = [event.host_available_bytes for event in policy.told if isinstance(event, ev.MachineSampled)]
    assert available == [100 * GB, 96 * GB, 100 * GB]
    assert [moment.tier for moment in result.timeline] == [Tier.DISK, Tier.RAM] or result.timeline[-1].tier is Tier.RAM


class Growing:
    """Loads a model whole and asks for a larger cache as soon as it is there."""

    def __init__(self, model: SimModel, cells: int) -> None:
        self._inner = one_at_a_time([model])
        self._cells = cells
        self.resized: ev.ContextResized | None = None
        self.loaded: ev.LoadFinished | None = None

    def on(self, event: ev.Event, now: float) -> Sequence[fx.Effect]:
        effects = list(self._inner.on(event, now))
        if isinstance(event, ev.LoadFinished):
            self.loaded = event
            effects.append(fx.ResizeContext(event.model, self._cells))
        if isinstance(event, ev.ContextResized):
            self.resized = event
        return effects


@pytest.mark.parametrize(("cells", "granted"), [(4096, 4096), (1_000_000, 256)])
def test_a_cache_grows_if_there_is_memory_for_it(cells: int, granted: int) -> None:
    (model,) = pool({"a": 4}, kv_bytes_per_cell=40_000)
    policy = Growing(model, cells)
    run([ask("r", "a")], [model], policy)
    assert policy.loaded is not None
    assert policy.resized is not None
    assert policy.resized.context_len == granted
    more = policy.resized.measured.total - policy.loaded.measured.total
    assert more == (granted - 256) * 40_000


# --- results --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.05, 1), (0.5, 10), (0.95, 19), (0.951, 20), (1.0, 20)])
def test_quantiles_are_values_that_occurred(share: float, value: int) -> None:
    assert quantile([float(number) for number in range(1, 21)], share) == value


def test_a_spread_of_nothing_is_zero() -> None:
    assert spread([]).worst_s == 0.0
    assert spread([3.0, 1.0]).mean_s == 2.0


def test_staged_models_are_asked_for_at_the_start() -> None:
    models = pool({"a": 1, "b": 1})
    models = (replace(models[0], spec=replace(models[0].spec, initial_tier=Tier.GPU)), models[1])
    watched = Watched(ollama.make_default(specs(models), LIMITS))
    run([ask("r", "a")], models, watched)
    assert [event for event in watched.events if isinstance(event, ev.StageRequested)] == [
        ev.StageRequested(ModelId("a"))
    ]


def test_loads_are_counted_by_model() -> None:
    requests = [ask("r1", "a"), ask("r2", "b"), ask("r3", "a", at_s=30)]
    assert loads(swapping(requests, pool({"a": 1, "b": 1, "c": 1}))) == {"a": 2, "b": 1, "c": 0}
