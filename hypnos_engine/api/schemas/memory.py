"""The snapshot of all tiers (contract §14.1). Sizes in bytes unless a name says otherwise."""

import msgspec
from msgspec import UNSET, UnsetType

from hypnos_engine.api.schemas.models import LayerPlacementPlan
from hypnos_engine.domain.kinds import (
    Accelerator,
    EngineKind,
    Modality,
    MoeOffload,
    Priority,
    Residency,
    Tier,
    Topology,
)


class Capabilities(msgspec.Struct, frozen=True):
    accelerator: Accelerator
    topology: Topology
    device_name: str
    total_vram_bytes: int
    usable_vram_budget_bytes: int
    pinned_ram_budget_bytes: int
    physical_memory_bytes: int
    installed_memory_bytes: int
    simulated: bool
    tier2_to_tier1_bandwidth_gbps: float | None = None
    """null while it was not measured."""
    tier3_to_tier2_bandwidth_gbps: float | None = None
    """null while it was not measured."""


class ModelStatus(msgspec.Struct, frozen=True):
    id: str
    enabled: bool
    modality: Modality
    modalities: tuple[Modality, ...]
    engine: EngineKind
    total_weight_bytes: int
    priority: Priority
    current_tier: Tier
    placement: LayerPlacementPlan
    moe_offload: MoeOffload
    expert_bytes: int
    active_leases: int
    idle_seconds: float
    total_requests_served: int
    requests_per_minute: float
    reload_estimate_ms: float
    residency: Residency
    """State of the model's worker (Hypnos addition to the contract's fields)."""
    waiting: int
    """Requests that wait for this model (Hypnos addition)."""
    service_ms: float | UnsetType = UNSET
    """Average time that a request holds the model; absent before the first one ended."""
    estimated_wait_ms: float | UnsetType = UNSET
    """What a request arriving now would wait; absent before the first one ended."""
    problem: str | UnsetType = UNSET
    """Why the model cannot be served as configured (Hypnos addition); absent when nothing is wrong."""


class Eviction(msgspec.Struct, frozen=True):
    model: str
    for_model: str
    reason: str
    """memory_budget, full_gpu_placement, process_memory_cap or device_out_of_memory."""
    to_tier: Tier
    unix_ms: int


class MemoryStatus(msgspec.Struct, frozen=True):
    capabilities: Capabilities
    tier1_vram_used_bytes: int
    """What the planner has booked."""
    tier1_vram_free_bytes: int
    """The part of the budget that is not booked: with `tier1_vram_used_bytes` it adds up to the budget. Never negative:
    while more is booked than the budget has, it is 0 and the bookings alone exceed the budget. Tier 2 likewise."""
    tier1_vram_real_free_bytes: int
    tier1_vram_real_total_bytes: int
    tier1_vram_unaccounted_bytes: int
    """Device memory in use beyond the bookings."""
    tier1_vram_effective_free_bytes: int
    """What a promotion started now could take."""
    tier2_pinned_ram_used_bytes: int
    tier2_pinned_ram_free_bytes: int
    physical_pool_free_bytes: int | None
    """Free host memory where tier 1 and tier 2 share it; null on a discrete device."""
    process_footprint_bytes: int
    process_memory_bytes: int
    process_memory_cap_bytes: int | None
    models: tuple[ModelStatus, ...]
    """All configured models, disabled ones included."""
    recent_evictions: tuple[Eviction, ...]
    """Newest first."""
