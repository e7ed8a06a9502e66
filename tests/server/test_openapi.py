"""The OpenAPI document says what the server does, and a fuzzer that reads it finds nothing else (A-43)."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from hypnos_engine.server.app import ALL_ROUTES
from hypnos_engine.server.openapi import openapi_document
from tests.server.fake_runtime import FakeRuntime
from tests.server.running import running, serving_in_thread

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
    unsupported_method,
]
DOCUMENT = openapi_document(ALL_ROUTES, "9.8.7")
OPERATIONS = [(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving_in_thread(FakeRuntime()) as address:
        yield address


@pytest.fixture(scope="module")
def schema(address: str) -> Any:
    known = copy.deepcopy(DOCUMENT)
    # Otherwise hardly a generated request would name a model that exists and ask only for what it can do.
    request = known["components"]["schemas"]["ChatRequest"]["properties"]
    request["model"]["enum"] = ["fake"]
    del request["tools"], request["tool_choice"]
    known["components"]["schemas"]["Message"]["properties"]["content"] = {"type": "string"}
    known["components"]["schemas"]["Message"]["required"] = ["role", "content"]
    schema = schemathesis.openapi.from_dict(known)
    schema.config.update(base_url=address)
    return schema


async def test_the_served_document_is_the_one_made_from_the_routes() -> None:
    async with running() as server, server.http.get("/openapi.json") as response:
        assert await response.json() == DOCUMENT


def test_every_route_is_in_the_document() -> None:
    assert {(route.method.lower(), route.path.replace("{id:.+}", "{id}")) for route in ALL_ROUTES} == set(OPERATIONS)
    assert DOCUMENT["openapi"] == "3.1.0"


def test_every_reference_of_the_document_leads_somewhere() -> None:
    def references(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            for name, value in node.items():
                if name == "$ref":
                    yield value
                yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    found = set(references(DOCUMENT))
    assert "#/components/schemas/ChatChunk" in found
    for reference in found:
        node: Any = DOCUMENT
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]


def test_chat_names_its_errors_headers_and_events() -> None:
    chat = DOCUMENT["paths"]["/v1/chat/completions"]["post"]
    assert set(chat["responses"]) == {
        "200", "400", "401", "403", "404", "405", "408", "413", "429", "499", "500", "503", "504", "507",
    }  # fmt: skip
    assert "Retry-After" in chat["responses"]["429"]["headers"]
    assert "text/plain" in chat["responses"]["408"]["content"]
    event = chat["responses"]["200"]["content"]["text/event-stream"]["schema"]["properties"]["data"]
    assert event["anyOf"][1]["contentSchema"] == {"$ref": "#/components/schemas/ChatChunk"}
    assert {parameter["name"] for parameter in chat["parameters"]} >= {"x-hypnos-deadline-ms", "x-hypnos-next-model"}


# A route that takes nothing cannot be asked wrongly.
ASKED = [(GenerationMode.POSITIVE, *operation) for operation in OPERATIONS] + [
    (GenerationMode.NEGATIVE, method, path)
    for method, path in OPERATIONS
    if "requestBody" in DOCUMENT["paths"][path][method]
]


@pytest.mark.parametrize(("mode", "method", "path"), ASKED, ids=[f"{mode.value} {path}" for mode, _, path in ASKED])
def test_no_generated_request_gets_an_undocumented_answer(
    schema: Any, mode: GenerationMode, method: str, path: str
) -> None:
    """No 5xx, and nothing that the document does not name."""
    operation = schema[path][method.upper()]
    statuses = set()

    @settings(
        max_examples=20 if method == "post" else 5,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        statuses.add(case.call_and_validate(checks=CHECKS, timeout=10).status_code)

    check()
    if mode is GenerationMode.POSITIVE and path != "/v1/models/{id}":
        assert 200 in statuses
