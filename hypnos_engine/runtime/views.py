"""Turns the scheduler's state into the plain views that the server shows. Reads only."""

from dataclasses import replace

from hypnos_engine.domain.kinds import Tier
from hypnos_engine.domain.memory import HardwareSnapshot
from hypnos_engine.runtime.lease import EvictionRecord, MemoryView, ModelView
from hypnos_engine.scheduler import ledger
from hypnos_engine.scheduler.core import Scheduler
from hypnos_engine.scheduler.state import ModelState


def model_view(scheduler: Scheduler, model: ModelState, now: float) -> ModelView:
    """One model at the moment `now`."""
    estimate = scheduler.estimated_wait_s(model.spec.id)
    return ModelView(
        spec=model.spec,
        enabled=model.spec.enabled,
        tier=scheduler.state.tier(model),
        residency=model.residency,
        placement=model.placement,
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
    )


def memory_view(
    scheduler: Scheduler,
    hardware: HardwareSnapshot,
    *,
    tier2_budget_bytes: int,
    process_bytes: int,
    process_cap_bytes: int | None,
    evictions: tuple[EvictionRecord, ...],
    now: float,
) -> MemoryView:
    """All tiers at the moment `now`. On one pool tier 1 is host memory, else the device's."""
    state = scheduler.state
    one_pool = state.budgets.one_pool
    footprints = [model.footprint for model in state.models.values()]
    on_device = sum(footprint.device + footprint.device_context for footprint in footprints)
    on_host = ledger.host_booked(state)
    return MemoryView(
        hardware=replace(hardware, host_available_bytes=state.host_available_bytes or hardware.host_available_bytes),
        tier1_budget_bytes=state.budgets.host_bytes if one_pool else sum(state.budgets.device_bytes),
        tier1_used_bytes=on_device + on_host if one_pool else on_device,
        tier1_real_free_bytes=state.host_available_bytes if one_pool else sum(state.device_free_bytes),
        tier1_real_total_bytes=hardware.host_total_bytes
        if one_pool
        else sum(device.total_bytes for device in hardware.devices),
        tier2_budget_bytes=tier2_budget_bytes,
        tier2_used_bytes=0 if one_pool else on_host,
        process_bytes=process_bytes,
        process_cap_bytes=process_cap_bytes,
        models=tuple(model_view(scheduler, model, now) for model in state.models.values()),
        evictions=evictions,
    )
