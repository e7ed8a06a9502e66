"""The rules of llama.cpp's router, each on a trace whose waits were worked out by hand."""

from hypnos_engine.domain.kinds import Residency
from hypnos_engine.scheduler.simulation.policies.llama_router import LlamaRouter, make_default, make_fitted
from hypnos_engine.scheduler.simulation.result import Outcome, SimResult
from hypnos_engine.scheduler.simulation.run import simulate
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


def test_four_models_stay_and_the_fifth_makes_the_least_recently_used_one_leave() -> None:
    models = pool(dict.fromkeys("abcde", 0.5))
    requests = [ask(f"r{place}", name, at_s=10 * place, service_s=1) for place, name in enumerate("abcdae")]
    result = run(requests, models, make_default(specs(models), LIMITS))
    assert left(result) == ["b"]
    assert loads(result) == {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}


def test_a_busy_model_never_leaves_and_the_queue_waits_for_it() -> None:
    models = pool({"a": 1, "b": 1})
    requests = [ask("r1", "a", service_s=40), ask("r2", "b", at_s=5)]
    result = run(requests, models, LlamaRouter(specs(models), 1))
    assert waits(result) == {"r1": 2.0, "r2": 42 - 5 + 1 + 2}


def test_a_loading_model_never_leaves() -> None:
    models = pool({"a": 4, "b": 1})
    result = run([ask("r1", "a", service_s=1), ask("r2", "b", at_s=1)], models, LlamaRouter(specs(models), 1))
    assert waits(result) == {"r1": 5.0, "r2": 6 - 1 + 1 + 2}


def test_the_queue_is_one_of_models_in_the_order_they_were_first_asked_for() -> None:
    models = pool({"a": 1, "b": 1, "c": 1}, slots=4)
    requests = [ask("r1", "a")] + [
        ask(name, name[0], at_s=3 + place / 10) for place, name in enumerate(["c1", "b1", "c2", "b2"])
    ]
    result = run(requests, models, LlamaRouter(specs(models), 1))
    assert order(result) == "r1 c1 c2 b1 b2"


def test_requests_for_a_loaded_model_pass_the_queue() -> None:
    models = pool({"a": 1, "b": 1})
    requests = [ask("r1", "a"), ask("r2", "b", at_s=3), ask("r3", "a", at_s=4)]
    result = run(requests, models, LlamaRouter(specs(models), 1))
    assert order(result) == "r1 r3 r2"


def test_memory_is_not_looked_at_so_the_last_one_runs_on_the_processor() -> None:
    models = pool(dict.fromkeys("abc", 4))
    requests = [ask(f"r{place}", name, at_s=20 * place, service_s=1) for place, name in enumerate("abc")]
    result = run(requests, models, make_default(specs(models), LIMITS))
    assert left(result) == []
    c = result.requests[2]
    assert c.service_s is not None
    assert c.service_s > 2 * c.alone_s


def test_what_does_not_fit_at_all_is_an_error() -> None:
    models = with_spec(pool({"a": 6, "b": 6}), "b", min_gpu_layer_ratio=1.0)
    requests = [ask("r1", "a", service_s=1), ask("r2", "b", at_s=20), ask("r3", "a", at_s=30)]
    result = run(requests, models, make_default(specs(models), LIMITS))
    assert outcomes(result) == {"r1": Outcome.SERVED, "r2": Outcome.REFUSED, "r3": Outcome.SERVED}


def test_the_fitted_number_lets_any_models_fit_wholly_together() -> None:
    models = pool({"a": 4, "b": 4, "c": 1, "d": 1})
    requests = [ask(f"r{place}", name, at_s=20 * place, service_s=1) for place, name in enumerate("abcd")]
    two = run(requests, models, make_fitted(specs(models), LIMITS), machine(9.5))
    assert left(two) == ["a", "b"]
    one = run(requests, models, make_fitted(specs(models), LIMITS), machine(7))
    assert left(one) == ["a", "b", "c"]
    assert all(request.service_s == request.alone_s for result in (one, two) for request in result.requests)


def test_whoever_has_left_is_not_loaded_for() -> None:
    models = pool({"a": 1, "b": 1, "c": 1})
    policy = LlamaRouter(specs(models), 1)
    requests = [ask("r1", "a", service_s=100), ask("r2", "b", at_s=5), ask("r3", "c", at_s=95)]
    result = simulate(requests, models, machine(), policy, patience_s=50)
    assert outcomes(result) == {"r1": Outcome.SERVED, "r2": Outcome.TIMED_OUT, "r3": Outcome.SERVED}
    assert loads(result)["b"] == 0
    assert residency_at(result, "c", 110) is Residency.READY
