"""The running engine: files are looked at, startup models staged, views true."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from hypnos_engine.domain.errors import ConfigurationInvalid, LoadFailed, ModelNotAvailable
from hypnos_engine.domain.kinds import EngineKind, Modality, Priority, Residency, Tier
from hypnos_engine.domain.memory import HardwareSnapshot
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.engines.fake import FakeEngine
from hypnos_engine.hardware.machine import host_memory, snapshot
from hypnos_engine.runtime.lease import Ask
from hypnos_engine.runtime.local import LocalRuntime, Machine
from hypnos_engine.scheduler.limits import Budgets, Limits
from hypnos_engine.testing.tiny_gguf import write_llama, write_moe
from tests.runtime.bench import read

GIB = 2**30
A = ModelId("a")


def hardware() -> HardwareSnapshot:
    return snapshot(host_memory(), None)


def machine(host_bytes: int = 4 * GIB) -> Machine:
    return Machine(hardware(), Budgets((), host_bytes, 2, device_layers=False), tier2_budget_bytes=host_bytes)


def runtime(folder: Path, *, initial_tier: Tier = Tier.DISK, enabled: bool = True) -> LocalRuntime:
    spec = ModelSpec(
        A, Modality.TEXT, EngineKind.LLAMA, "a.gguf", context_len=512, initial_tier=initial_tier, enabled=enabled
    )
    return LocalRuntime([spec], [folder], lambda spec: FakeEngine(spec.id), Limits())


async def test_the_header_is_read_before_anything_is_loaded(tmp_path: Path) -> None:
    write_llama(tmp_path / "a.gguf")
    running = runtime(tmp_path)
    await running.start(machine())
    view = running.model(A)
    assert view is not None
    assert view.total_weight_bytes > 0
    assert view.tier is Tier.DISK
    assert view.placement.ssd_layers > 0
    await running.stop()


async def test_startup_models_are_in_place_when_staging_ends(tmp_path: Path) -> None:
    write_llama(tmp_path / "a.gguf")
    running = runtime(tmp_path, initial_tier=Tier.GPU)
    assert running.staging
    await running.start(machine())
    assert not running.staging
    view = running.model(A)
    assert view is not None
    assert view.residency is Residency.READY
    memory = running.memory()
    assert memory.tier1_budget_bytes == 4 * GIB
    assert memory.process_bytes > 0
    await running.stop()


async def test_a_startup_model_that_does_not_fit_does_not_hold_the_start_up(tmp_path: Path) -> None:
    write_llama(tmp_path / "a.gguf")
    running = runtime(tmp_path, initial_tier=Tier.GPU)
    await running.start(machine(host_bytes=1000))
    assert not running.staging
    await running.stop()


async def test_a_missing_file_is_named_and_found_once_it_is_there(tmp_path: Path) -> None:
    running = runtime(tmp_path)
    await running.start(machine())
    with pytest.raises(ModelNotAvailable, match=r"a\.gguf"):
        async with running.lease(Ask(A)):
            pass
    write_llama(tmp_path / "a.gguf")
    running.forget_inspections()
    async with running.lease(Ask(A)) as lease:
        assert await read(lease) == "one two three"
    await running.stop()


async def test_a_file_that_was_replaced_is_planned_as_what_it_is_now(tmp_path: Path) -> None:
    write_llama(tmp_path / "a.gguf")
    running = runtime(tmp_path)
    await running.start(machine())
    before = running.model(A)
    write_moe(tmp_path / "other.gguf")
    (tmp_path / "other.gguf").replace(tmp_path / "a.gguf")
    running.forget_inspections()
    async with running.lease(Ask(A)):
        after = running.model(A)
    assert before is not None
    assert after is not None
    assert after.total_weight_bytes != before.total_weight_bytes
    assert after.expert_bytes > 0
    await running.stop()


async def test_a_damaged_file_is_a_failed_load_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF garbage")
    running = runtime(tmp_path)
    await running.start(machine())
    with pytest.raises(LoadFailed, match=r"a\.gguf"):
        async with running.lease(Ask(A)):
            pass
    view = running.model(A)
    assert view is not None
    assert view.problem is not None
    await running.stop()


async def test_status_is_there_before_the_machine_is_known(tmp_path: Path) -> None:
    running = runtime(tmp_path)
    memory = running.memory()
    assert memory.tier1_budget_bytes == 0
    assert [model.spec.id for model in memory.models] == [A]
    assert running.estimated_wait_ms(A) is None
    await asyncio.wait_for(running.stop(), 5)


async def test_pinned_models_that_do_not_fit_together_are_refused_at_the_start(tmp_path: Path) -> None:
    specs = []
    for name in ("a", "b"):
        write_llama(tmp_path / f"{name}.gguf")
        model = ModelId(name)
        spec = ModelSpec(model, Modality.TEXT, EngineKind.LLAMA, f"{name}.gguf", context_len=512)
        specs.append(replace(spec, priority=Priority.REALTIME_PINNED))
    running = LocalRuntime(specs, [tmp_path], lambda spec: FakeEngine(spec.id), Limits())
    try:
        with pytest.raises(ConfigurationInvalid, match=r"'b' does not fit beside a .* pin fewer"):
            await running.start(machine(host_bytes=60 * 2**20))
    finally:
        await running.stop()
