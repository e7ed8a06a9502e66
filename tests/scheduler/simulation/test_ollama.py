"""Ollama's rules, each on a trace whose waits were worked out by hand."""

from hypnos_engine.domain.kinds import Residency
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler.simulation.policies.ollama import Ollama, make_default, make_one_slot
from hypnos_engine.scheduler.simulation.result import Outcome
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
)


def test_models_that_fit_together_stay_together() -> None:
    models = pool({"a": 1, "b": 1})
    result = run(
        [ask("r1", "a"), ask("r2", "b", at_s=5), ask("r3", "a", at_s=20)], models, make_default(specs(models), LIMITS)
    )
    assert waits(result) == {"r1": 2.0, "r2": 2.0, "r3": 0.0}


def test_one_load_at_a_time_and_the_next_waits_although_it_fits() -> None:
    models = pool({"a": 4, "b": 1})
    result = run([ask("r1", "a"), ask("r2", "b", at_s=1)], models, make_default(specs(models), LIMITS))
    assert waits(result) == {"r1": 5.0, "r2": 5 + 2 - 1}


def test_the_head_of_the_queue_blocks_who_would_fit() -> None:
    models = pool({"a": 6, "b": 6, "c": 1})
    requests = [ask("r1", "a", service_s=50), ask("r2", "b", at_s=10), ask("r3", "c", at_s=11)]
    result = run(requests, models, make_default(specs(models), LIMITS))
    # a is served from 7 to 57, gone at 58; b is there at 65; only then is c looked at, and it is there 2 s later.
    assert waits(result) == {"r1": 7.0, "r2": 55.0, "r3": 56.0}


def test_requests_for_a_loaded_model_pass_the_queue_even_when_it_is_told_to_leave() -> None:
    models = pool({"a": 6, "b": 6}, slots=2)
    requests = [ask("r1", "a"), ask("r2", "b", at_s=8), ask("r3", "a", at_s=12, service_s=20)]
    result = run(requests, models, make_default(specs(models), LIMITS))
    assert order(result) == "r1 r3 r2"
    assert waits(result)["r3"] == 0.0
    assert residency_at(result, "a", 30) is Residency.READY


def test_a_model_beside_others_may_take_four_fifths_of_what_is_free() -> None:
    models = pool(
        {"a": 5, "b": 4}
    )  # with what every worker takes beside its layers, b wants more than 80 % of the rest
    result = run([ask("r1", "a", service_s=1), ask("r2", "b", at_s=20)], models, make_default(specs(models), LIMITS))
    assert residency_at(result, "a", 40) is Residency.COLD
    roomy = run(
        [ask("r1", "a", service_s=1), ask("r2", "b", at_s=20)], models, make_default(specs(models), LIMITS), machine(12)
    )
    assert residency_at(roomy, "a", 40) is Residency.READY


def test_the_idle_model_with_the_shortest_keep_alive_leaves_whether_or_not_it_helps() -> None:
    models = pool({"a": 4, "b": 1, "c": 5})
    keep = {ModelId("a"): 600.0, ModelId("b"): 60.0}
    requests = [ask("r1", "a", service_s=1), ask("r2", "b", service_s=1), ask("r3", "c", at_s=30, service_s=1)]
    result = run(requests, models, Ollama(specs(models), keep_alive_s=keep))
    # b leaves first although c fits only once a has left too.
    left = [entry.model for entry in result.timeline if entry.residency is Residency.UNLOADING]
    assert left == ["b", "a"]
    assert waits(result)["r3"] == 1 + 1 + 6


def test_idle_before_busy_whatever_the_keep_alive() -> None:
    models = pool({"a": 4, "b": 4, "c": 4})
    keep = {ModelId("a"): 10.0, ModelId("b"): 600.0}
    requests = [ask("r1", "a", service_s=100), ask("r2", "b", service_s=1), ask("r3", "c", at_s=30)]
    result = run(requests, models, Ollama(specs(models), keep_alive_s=keep), machine(13))
    left = [entry.model for entry in result.timeline if entry.residency is Residency.UNLOADING]
    assert left[0] == "b"


def test_three_models_at_most_on_one_device() -> None:
    models = pool(dict.fromkeys("abcd", 0.5))
    requests = [ask(f"r{place}", name, at_s=10 * place, service_s=1) for place, name in enumerate("abcd")]
    result = run(requests, models, make_default(specs(models), LIMITS))
    left = [entry.model for entry in result.timeline if entry.residency is Residency.UNLOADING]
    assert left == ["a"]


def test_a_model_leaves_when_nobody_has_used_it_for_five_minutes() -> None:
    models = pool({"a": 1, "b": 1})
    requests = [ask("r1", "a", service_s=1), ask("r2", "b", at_s=1000)]
    result = run(requests, models, make_default(specs(models), LIMITS))
    assert residency_at(result, "a", 302.9) is Residency.READY
    assert residency_at(result, "a", 303.0) is Residency.UNLOADING


def test_use_begins_the_keep_alive_anew() -> None:
    models = pool({"a": 1})
    requests = [ask("r1", "a", service_s=1), ask("r2", "a", at_s=200, service_s=50), ask("r3", "a", at_s=540)]
    result = run(requests, models, make_default(specs(models), LIMITS))
    assert loads(result) == {"a": 1}


def test_a_full_queue_refuses() -> None:
    models = pool({"a": 1, "b": 1})
    policy = Ollama(specs(models), max_queue=2)
    requests = [ask("r1", "a"), *(ask(f"q{n}", "b", at_s=0.5) for n in range(3))]
    assert outcomes(run(requests, models, policy)) == {
        "r1": Outcome.SERVED,
        "q0": Outcome.SERVED,
        "q1": Outcome.SERVED,
        "q2": Outcome.REFUSED,
    }


def test_one_slot_serves_one_after_the_other() -> None:
    models = pool({"a": 1}, slots=4, batch_gain=10_000)
    requests = [ask("r1", "a"), ask("r2", "a")]
    together = run(requests, models, make_default(specs(models), LIMITS))
    one = run(requests, models, make_one_slot(specs(models), LIMITS))
    assert waits(together) == {"r1": 2.0, "r2": 2.0}
    assert waits(one) == {"r1": 2.0, "r2": 12.0}


def test_the_first_model_may_be_split_and_only_what_fits_nowhere_is_refused() -> None:
    models = pool({"a": 12, "b": 500})
    result = run([ask("r1", "a"), ask("r2", "b", at_s=1)], models, make_default(specs(models), LIMITS))
    assert outcomes(result) == {"r1": Outcome.SERVED, "r2": Outcome.REFUSED}
    assert result.models[0].device_bytes < 10e9
