"""Turns what the probe and the operating system say into one snapshot, and a snapshot into budgets.

Pure but for `host_memory`, which asks the operating system.
"""

import os
import sys
from dataclasses import dataclass

import psutil

from hypnos_engine.domain.kinds import Accelerator, Topology
from hypnos_engine.domain.memory import Device, HardwareSnapshot
from hypnos_engine.ipc.messages import ProbeReport

GIB = 1024**3
DEVICE_RESERVE_BYTES = 512 * 1024**2
"""Left free on a discrete card for the desktop and for contexts (contract §6, budgets of the advisor)."""
OS_RESERVE_BYTES = 4 * GIB
"""Left to the operating system where models live in its memory (contract §6)."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    total_bytes: int
    available_bytes: int
    cores: int


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """What the settings say about budgets; None = derived from the machine."""

    tier1_bytes: int | None = None
    tier2_bytes: int | None = None
    os_reserve_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryBudgets:
    """Bytes that models may take. `device_bytes` is 0 where tier 1 is host memory."""

    device_bytes: int
    host_bytes: int
    tier2_bytes: int


def host_memory() -> HostMemory:
    """What the operating system says about memory and processors, container limits included where it knows them."""
    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else psutil.cpu_count(logical=False)
    return HostMemory(memory.total, memory.available, max(1, cores or 1))


def snapshot(host: HostMemory, report: ProbeReport | None, *, backend: str = "auto") -> HardwareSnapshot:
    """Describe the machine. `backend` `cpu` leaves every accelerator out; without a report there is only the CPU."""
    devices = () if backend == "cpu" or report is None or not report.gpu_offload else _devices(report)
    discrete = tuple(device for device in devices if not device.unified)
    chosen = discrete or devices
    if not chosen:
        return HardwareSnapshot(
            topology=Topology.HOST,
            accelerator=Accelerator.CPU,
            device_name=_cpu_name(report),
            host_total_bytes=host.total_bytes,
            host_available_bytes=host.available_bytes,
            cores=host.cores,
        )
    first = chosen[0]
    return HardwareSnapshot(
        topology=Topology.UNIFIED if first.unified else Topology.DISCRETE,
        accelerator=first.accelerator,
        device_name=first.name,
        host_total_bytes=host.total_bytes,
        host_available_bytes=host.available_bytes,
        cores=host.cores,
        # One card: models are not yet split over several, and a sum of cards would promise what no card has.
        devices=(max(chosen, key=lambda device: device.total_bytes),),
    )


def budgets(hardware: HardwareSnapshot, limits: MemoryLimits) -> MemoryBudgets:
    """Bytes for models: settings win, then the machine's own size minus what others need."""
    reserve = limits.os_reserve_bytes if limits.os_reserve_bytes is not None else OS_RESERVE_BYTES
    # A small machine would have nothing left: half of it is the least that is planned with.
    host = max(hardware.host_total_bytes - reserve, hardware.host_total_bytes // 2)
    if hardware.topology is Topology.DISCRETE:
        device = max(0, hardware.devices[0].total_bytes - DEVICE_RESERVE_BYTES)
        tier2 = limits.tier2_bytes if limits.tier2_bytes is not None else hardware.host_total_bytes // 2
        return MemoryBudgets(limits.tier1_bytes if limits.tier1_bytes is not None else device, host, tier2)
    if hardware.topology is Topology.UNIFIED:
        host = min(host, hardware.devices[0].total_bytes)
    tier1 = min(host, limits.tier1_bytes) if limits.tier1_bytes is not None else host
    tier2 = limits.tier2_bytes if limits.tier2_bytes is not None else tier1
    return MemoryBudgets(0, tier1, tier2)


def _devices(report: ProbeReport) -> tuple[Device, ...]:
    found: list[Device] = []
    for index, device in enumerate(report.devices):
        if device.kind not in ("gpu", "igpu"):
            continue
        accelerator = _accelerator(device.name)
        unified = device.kind == "igpu" or accelerator is Accelerator.METAL
        found.append(
            Device(index, device.description, accelerator, device.total_bytes, device.free_bytes, unified=unified)
        )
    return tuple(found)


def _accelerator(name: str) -> Accelerator:
    """ggml names its devices by backend: CUDA0, ROCm0, Vulkan1, Metal or MTL0."""
    prefixes = {
        "cuda": Accelerator.CUDA,
        "rocm": Accelerator.ROCM,
        "hip": Accelerator.ROCM,
        "metal": Accelerator.METAL,
        "mtl": Accelerator.METAL,
        "vulkan": Accelerator.VULKAN,
    }
    lowered = name.lower()
    return next((kind for prefix, kind in prefixes.items() if lowered.startswith(prefix)), Accelerator.VULKAN)


def _cpu_name(report: ProbeReport | None) -> str:
    for device in report.devices if report else ():
        if device.kind == "cpu":
            return device.description
    return "CPU"
