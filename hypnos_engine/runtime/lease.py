"""What a request holds while a model works for it, and the seam through which the server asks for it."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from hypnos_engine.domain.kinds import MoeOffload, Tier
from hypnos_engine.domain.memory import Placement
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.engines.base import Embeddings, GenerationEvent
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.feed import ChangeFeed
from hypnos_engine.runtime.parking import ParkView, Restored
from hypnos_engine.runtime.snapshot import Decision, HoldView, MemoryView, ModelView, OffloadChange
from hypnos_engine.scheduler.events import Workflow


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for a lease, as the scheduler needs to know it."""

    model: ModelId
    key_label: str = "local"
    """Whose request it is: prefix caches are shared only within one label."""
    deadline_s: float | None = None
    """Longest wait before the start; None = no deadline."""
    weight: float = 1.0
    """Share of the key, above 0."""
    workflow: Workflow | None = None
    """The multi-step task that the request belongs to."""
    next_model: ModelId | None = None
    """Whom the caller will ask next, as it says; unknown ids are ignored."""
    cells: int = 0
    """KV cells that the request wants in all; 0 = whatever the model has."""


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
    restored: Restored | None = None
    """Parked conversations that came back with that load; None when none did."""
    overtaken: int = 0
    """Later requests that were served first."""


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

    # --- tiers by hand ----------------------------------------------------------------------------------------------

    async def move(self, model: ModelId, tier: Tier, *, context_len: int | None = None) -> ModelView:
        """Bring a model to a tier; returns once it is there. Never waits for other models.

        Raises ModelNotFound, ModelDisabled, ModelBusy (leased, on its way, or another load is running),
        InsufficientMemory, ModelNotAvailable, LoadFailed and its kin. A caller that leaves does not stop the move.
        """
        ...

    async def switch(self, model: ModelId, *, enabled: bool) -> ModelView:
        """Take a model out of service or bring it back; returns once it has left memory, or at once.

        Raises ModelNotFound, and ModelBusy when it is to be switched off while it is leased.
        """
        ...

    async def set_expert_offload(self, model: ModelId, mode: MoeOffload) -> OffloadChange:
        """Say where a model's experts run; a loaded idle one drops to tier 2 and takes it up at its next load.

        Raises ModelNotFound, ModelDisabled.
        """
        ...

    async def free(self, until_s: float | None) -> HoldView:
        """Keep the accelerator free for `until_s` seconds (None: until `restore`).

        Returns once every model that nobody used has left; those in use leave when their requests end.
        """
        ...

    async def restore(self) -> HoldView:
        """End the hold; returns once what it drove away is back or cannot come. Without a hold nothing happens."""
        ...

    def hold(self) -> HoldView | None:
        """The hold and what has left for it; None when there is none."""
        ...

    # --- what was decided and what changes --------------------------------------------------------------------------

    def decisions(self, limit: int) -> tuple[Decision, ...]:
        """The newest decisions, newest first; a bounded number is kept."""
        ...

    def changes(self) -> ChangeFeed:
        """Where changes of models, sums, loads and decisions can be read as they happen."""
        ...

    # --- parked conversations ---------------------------------------------------------------------------------------

    def parking(self) -> ParkView:
        """What is parked; also where parking is off or impossible."""
        ...

    async def set_parking(self, *, enabled: bool | None, max_bytes: int | None) -> ParkView:
        """Change either; what is parked beyond it is dropped, the oldest first. Lasts as long as the program."""
        ...
