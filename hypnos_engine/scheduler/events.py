"""Everything that can happen to the scheduler. Times are seconds on the caller's monotonic clock, sizes are bytes."""

from dataclasses import dataclass

from hypnos_engine.domain.errors import HypnosError
from hypnos_engine.domain.memory import Footprint
from hypnos_engine.domain.model import ModelId, ModelShape


@dataclass(frozen=True, slots=True)
class RequestArrived:
    request: int
    """Unique for the life of the scheduler."""
    model: ModelId
    deadline_at: float | None = None
    """Moment after which the request must not start any more; None = no deadline."""


@dataclass(frozen=True, slots=True)
class RequestCancelled:
    """The client left, or its time was up; ends a lease if there is one already. Unknown requests are ignored."""

    request: int


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """The last byte was sent or the generation failed. Unknown requests are ignored."""

    request: int
    ok: bool = True
    """False when the generation did not come to its own end; such leases say nothing about service times."""


@dataclass(frozen=True, slots=True)
class StageRequested:
    """Bring a model to tier 1 although nobody waits for it, if that evicts nobody."""

    model: ModelId


@dataclass(frozen=True, slots=True)
class LoadFinished:
    model: ModelId
    measured: Footprint
    """What the worker holds, as it reported it."""
    context_len: int
    gpu_layers: int


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The worker of a load is gone again."""

    model: ModelId
    error: HypnosError


@dataclass(frozen=True, slots=True)
class UnloadFinished:
    """The worker's process is reaped."""

    model: ModelId


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A ready worker is gone without having been asked to go."""

    model: ModelId
    error: HypnosError


@dataclass(frozen=True, slots=True)
class ContextWanted:
    """A worker asks for a larger KV cache."""

    model: ModelId
    context_len: int


@dataclass(frozen=True, slots=True)
class ContextResized:
    """A worker has rebuilt its KV cache, or could not and kept the old one."""

    model: ModelId
    context_len: int
    measured: Footprint


@dataclass(frozen=True, slots=True)
class ModelInspected:
    """What a model's files say, or why they cannot be used."""

    model: ModelId
    shape: ModelShape | None
    problem: HypnosError | None


@dataclass(frozen=True, slots=True)
class MachineSampled:
    """What the machine has left at this moment, other programs considered."""

    host_available_bytes: int
    device_free_bytes: int


@dataclass(frozen=True, slots=True)
class BudgetsSet:
    """What may be used at all: from the settings and the hardware."""

    budgets: "Budgets"


@dataclass(frozen=True, slots=True)
class DrainStarted:
    """The program is about to end: waiting requests are refused, running ones go on."""


@dataclass(frozen=True, slots=True)
class Woken:
    """The moment of an earlier `WakeAt` has come."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """Bytes that models may take, per kind of memory, and the processors that they share."""

    device_bytes: int
    """Budget of the accelerator's own memory; 0 where there is none or where it is the host's."""
    host_bytes: int
    """Budget of host memory for live workers."""
    cores: int
    device_layers: bool
    """True when layers can be given to an accelerator, whoever owns its memory."""


Event = (
    RequestArrived
    | RequestCancelled
    | LeaseEnded
    | StageRequested
    | LoadFinished
    | LoadFailed
    | UnloadFinished
    | WorkerDied
    | ContextWanted
    | ContextResized
    | ModelInspected
    | MachineSampled
    | BudgetsSet
    | DrainStarted
    | Woken
)
