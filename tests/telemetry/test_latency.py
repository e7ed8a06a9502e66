"""Times by route and by workflow stay bounded, whatever the names."""

from hypnos_engine.telemetry.latency import MOST_WORKFLOWS, OTHERS, Latencies


def test_each_name_has_its_own_times() -> None:
    latencies = Latencies()
    latencies.request_ended("/v1/chat/completions", 0.0042)
    latencies.request_ended("/v1/chat/completions", 0.0048)
    latencies.request_ended("/v1/models", 0.5)
    latencies.workflow_ended("voice_turn", 2.0)
    assert {name: (times.count, times.quantile_ms(0.5)) for name, times in latencies.routes.items()} == {
        "/v1/chat/completions": (2, 5.0),
        "/v1/models": (1, 500.0),
    }
    assert {name: times.quantile_ms(0.99) for name, times in latencies.workflows.items()} == {"voice_turn": 2000.0}


def test_endless_names_take_bounded_memory() -> None:
    latencies = Latencies()
    for number in range(10_000):
        latencies.workflow_ended(f"name{number}", 0.001)
    assert len(latencies.workflows) == MOST_WORKFLOWS
    assert latencies.workflows["name0"].count == 1
    assert latencies.workflows[OTHERS].count == 10_000 - (MOST_WORKFLOWS - 1)


def test_a_name_that_is_known_keeps_its_place() -> None:
    latencies = Latencies()
    for number in range(1000):
        latencies.workflow_ended(f"name{number}", 0.001)
    latencies.workflow_ended("name3", 0.001)
    assert latencies.workflows["name3"].count == 2


def test_a_workflow_of_that_name_does_not_break_the_bound() -> None:
    latencies = Latencies()
    latencies.workflow_ended(OTHERS, 0.001)
    for number in range(1000):
        latencies.workflow_ended(f"name{number}", 0.001)
    assert len(latencies.workflows) <= MOST_WORKFLOWS
