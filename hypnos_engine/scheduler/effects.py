"""Everything that the scheduler can ask for. The dispatcher performs each effect and answers with exactly one event."""

from dataclasses import dataclass

from hypnos_engine.domain.errors import HypnosError
from hypnos_engine.domain.kinds import Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler.placement import Plan


@dataclass(frozen=True, slots=True)
class Load:
    """Start a worker; answered by LoadFinished or LoadFailed."""

    model: ModelId
    plan: Plan
    threads: int
    from_tier: Tier
    """RAM when the files' pages are held."""


@dataclass(frozen=True, slots=True)
class Unload:
    """End a worker; answered by UnloadFinished."""

    model: ModelId
    for_model: ModelId | None
    """Whom the memory is for; None when nobody asked."""
    reason: str
    """A reason of contract §14 (memory_budget, ...), or `hold`, `device_lost`, `move`, `offload`, `grown`, `pool`,
    `disabled`."""
    to_tier: Tier
    """RAM when the files' pages are held afterwards."""
    park_bytes: int = 0
    """Conversations may be parked in so much host memory, which is booked already; the rest is told by KvParked."""


@dataclass(frozen=True, slots=True)
class FillPages:
    """Read a file set into memory and hold it there; answered by PagesFilled."""

    files: str
    """The weights path as configured: models with the same one share its pages."""
    model: ModelId
    """A model that uses the files."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DropPages:
    """Let go of a file set's pages; answered by PagesDropped."""

    files: str
    for_model: ModelId | None


@dataclass(frozen=True, slots=True)
class DropParked:
    """Forget a model's parked conversations; nothing answers, the bytes are no longer booked."""

    model: ModelId


@dataclass(frozen=True, slots=True)
class Grant:
    """The request may use the model; answered by LeaseEnded, RequestReturned or RequestCancelled."""

    request: int
    model: ModelId
    previous_tier: Tier
    waited_s: float
    waited_for_load: bool
    loaded_s: float
    """Part of the wait in which the model was being loaded; 0 when it was ready."""
    evicted: tuple[ModelId, ...]
    estimated_wait_s: float | None
    """The estimate made on arrival."""
    overtaken: int = 0
    """Later requests that were served first."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request, or the wish to move a model, is over without having started."""

    request: int
    error: HypnosError


@dataclass(frozen=True, slots=True)
class Moved:
    """The wish to move a model is fulfilled."""

    request: int


@dataclass(frozen=True, slots=True)
class PoolChanged:
    """A replacement or removal is done, or was abandoned."""

    model: ModelId
    done: bool


@dataclass(frozen=True, slots=True)
class WorkflowEnded:
    """A multi-step task is over; from the arrival of its first request to the end of its last one."""

    name: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class ResizeContext:
    """Let a worker rebuild its cache; answered by ContextResized."""

    model: ModelId
    context_len: int


@dataclass(frozen=True, slots=True)
class DenyContext:
    model: ModelId


@dataclass(frozen=True, slots=True)
class SetThreads:
    model: ModelId
    threads: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send `Woken` at this moment; replaces the earlier one."""

    at: float


@dataclass(frozen=True, slots=True)
class Alternative:
    """A model that could have been chosen instead."""

    model: ModelId
    cost: float
    """What the decision went by, in the decision's own unit; the least was chosen."""
    why_not: str


@dataclass(frozen=True, slots=True)
class Record:
    """One decision with its numbers, for people."""

    kind: str
    model: ModelId
    because: str
    """One sentence."""
    numbers: tuple[tuple[str, float], ...] = ()
    chosen: str = ""
    """What was decided on, where it is not the model itself."""
    alternatives: tuple[Alternative, ...] = ()
    reason: str = ""
    """Of a wait, for those who count: one of a few words."""


Effect = (
    Load
    | Unload
    | FillPages
    | DropPages
    | DropParked
    | Grant
    | Refuse
    | Moved
    | PoolChanged
    | WorkflowEnded
    | ResizeContext
    | DenyContext
    | SetThreads
    | WakeAt
    | Record
)
