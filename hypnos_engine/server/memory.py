"""`GET /v1/memory/status`: all tiers and models at one moment (contract §14.1), and how its parts are spelled.

Translates; decides and measures nothing.
"""

from typing import TYPE_CHECKING, Any

from aiohttp import web
from msgspec import UNSET, UnsetType

from hypnos_engine.api.schemas import memory as wire
from hypnos_engine.domain.kinds import Topology
from hypnos_engine.runtime.feed import Seen
from hypnos_engine.runtime.snapshot import HoldView, MemoryView, ModelView
from hypnos_engine.server.answers import json_response
from hypnos_engine.server.exchange import LATENCIES, OPTIONS, RUNTIME
from hypnos_engine.server.options import WorkloadProfile
from hypnos_engine.server.telemetry import placement_plan
from hypnos_engine.telemetry.latency import Latencies
from hypnos_engine.telemetry.quantiles import Histogram

if TYPE_CHECKING:
    from hypnos_engine.engines.holder import HolderReport
    from hypnos_engine.hardware.monitor import GpuSample
    from hypnos_engine.runtime.parking import ParkView

_GIGA = 1e9
_NOTHING_PARKED = wire.KvPark(False, 0, 0, ())
_NO_HOLD = wire.HoldStatus(held=False)


async def show_memory(request: web.Request) -> web.Response:
    """The whole snapshot; works while the startup models are staged. What it tells is published as events before."""
    return json_response(memory_status(request.app[RUNTIME].changes().refresh(), request.app))


def memory_status(seen: Seen, app: web.Application) -> wire.MemoryStatus:
    """A snapshot as the wire spells it."""
    models = tuple(model_status(model) for model in seen.view.models)
    return wire.MemoryStatus(models=models, **totals(seen, app))


def totals(seen: Seen, app: web.Application) -> dict[str, Any]:
    """The fields of the snapshot beside its models, by name."""
    view = seen.view
    one_pool = view.hardware.topology is not Topology.DISCRETE
    return {
        "sequence": seen.seq,
        "capabilities": _capabilities(view),
        "tier1_vram_used_bytes": view.tier1_used_bytes,
        "tier1_vram_free_bytes": max(0, view.tier1_budget_bytes - view.tier1_used_bytes),
        "tier1_vram_real_free_bytes": view.tier1_real_free_bytes,
        "tier1_vram_real_total_bytes": view.tier1_real_total_bytes,
        "tier1_vram_unaccounted_bytes": view.tier1_unaccounted_bytes,
        "tier1_vram_effective_free_bytes": view.tier1_effective_free_bytes,
        "tier2_pinned_ram_used_bytes": view.tier2_used_bytes,
        "tier2_pinned_ram_free_bytes": max(0, view.tier2_budget_bytes - view.tier2_used_bytes),
        "physical_pool_free_bytes": view.hardware.host_available_bytes if one_pool else None,
        "process_footprint_bytes": view.process_bytes,
        "process_memory_bytes": view.process_bytes,
        "process_memory_cap_bytes": view.process_cap_bytes,
        "recent_evictions": tuple(
            wire.Eviction(entry.model, entry.for_model, entry.reason, entry.to_tier, entry.unix_ms)
            for entry in view.evictions
        ),
        "kv_park": _NOTHING_PARKED if view.parking is None else kv_park(view.parking),
        "latency": _latency(app[LATENCIES]),
        "hold": _NO_HOLD if view.hold is None else _hold(view.hold),
        "devices": tuple(
            wire.DeviceMemory(
                number, one.name, one.budget_bytes, one.used_bytes, one.real_free_bytes, one.real_total_bytes, one.lost
            )
            for number, one in enumerate(view.devices)
        ),
        "pages": UNSET if view.pages is None else _pages(view.pages),
        "gpu": UNSET if view.gpu is None else _gpu(view.gpu),
        "profile": _profile(app[OPTIONS].profile),
    }


def model_status(view: ModelView) -> wire.ModelStatus:
    """A model's entry as the wire spells it."""
    return wire.ModelStatus(**model_fields(view))


def model_fields(view: ModelView) -> dict[str, Any]:
    """The fields of a model's entry, by name."""
    spec = view.spec
    loading = view.load_phase is not None
    return {
        "id": spec.id,
        "enabled": view.enabled,
        "modality": spec.modality,
        "modalities": spec.modalities,
        "engine": spec.engine,
        "total_weight_bytes": view.total_weight_bytes,
        "priority": spec.priority,
        "current_tier": view.tier,
        "placement": placement_plan(view.placement),
        "moe_offload": spec.moe_offload,
        "expert_bytes": view.expert_bytes,
        "active_leases": view.active_leases,
        "idle_seconds": view.idle_s,
        "total_requests_served": view.requests_served,
        "requests_per_minute": view.requests_per_minute,
        "reload_estimate_ms": view.reload_estimate_ms,
        "residency": view.residency,
        "waiting": view.waiting,
        "device_bytes": view.device_bytes,
        "host_bytes": view.host_bytes,
        "held_bytes": view.held_bytes,
        "parked_bytes": view.parked_bytes,
        "load": wire.LoadStep(view.load_phase or "", view.load_progress or 0.0) if loading else UNSET,
        "service_ms": UNSET if view.service_ms is None else view.service_ms,
        "estimated_wait_ms": UNSET if view.estimated_wait_ms is None else view.estimated_wait_ms,
        "problem": UNSET if view.problem is None else view.problem,
    }


def kv_park(view: "ParkView") -> wire.KvPark:
    """The state of KV parking, in the status and on its own routes (contract §14.3)."""
    models = tuple(
        wire.ParkedModel(one.model, one.slots, one.tokens, one.bytes, one.parked_secs_ago) for one in view.models
    )
    return wire.KvPark(view.enabled, view.max_bytes, view.used_bytes, models)


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
        tier2_to_tier1_bandwidth_gbps=_gbps(view.tier2_to_tier1_bytes_per_s),
        tier3_to_tier2_bandwidth_gbps=_gbps(view.tier3_to_tier2_bytes_per_s),
        unusable_devices=tuple(wire.UnusableDevice(one.name, one.why, one.mend) for one in hardware.unusable),
    )


def _gbps(bytes_per_s: float | None) -> float | None:
    return None if bytes_per_s is None else round(bytes_per_s / _GIGA, 3)


def _hold(view: HoldView) -> wire.HoldStatus:
    return wire.HoldStatus(view.held, view.until_unix_ms)


def _pages(report: "HolderReport") -> wire.HeldPages:
    held = tuple(wire.HeldFiles(one.files, one.size_bytes, one.held_bytes, one.locked_bytes) for one in report.held)
    return wire.HeldPages(report.alive, report.locking, report.why_not_locked, held)


def _gpu(sample: "GpuSample") -> wire.Gpu:
    return wire.Gpu(
        utilization_percent=sample.utilization_percent,
        temperature_celsius=sample.temperature_celsius,
        power_watts=sample.power_watts,
        sm_clock_mhz=sample.sm_clock_mhz,
        throttle_reasons=sample.throttle_reasons,
        throttled=sample.throttled,
        ecc_uncorrected_errors=sample.ecc_uncorrected_errors,
        retired_pages_pending=sample.retired_pages_pending,
        sampled_unix_ms=sample.sampled_unix_ms,
    )


def _latency(latencies: Latencies) -> wire.Latency:
    return wire.Latency(
        routes={route: _quantiles(times) for route, times in latencies.routes.items()},
        workflows={name: _quantiles(times) for name, times in latencies.workflows.items()},
    )


def _quantiles(times: Histogram) -> wire.Quantiles:
    return wire.Quantiles(times.quantile_ms(0.5), times.quantile_ms(0.95), times.quantile_ms(0.99), times.count)


def _profile(profile: WorkloadProfile | None) -> wire.ProfileStatus | UnsetType:
    if profile is None:
        return UNSET
    target = UNSET if profile.target_ms is None else profile.target_ms
    return wire.ProfileStatus(profile.name, wire.Objective(profile.metric, target))
