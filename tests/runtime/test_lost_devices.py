"""Cards that go and come back under a running engine, as recorded: their models end, nothing falls to the processor."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pynvml
import pytest

from hypnos_engine.config.settings import Settings
from hypnos_engine.domain.errors import HypnosError
from hypnos_engine.domain.kinds import EngineKind, Modality, Residency, Tier
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.engines.fake import FakeEngine, FakeScript
from hypnos_engine.hardware.bandwidths import Bandwidths
from hypnos_engine.hardware.monitor import Times
from hypnos_engine.hardware.simulated import Use
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.lease import Ask
from hypnos_engine.runtime.local import LocalRuntime
from hypnos_engine.runtime.this_machine import find_machine
from hypnos_engine.scheduler.limits import Limits
from hypnos_engine.testing.tiny_gguf import write_llama
from tests.hardware import recorded
from tests.runtime.bench import read

MIB = 2**20
A = ModelId("a")
SPEC = ModelSpec(A, Modality.TEXT, EngineKind.LLAMA, "a.gguf", context_len=512, initial_tier=Tier.GPU)
ON_DEVICE = m.MemoryReport(0, 60 * MIB, 0, 0, 0, anonymous_bytes=100 * MIB)


@dataclass
class Running:
    """An engine on the machine with two cards, its fast one first."""

    runtime: LocalRuntime
    nvml: recorded.RecordedNvml
    engines: list[FakeEngine] = field(default_factory=list)

    @property
    def card(self) -> recorded.Answers:
        """The fast card, as its driver sees it."""
        return next(device for device in self.nvml.devices if "4090" in device["name"])

    def residency(self) -> Residency:
        view = self.runtime.model(A)
        assert view is not None
        return view.residency

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            await self.runtime.dispatcher.until(reached)

    async def ask(self) -> str:
        async with self.runtime.lease(Ask(A)) as lease:
            return await read(lease)


@asynccontextmanager
async def running(tmp_path: Path, spec: ModelSpec = SPEC) -> AsyncIterator[Running]:
    write_llama(tmp_path / "a.gguf")
    machine = recorded.machine("two_cards", tmp_path)
    assert machine.nvml is not None
    engines: list[FakeEngine] = []

    def make(made: ModelSpec) -> FakeEngine:
        engines.append(FakeEngine(made.id, FakeScript(memory=ON_DEVICE)))
        return engines[-1]

    runtime = LocalRuntime([spec], [tmp_path], make, Limits())
    found = await find_machine(
        Settings(models=(spec,)),
        (tmp_path,),
        tmp_path,
        Use,
        sources=replace(machine.sources, times=Times(every_s=0.005)),
    )
    await runtime.start(found)
    try:
        yield Running(runtime, machine.nvml, engines)
    finally:
        await runtime.stop()


async def test_a_model_is_loaded_onto_the_card_that_its_plan_names(tmp_path: Path) -> None:
    """[§14.1-07, §14.1-08, §14.1-15]"""
    async with running(tmp_path) as on:
        (load,) = on.engines[0].loads
        assert (load.devices, load.gpu_layers) == (("CUDA0",), -1)
        memory = on.runtime.memory()
        assert [device.name for device in memory.devices] == ["NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3060"]
        assert memory.devices[0].real_free_bytes == on.card["memory"]["free"]
        assert memory.devices[0].used_bytes >= 60 * MIB
        assert memory.tier1_real_total_bytes == 25757220864 + 12884901888
        assert memory.tier1_unaccounted_bytes > 2 * 2**30, "a game and a browser"
        assert memory.gpu is not None
        assert memory.gpu.utilization_percent == 87


async def test_a_lost_card_ends_its_models_and_the_other_card_takes_them(
    tmp_path: Path, expected_log: list[str]
) -> None:
    expected_log.append("NVIDIA GeForce RTX 4090 is lost")
    async with running(tmp_path) as on:
        assert on.residency() is Residency.READY
        on.card["memory"] = {"error": pynvml.NVML_ERROR_GPU_IS_LOST}
        await on.until(lambda: on.residency() is Residency.COLD)
        assert [device.lost for device in on.runtime.memory().devices] == [True, False]
        assert await on.ask()
        assert on.engines[-1].loads[0].devices == ("CUDA1",)


async def test_without_any_card_requests_are_refused_until_one_is_back(tmp_path: Path, expected_log: list[str]) -> None:
    expected_log += ["NVIDIA GeForce RTX 4090 is lost", "NVIDIA GeForce RTX 3060 is lost"]
    async with running(tmp_path) as on:
        kept = on.nvml.devices
        on.nvml.devices = []
        on.nvml.init = {"error": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}
        for device in kept:
            device["whole"], device["memory"] = device["memory"], {"error": pynvml.NVML_ERROR_UNINITIALIZED}
        await on.until(lambda: len(on.runtime.dispatcher.scheduler.state.lost_devices) == 2)
        await on.until(lambda: on.residency() is Residency.COLD)
        loads = len(on.engines)
        with pytest.raises(HypnosError):
            async with asyncio.timeout(60):
                await on.ask()
        assert len(on.engines) == loads, "the processor is no silent substitute"
        for device in kept:
            device["memory"] = device["whole"]
        on.nvml.devices, on.nvml.init = kept, None
        await on.until(lambda: not on.runtime.dispatcher.scheduler.state.lost_devices)
        assert await on.ask()
        assert on.engines[-1].loads[0].devices == ("CUDA0",)


async def test_what_another_program_takes_is_not_handed_out(tmp_path: Path) -> None:
    """[§14.1-08, §14.1-09]"""
    async with running(tmp_path, replace(SPEC, initial_tier=Tier.DISK)) as on:
        before = on.runtime.memory().tier1_effective_free_bytes
        total = on.card["memory"]["total"]
        on.card["memory"] = {"total": total, "free": 64 * MIB, "used": total - 64 * MIB}
        state = on.runtime.dispatcher.scheduler.state
        await on.until(lambda: state.device_free_bytes[0] == 64 * MIB)
        assert on.runtime.memory().tier1_effective_free_bytes < before
        assert await on.ask()
        assert on.engines[-1].loads[0].devices == ("CUDA1",)


async def test_a_load_from_held_pages_teaches_how_fast_the_devices_take_bytes(tmp_path: Path) -> None:
    """[§14.1-04]"""
    async with running(tmp_path) as on:
        state = on.runtime.dispatcher.scheduler.state
        model = state.models[A]
        assert model.plan is not None
        model.loading_from = Tier.RAM
        big = replace(model.plan, placement=replace(model.plan.placement, vram_weight_bytes=1000 * MIB))
        phases = m.LoadPhases("mmap", weights_ms=100.0, projector_ms=0.0, context_ms=1.0, total_ms=101.0)
        memory = m.MemoryReport(0, 0, 0, 0, 0, 0)
        loaded = m.Loaded(512, 512, 1, 1, "llama", phases, memory, "fake", has_chat_template=False)
        on.runtime.dispatcher.around.on_loaded(A, big, loaded)
        await on.until(lambda: state.budgets.device_bytes_per_s == 10_000 * MIB)
        assert on.runtime.memory().tier2_to_tier1_bytes_per_s == 10_000 * MIB
    assert Bandwidths(
        tmp_path / "bandwidths.json", "NVIDIA GeForce RTX 4090, NVIDIA GeForce RTX 3060"
    ).device_bytes_per_s
