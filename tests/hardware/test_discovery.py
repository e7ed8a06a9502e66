"""Recorded machines: what is planned with, what is not and how to mend it, and who follows the devices."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from hypnos_engine.domain.kinds import Accelerator, Topology
from hypnos_engine.hardware.discovery import Found, aside, discover, look_for_unusable
from hypnos_engine.hardware.machine import GIB, MemoryLimits, plan_budgets
from hypnos_engine.hardware.monitor import DeviceSample, NoDevices
from hypnos_engine.hardware.nvidia import Nvml
from hypnos_engine.ipc.messages import ProbeReport
from tests.hardware import recorded

UNUSED = "is not used"
"""Part of the warning about a device; the log of such a start is expected to have it."""


@pytest.fixture(autouse=True)
def announced(expected_log: list[str]) -> None:
    expected_log += ["NVIDIA", "Intel", "hardware.backend", "The inference library cannot be used"]


async def found(name: str, folder: Path, backend: str = "auto") -> Found:
    return await discover(backend=backend, sources=recorded.machine(name, folder).sources)


async def test_several_cards_are_all_planned_with_the_fastest_first(tmp_path: Path) -> None:
    seen = (await found("two_cards", tmp_path)).hardware
    assert (seen.topology, seen.accelerator) == (Topology.DISCRETE, Accelerator.CUDA)
    assert [device.name for device in seen.devices] == ["NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3060"]
    assert [device.bus_id for device in seen.devices] == ["0000:01:00.0", "0000:0b:00.0"]
    assert seen.unusable == ()


async def test_an_integrated_processor_beside_a_card_is_left_out_however_much_it_reports(tmp_path: Path) -> None:
    seen = (await found("igpu_beside_card", tmp_path)).hardware
    assert [device.library_name for device in seen.devices] == ["Vulkan1"]
    assert (seen.topology, seen.accelerator, seen.unusable) == (Topology.DISCRETE, Accelerator.VULKAN, ())


async def test_a_card_that_two_backends_list_is_one_card(tmp_path: Path) -> None:
    seen = (await found("two_backends", tmp_path)).hardware
    assert [device.library_name for device in seen.devices] == ["CUDA0"]
    wanted = (await found("two_backends", tmp_path / "again", backend="vulkan")).hardware
    assert [device.library_name for device in wanted.devices] == ["Vulkan0"]


async def test_an_instance_of_a_divided_card_has_its_own_size(tmp_path: Path) -> None:
    seen = (await found("mig", tmp_path)).hardware
    assert [device.total_bytes for device in seen.devices] == [42278584320]
    assert seen.unusable == ()


@pytest.mark.parametrize(
    ("name", "device", "why", "mend"),
    [
        ("cpu_build", "NVIDIA GeForce RTX 3090", "for the processor alone", "./run.sh setup --backend cuda"),
        ("no_driver", "NVIDIA graphics processor 2204", "NVML Shared Library Not Found", "install NVIDIA's driver"),
        ("driver_updated", "NVIDIA graphics processor 2204", "version mismatch", "install NVIDIA's driver"),
        ("mig_without_instance", "NVIDIA A100-SXM4-40GB", "no instance", "nvidia-smi -i 0000:07:00.0 -mig 0"),
        ("igpu_alone", "Intel graphics processor 46a6", "processor alone", "./run.sh setup --backend vulkan"),
    ],
)
async def test_a_graphics_processor_that_the_build_cannot_use_is_named_with_what_mends_it(
    tmp_path: Path, name: str, device: str, why: str, mend: str
) -> None:
    seen = await found(name, tmp_path)
    assert (seen.hardware.topology, seen.hardware.devices) == (Topology.HOST, ())
    assert plan_budgets(seen.hardware, MemoryLimits()).device_bytes == ()
    assert isinstance(seen.monitor, NoDevices)
    (unusable,) = seen.hardware.unusable
    assert unusable.name == device
    assert why in unusable.why
    assert mend in unusable.mend


@pytest.mark.parametrize("name", ["server", "cuda_beside_igpu", "wddm_laptop", "volta", "macbook"])
async def test_nothing_is_said_about_what_nobody_would_want_to_compute_on(tmp_path: Path, name: str) -> None:
    assert (await found(name, tmp_path)).hardware.unusable == ()


async def test_cards_whose_addresses_the_library_does_not_know_are_told_apart_by_their_order(tmp_path: Path) -> None:
    seen = (await found("volta", tmp_path)).hardware
    assert [device.bus_id for device in seen.devices] == ["0000:15:00.0", "0000:16:00.0"]


@pytest.mark.parametrize(
    ("name", "working_set_bytes"),
    [
        ("macbook", 36 * GIB),
        ("macbook_raised", 44 * GIB),
        ("macbook_silent", 16 * GIB * 2 // 3),
    ],
)
async def test_a_mac_is_one_pool_bounded_by_metals_working_set_and_the_reserve(
    tmp_path: Path, name: str, working_set_bytes: int
) -> None:
    """[§6.3-24] Metal's default working set, and 4 GiB for the system."""
    seen = await found(name, tmp_path)
    assert (seen.hardware.topology, seen.hardware.accelerator) == (Topology.UNIFIED, Accelerator.METAL)
    budgets = plan_budgets(seen.hardware, MemoryLimits())
    assert budgets.device_bytes == ()
    assert budgets.host_bytes == min(working_set_bytes, seen.hardware.host_total_bytes - 4 * GIB)
    assert isinstance(seen.monitor, NoDevices)


async def test_an_nvidia_processor_without_memory_of_its_own_is_one_pool(tmp_path: Path) -> None:
    seen = (await found("shared_memory_cuda", tmp_path)).hardware
    assert (seen.topology, seen.accelerator, seen.unusable) == (Topology.UNIFIED, Accelerator.CUDA, ())


@pytest.mark.parametrize("name", recorded.names())
async def test_every_machine_has_a_monitor_that_answers(tmp_path: Path, name: str) -> None:
    seen = await found(name, tmp_path)
    own = tuple(device for device in seen.hardware.devices if not device.unified)
    fresh = await seen.monitor.fresh()
    assert fresh == seen.monitor.sample()
    assert len(fresh.free_bytes) == len(own)
    assert fresh.lost == ()
    running = asyncio.create_task(seen.monitor.run(lambda: None))
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_without_nvidia_s_library_cards_are_used_and_the_inference_library_tells_of_them(tmp_path: Path) -> None:
    machine = recorded.machine("two_cards", tmp_path)
    seen = await discover(sources=replace(machine.sources, nvml=lambda: None))
    assert len(seen.hardware.devices) == 2
    sample = await seen.monitor.fresh()
    assert sample.free_bytes == tuple(device.free_bytes for device in seen.hardware.devices)
    assert (sample.gpu, sample.others_bytes) == (None, (None, None))


async def test_without_nvidia_s_library_an_unusable_card_is_still_named(tmp_path: Path) -> None:
    machine = recorded.machine("cpu_build", tmp_path)
    seen = await discover(sources=replace(machine.sources, nvml=lambda: None))
    assert [device.why for device in seen.hardware.unusable] == ["NVIDIA's driver, or nvidia-ml-py, is not installed"]


async def test_without_models_that_need_the_library_nobody_asks_it(tmp_path: Path) -> None:
    machine = recorded.machine("two_cards", tmp_path)
    seen = await discover(wants_library=False, sources=machine.sources)
    assert (seen.hardware.devices, seen.monitor.sample()) == ((), DeviceSample())
    assert machine.probe.asked == 0


async def test_a_library_that_cannot_be_used_leaves_the_processor_and_says_so(tmp_path: Path) -> None:
    machine = recorded.machine("two_cards", tmp_path)
    machine.probe.report = None
    seen = (await discover(sources=machine.sources)).hardware
    assert seen.topology is Topology.HOST
    assert {device.mend for device in seen.unusable} == {"./run.sh setup"}


async def test_a_wanted_backend_that_is_not_there_is_said_and_not_planned_around(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await found("cpu_build", tmp_path, backend="cuda")).hardware.devices == ()
    assert "hardware.backend is 'cuda'" in caplog.text


async def test_a_driver_that_comes_up_late_is_waited_for(tmp_path: Path) -> None:
    machine = recorded.machine("two_cards", tmp_path)
    whole = machine.probe.report
    assert whole is not None
    answers = [msgspec.structs.replace(whole, devices=whole.devices[-1:]), whole]

    async def probe() -> ProbeReport:
        return answers.pop(0)

    seen = (await discover(sources=replace(machine.sources, probe=probe, retry_s=(0.0, 0.0)))).hardware
    assert len(seen.devices) == 2
    assert answers == []


async def test_a_driver_that_hangs_delays_the_start_and_no_more(tmp_path: Path) -> None:
    machine = recorded.machine("cpu_build", tmp_path)
    goes_on = threading.Event()

    def hangs() -> Nvml | None:
        goes_on.wait()
        return None

    try:
        seen = (await discover(sources=replace(machine.sources, nvml=hangs, driver_s=0.05))).hardware
    finally:
        goes_on.set()
    (unusable,) = seen.unusable
    assert "did not answer" in unusable.why


async def test_what_a_question_raises_reaches_whoever_asked() -> None:
    def fails() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await aside(fails, 10.0)
    assert await aside(lambda: 7, 10.0) == 7


@pytest.mark.parametrize("name", recorded.names())
async def test_the_doctor_is_told_what_the_engine_is_told(tmp_path: Path, name: str) -> None:
    machine = recorded.machine(name, tmp_path)
    told = await look_for_unusable(machine.probe.report, sources=machine.sources)
    assert tuple(told) == (await discover(sources=machine.sources)).hardware.unusable
