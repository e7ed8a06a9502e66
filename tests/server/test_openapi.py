"""The OpenAPI document says what the server does, and a fuzzer that reads it finds nothing else (A-43)."""

import copy
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from aiohttp import web
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

from hypnos_engine.catalog.downloads.ledger import Ledger
from hypnos_engine.catalog.downloads.orders import Network
from hypnos_engine.catalog.downloads.queue import Downloads
from hypnos_engine.catalog.downloads.terms import Patience, Terms
from hypnos_engine.catalog.entries import CatalogFile, Role
from hypnos_engine.catalog.shelf import Shelf
from hypnos_engine.runtime.pool import Pool
from hypnos_engine.server.app import ALL_ROUTES, make_app
from hypnos_engine.server.downloads import DOWNLOADS, DownloadDesk
from hypnos_engine.server.openapi import openapi_document
from hypnos_engine.server.pool import POOL
from tests.server.fake_runtime import FakeRuntime, Script
from tests.server.running import OPTIONS, running, serving_in_thread

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
    unsupported_method,
]
DOCUMENT = openapi_document(ALL_ROUTES, "9.8.7")
SPEC = "own/er/m.gguf"
BLOCK = '[[models]]\nid = "new"\nmodality = "text_generation"\nengine = "fake"\n'
OPERATIONS = [(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # One to ask, and one that may be switched off meanwhile.
    runtime = FakeRuntime(fake=Script(), other=Script())
    app = make_app(runtime, OPTIONS, shelf=Shelf([]))
    add_downloads(app, tmp_path_factory.mktemp("downloads"))
    # Of its own models: the routes that ask for these are not to miss one that was removed.
    app[POOL] = Pool(FakeRuntime(other=Script()), [], Shelf([]), None)
    with serving_in_thread(runtime, app=app) as address:
        yield address


def add_downloads(app: web.Application, folder: Path) -> None:
    """One download of a hub that nobody answers for."""
    terms = Terms(
        (folder / "models",), Network("http://127.0.0.1:9"), patience=Patience(first_s=3600.0, longest_s=3600.0)
    )
    downloads = Downloads(Ledger(folder), terms)
    app[DOWNLOADS] = DownloadDesk(downloads, Shelf(terms.roots))

    async def begin(_: web.Application) -> None:
        await downloads.open()
        await downloads.request(SPEC, [CatalogFile(Role.WEIGHTS, "own/er", "m.gguf", "m.gguf")])

    async def end(_: web.Application) -> None:
        await downloads.close()

    app.on_startup.append(begin)
    app.on_cleanup.append(end)


@pytest.fixture(scope="module")
def schema(address: str) -> Any:
    known = copy.deepcopy(DOCUMENT)
    # Otherwise hardly a generated request would name a model that exists and ask only for what it can do.
    request = known["components"]["schemas"]["ChatRequest"]["properties"]
    request["model"]["enum"] = ["fake"]
    del request["tools"], request["tool_choice"]
    known["components"]["schemas"]["TierRequest"]["properties"]["model"]["enum"] = ["fake"]
    known["components"]["schemas"]["DownloadRequest"]["properties"]["spec"]["enum"] = [SPEC]
    for name in ("AddRequest", "ReplaceRequest"):
        known["components"]["schemas"][name]["properties"]["config"] = {"type": "string", "enum": [BLOCK]}
        known["components"]["schemas"][name]["properties"].pop("catalog")
        known["components"]["schemas"][name]["required"] = ["config"]
    known["components"]["schemas"]["OffloadRequest"]["properties"]["mode"]["enum"] = ["off", "auto", "on"]
    known["components"]["schemas"]["LogLevelRequest"]["properties"]["level"]["enum"] = ["info", "trace"]
    with urllib.request.urlopen(f"{address}/v1/downloads") as answer:
        download = json.load(answer)["data"][0]["id"]
    asked = json.dumps({"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}).encode()
    chat = urllib.request.Request(f"{address}/v1/chat/completions", asked, {"Content-Type": "application/json"})
    with urllib.request.urlopen(chat) as answer:
        call = answer.headers["x-request-id"]
    for name, path in known["paths"].items():
        for operation in path.values():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    ids = {"downloads": download, "logs": call}
                    parameter["schema"]["enum"] = [ids.get(name.split("/")[2], "other")]
    known["components"]["schemas"]["Message"]["properties"]["content"] = {"type": "string"}
    known["components"]["schemas"]["Message"]["required"] = ["role", "content"]
    schema = schemathesis.openapi.from_dict(known)
    schema.config.update(base_url=address)
    return schema


async def test_the_served_document_is_the_one_made_from_the_routes() -> None:
    async with running() as server, server.http.get("/openapi.json") as response:
        assert await response.json() == DOCUMENT


def test_every_route_is_in_the_document() -> None:
    assert {(route.method.lower(), route.public_path) for route in ALL_ROUTES} == set(OPERATIONS)
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


def test_the_stream_of_events_is_described() -> None:
    answer = DOCUMENT["paths"]["/v1/memory/events"]["get"]["responses"]["200"]
    event = answer["content"]["text/event-stream"]["schema"]
    assert event["required"] == ["id", "data"]
    kinds = event["properties"]["data"]["contentSchema"]["discriminator"]["mapping"]
    assert set(kinds) == {
        "memory.snapshot",
        "memory.model",
        "memory.totals",
        "memory.load",
        "memory.decision",
        "memory.download",
    }


# A stream without end is followed in test_memory_events.py; one that never ends cannot be looked at as a whole.
ENDLESS = {("get", route.public_path) for route in ALL_ROUTES if route.endless}
# A route that takes nothing cannot be asked wrongly.
ASKED = [(GenerationMode.POSITIVE, *operation) for operation in OPERATIONS if operation not in ENDLESS] + [
    (GenerationMode.NEGATIVE, method, path)
    for method, path in OPERATIONS
    if "requestBody" in DOCUMENT["paths"][path][method]
]


@pytest.mark.parametrize(
    ("mode", "method", "path"), ASKED, ids=[f"{mode.value} {method} {path}" for mode, method, path in ASKED]
)
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
    if mode is GenerationMode.POSITIVE:
        assert statuses & {200, 201}
