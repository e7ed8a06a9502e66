"""What a request cost, on every successful answer of a model (contract §5). Times in ms, rates per second."""

import msgspec
from msgspec import UNSET, UnsetType

from hypnos_engine.api.schemas.models import LayerPlacementPlan
from hypnos_engine.domain.kinds import Tier


class EngineTiming(msgspec.Struct, frozen=True):
    """Timings of the engine; a field that was not measured is absent."""

    queue_ms: float | UnsetType = UNSET
    context_ms: float | UnsetType = UNSET
    prefill_ms: float | UnsetType = UNSET
    decode_ms: float | UnsetType = UNSET
    ttft_ms: float | UnsetType = UNSET
    prefill_tokens_per_s: float | UnsetType = UNSET
    decode_tokens_per_s: float | UnsetType = UNSET
    cached_tokens: int | UnsetType = UNSET
    concurrent_slots: int | UnsetType = UNSET
    """Most requests that shared a decode step with this one, itself included."""
    drafted_tokens: int | UnsetType = UNSET
    """Tokens of the answer that were guessed ahead and checked; only for models with `draft` on."""
    accepted_tokens: int | UnsetType = UNSET
    """Guesses that came true."""


class TierSwitchPhases(msgspec.Struct, frozen=True):
    """Parts of the load that this request waited for."""

    load_mode: str
    """mmap or read."""
    weights_ms: float
    projector_ms: float
    context_ms: float
    total_ms: float
    kv_restore_ms: float | UnsetType = UNSET
    """Only when parked conversations came back."""
    kv_restored_tokens: int | UnsetType = UNSET


class Telemetry(msgspec.Struct, frozen=True):
    previous_tier: Tier
    """Where the model was when the request arrived."""
    placement: LayerPlacementPlan
    tier_switch_latency_ms: float
    """0 when no load was needed."""
    inference_latency_ms: float
    evicted_models: tuple[str, ...]
    engine: EngineTiming
    tier_switch_phases: TierSwitchPhases | UnsetType = UNSET
    """Only when this request loaded the model."""
