"""What a request holds while a model works for it, and the seam through which the server asks for it."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from hypnos_engine.domain.kinds import Residency, Tier
from hypnos_engine.domain.memory import HardwareSnapshot, Placement
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.engines.base import Embeddings, GenerationEvent
from hypnos_engine.ipc import messages as m


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for a lease, as the scheduler needs to know it."""

    model: ModelId
    key_label: str = "local"
    """Whose request it is: prefix caches are shared only within one label."""
    deadline_s: float | None = None
    """Longest wait before the start; None = no deadline."""


@dataclass(frozen=True, slots=True)
class Switch:
    """What had to happen before the lease could be granted (contract §5)."""

    previous_tier: Tier
    """Where the model was when the request arrived."""
    latency_ms: float
    """Time spent loading for this request; 0 when the model was ready."""
    phases: m.LoadPhases | None
    """Parts of that load; None when nothing was loaded for this request."""
    evicted: tuple[ModelId, ...]
    waited_ms: float
    """Time from arrival to grant, the load included."""
    estimated_wait_ms: float | None
    """The estimate made on arrival; None while the model has no measured service time."""


class Lease(Protocol):
    """A granted right to use a loaded model. Ends when the context manager that gave it is left."""

    spec: ModelSpec
    switch: Switch

    @property
    def placement(self) -> Placement:
        """Where the model is now."""
        ...

    def generate(
        self,
        messages: tuple[m.ChatMessage, ...],
        *,
        max_tokens: int,
        num_ctx: int | None = None,
        sampling: m.Sampling = ...,
        stop: tuple[str, ...] = (),
        thinking: bool = False,
    ) -> AsyncGenerator[GenerationEvent, None]:
        """Answer a conversation on the leased model; obligations as `Engine.generate`."""
        ...

    async def embed(self, texts: tuple[str, ...], *, truncate: bool = False, normalise: bool = True) -> Embeddings:
        """Make one vector of each text on the leased model; obligations as `Embeds.embed`.

        Raises InvalidRequest also when the model's engine has no such ability.
        """
        ...


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


@dataclass(frozen=True, slots=True)
class EvictionRecord:
    model: ModelId
    for_model: ModelId
    reason: str
    to_tier: Tier
    unix_ms: int


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


class Runtime(Protocol):
    """What the HTTP server needs of the running engine. Called on the loop that owns the scheduler."""

    @property
    def staging(self) -> bool:
        """True while the startup models are being brought to their tiers."""
        ...

    def lease(self, ask: Ask) -> AbstractAsyncContextManager[Lease]:
        """Wait for the model and hold it until the block is left, whatever ends the block.

        Raises on entering: ModelNotFound, ModelDisabled, ModelBusy (the queue is full), DeadlineUnmeetable,
        ModelNotAvailable, InsufficientMemory, LoadFailed. Cancelling the wait gives the place in the queue up.
        """
        ...

    def estimated_wait_ms(self, model: ModelId) -> float | None:
        """What a request arriving now would wait; None without a measured service time."""
        ...

    def model(self, model: ModelId) -> ModelView | None:
        """The model's present state; None for an unknown id."""
        ...

    def models(self) -> tuple[ModelView, ...]:
        """All configured models in the order of the configuration, disabled ones included."""
        ...

    def memory(self) -> MemoryView:
        """A snapshot of all tiers; cheap, touches no device."""
        ...
