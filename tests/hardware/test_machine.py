"""Snapshots and budgets from what probes said on several kinds of machine."""

import pytest

from hypnos_engine.domain.kinds import Accelerator, Topology
from hypnos_engine.hardware.machine import GIB, HostMemory, MemoryLimits, budgets, host_memory, snapshot
from hypnos_engine.ipc.messages import Device, ProbeReport

HOST = HostMemory(total_bytes=64 * GIB, available_bytes=50 * GIB, cores=16)
CPU = Device("CPU", "AMD EPYC", "cpu", 50 * GIB, 64 * GIB)
RTX = Device("CUDA0", "NVIDIA GeForce RTX 5090", "gpu", 30 * GIB, 32 * GIB)
SMALL_RTX = Device("CUDA1", "NVIDIA GeForce RTX 3060", "gpu", 11 * GIB, 12 * GIB)
IGPU = Device("Vulkan1", "AMD Radeon 780M", "igpu", 40 * GIB, 48 * GIB)
METAL = Device("MTL0", "Apple M4 Pro", "gpu", 36 * GIB, 36 * GIB)


def report(*devices: Device, offload: bool = True) -> ProbeReport:
    return ProbeReport("llama.cpp", "0.3.36", "AVX2 = 1", offload, devices)


def test_without_an_accelerator_the_host_is_tier_1() -> None:
    seen = snapshot(HOST, report(CPU, offload=False))
    assert (seen.topology, seen.accelerator, seen.device_name) == (Topology.HOST, Accelerator.CPU, "AMD EPYC")
    assert seen.devices == ()
    found = budgets(seen, MemoryLimits())
    assert (found.device_bytes, found.host_bytes) == (0, 60 * GIB)


def test_a_card_keeps_half_a_gibibyte_and_warm_memory_is_half_the_ram() -> None:
    """§6.3: VRAM minus 512 MiB, tier 2 at most half the RAM."""
    seen = snapshot(HOST, report(CPU, RTX))
    assert (seen.topology, seen.accelerator) == (Topology.DISCRETE, Accelerator.CUDA)
    found = budgets(seen, MemoryLimits())
    assert found.device_bytes == 32 * GIB - GIB // 2
    assert found.tier2_bytes == 32 * GIB


def test_an_integrated_gpu_beside_a_card_is_not_chosen_for_its_larger_memory() -> None:
    seen = snapshot(HOST, report(IGPU, RTX))
    assert seen.device_name == RTX.description


def test_of_two_cards_the_larger_is_planned_with_and_sizes_are_not_summed() -> None:
    seen = snapshot(HOST, report(SMALL_RTX, RTX))
    assert [device.total_bytes for device in seen.devices] == [32 * GIB]


def test_apple_silicon_is_one_pool_bounded_by_metals_working_set() -> None:
    seen = snapshot(HostMemory(48 * GIB, 30 * GIB, 14), report(METAL))
    assert (seen.topology, seen.accelerator) == (Topology.UNIFIED, Accelerator.METAL)
    found = budgets(seen, MemoryLimits())
    assert (found.device_bytes, found.host_bytes) == (0, 36 * GIB)


@pytest.mark.parametrize("with_report", [True, False])
def test_the_processor_alone_on_request_or_without_a_report(with_report: bool) -> None:
    seen = snapshot(HOST, report(CPU, RTX) if with_report else None, backend="cpu")
    assert seen.topology is Topology.HOST
    assert seen.devices == ()


def test_settings_win() -> None:
    seen = snapshot(HOST, report(CPU, RTX))
    found = budgets(seen, MemoryLimits(tier1_bytes=8 * GIB, tier2_bytes=GIB, os_reserve_bytes=20 * GIB))
    assert (found.device_bytes, found.tier2_bytes, found.host_bytes) == (8 * GIB, GIB, 44 * GIB)
    alone = snapshot(HOST, None)
    assert budgets(alone, MemoryLimits(tier1_bytes=2 * GIB)).host_bytes == 2 * GIB


def test_a_small_machine_still_plans_with_half_of_its_memory() -> None:
    seen = snapshot(HostMemory(4 * GIB, 2 * GIB, 2), None)
    assert budgets(seen, MemoryLimits()).host_bytes == 2 * GIB


def test_this_machine_has_memory_and_cores() -> None:
    seen = host_memory()
    assert 0 < seen.available_bytes <= seen.total_bytes
    assert seen.cores >= 1
