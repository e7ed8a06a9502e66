"""Everything that can happen to the scheduler. Times are seconds on the caller's monotonic clock, sizes are bytes."""

from dataclasses import dataclass

from hypnos_engine.domain.errors import HypnosError
from hypnos_engine.domain.kinds import MoeOffload, Tier
from hypnos_engine.domain.memory import Footprint
from hypnos_engine.domain.model import ModelId, ModelShape, ModelSpec
from hypnos_engine.scheduler.limits import Budgets, Limits

# --- requests -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Workflow:
    """The multi-step task that a request belongs to (contract §1.2)."""

    name: str
    run: str
    """Tells one run of the task from another."""
    ends: bool = False
    """True when the request is the task's last one."""


@dataclass(frozen=True, slots=True)
class RequestArrived:
    request: int
    """Unique for the life of the scheduler."""
    model: ModelId
    deadline_at: float | None = None
    """Moment after which the request must not start any more; None = no deadline."""
    key: str = ""
    """Label of the API key, for fair shares."""
    weight: float = 1.0
    """Share of the key; above 0."""
    cells: int = 0
    """KV cells that the request wants in all; 0 = whatever the model has."""
    workflow: Workflow | None = None
    next_model: ModelId | None = None
    """Whom the caller will ask next; unknown models are ignored."""


@dataclass(frozen=True, slots=True)
class RequestCancelled:
    """The client left, or its time was up; ends a lease if there is one already. Unknown requests are ignored."""

    request: int


@dataclass(frozen=True, slots=True)
class RequestReturned:
    """A lease ended with its worker before anything was sent: the request waits again, first in line, but only once.

    A request that comes back a second time is refused with `error`. Unknown requests are ignored.
    """

    request: int
    error: HypnosError


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """The last byte was sent or the generation failed. Unknown requests are ignored."""

    request: int
    ok: bool = True
    """False when the generation did not come to its own end; such leases say nothing about service times."""


# --- wishes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageRequested:
    """Bring a model to tier 1 although nobody waits for it, if that evicts nobody."""

    model: ModelId


@dataclass(frozen=True, slots=True)
class MoveRequested:
    """A person wants a model in a tier. Never waits for others: answered at once by Refuse, or by Moved when done."""

    request: int
    """Unique among requests too."""
    model: ModelId
    tier: Tier
    context_len: int | None = None
    """KV cells to allocate in tier 1; None = as configured."""


@dataclass(frozen=True, slots=True)
class HoldStarted:
    """Somebody wants the accelerator for themselves: what is on it leaves, and nothing is loaded there."""

    until: float | None = None
    """None = until HoldEnded."""


@dataclass(frozen=True, slots=True)
class HoldEnded:
    """The accelerator is ours again: what the hold drove away comes back."""


@dataclass(frozen=True, slots=True)
class DrainStarted:
    """The program is about to end: waiting requests are refused, running ones go on."""


# --- workers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadProgressed:
    model: ModelId
    fraction: float
    """0 to 1."""


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
class WorkerMeasured:
    """A ready worker was looked at again: processes grow with what they do."""

    model: ModelId
    private_bytes: int
    """Private and shared anonymous memory of its process, pages of files aside."""


# --- memory ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PagesFilled:
    """FillPages has ended. Fewer bytes than asked for mean that the rest could not be read or held."""

    files: str
    held_bytes: int


@dataclass(frozen=True, slots=True)
class PagesDropped:
    """DropPages has ended."""

    files: str


@dataclass(frozen=True, slots=True)
class PagesLost:
    """Pages that were held are not in memory any more; what is left is of no use and is dropped."""

    files: str


@dataclass(frozen=True, slots=True)
class KvParked:
    """What a model's parked conversations take of host memory from now on."""

    model: ModelId
    held_bytes: int


@dataclass(frozen=True, slots=True)
class MachineSampled:
    """What the machine has left at this moment, other programs considered."""

    host_available_bytes: int
    device_free_bytes: tuple[int, ...] = ()
    """One number for each accelerator with memory of its own."""


@dataclass(frozen=True, slots=True)
class BudgetsSet:
    """What may be used at all: from the settings and the hardware."""

    budgets: Budgets


@dataclass(frozen=True, slots=True)
class LimitsSet:
    """How long queues and waits may become: from the settings."""

    limits: Limits


@dataclass(frozen=True, slots=True)
class DeviceLost:
    """An accelerator does not answer any more: the workers on it are as good as dead."""

    device: int


@dataclass(frozen=True, slots=True)
class DeviceReturned:
    device: int


# --- the pool of models ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelInspected:
    """What a model's files say, or why they cannot be used."""

    model: ModelId
    shape: ModelShape | None
    problem: HypnosError | None


@dataclass(frozen=True, slots=True)
class ModelAdded:
    spec: ModelSpec


@dataclass(frozen=True, slots=True)
class ModelReplaced:
    """Running requests end with the old settings; waiting ones get the new. Answered by PoolChanged."""

    spec: ModelSpec
    shape: ModelShape | None = None
    problem: HypnosError | None = None


@dataclass(frozen=True, slots=True)
class ModelRemoved:
    """Running requests end; waiting ones are refused when the model has gone. Answered by PoolChanged."""

    model: ModelId


@dataclass(frozen=True, slots=True)
class ChangeAbandoned:
    """A replacement or removal took too long: the model stays as it is."""

    model: ModelId


@dataclass(frozen=True, slots=True)
class ModelSwitched:
    """Switched off: waiting requests are refused, the model goes to disk when the running ones have ended."""

    model: ModelId
    enabled: bool


@dataclass(frozen=True, slots=True)
class FilesTaken:
    """File sets are about to change on disk: whatever has them open goes, and nothing is loaded from them meanwhile."""

    files: frozenset[str]


@dataclass(frozen=True, slots=True)
class FilesReturned:
    """They may be loaded from again."""

    files: frozenset[str]


@dataclass(frozen=True, slots=True)
class OffloadSet:
    """Where a model's experts run from its next load on; a loaded one that nobody uses leaves tier 1 for that."""

    model: ModelId
    mode: MoeOffload


@dataclass(frozen=True, slots=True)
class Woken:
    """The moment of an earlier `WakeAt` has come."""


Event = (
    RequestArrived
    | RequestCancelled
    | RequestReturned
    | LeaseEnded
    | StageRequested
    | MoveRequested
    | HoldStarted
    | HoldEnded
    | DrainStarted
    | LoadProgressed
    | LoadFinished
    | LoadFailed
    | UnloadFinished
    | WorkerDied
    | ContextWanted
    | ContextResized
    | WorkerMeasured
    | PagesFilled
    | PagesDropped
    | PagesLost
    | KvParked
    | MachineSampled
    | BudgetsSet
    | LimitsSet
    | DeviceLost
    | DeviceReturned
    | ModelInspected
    | ModelAdded
    | ModelReplaced
    | ModelRemoved
    | ChangeAbandoned
    | ModelSwitched
    | FilesTaken
    | FilesReturned
    | OffloadSet
    | Woken
)
