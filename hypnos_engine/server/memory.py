"""`GET /v1/memory/status`: all tiers and models at one moment (contract §14.1). Derives sums, measures nothing."""

from aiohttp import web
from msgspec import UNSET

from hypnos_engine.api.schemas import memory as wire
from hypnos_engine.domain.kinds import Topology
from hypnos_engine.runtime.lease import MemoryView, ModelView
from hypnos_engine.server.answers import json_response
from hypnos_engine.server.exchange import RUNTIME
from hypnos_engine.server.telemetry import placement_plan


async def show_memory(request: web.Request) -> web.Response:
    """The whole snapshot; works while the startup models are staged."""
    return json_response(memory_status(request.app[RUNTIME].memory()))


def memory_status(view: MemoryView) -> wire.MemoryStatus:
    """A snapshot as the wire spells it. Unmeasured bandwidths are null."""
    hardware = view.hardware
    free = max(0, view.tier1_budget_bytes - view.tier1_used_bytes)
    in_use = max(0, view.tier1_real_total_bytes - view.tier1_real_free_bytes)
    one_pool = hardware.topology is not Topology.DISCRETE
    return wire.MemoryStatus(
        capabilities=_capabilities(view),
        tier1_vram_used_bytes=view.tier1_used_bytes,
        tier1_vram_free_bytes=free,
        tier1_vram_real_free_bytes=view.tier1_real_free_bytes,
        tier1_vram_real_total_bytes=view.tier1_real_total_bytes,
        tier1_vram_unaccounted_bytes=max(0, in_use - view.tier1_used_bytes),
        tier1_vram_effective_free_bytes=min(free, view.tier1_real_free_bytes),
        tier2_pinned_ram_used_bytes=view.tier2_used_bytes,
        tier2_pinned_ram_free_bytes=max(0, view.tier2_budget_bytes - view.tier2_used_bytes),
        physical_pool_free_bytes=hardware.host_available_bytes if one_pool else None,
        process_footprint_bytes=view.process_bytes,
        process_memory_bytes=view.process_bytes,
        process_memory_cap_bytes=view.process_cap_bytes,
        models=tuple(_model_status(model) for model in view.models),
        recent_evictions=tuple(
            wire.Eviction(entry.model, entry.for_model, entry.reason, entry.to_tier, entry.unix_ms)
            for entry in view.evictions
        ),
    )


def _capabilities(view: MemoryView) -> wire.Capabilities:
    hardware = view.hardware
    return wire.Capabilities(
        accelerator=hardware.accelerator,
        topology=hardware.topology,
        device_name=hardware.device_name,
        total_vram_bytes=view.tier1_real_total_bytes,
        usable_vram_budget_bytes=view.tier1_budget_bytes,
        pinned_ram_budget_bytes=view.tier2_budget_bytes,
        physical_memory_bytes=hardware.host_total_bytes,
        installed_memory_bytes=hardware.host_total_bytes,
        simulated=hardware.simulated,
    )


def _model_status(view: ModelView) -> wire.ModelStatus:
    spec = view.spec
    return wire.ModelStatus(
        id=spec.id,
        enabled=view.enabled,
        modality=spec.modality,
        modalities=spec.modalities,
        engine=spec.engine,
        total_weight_bytes=view.total_weight_bytes,
        priority=spec.priority,
        current_tier=view.tier,
        placement=placement_plan(view.placement),
        moe_offload=spec.moe_offload,
        expert_bytes=view.expert_bytes,
        active_leases=view.active_leases,
        idle_seconds=view.idle_s,
        total_requests_served=view.requests_served,
        requests_per_minute=view.requests_per_minute,
        reload_estimate_ms=view.reload_estimate_ms,
        residency=view.residency,
        waiting=view.waiting,
        service_ms=UNSET if view.service_ms is None else view.service_ms,
        estimated_wait_ms=UNSET if view.estimated_wait_ms is None else view.estimated_wait_ms,
        problem=UNSET if view.problem is None else view.problem,
    )
