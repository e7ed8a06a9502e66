"""Turns the scheduler's state into the plain views that the server shows. Reads only."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hypnos_engine.domain.kinds import Pages, Residency, Tier
from hypnos_engine.domain.memory import HardwareSnapshot, Placement
from hypnos_engine.domain.model import ModelId
from hypnos_engine.engines.holder import HolderReport
from hypnos_engine.hardware.monitor import DeviceSample
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.parking import ParkView
from hypnos_engine.runtime.snapshot import DeviceView, EvictionRecord, HoldView, MemoryView, ModelView
from hypnos_engine.scheduler import ledger
from hypnos_engine.scheduler.core import Scheduler
from hypnos_engine.scheduler.state import ModelState, State


@dataclass(frozen=True, slots=True)
class Beside:
    """What belongs to a view of the memory and is not the scheduler's."""

    hardware: HardwareSnapshot
    devices: DeviceSample
    tier2_budget_bytes: int
    program_bytes: int
    """Memory of the supervisor itself."""
    process_cap_bytes: int | None
    evictions: tuple[EvictionRecord, ...]
    progress: Mapping[ModelId, m.LoadProgress]
    pages: HolderReport | None
    parking: ParkView | None
    hold: HoldView | None
    tier2_to_tier1_bytes_per_s: float | None
    tier3_to_tier2_bytes_per_s: float | None


def model_view(scheduler: Scheduler, model: ModelState, progress: m.LoadProgress | None, now: float) -> ModelView:
    """One model at the moment `now`; `progress` is the newest of its load."""
    name = model.spec.id
    estimate = scheduler.estimated_wait_s(name)
    files = scheduler.state.files.get(model.files)
    loading = model.residency is Residency.LOADING
    return ModelView(
        spec=model.spec,
        enabled=model.spec.enabled,
        tier=scheduler.state.tier(model),
        residency=model.residency,
        placement=_placement(scheduler.state, model),
        active_leases=len(model.leases),
        waiting=len(model.waiting),
        idle_s=0.0 if model.leases else max(0.0, now - model.last_used_at),
        requests_served=model.served,
        requests_per_minute=model.requests_per_minute(now),
        total_weight_bytes=model.shape.tensor_bytes if model.shape else 0,
        expert_bytes=model.shape.expert_bytes if model.shape else 0,
        reload_estimate_ms=scheduler.state.reload_s(model, Tier.GPU) * 1e3,
        service_ms=None if model.service_s is None else model.service_s * 1e3,
        estimated_wait_ms=None if estimate is None else estimate * 1e3,
        problem=None if model.problem is None else model.problem.message,
        device_bytes=0 if scheduler.state.budgets.one_pool else model.device_bytes,
        host_bytes=model.private_bytes + model.mapped_bytes,
        held_bytes=files.held_bytes if files is not None and files.pages is Pages.HELD else 0,
        parked_bytes=model.parked_bytes,
        load_phase=progress.phase if loading and progress is not None else None,
        load_progress=(0.0 if progress is None else progress.fraction) if loading else None,
    )


def _placement(state: State, model: ModelState) -> Placement:
    """Where a model's layers are: with its worker, else in the held pages of its files, else on disk."""
    if state.tier(model) is not Tier.RAM:
        return model.placement
    layers = len(model.shape.layers) if model.shape else 0
    held_bytes = state.files[model.files].held_bytes
    return Placement(primary_tier=Tier.RAM, pinned_ram_layers=layers, pinned_ram_bytes=held_bytes)


def memory_view(scheduler: Scheduler, beside: Beside, now: float) -> MemoryView:
    """All tiers at the moment `now`. On one pool tier 1 is host memory, else the devices'.

    Tier 1 is what live workers hold there; tier 2 are pages of files and parked conversations, each byte in one of
    the two at most.
    """
    state, hardware = scheduler.state, beside.hardware
    one_pool = state.budgets.one_pool
    devices = _devices(state, beside)
    pages_and_parked = ledger.host_booked(state) - sum(model.private_bytes for model in state.models.values())
    mapped = _mapped_by_workers(state) if one_pool else 0
    private = sum(model.private_bytes for model in state.models.values())
    used = private + mapped if one_pool else sum(device.used_bytes for device in devices)
    total = hardware.host_total_bytes if one_pool else sum(device.real_total_bytes for device in devices)
    free = state.host_available_bytes if one_pool else sum(device.real_free_bytes for device in devices)
    takes = ledger.free_without(state, ledger.NOBODY)
    return MemoryView(
        hardware=replace(hardware, host_available_bytes=state.host_available_bytes or hardware.host_available_bytes),
        tier1_budget_bytes=state.budgets.host_bytes if one_pool else sum(state.budgets.device_bytes),
        tier1_used_bytes=used,
        tier1_real_free_bytes=free,
        tier1_real_total_bytes=total,
        tier2_budget_bytes=beside.tier2_budget_bytes,
        tier2_used_bytes=pages_and_parked - mapped,
        process_bytes=beside.program_bytes + ledger.host_booked(state),
        process_cap_bytes=beside.process_cap_bytes,
        models=tuple(
            model_view(scheduler, model, beside.progress.get(name), now) for name, model in state.models.items()
        ),
        evictions=beside.evictions,
        devices=devices,
        tier1_unaccounted_bytes=max(0, total - free - used) if one_pool else sum(map(_unaccounted, devices)),
        tier1_effective_free_bytes=takes.host_bytes if one_pool else sum(takes.device_bytes),
        pages=beside.pages,
        parking=beside.parking,
        hold=beside.hold,
        gpu=beside.devices.gpu,
        tier2_to_tier1_bytes_per_s=beside.tier2_to_tier1_bytes_per_s,
        tier3_to_tier2_bytes_per_s=beside.tier3_to_tier2_bytes_per_s,
    )


def _mapped_by_workers(state: State) -> int:
    """Pages of files that live workers use, each once."""
    lines: dict[str, int] = {}
    for model in state.models.values():
        lines[model.files] = max(lines.get(model.files, 0), model.mapped_bytes)
    return sum(lines.values())


def _devices(state: State, beside: Beside) -> tuple[DeviceView, ...]:
    found = [device for device in beside.hardware.devices if not device.unified]
    free = state.device_free_bytes
    return tuple(
        DeviceView(
            name=found[index].name if index < len(found) else f"device {index}",
            budget_bytes=budget,
            used_bytes=ledger.device_booked(state, index),
            real_free_bytes=free[index] if index < len(free) else 0,
            real_total_bytes=found[index].total_bytes if index < len(found) else budget,
            lost=index in state.lost_devices,
        )
        for index, budget in enumerate(state.budgets.device_bytes)
    )


def _unaccounted(device: DeviceView) -> int:
    """Bytes of a device that are in use beyond what is booked; nothing is known of one that does not answer."""
    return 0 if device.lost else max(0, device.real_total_bytes - device.real_free_bytes - device.used_bytes)
