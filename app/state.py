"""What the desktop knows about its engine, as one frozen value that updates are folded into.

Knows no widget, no connection and no clock; decides nothing about how a value is shown.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum, auto

from msgspec import UNSET

from hypnos_engine.api.memory_fold import fold as fold_memory
from hypnos_engine.api.schemas.memory import MemoryStatus, ModelStatus
from hypnos_engine.api.schemas.memory_events import DecisionEvent, MemoryEvent
from hypnos_engine.domain.kinds import EngineKind, Modality, Priority, Residency, Tier, Topology


class Phase(StrEnum):
    """Life of the engine as the desktop sees it."""

    STARTING = auto()
    """No answer was read yet, or the startup models are still on their way."""
    READY = auto()
    UNREACHABLE = auto()
    ENDING = auto()


@dataclass(frozen=True, slots=True)
class Model:
    """One configured model."""

    id: str
    enabled: bool
    modalities: tuple[Modality, ...]
    engine: EngineKind
    priority: Priority
    tier: Tier
    residency: Residency
    weight_bytes: int
    device_bytes: int
    """Booked on accelerators."""
    host_bytes: int
    """Taken in RAM: by its worker, by pages that are kept warm and by parked conversations."""
    leases: int
    waiting: int
    served: int
    per_minute: float
    service_ms: float | None
    wait_ms: float | None
    problem: str | None
    progress: float | None = None
    """Part of the load that is done, 0 to 1; None when it does not load or nothing is known."""

    @property
    def is_loading(self) -> bool:
        return self.residency is Residency.LOADING


@dataclass(frozen=True, slots=True)
class Memory:
    """The tiers as wholes, in bytes."""

    device_name: str
    one_pool: bool
    """GPU memory and RAM are the same memory."""
    tier1_used_bytes: int
    tier1_budget_bytes: int
    tier2_used_bytes: int
    tier2_budget_bytes: int
    process_bytes: int


@dataclass(frozen=True, slots=True)
class Hold:
    """The user's wish to keep the GPU for themselves."""

    until_unix_ms: int | None
    """None: until it is given back by hand."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Something that the scheduler decided; `because` is a sentence for a person."""

    id: int
    unix_ms: int
    kind: str
    model: str
    because: str


DECISIONS_KEPT = 50


@dataclass(frozen=True, slots=True)
class View:
    """All that windows are painted from."""

    address: str
    own: bool
    """The engine runs inside this program; False: it ran already and this is only its window."""
    phase: Phase = Phase.STARTING
    reason: str = ""
    """Why it is not ready, in words."""
    memory: Memory | None = None
    models: tuple[Model, ...] = ()
    hold: Hold | None = None
    decisions: tuple[Decision, ...] = ()
    """Newest first."""
    status: MemoryStatus | None = field(default=None, repr=False)
    """What the values above were taken from, for the next event to change."""

    def model(self, name: str) -> Model | None:
        return next((model for model in self.models if model.id == name), None)


# --- what can be learnt ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Told:
    """An event of the engine."""

    event: MemoryEvent


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole of `/v1/memory/status`; replaces what was known."""

    status: MemoryStatus


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """The engine does not answer; `reason` is a sentence for a person."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The person asked it to end; `reason` says what it still waits for."""

    reason: str


@dataclass(frozen=True, slots=True)
class Recalled:
    """What was decided before anybody listened, newest first. News only to the list."""

    decisions: tuple[Decision, ...]


Update = Told | Snapshot | Recalled | Readiness | Lost | Ended


def fold(view: View, update: Update) -> View:
    """The view after an update. Ending is final: an engine that goes away is not reported as lost."""
    match update:
        case Told(DecisionEvent() as event):
            decision = Decision(event.id, event.unix_ms, event.kind, event.model, event.because)
            return replace(view, decisions=(decision, *view.decisions)[:DECISIONS_KEPT])
        case Told(event):
            return _with_status(_heard(view), fold_memory(view.status, event))
        case Recalled(decisions):
            return replace(view, decisions=decisions[:DECISIONS_KEPT])
        case Snapshot(status):
            return _with_status(_heard(view), status)
        case Ended(reason):
            return replace(view, phase=Phase.ENDING, reason=reason)
        case _ if view.phase is Phase.ENDING:
            return view
        case Readiness(ready, reason):
            return replace(view, phase=Phase.READY if ready else Phase.STARTING, reason="" if ready else reason)
        case Lost(reason):
            return replace(view, phase=Phase.UNREACHABLE, reason=reason)


def _heard(view: View) -> View:
    """An engine that could not be reached and now tells something is there again."""
    return replace(view, phase=Phase.READY, reason="") if view.phase is Phase.UNREACHABLE else view


def _with_status(view: View, status: MemoryStatus | None) -> View:
    if status is None:
        return view
    return replace(
        view,
        memory=_memory(status),
        models=tuple(_model(entry) for entry in status.models),
        hold=Hold(status.hold.until_unix_ms) if status.hold.held else None,
        status=status,
    )


def _memory(status: MemoryStatus) -> Memory:
    return Memory(
        device_name=status.capabilities.device_name,
        one_pool=status.capabilities.topology is not Topology.DISCRETE,
        tier1_used_bytes=status.tier1_vram_used_bytes,
        tier1_budget_bytes=status.capabilities.usable_vram_budget_bytes,
        tier2_used_bytes=status.tier2_pinned_ram_used_bytes,
        tier2_budget_bytes=status.capabilities.pinned_ram_budget_bytes,
        process_bytes=status.process_memory_bytes,
    )


def _model(entry: ModelStatus) -> Model:
    return Model(
        id=entry.id,
        enabled=entry.enabled,
        modalities=entry.modalities,
        engine=entry.engine,
        priority=entry.priority,
        tier=entry.current_tier,
        residency=entry.residency,
        weight_bytes=entry.total_weight_bytes,
        device_bytes=entry.device_bytes,
        host_bytes=entry.host_bytes + entry.held_bytes + entry.parked_bytes,
        leases=entry.active_leases,
        waiting=entry.waiting,
        served=entry.total_requests_served,
        per_minute=entry.requests_per_minute,
        service_ms=None if entry.service_ms is UNSET else entry.service_ms,
        wait_ms=None if entry.estimated_wait_ms is UNSET else entry.estimated_wait_ms,
        problem=None if entry.problem is UNSET else entry.problem,
        progress=None if entry.load is UNSET else min(1.0, max(0.0, entry.load.progress)),
    )
