"""What the running engine shows of itself: models, tiers, holds and decisions at one moment, as plain values."""

from dataclasses import dataclass

from hypnos_engine.domain.kinds import Residency, Tier
from hypnos_engine.domain.memory import HardwareSnapshot, Placement
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.engines.holder import HolderReport
from hypnos_engine.hardware.monitor import GpuSample
from hypnos_engine.runtime.parking import ParkView
from hypnos_engine.scheduler.effects import Record


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model at one moment, for lists and status pages."""

    spec: ModelSpec
    enabled: bool
    tier: Tier
    residency: Residency
    placement: Placement
    active_leases: int
    waiting: int
    idle_s: float
    """Seconds since the last lease ended; 0 while leased."""
    requests_served: int
    requests_per_minute: float
    total_weight_bytes: int
    expert_bytes: int
    reload_estimate_ms: float
    service_ms: float | None
    """Average time that a request holds the model; None before the first one ended."""
    estimated_wait_ms: float | None
    problem: str | None
    """Why the model cannot be served as configured; None when nothing is known against it."""
    device_bytes: int = 0
    """Booked of accelerators' own memory."""
    host_bytes: int = 0
    """Booked of host memory for the worker, the pages that it maps included."""
    held_bytes: int = 0
    """Pages of its files that are held in host memory; models with the same files show the same bytes."""
    parked_bytes: int = 0
    load_phase: str | None = None
    """weights, projector, context or warmup; None when it is not being loaded or has not said anything yet."""
    load_progress: float | None = None
    """0 to 1 within the phase; None when it is not being loaded."""


@dataclass(frozen=True, slots=True)
class EvictionRecord:
    model: ModelId
    for_model: ModelId
    reason: str
    to_tier: Tier
    unix_ms: int


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One accelerator with memory of its own. Bytes."""

    name: str
    budget_bytes: int
    used_bytes: int
    """What the scheduler has booked."""
    real_free_bytes: int
    real_total_bytes: int
    lost: bool = False
    """True while it does not answer."""


@dataclass(frozen=True, slots=True)
class MovedModel:
    model: ModelId
    from_tier: Tier
    to_tier: Tier


@dataclass(frozen=True, slots=True)
class HoldView:
    """Whether the accelerator is kept free for its owner, and which models went or came back for it."""

    held: bool
    until_unix_ms: int | None = None
    """When it ends by itself; None = not before `restore`."""
    moved: tuple[MovedModel, ...] = ()


@dataclass(frozen=True, slots=True)
class OffloadChange:
    """What became of a new expert offload."""

    view: ModelView
    applies_now: bool
    """False when the model was busy: it applies from its next load on."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision of the scheduler with the moment it was made."""

    id: int
    """Counted from 1 since the start of the program."""
    unix_ms: int
    record: Record


@dataclass(frozen=True, slots=True)
class MemoryView:
    """The tiers at one moment. Bytes throughout."""

    hardware: HardwareSnapshot
    tier1_budget_bytes: int
    tier1_used_bytes: int
    """What the scheduler has booked."""
    tier1_real_free_bytes: int
    tier1_real_total_bytes: int
    tier2_budget_bytes: int
    tier2_used_bytes: int
    process_bytes: int
    """Memory of the supervisor and its workers, file pages counted once."""
    process_cap_bytes: int | None
    models: tuple[ModelView, ...]
    evictions: tuple[EvictionRecord, ...]
    """The last automatic evictions, newest first."""
    devices: tuple[DeviceView, ...] = ()
    """Tier 1 by accelerator, in the order of the budgets; empty where tier 1 is host memory."""
    tier1_unaccounted_bytes: int = 0
    """Device memory in use beyond the bookings (on one pool: host memory, other programs' aside)."""
    tier1_effective_free_bytes: int = 0
    """What a promotion started at this moment could take."""
    pages: HolderReport | None = None
    """What is held in tier 2; None where nothing holds pages."""
    parking: ParkView | None = None
    hold: HoldView | None = None
    gpu: GpuSample | None = None
    """None where no accelerator tells of itself."""
    tier2_to_tier1_bytes_per_s: float | None = None
    """None while not measured."""
    tier3_to_tier2_bytes_per_s: float | None = None
