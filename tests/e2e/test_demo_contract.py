"""A fuzzer that reads the demonstration's own OpenAPI document finds no 5xx and no undocumented answer."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from tests.e2e.engine_process import RunningEngine, serving
from tests.server.test_openapi import CHECKS


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    with serving(tmp_path_factory.mktemp("demo"), "--demo") as engine:
        yield engine


@pytest.fixture(scope="module")
def schema(demo: RunningEngine) -> Any:
    known = demo.get("/openapi.json")
    # Otherwise hardly a generated request would name a model that exists and ask only for what it can do.
    request = known["components"]["schemas"]["ChatRequest"]["properties"]
    request["model"]["enum"] = ["demo"]
    request["max_tokens"] = {"type": "integer", "minimum": 1, "maximum": 4}
    del request["tools"], request["tool_choice"], request["max_completion_tokens"]
    known["components"]["schemas"]["Message"]["properties"]["content"] = {"type": "string"}
    known["components"]["schemas"]["Message"]["required"] = ["role", "content"]
    schema = schemathesis.openapi.from_dict(known)
    schema.config.update(base_url=demo.address)
    return schema


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_chats_get_documented_answers_only(schema: Any, mode: GenerationMode) -> None:
    operation = schema["/v1/chat/completions"]["POST"]
    statuses = set()

    @settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        statuses.add(case.call_and_validate(checks=CHECKS, timeout=10).status_code)

    check()
    assert (200 in statuses) is (mode is GenerationMode.POSITIVE)


def test_the_demonstration_is_sound_after_all_that(demo: RunningEngine) -> None:
    (model,) = demo.get("/v1/memory/status")["models"]
    assert (model["active_leases"], model["waiting"], model["residency"]) == (0, 0, "ready")
