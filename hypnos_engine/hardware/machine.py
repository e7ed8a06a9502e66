"""Turns what the probe and the operating system say into one snapshot, and a snapshot into budgets.

Pure but for `host_memory`, which asks the operating system.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import psutil

from hypnos_engine.domain.kinds import Accelerator, Topology
from hypnos_engine.domain.memory import Device, HardwareSnapshot, UnusableDevice
from hypnos_engine.ipc.messages import ProbeReport

GIB = 1024**3
DEVICE_RESERVE_BYTES = 512 * 1024**2
"""Left free on a discrete card for the desktop and for contexts (contract §6, budgets of the advisor)."""
OS_RESERVE_BYTES = 4 * GIB
"""Left to the operating system where models live in its memory (contract §6)."""
PROGRAM_BYTES = 160 * 1024**2
"""What the program itself takes beside its workers, out of the cap on all of them."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    total_bytes: int
    available_bytes: int
    cores: int


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """What the settings say about budgets; None = derived from the machine."""

    tier1_bytes: int | None = None
    """Of each accelerator with memory of its own, else of host memory."""
    tier2_bytes: int | None = None
    os_reserve_bytes: int | None = None
    kv_park_max_bytes: int | None = None
    max_process_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryBudgets:
    """Bytes that models may take."""

    device_bytes: tuple[int, ...]
    """Of each accelerator with memory of its own, in the snapshot's order; empty where tier 1 is host memory."""
    host_bytes: int
    tier2_bytes: int
    """Of the host's budget, what may be pages without a worker."""
    park_max_bytes: int
    """Of the host's budget, what may be parked conversations if any are parked."""
    process_cap_bytes: int | None
    """Host memory that workers and held pages may take under the cap on the whole program; None = no cap."""


def host_memory() -> HostMemory:
    """What the operating system says about memory and processors, container limits included where it knows them."""
    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else psutil.cpu_count(logical=False)
    return HostMemory(memory.total, memory.available, max(1, cores or 1))


def snapshot(
    host: HostMemory,
    report: ProbeReport | None,
    *,
    backend: str = "auto",
    unusable: Sequence[UnusableDevice] = (),
) -> HardwareSnapshot:
    """Describe the machine.

    1. Without a report, with a build for the processor alone, or with the backend `cpu`, there is only the processor.
    2. Of the library's accelerators only those of the wanted backend count; each card once, whoever drives it.
    3. Cards with memory of their own, in the library's order; an integrated processor is left out beside them.
    4. Else the first accelerator that shares the host's memory.
    """
    devices = () if backend == "cpu" or report is None or not report.gpu_offload else _devices(report)  # 1
    devices = _each_once(device for device in devices if backend in ("auto", _BACKENDS[device.accelerator]))  # 2
    discrete = tuple(device for device in devices if not device.unified)
    chosen = discrete or devices[:1]  # 3, 4
    common = HardwareSnapshot(
        topology=Topology.HOST,
        accelerator=Accelerator.CPU,
        device_name=_cpu_name(report),
        host_total_bytes=host.total_bytes,
        host_available_bytes=host.available_bytes,
        cores=host.cores,
        unusable=tuple(unusable),
    )
    if not chosen:
        return common
    first = chosen[0]
    return replace(
        common,
        topology=Topology.UNIFIED if first.unified else Topology.DISCRETE,
        accelerator=first.accelerator,
        device_name=together(device.name for device in chosen),
        devices=chosen,
    )


def together(names: Iterable[str]) -> str:
    """Names of devices as one: equal ones are counted."""
    listed = list(names)
    counted = ((name, listed.count(name)) for name in dict.fromkeys(listed))
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counted)


def plan_budgets(hardware: HardwareSnapshot, limits: MemoryLimits) -> MemoryBudgets:
    """Bytes for models: settings win, then the machine's own size minus what others need."""
    reserve = limits.os_reserve_bytes if limits.os_reserve_bytes is not None else OS_RESERVE_BYTES
    # A small machine would have nothing left: half of it is the least that is planned with.
    host = max(hardware.host_total_bytes - reserve, hardware.host_total_bytes // 2)
    devices: tuple[int, ...] = ()
    if hardware.topology is Topology.DISCRETE:
        own = limits.tier1_bytes
        devices = tuple(
            max(0, device.total_bytes - DEVICE_RESERVE_BYTES) if own is None else own for device in hardware.devices
        )
        tier2 = hardware.host_total_bytes // 2
    else:
        if hardware.topology is Topology.UNIFIED:
            host = min(host, hardware.devices[0].total_bytes)
        if limits.tier1_bytes is not None:
            host = min(host, limits.tier1_bytes)
        tier2 = host
    tier2 = min(tier2 if limits.tier2_bytes is None else limits.tier2_bytes, host)
    parked = tier2 if limits.kv_park_max_bytes is None else min(limits.kv_park_max_bytes, host)
    cap = limits.max_process_memory_bytes
    return MemoryBudgets(
        device_bytes=devices,
        host_bytes=host,
        tier2_bytes=tier2,
        park_max_bytes=parked,
        process_cap_bytes=None if cap is None else max(0, cap - PROGRAM_BYTES),
    )


def _devices(report: ProbeReport) -> tuple[Device, ...]:
    found: list[Device] = []
    for index, device in enumerate(report.devices):
        if device.kind not in ("gpu", "igpu"):
            continue
        accelerator = accelerator_of(device.name)
        found.append(
            Device(
                index=index,
                name=device.description,
                accelerator=accelerator,
                total_bytes=device.total_bytes,
                free_bytes=device.free_bytes,
                unified=device.kind == "igpu" or accelerator is Accelerator.METAL,
                library_name=device.name,
                bus_id=device.bus_id,
            )
        )
    return tuple(found)


def _each_once(devices: Iterable[Device]) -> tuple[Device, ...]:
    """A build with several backends lists a card once for each of them: the first, which is the card's own, counts."""
    kept: list[Device] = []
    for device in devices:
        twins = (
            other.bus_id == device.bus_id
            if device.bus_id and other.bus_id
            else other.name == device.name and other.accelerator is not device.accelerator
            for other in kept
        )
        if not any(twins):
            kept.append(device)
    return tuple(kept)


_BACKENDS = {
    Accelerator.CUDA: "cuda",
    Accelerator.ROCM: "rocm",
    Accelerator.METAL: "metal",
    Accelerator.VULKAN: "vulkan",
    Accelerator.CPU: "cpu",
}


def accelerator_of(name: str) -> Accelerator:
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
