"""Lemonade's rules, each on a trace whose waits were worked out by hand."""

from hypnos_engine.domain.kinds import Modality, Residency
from hypnos_engine.scheduler.simulation.policies.lemonade import Lemonade, make_default, make_scored
from hypnos_engine.scheduler.simulation.result import Outcome, SimResult
from tests.scheduler.simulation.bench import (
    LIMITS,
    ask,
    loads,
    machine,
    order,
    outcomes,
    pool,
    residency_at,
    run,
    specs,
    waits,
    with_spec,
)


def left(result: SimResult) -> list[str]:
    return [entry.model for entry in result.timeline if entry.residency is Residency.UNLOADING]


def test_one_model_of_each_type() -> None:
    models = pool({"chat": 1, "code": 1, "ear": 1})
    models = with_spec(models, "ear", modality=Modality.SPEECH_TO_TEXT)
    requests = [
        ask("r1", "chat", service_s=1),
        ask("r2", "ear", at_s=10, service_s=1),
        ask("r3", "code", at_s=20, service_s=1),
        ask("r4", "ear", at_s=30, service_s=1),
    ]
    result = run(requests, models, make_default(specs(models), LIMITS))
    assert left(result) == ["chat"]
    assert waits(result) == {"r1": 2.0, "r2": 2.0, "r3": 3.0, "r4": 0.0}


def test_the_least_recently_used_model_of_the_type_leaves() -> None:
    models = pool({"a": 1, "b": 1, "c": 1})
    requests = [ask(f"r{place}", name, at_s=10 * place, service_s=1) for place, name in enumerate("abac")]
    result = run(requests, models, Lemonade(specs(models), 2))
    assert left(result) == ["b"]


def test_a_busy_model_leaves_when_its_requests_have_ended_and_takes_no_more() -> None:
    models = pool({"a": 1, "b": 1}, slots=2)
    requests = [ask("r1", "a"), ask("r2", "b", at_s=5, service_s=1), ask("r3", "a", at_s=6, service_s=1)]
    result = run(requests, models, make_default(specs(models), LIMITS))
    assert order(result) == "r1 r2 r3"
    assert waits(result)["r2"] == 12 - 5 + 1 + 2


def test_loads_come_one_after_the_other() -> None:
    models = with_spec(pool({"a": 4, "b": 1}), "b", modality=Modality.EMBEDDINGS)
    result = run([ask("r1", "a"), ask("r2", "b", at_s=1)], models, make_default(specs(models), LIMITS))
    assert waits(result) == {"r1": 5.0, "r2": 5 + 2 - 1}


def test_a_load_that_finds_no_memory_makes_every_model_leave() -> None:
    models = pool({"chat": 4, "ear": 4, "draw": 4})
    models = with_spec(models, "ear", modality=Modality.SPEECH_TO_TEXT)
    models = with_spec(models, "draw", modality=Modality.IMAGES)
    requests = [
        ask("r1", "chat", service_s=1),
        ask("r2", "ear", at_s=10, service_s=1),
        ask("r3", "draw", at_s=20, service_s=1),
    ]
    result = run(requests, models, make_default(specs(models), LIMITS))
    assert sorted(left(result)) == ["chat", "ear"]
    assert waits(result)["r3"] == 1 + 5


def test_what_fits_nowhere_is_an_error_and_the_others_go_on() -> None:
    models = with_spec(pool({"a": 20, "b": 1}), "a", min_gpu_layer_ratio=1.0)
    requests = [ask("r1", "b", service_s=1), ask("r2", "a", at_s=10), ask("r3", "b", at_s=20, service_s=1)]
    result = run(requests, models, Lemonade(specs(models), 2))
    assert outcomes(result) == {"r1": Outcome.SERVED, "r2": Outcome.REFUSED, "r3": Outcome.SERVED}


def test_under_pressure_the_model_leaves_that_was_idle_longest_for_its_load_time() -> None:
    models = pool({"slow": 5, "quick": 1, "next": 3.0})
    requests = [
        ask("r1", "slow", service_s=1),
        ask("r2", "quick", at_s=10, service_s=1),
        ask("r3", "next", at_s=40, service_s=1),
        ask("r4", "slow", at_s=60, service_s=1),
    ]
    result = run(requests, models, make_scored(specs(models), LIMITS), machine(11))
    # Idle for 33 s after 6 s of loading or for 27 s after 2 s: the one that is back sooner goes.
    assert left(result) == ["quick"]
    assert loads(result)["slow"] == 1


def test_opted_in_a_model_leaves_after_five_idle_minutes() -> None:
    models = pool({"a": 1, "b": 1})
    requests = [ask("r1", "a", service_s=1), ask("r2", "b", at_s=1000)]
    scored = run(requests, models, make_scored(specs(models), LIMITS))
    assert residency_at(scored, "a", 302.9) is Residency.READY
    assert residency_at(scored, "a", 303.0) is Residency.UNLOADING
    assert residency_at(run(requests, models, make_default(specs(models), LIMITS)), "a", 900) is Residency.READY
