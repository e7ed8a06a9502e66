"""What a request's headers say about its place among others (contract §1.2)."""

import pytest

from hypnos_engine.runtime.lease import Ask
from hypnos_engine.scheduler.events import Workflow
from hypnos_engine.server.options import AccessKey
from tests.loops import LoopFactory
from tests.server.fake_runtime import FakeRuntime, Script
from tests.server.running import KEYS, USER, chat_body, running


async def asked(headers: dict[str, str], **fields: object) -> Ask:
    """What the runtime is asked for a chat with these headers; it is served in any case."""
    async with (
        running(FakeRuntime(fake=Script(), other=Script())) as server,
        server.http.post("/v1/chat/completions", json=chat_body(**fields), headers=headers) as response,
    ):
        assert response.status == 200
        answer = await response.json()
    assert answer["choices"][0]["message"]["content"] == "Hello, world"
    return server.runtime.asks[0]


@pytest.mark.parametrize("stream", [False, True])
async def test_all_headers_reach_the_scheduler(loop_factory: LoopFactory, stream: bool) -> None:
    """[§1.2-04] [§1.2-07] [§1.2-10] [§1.2-21] [§1.2-22]"""
    headers = {
        "x-hypnos-next-model": " other ",
        "x-hypnos-deadline-ms": "2500",
        "x-hypnos-workflow": "voice_turn/7f-3",
        "x-hypnos-workflow-end": "True",
    }
    async with running() as server:
        body = chat_body(stream=stream, num_ctx=5000)
        async with server.http.post("/v1/chat/completions", json=body, headers=headers) as response:
            await response.read()
    assert server.runtime.asks == [
        Ask("fake", "local", 2.5, 1.0, Workflow("voice_turn", "7f-3", ends=True), "other", 5000)  # type: ignore[arg-type]
    ]


async def test_without_headers_nothing_is_asked_for() -> None:
    assert await asked({}) == Ask("fake")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "workflow",
    [
        "",
        "/",
        "name",
        "name/",
        "/run",
        "a b/run",
        "name/a b",
        "n" * 65 + "/run",
        "name/" + "r" * 129,
        "näme/run",
        "n/\u00e9",
    ],
)
async def test_a_malformed_workflow_is_ignored(workflow: str) -> None:
    """A-82"""
    assert (await asked({"x-hypnos-workflow": workflow})).workflow is None


@pytest.mark.parametrize(
    ("workflow", "end", "expected"),
    [
        ("turn/1", "", Workflow("turn", "1")),
        ("turn/1", "false", Workflow("turn", "1")),
        ("turn/1", "1", Workflow("turn", "1")),
        ("turn/1", "true", Workflow("turn", "1", ends=True)),
        ("turn/a/b", "", Workflow("turn", "a/b")),
        (" turn.v2:x-y_z/{42} ", "", Workflow("turn.v2:x-y_z", "{42}")),
        ("n" * 64 + "/" + "r" * 128, "", Workflow("n" * 64, "r" * 128)),
    ],
)
async def test_a_workflow_has_a_name_and_a_run(workflow: str, end: str, expected: Workflow) -> None:
    found = await asked({"x-hypnos-workflow": workflow, "x-hypnos-workflow-end": end})
    assert found.workflow == expected


async def test_an_end_without_a_workflow_is_nothing() -> None:
    assert (await asked({"x-hypnos-workflow-end": "true"})).workflow is None


async def test_an_unknown_next_model_changes_nothing() -> None:
    """[§1.2-08] [§1.2-09]: whether it is known is the scheduler's affair."""
    assert (await asked({"x-hypnos-next-model": "no such model"})).next_model == "no such model"


async def test_a_request_has_the_weight_of_its_key() -> None:
    keys = (AccessKey("user", KEYS[0].sha256, weight=2.5),)
    async with running(keys=keys) as server:
        headers = {"Authorization": f"Bearer {USER}"}
        async with server.http.post("/v1/chat/completions", json=chat_body(), headers=headers) as response:
            assert response.status == 200
    assert server.runtime.asks[0].weight == 2.5
