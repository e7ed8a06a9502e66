"""The headers of §1.2 through a real scheduler: deadlines, estimates, the next model, workflows, holds.

Engines are scripted; what waits, loads and leaves is decided as in the program.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from hypnos_engine.domain.kinds import EngineKind, Modality, Residency, Tier
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.engines.fake import FakeEngine, FakeScript
from hypnos_engine.hardware.machine import host_memory, snapshot
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.local import LocalRuntime, Machine
from hypnos_engine.scheduler.limits import Budgets, Limits
from hypnos_engine.scheduler.placement import WORKER_BYTES
from hypnos_engine.server.app import make_app
from hypnos_engine.server.site import Site
from hypnos_engine.telemetry.latency import Latencies
from tests.loops import LoopFactory
from tests.server.running import OPTIONS, chat_body

CHAT = "/v1/chat/completions"
ONE_WORKER = m.MemoryReport(0, 0, 0, 0, 0, anonymous_bytes=WORKER_BYTES)


@dataclass
class Live:
    runtime: LocalRuntime
    http: aiohttp.ClientSession
    gates: dict[str, asyncio.Semaphore]
    """Each token of a model takes a permit of its gate."""

    async def chat(self, model: str, **headers: str) -> tuple[int, Any, dict[str, str]]:
        named = {f"x-hypnos-{name.replace('_', '-')}": value for name, value in headers.items()}
        async with self.http.post(CHAT, json=chat_body(model=model), headers=named) as response:
            return response.status, await response.json(), dict(response.headers)

    async def status(self) -> Any:
        async with self.http.get("/v1/memory/status") as response:
            return await response.json()

    async def until(self, name: str, residency: Residency) -> None:
        states = self.runtime.dispatcher.scheduler.state.models
        await self.runtime.dispatcher.until(lambda: states[ModelId(name)].residency is residency)

    async def until_leased(self, name: str) -> None:
        states = self.runtime.dispatcher.scheduler.state.models
        await self.runtime.dispatcher.until(lambda: bool(states[ModelId(name)].leases))

    def open(self, name: str) -> None:
        for _ in range(1000):
            self.gates[name].release()


@dataclass
class Setting:
    models: int = 2
    workers: float = 4.0
    """Memory of the machine, in workers."""
    slots: int = 1
    limits: Limits = field(default_factory=Limits)


@asynccontextmanager
async def live(setting: Setting | None = None) -> AsyncIterator[Live]:
    """A server over a running engine with models a, b, ..."""
    setting = setting or Setting()
    names = "abcd"[: setting.models]
    gates = {name: asyncio.Semaphore(0) for name in names}
    specs = [
        ModelSpec(ModelId(name), Modality.TEXT, EngineKind.FAKE, "", context_len=1024, slots=setting.slots)
        for name in names
    ]
    runtime = LocalRuntime(
        specs,
        [],
        lambda spec: FakeEngine(spec.id, FakeScript(token_gate=gates[spec.id], memory=ONE_WORKER)),
        setting.limits,
        on_workflow_ended=(latencies := Latencies()).workflow_ended,
    )
    hardware = snapshot(host_memory(), None)
    budgets = Budgets((), int(setting.workers * WORKER_BYTES), 2, device_layers=False)
    site = Site(make_app(runtime, OPTIONS, latencies=latencies), port=0)
    await site.start()
    try:
        await runtime.start(Machine(hardware, budgets, 0))
        async with aiohttp.ClientSession(site.address) as http:
            yield Live(runtime, http, gates)
    finally:
        await site.close()
        await runtime.stop()


async def test_the_estimate_is_told_once_something_was_served(loop_factory: LoopFactory) -> None:
    """[§1.2-18] [§1.2-19] [§1.2-20]"""
    async with live() as server:
        server.open("a")
        _, _, first = await server.chat("a")
        _, _, second = await server.chat("a")
    assert "x-hypnos-estimated-wait-ms" not in first
    assert second["x-hypnos-estimated-wait-ms"] == "0"


async def test_a_deadline_that_cannot_be_met_is_refused_at_once(loop_factory: LoopFactory) -> None:
    """[§1.2-12] [§1.2-13] [§1.2-14] [§1.2-15]"""
    async with live() as server:
        states = server.runtime.dispatcher.scheduler.state.models
        server.gates["a"].release()
        await server.chat("a")
        states[ModelId("a")].service_s = 30.0  # as if answers took that long
        running = asyncio.create_task(server.chat("a"))
        await server.until_leased("a")
        status, body, headers = await server.chat("a", deadline_ms="1000")
        assert (status, body["error"]["type"]) == (503, "deadline_unmeetable")
        assert int(headers["Retry-After"]) >= 1
        patient = asyncio.create_task(server.chat("a", deadline_ms="3600000"))
        server.open("a")
        assert [(await asked)[0] for asked in (running, patient)] == [200, 200]


async def test_shedding_uses_the_objective_as_a_deadline() -> None:
    """[§1.2-16] [§1.2-17] [§4-27]"""
    for shed_s, expected in ((0.5, 503), (None, 200)):
        async with live(Setting(limits=Limits(shed_s=shed_s))) as server:
            server.gates["a"].release()
            first, _, _ = await server.chat("a", deadline_ms="3600000")
            assert first == 200
            server.runtime.dispatcher.scheduler.state.models[ModelId("a")].service_s = 30.0
            running = asyncio.create_task(server.chat("a"))
            await server.until_leased("a")
            second = asyncio.create_task(server.chat("a"))
            if expected == 503:
                assert (await second)[0] == 503
            server.open("a")
            assert (await running)[0] == 200
            assert (await second)[0] == expected


async def test_the_next_model_is_loaded_meanwhile(loop_factory: LoopFactory) -> None:
    """[§1.2-05] [§1.2-07]: the request that announces it is still running when it is there."""
    async with live() as server:
        running = asyncio.create_task(server.chat("a", next_model="b"))
        await server.until("b", Residency.READY)
        assert not running.done()
        server.open("a")
        server.open("b")
        status, answer, _ = await running
        _, following, _ = await server.chat("b")
    assert status == 200
    assert answer["hypnos_telemetry"]["evicted_models"] == []
    telemetry = following["hypnos_telemetry"]
    assert telemetry["previous_tier"] == "tier1_gpu_vram"
    assert telemetry["tier_switch_latency_ms"] == 0
    assert "tier_switch_phases" not in telemetry


@pytest.mark.parametrize("named", ["none", "a", "x" * 500, "b%00"])
async def test_a_next_model_that_is_none_changes_nothing(named: str) -> None:
    """[§1.2-08] [§1.2-09]"""
    async with live() as server:
        server.open("a")
        status, _, _ = await server.chat("a", next_model=named)
        assert status == 200
        assert (await server.status())["models"][1]["residency"] == "cold"


async def test_a_next_model_takes_nothing_from_one_at_work() -> None:
    async with live(Setting(workers=1.5)) as server:
        running = asyncio.create_task(server.chat("a", next_model="b"))
        await server.until_leased("a")
        server.open("a")
        assert (await running)[0] == 200


async def test_a_workflow_is_timed_from_its_first_request_to_its_last_byte(loop_factory: LoopFactory) -> None:
    """[§1.2-21] [§1.2-22] [§1.2-24] [§1.2-25]"""
    async with live() as server:
        server.open("a")
        server.open("b")
        await server.chat("a", workflow="voice_turn/1")
        assert (await server.status())["latency"]["workflows"] == {}
        await server.chat("b", workflow="voice_turn/1", workflow_end="true")
        await server.chat("b", workflow="voice_turn/2", workflow_end="true")
        workflows = (await server.status())["latency"]["workflows"]
    assert set(workflows) == {"voice_turn"}
    assert workflows["voice_turn"]["count"] == 2
    assert workflows["voice_turn"]["p99"] >= workflows["voice_turn"]["p50"] > 0


async def test_a_cold_request_tells_what_its_load_took() -> None:
    """[§5-05] [§5-14] [§5-15] [§5-16] [§5-22]"""
    async with live(Setting(workers=1.5)) as server:
        server.open("a")
        server.open("b")
        await server.chat("a")
        _, answer, _ = await server.chat("b")
    telemetry = answer["hypnos_telemetry"]
    assert telemetry["previous_tier"] == "tier3_nvme_ssd"
    assert telemetry["evicted_models"] == ["a"]
    assert set(telemetry["tier_switch_phases"]) == {
        "load_mode", "weights_ms", "projector_ms", "context_ms", "total_ms",
    }  # fmt: skip


async def test_models_are_moved_switched_and_listed_as_they_are(loop_factory: LoopFactory) -> None:
    """[§6.5-01] [§6.5-02] [§6.5-05] [§14.2-01] [§14.2-05] [§14.2-06] [§14.2-09]"""
    async with live(Setting(workers=1.5)) as server:

        async def post(path: str, **body: Any) -> tuple[int, Any]:
            async with server.http.post(path, json=body) as response:
                return response.status, await response.json()

        status, answer = await post("/v1/memory/tier", model="a", target_tier=Tier.GPU)
        assert (status, answer["placement"]["primary_tier"]) == (200, "tier1_gpu_vram")
        running = asyncio.create_task(server.chat("a"))
        await server.until_leased("a")
        assert (await post("/v1/memory/tier", model="a", target_tier=Tier.DISK))[0] == 429
        assert (await post("/v1/models/a/disable"))[0] == 429
        assert (await post("/v1/memory/tier", model="b", target_tier=Tier.GPU))[0] == 507
        server.open("a")
        await running
        status, answer = await post("/v1/models/a/disable")
        assert (status, answer["enabled"], answer["placement"]["primary_tier"]) == (200, False, "tier3_nvme_ssd")
        assert (await server.chat("a"))[0] == 404
        assert (await post("/v1/memory/tier", model="a", target_tier=Tier.GPU))[0] == 404
        assert (await post("/v1/models/a/enable"))[0] == 200
        assert (await server.chat("a"))[0] == 200
        async with server.http.get("/v1/memory/decisions?limit=100") as response:
            kinds = {one["kind"] for one in (await response.json())["data"]}
    assert {"load", "loaded"} <= kinds
