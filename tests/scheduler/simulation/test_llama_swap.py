"""llama-swap's rules, each on a trace whose waits were worked out by hand."""

from hypnos_engine.domain.kinds import Residency
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler.simulation.policies.llama_swap import LlamaSwap, SwapGroup, make_default, make_grouped
from hypnos_engine.scheduler.simulation.result import Outcome
from tests.scheduler.simulation.bench import (
    GB,
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

A, B, C = ModelId("a"), ModelId("b"), ModelId("c")


def group(*members: ModelId, swap: bool = True, exclusive: bool = True, persistent: bool = False) -> SwapGroup:
    return SwapGroup(frozenset(members), swap, exclusive, persistent)


def test_one_model_at_a_time_although_both_would_fit() -> None:
    models = pool({"a": 1, "b": 1})
    result = run([ask("r1", "a"), ask("r2", "b", at_s=5)], models, make_default(specs(models), LIMITS))
    # a: 2 to load, served until 12; then 1 to stop it, 2 to load b.
    assert waits(result) == {"r1": 2.0, "r2": 10.0}
    assert residency_at(result, "a", 12.5) is Residency.UNLOADING
    assert residency_at(result, "b", 12.5) is Residency.COLD


def test_requests_for_the_running_model_pass_everybody_who_waits_for_another() -> None:
    models = pool({"a": 1, "b": 1}, slots=2)
    requests = [
        ask("r1", "a", service_s=10),
        ask("r2", "b", at_s=3, service_s=1),
        *(ask(f"late{number}", "a", at_s=4 + 4 * number, service_s=5) for number in range(5)),
    ]
    result = run(requests, models, make_default(specs(models), LIMITS))
    assert order(result).split()[-1] == "r2"
    assert max(waits(result).values()) == waits(result)["r2"]


def test_queued_requests_are_served_model_by_model() -> None:
    models = pool({"a": 1, "b": 1, "c": 1}, slots=4)
    requests = [
        ask(f"{model}{turn}", model, at_s=turn + place / 10) for turn in range(2) for place, model in enumerate("abc")
    ]
    result = run(requests, models, make_default(specs(models), LIMITS))
    assert order(result) == "a0 a1 b0 b1 c0 c1"
    assert loads(result) == {"a": 1, "b": 1, "c": 1}


def test_a_model_that_has_requests_is_never_stopped() -> None:
    models = pool({"a": 1, "b": 1})
    result = run([ask("r1", "a", service_s=100), ask("r2", "b", at_s=3)], models, make_default(specs(models), LIMITS))
    assert waits(result)["r2"] == 2 + 100 - 3 + 1 + 2


def test_more_than_ten_requests_on_one_model_are_refused() -> None:
    models = pool({"a": 1}, slots=2)
    result = run([ask(f"r{n:02}", "a", at_s=n / 100) for n in range(12)], models, make_default(specs(models), LIMITS))
    refused = [name for name, outcome in outcomes(result).items() if outcome is Outcome.REFUSED]
    assert refused == ["r10", "r11"]
    assert result.requests[10].error == "model_busy"


def test_a_group_that_does_not_swap_keeps_its_members_together() -> None:
    models = pool({"a": 1, "b": 1})
    policy = LlamaSwap(specs(models), [group(A, B, swap=False)])
    result = run([ask("r1", "a"), ask("r2", "b")], models, policy)
    assert waits(result) == {"r1": 2.0, "r2": 3.0}  # both at once; the disk reads one after the other


def test_an_exclusive_group_drives_the_others_away_and_a_persistent_one_stays() -> None:
    models = pool({"a": 1, "b": 1, "c": 1})
    groups = [group(A), group(B, exclusive=False), group(C, exclusive=False, persistent=True)]
    requests = [ask("r1", "b", service_s=1), ask("r2", "c", service_s=1), ask("r3", "a", at_s=10)]
    result = run(requests, models, LlamaSwap(specs(models), groups))
    assert residency_at(result, "b", 20) is Residency.COLD
    assert residency_at(result, "c", 20) is Residency.READY
    assert residency_at(result, "a", 20) is Residency.READY


def test_a_group_that_is_not_exclusive_leaves_the_others_alone() -> None:
    models = pool({"a": 1, "b": 1})
    groups = [group(A), group(B, exclusive=False)]
    result = run([ask("r1", "a", service_s=1), ask("r2", "b", at_s=5)], models, LlamaSwap(specs(models), groups))
    assert residency_at(result, "a", 10) is Residency.READY


def test_a_model_that_does_not_fit_refuses_all_who_joined() -> None:
    models = with_spec(pool({"a": 20, "b": 1}), "a", min_gpu_layer_ratio=1.0)
    result = run([ask("r1", "a"), ask("r2", "b", at_s=1)], models, make_default(specs(models), LIMITS))
    assert outcomes(result) == {"r1": Outcome.REFUSED, "r2": Outcome.SERVED}


def test_a_careful_users_groups_keep_the_small_models_beside_any_large_one() -> None:
    models = pool({"chat": 7, "code": 6, "ear": 1, "embed": 0.5})
    requests = [
        ask("r1", "ear", service_s=1),
        ask("r2", "embed", service_s=1),
        ask("r3", "chat", at_s=10, service_s=1),
        ask("r4", "code", at_s=30, service_s=1),
        ask("r5", "chat", at_s=50, service_s=1),
        ask("r6", "ear", at_s=70, service_s=1),
        ask("r7", "embed", at_s=70, service_s=1),
    ]
    result = run(requests, models, make_grouped(specs(models), LIMITS), machine(10))
    assert loads(result) == {"chat": 2, "code": 1, "ear": 1, "embed": 1}
    assert waits(result)["r6"] == waits(result)["r7"] == 0.0
    assert all(model.failed_loads == 0 for model in result.models)
    assert result.models[0].device_bytes > 2 * 6.9 * GB * 0.9  # never split: each load put all its layers on the device
