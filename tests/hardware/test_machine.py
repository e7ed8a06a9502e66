"""Snapshots and budgets from what probes said on several kinds of machine."""

import msgspec
import pytest

from hypnos_engine.domain.kinds import Accelerator, Topology
from hypnos_engine.hardware.machine import (
    GIB,
    PROGRAM_BYTES,
    HostMemory,
    MemoryLimits,
    host_memory,
    plan_budgets,
    snapshot,
)
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
    found = plan_budgets(seen, MemoryLimits())
    assert (found.device_bytes, found.host_bytes) == ((), 60 * GIB)


def test_a_card_keeps_half_a_gibibyte_and_warm_memory_is_half_the_ram() -> None:
    """§6.3: VRAM minus 512 MiB, tier 2 at most half the RAM."""
    seen = snapshot(HOST, report(CPU, RTX))
    assert (seen.topology, seen.accelerator) == (Topology.DISCRETE, Accelerator.CUDA)
    found = plan_budgets(seen, MemoryLimits())
    assert found.device_bytes == (32 * GIB - GIB // 2,)
    assert found.tier2_bytes == 32 * GIB


def test_an_integrated_gpu_beside_a_card_is_not_chosen_for_its_larger_memory() -> None:
    seen = snapshot(HOST, report(IGPU, RTX))
    assert seen.device_name == RTX.description


def test_all_cards_are_kept_in_the_library_s_order_and_sizes_are_not_summed() -> None:
    seen = snapshot(HOST, report(RTX, SMALL_RTX, IGPU))
    assert [(device.library_name, device.total_bytes) for device in seen.devices] == [
        ("CUDA0", 32 * GIB),
        ("CUDA1", 12 * GIB),
    ]
    assert seen.device_name == "NVIDIA GeForce RTX 5090, NVIDIA GeForce RTX 3060"
    assert plan_budgets(seen, MemoryLimits()).device_bytes == (32 * GIB - GIB // 2, 12 * GIB - GIB // 2)
    assert plan_budgets(seen, MemoryLimits(tier1_bytes=8 * GIB)).device_bytes == (8 * GIB, 8 * GIB)


def test_equal_cards_are_counted_in_their_name() -> None:
    seen = snapshot(HOST, report(RTX, msgspec.structs.replace(RTX, name="CUDA1")))
    assert seen.device_name == "2 x NVIDIA GeForce RTX 5090"


def test_only_accelerators_of_the_wanted_backend_count() -> None:
    other = Device("Vulkan0", "AMD Radeon RX 7600", "gpu", 7 * GIB, 8 * GIB)
    seen = snapshot(HOST, report(RTX, other), backend="vulkan")
    assert [device.name for device in seen.devices] == [other.description]
    assert snapshot(HOST, report(RTX, other), backend="metal").devices == ()


def test_the_contract_s_sizes() -> None:
    """[§6.3-25, §6.3-26] 24 GiB of VRAM give 25232932864 bytes, 64 GiB of RAM 34359738368 warm ones."""
    seen = snapshot(HOST, report(Device("CUDA0", "card", "gpu", 24 * GIB, 24 * GIB)))
    found = plan_budgets(seen, MemoryLimits())
    assert (found.device_bytes, found.tier2_bytes) == ((25232932864,), 34359738368)


def test_conversations_may_take_as_much_as_tier_2_unless_the_settings_say_otherwise() -> None:
    seen = snapshot(HOST, report(CPU, RTX))
    assert plan_budgets(seen, MemoryLimits()).park_max_bytes == 32 * GIB
    assert plan_budgets(seen, MemoryLimits(kv_park_max_bytes=GIB)).park_max_bytes == GIB
    assert plan_budgets(seen, MemoryLimits(kv_park_max_bytes=999 * GIB)).park_max_bytes == 60 * GIB


def test_the_cap_on_the_whole_program_leaves_workers_what_the_program_itself_does_not_take() -> None:
    """[§19-14]"""
    seen = snapshot(HOST, report(CPU, RTX))
    assert plan_budgets(seen, MemoryLimits()).process_cap_bytes is None
    capped = plan_budgets(seen, MemoryLimits(max_process_memory_bytes=8 * GIB))
    assert capped.process_cap_bytes == 8 * GIB - PROGRAM_BYTES
    assert plan_budgets(seen, MemoryLimits(max_process_memory_bytes=PROGRAM_BYTES // 2)).process_cap_bytes == 0


def test_apple_silicon_is_one_pool_bounded_by_metals_working_set() -> None:
    seen = snapshot(HostMemory(48 * GIB, 30 * GIB, 14), report(METAL))
    assert (seen.topology, seen.accelerator) == (Topology.UNIFIED, Accelerator.METAL)
    found = plan_budgets(seen, MemoryLimits())
    assert (found.device_bytes, found.host_bytes) == ((), 36 * GIB)


@pytest.mark.parametrize("with_report", [True, False])
def test_the_processor_alone_on_request_or_without_a_report(with_report: bool) -> None:
    seen = snapshot(HOST, report(CPU, RTX) if with_report else None, backend="cpu")
    assert seen.topology is Topology.HOST
    assert seen.devices == ()


def test_settings_win() -> None:
    seen = snapshot(HOST, report(CPU, RTX))
    found = plan_budgets(seen, MemoryLimits(tier1_bytes=8 * GIB, tier2_bytes=GIB, os_reserve_bytes=20 * GIB))
    assert (found.device_bytes, found.tier2_bytes, found.host_bytes) == ((8 * GIB,), GIB, 44 * GIB)
    alone = snapshot(HOST, None)
    assert plan_budgets(alone, MemoryLimits(tier1_bytes=2 * GIB)).host_bytes == 2 * GIB


def test_a_small_machine_still_plans_with_half_of_its_memory() -> None:
    seen = snapshot(HostMemory(4 * GIB, 2 * GIB, 2), None)
    assert plan_budgets(seen, MemoryLimits()).host_bytes == 2 * GIB


def test_this_machine_has_memory_and_cores() -> None:
    seen = host_memory()
    assert 0 < seen.available_bytes <= seen.total_bytes
    assert seen.cores >= 1
