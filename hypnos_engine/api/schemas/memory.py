"""The snapshot of all tiers (contract §14.1). Sizes in bytes unless a name says otherwise."""

from typing import Literal

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


class UnusableDevice(msgspec.Struct, frozen=True):
    """A graphics processor of this machine that this build cannot compute on; nothing is planned with it."""

    name: str
    why: str
    mend: str
    """The command that makes it usable."""


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
    unusable_devices: tuple[UnusableDevice, ...] = msgspec.field(default_factory=tuple)
    """Hypnos addition to the contract's fields."""


class LoadStep(msgspec.Struct, frozen=True):
    """How far a load is."""

    phase: str
    progress: float
    """0 to 1."""


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
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
    """State of the model's worker (Hypnos addition to the contract's fields, like all that follow without another
    word)."""
    waiting: int
    """Requests that wait for this model."""
    device_bytes: int
    """Booked for the model on accelerators; on one pool 0."""
    host_bytes: int
    """Booked for the model's worker in host memory, pages of its files included."""
    held_bytes: int
    """Pages of its files that are held in host memory without a worker; models that share files share them."""
    parked_bytes: int
    """Parked conversations of the model."""
    load: LoadStep | UnsetType = UNSET
    """Only while the model is being loaded."""
    service_ms: float | UnsetType = UNSET
    """Average time that a request holds the model (contract §14.1); absent before the first one ended."""
    estimated_wait_ms: float | UnsetType = UNSET
    """What a request arriving now would wait (contract §14.1); absent before the first one ended."""
    problem: str | UnsetType = UNSET
    """Why the model cannot be served as configured; absent when nothing is wrong."""


class Eviction(msgspec.Struct, frozen=True):
    model: str
    for_model: str
    reason: str
    """memory_budget, full_gpu_placement, process_memory_cap or device_out_of_memory."""
    to_tier: Tier
    unix_ms: int


class Gpu(msgspec.Struct, frozen=True):
    """What the device's driver says of it. A figure that the driver does not give is null."""

    utilization_percent: int | None
    temperature_celsius: int | None
    power_watts: float | None
    sm_clock_mhz: int | None
    throttle_reasons: int | None
    """NVIDIA's bit mask."""
    throttled: bool | None
    ecc_uncorrected_errors: int | None
    retired_pages_pending: bool | None
    sampled_unix_ms: int


class DeviceMemory(msgspec.Struct, frozen=True):
    """Tier 1 of one accelerator with memory of its own."""

    index: int
    name: str
    budget_bytes: int
    used_bytes: int
    """What the planner has booked."""
    real_free_bytes: int
    real_total_bytes: int
    lost: bool
    """True while the device does not answer."""


class HeldFiles(msgspec.Struct, frozen=True):
    """One set of weight files whose pages are kept in host memory without a worker."""

    files: str
    size_bytes: int
    held_bytes: int
    """Resident at the last look."""
    locked_bytes: int
    """Of these, locked."""


class HeldPages(msgspec.Struct, frozen=True):
    """How tier 2 keeps its pages."""

    alive: bool
    """Whether the process that holds them runs; it is started when there is something to hold."""
    locking: bool
    """True where pages are locked, false where they are kept warm by reading."""
    why_not_locked: str | None
    """What to do about it."""
    held: tuple[HeldFiles, ...]


class ParkedModel(msgspec.Struct, frozen=True):
    """A model's parked conversations."""

    model: str
    slots: int
    tokens: int
    bytes: int
    parked_secs_ago: float


class KvPark(msgspec.Struct, frozen=True):
    """KV parking (contract §14.3)."""

    enabled: bool
    max_bytes: int
    used_bytes: int
    models: tuple[ParkedModel, ...]


class KvParkRequest(msgspec.Struct, frozen=True):
    """Body of `POST /v1/memory/kv-park`; at least one of the fields."""

    enabled: bool | None = None
    max_bytes: int | float | None = None


class Quantiles(msgspec.Struct, frozen=True):
    """Times in ms as upper bounds of the buckets that they fall into, since the server started."""

    p50: float
    p95: float
    p99: float
    count: int


class Latency(msgspec.Struct, frozen=True):
    """End-to-end times, by route and by declared workflow; entries appear with their first answer."""

    routes: dict[str, Quantiles]
    workflows: dict[str, Quantiles]


class Objective(msgspec.Struct, frozen=True):
    metric: Literal["first_token", "first_audio", "throughput"]
    target_ms: float | UnsetType = UNSET
    """Absent where only throughput counts."""


class ProfileStatus(msgspec.Struct, frozen=True):
    """The workload profile that the configuration names."""

    name: str
    objective: Objective


class HoldStatus(msgspec.Struct, frozen=True):
    """Whether somebody else has the accelerator (`POST /v1/memory/free`)."""

    held: bool
    until_unix_ms: int | None = None
    """When the hold ends by itself; null = never."""


class MemoryTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of the snapshot but the models."""

    sequence: int
    """Number of the last event of `/v1/memory/events` that is in this answer."""
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
    recent_evictions: tuple[Eviction, ...]
    """Newest first."""
    kv_park: KvPark
    latency: Latency
    hold: HoldStatus
    devices: tuple[DeviceMemory, ...]
    """One for each accelerator with memory of its own."""
    pages: HeldPages | UnsetType = UNSET
    """Absent where no pages can be held."""
    gpu: Gpu | UnsetType = UNSET
    """Absent where no driver tells."""
    profile: ProfileStatus | UnsetType = UNSET
    """Absent without `server.profile`."""


class MemoryStatus(MemoryTotals, frozen=True, kw_only=True):
    """The whole snapshot."""

    models: tuple[ModelStatus, ...]
    """All configured models, disabled ones included."""
