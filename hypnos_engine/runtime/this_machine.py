"""Finds out what this engine may use: the machine or the made-up one of the settings, its speeds, and the budgets.

Decides no number itself: sizes come from `hardware`, wishes from the settings.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from hypnos_engine.catalog.roots import Located, locate
from hypnos_engine.config.hardware_settings import HardwareSettings, SimulatedMachine
from hypnos_engine.config.settings import Settings
from hypnos_engine.domain.kinds import EngineKind, Topology
from hypnos_engine.domain.memory import HardwareSnapshot
from hypnos_engine.domain.model import ModelSpec
from hypnos_engine.hardware.bandwidths import FILE_NAME, Bandwidths, Speeds, StatedSpeeds, measure_disk
from hypnos_engine.hardware.discovery import Sources, aside, discover
from hypnos_engine.hardware.machine import MemoryLimits, host_memory, plan_budgets
from hypnos_engine.hardware.monitor import Monitor
from hypnos_engine.hardware.simulated import SimulatedMonitor, Use, simulated_snapshot
from hypnos_engine.runtime.local import Machine
from hypnos_engine.scheduler.limits import Budgets

DISK_S = 10.0
"""A disk that does not answer for so long is started without."""


async def find_machine(
    settings: Settings,
    roots: Sequence[Path],
    state_folder: Path,
    in_use: Callable[[], Use],
    *,
    sources: Sources | None = None,
) -> Machine:
    """Look at the machine and its disk, and plan the budgets. `in_use` is what a made-up machine counts as taken.

    Takes as long as the library needs to list its devices. Never raises for hardware that is not there.
    """
    wishes = settings.hardware
    if wishes.simulate is not None:
        return _made_up(wishes, wishes.simulate, in_use)
    wants_library = any(spec.engine is EngineKind.LLAMA for spec in settings.models)
    looking = discover(backend=wishes.backend.value, wants_library=wants_library, sources=sources)
    found, speeds = await asyncio.gather(looking, _speeds(settings.models, roots, state_folder / FILE_NAME))
    if found.hardware.topology is Topology.DISCRETE:
        speeds.copies_to(found.hardware.device_name)
    return _machine(found.hardware, wishes, found.monitor, speeds, found.hardware.cores)


def _made_up(wishes: HardwareSettings, made_up: SimulatedMachine, in_use: Callable[[], Use]) -> Machine:
    """The described machine; its workers compute on this one, with no more threads than it has."""
    hardware = simulated_snapshot(made_up)
    copies = hardware.topology is Topology.DISCRETE
    speeds = StatedSpeeds(
        float(made_up.tier3_to_tier2_bytes_per_s), float(made_up.tier2_to_tier1_bytes_per_s) if copies else None
    )
    cores = min(hardware.cores, host_memory().cores)
    return _machine(hardware, wishes, SimulatedMonitor(made_up, in_use), speeds, cores)


def _machine(
    hardware: HardwareSnapshot, wishes: HardwareSettings, monitor: Monitor, speeds: Speeds, cores: int
) -> Machine:
    limits = MemoryLimits(
        tier1_bytes=wishes.tier1_bytes,
        tier2_bytes=wishes.tier2_bytes,
        os_reserve_bytes=wishes.os_reserve_bytes,
        kv_park_max_bytes=wishes.kv_park_max_bytes,
        max_process_memory_bytes=wishes.max_process_memory_bytes,
    )
    planned = plan_budgets(hardware, limits)
    budgets = Budgets(
        device_bytes=planned.device_bytes,
        host_bytes=planned.host_bytes,
        cores=wishes.threads if isinstance(wishes.threads, int) else cores,
        device_layers=bool(hardware.devices),
        tier2_bytes=planned.tier2_bytes,
        park_bytes=planned.park_max_bytes if wishes.kv_park else 0,
        process_cap_bytes=planned.process_cap_bytes,
    )
    return Machine(
        hardware,
        budgets,
        tier2_budget_bytes=planned.tier2_bytes,
        process_cap_bytes=wishes.max_process_memory_bytes,
        park_max_bytes=planned.park_max_bytes,
        monitor=monitor,
        speeds=speeds,
    )


async def _speeds(models: Sequence[ModelSpec], roots: Sequence[Path], memory: Path) -> Bandwidths:
    """What is known of the machine's speeds; the disk of the models is measured when it never was."""
    speeds = Bandwidths(memory)

    def measure() -> None:
        weights = _largest(models, roots)
        if weights is not None:
            speeds.lies_on(weights)
            if speeds.disk_bytes_per_s is None:
                speeds.measured_disk(measure_disk(weights))

    with contextlib.suppress(TimeoutError):
        await aside(measure, DISK_S)
    return speeds


def _largest(models: Sequence[ModelSpec], roots: Sequence[Path]) -> Path | None:
    """The largest weights file of the models in service; None when there is none."""
    sizes: dict[Path, int] = {}
    for spec in models:
        found = locate(spec.weights_path, roots) if spec.enabled and spec.engine is not EngineKind.FAKE else None
        if isinstance(found, Located) and not found.is_folder:
            with contextlib.suppress(OSError):
                sizes[found.path] = found.path.stat().st_size
    return max(sizes, key=lambda path: sizes[path]) if sizes else None
