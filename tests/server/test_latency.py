"""End-to-end times in the status: by route, and by workflow (contract §1.2-25, §1.2-27, §14.1-31..33)."""

import asyncio
from typing import Any

from hypnos_engine.domain.errors import ModelBusy
from hypnos_engine.server.app import make_app
from hypnos_engine.telemetry.latency import Latencies
from tests.server.fake_runtime import FakeRuntime, Gate, Script
from tests.server.running import OPTIONS, Running, chat_body, running

CHAT = "/v1/chat/completions"


async def latency(server: Running) -> Any:
    async with server.http.get("/v1/memory/status") as response:
        return (await response.json())["latency"]


async def test_each_route_that_answered_has_its_times() -> None:
    """[§1.2-27] [§14.1-32]: by its path as documented."""
    async with running() as server:
        assert await latency(server) == {"routes": {}, "workflows": {}}
        for _ in range(3):
            await server.chat()
        async with server.http.get("/v1/models/fake") as response:
            assert response.status == 200
        found = await latency(server)
    assert set(found["routes"]) == {CHAT, "/v1/models/{id}", "/v1/memory/status"}
    times = found["routes"][CHAT]
    assert times["count"] == 3
    assert 0 < times["p50"] <= times["p95"] <= times["p99"]


async def test_a_stream_counts_until_its_last_byte() -> None:
    gate = Gate()
    async with running(FakeRuntime(fake=Script(before_end=gate))) as server:
        async with server.http.post(CHAT, json=chat_body(stream=True)) as response:
            await gate.reached.wait()
            assert CHAT not in (await latency(server))["routes"]
            passed = asyncio.Event()
            asyncio.get_running_loop().call_later(0.12, passed.set)
            await passed.wait()
            gate.opened.set()
            await response.read()
        times = (await latency(server))["routes"][CHAT]
    assert times["count"] == 1
    assert times["p50"] >= 100


async def test_refusals_and_what_does_not_exist_are_not_counted() -> None:
    async with running(FakeRuntime(fake=Script(refuse=ModelBusy("full")))) as server:
        for path in (CHAT, "/v1/nothing", "/v1/memory/status"):
            async with server.http.post(path, json=chat_body()) as response:
                assert response.status in {404, 405, 429}
        async with server.http.get("/v1/models/none") as response:
            assert response.status == 404
        assert (await latency(server))["routes"] == {}


async def test_a_stream_without_end_is_not_counted() -> None:
    async with running() as server:
        async with server.http.get("/v1/memory/events") as response:
            await response.content.readline()
        assert "/v1/memory/events" not in (await latency(server))["routes"]


async def test_workflows_that_ended_have_their_times() -> None:
    """[§1.2-25] [§14.1-33]: as the scheduler measures them."""
    latencies = Latencies()
    runtime = FakeRuntime()
    async with running(runtime, app=make_app(runtime, OPTIONS, latencies=latencies)) as server:
        latencies.workflow_ended("voice_turn", 0.9)
        found = (await latency(server))["workflows"]
    assert found == {"voice_turn": {"p50": 1000.0, "p95": 1000.0, "p99": 1000.0, "count": 1}}
