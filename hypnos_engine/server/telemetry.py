"""Builds what the wire says about a model's place and a request's cost from the runtime's values; measures nothing."""

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from hypnos_engine.api.schemas.chat import PromptTokensDetails, Usage
from hypnos_engine.api.schemas.models import LayerPlacementPlan
from hypnos_engine.api.schemas.telemetry import EngineTiming, Telemetry, TierSwitchPhases
from hypnos_engine.domain.memory import Placement
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.lease import Lease

if TYPE_CHECKING:
    from hypnos_engine.runtime.parking import Restored

_DIGITS = 3


def placement_plan(placement: Placement) -> LayerPlacementPlan:
    """A placement as contract §18 spells it."""
    return LayerPlacementPlan(
        primary_tier=placement.primary_tier,
        gpu_layers=placement.gpu_layers,
        pinned_ram_layers=placement.pinned_ram_layers,
        ssd_layers=placement.ssd_layers,
        vram_weight_bytes=placement.vram_weight_bytes,
        vram_kv_and_workspace_bytes=placement.vram_kv_and_workspace_bytes,
        pinned_ram_bytes=placement.pinned_ram_bytes,
        allocated_context_len=placement.allocated_context_len,
        cpu_expert_layers=placement.cpu_expert_layers,
    )


def usage_of(finished: m.Finished) -> Usage:
    """Token counts; the cached part is told only when there was one (contract §7.2)."""
    cached = finished.cached_tokens
    return Usage(
        prompt_tokens=finished.prompt_tokens,
        completion_tokens=finished.completion_tokens,
        total_tokens=finished.prompt_tokens + finished.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached) if cached > 0 else UNSET,
    )


def telemetry_of(lease: Lease, finished: m.Finished, inference_s: float) -> Telemetry:
    """What the request cost (contract §5). `inference_s` is the time of the engine's call as the server saw it."""
    switch = lease.switch
    return Telemetry(
        previous_tier=switch.previous_tier,
        placement=placement_plan(lease.placement),
        tier_switch_latency_ms=round(switch.latency_ms, _DIGITS),
        inference_latency_ms=round(inference_s * 1000, _DIGITS),
        evicted_models=switch.evicted,
        engine=_engine_timing(finished.timing),
        tier_switch_phases=UNSET if switch.phases is None else _phases(switch.phases, switch.restored),
    )


def _engine_timing(timing: m.EngineTiming) -> EngineTiming:
    measured: dict[str, Any] = {}
    for name in timing.__struct_fields__:
        value = getattr(timing, name)
        if value is not None:
            measured[name] = round(value, _DIGITS) if isinstance(value, float) else value
    return EngineTiming(**measured)


def _phases(phases: m.LoadPhases, restored: "Restored | None") -> TierSwitchPhases:
    return TierSwitchPhases(
        load_mode=phases.load_mode,
        weights_ms=round(phases.weights_ms, _DIGITS),
        projector_ms=round(phases.projector_ms, _DIGITS),
        context_ms=round(phases.context_ms, _DIGITS),
        total_ms=round(phases.total_ms, _DIGITS),
        kv_restore_ms=UNSET if restored is None else round(restored.ms, _DIGITS),
        kv_restored_tokens=UNSET if restored is None else restored.tokens,
    )
