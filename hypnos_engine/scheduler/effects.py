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


@dataclass(frozen=True, slots=True)
class Unload:
    """End a worker; answered by UnloadFinished."""

    model: ModelId
    for_model: ModelId | None
    """Whom the memory is for; None when nobody asked."""
    reason: str
    """A reason of contract §14 (memory_budget, ...), or `drain`."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The request may use the model; answered by LeaseEnded or RequestCancelled."""

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


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request is over without having started."""

    request: int
    error: HypnosError


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
class Record:
    """One decision with its numbers, for people."""

    kind: str
    model: ModelId
    because: str
    numbers: tuple[tuple[str, float], ...] = ()


Effect = Load | Unload | Grant | Refuse | ResizeContext | DenyContext | SetThreads | WakeAt | Record
