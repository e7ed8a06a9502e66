"""The seam between the supervisor and whatever runs a model: one protocol, its obligations and its values.

Decides nothing. Every implementation passes `hypnos_engine.testing.engine_conformance`.
"""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from hypnos_engine.domain.errors import HypnosError
from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.blocks import Block

ProgressSink = Callable[[m.LoadProgress], None]
"""Called on the loop, at most ten times a second; must not block or raise."""

ContextSink = Callable[[m.ContextWanted | m.ContextResized], None]
"""Called on the loop when the worker wants a larger context or has rebuilt it; must not block or raise."""

GenerationEvent = m.Accepted | m.Delta | m.Finished
"""What a generation yields: exactly one Accepted, any number of Delta, exactly one Finished."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How an engine came to its end."""

    expected: bool
    """True after `unload`; False when it died by itself."""
    error: HypnosError | None
    """Why, when not expected: WorkerDied or DeviceOutOfMemory, with the last words of the process."""


class Engine(Protocol):
    """One model's worker, from its start to its end. All methods are called on the loop that made it.

    An engine is used once: `load`, any number of overlapping `generate`, `unload`. It never restarts itself.
    """

    kind: EngineKind

    async def load(self, request: m.Load, on_progress: ProgressSink, on_context: ContextSink) -> m.Loaded:
        """Start the worker and load the model; called once.

        Does not block the loop. Cancelling the call ends the worker before CancelledError leaves it. Raises LoadFailed
        (final: the file or the build is wrong), DeviceOutOfMemory, WorkerDied or EngineTimeout, and Cancelled when
        `unload` was called before or meanwhile; after any of them the worker is gone and `exited` returns.
        """
        ...

    def generate(self, request: m.Generate) -> AsyncGenerator[GenerationEvent, None]:
        """Answer a conversation; `request.id` is the caller's and unique among unfinished ones.

        Nothing happens before the first `__anext__`. Closing the iterator (or cancelling its consumer) stops the
        generation at the next token, exactly once, whatever it was doing. A slow consumer never stalls other requests:
        text waits for it joined together, bounded by the request's own length. Raises InvalidRequest before Accepted
        (the prompt fits no window), EngineFailed or WorkerDied at any time; after an error the iterator is finished.
        """
        ...

    def send(self, message: m.ResizeContext | m.DenyContext | m.SetThreads) -> None:
        """Pass a setting to the worker between two steps. Returns at once; a dead worker ignores it."""
        ...

    async def unload(self, grace_s: float = 2.0) -> None:
        """End the worker and return when its process is reaped. Idempotent, never raises, also during `load`.

        Running generations end with Cancelled. A worker that has not ended after `grace_s` is killed with its group.
        """
        ...

    async def exited(self) -> Exit:
        """Return once the process is reaped. Any number of callers, before or after the end."""
        ...


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One vector for each text of a request, in its order."""

    dimensions: int
    """Elements of each vector."""
    packed: bytes
    """float32, little-endian, vector after vector."""
    prompt_tokens: tuple[int, ...]
    """Tokens of each text, the model's own marks included."""
    truncated: tuple[int, ...]
    """Which texts were cut, counted from 0; none unless the request allowed it."""
    timing: m.EngineTiming


@runtime_checkable
class Embeds(Protocol):
    """The ability to make vectors of texts, of an engine whose `Load.embeddings` said so."""

    async def embed(self, request: m.Embed) -> Embeddings:
        """Make one vector of each text; `request.id` is the caller's and unique among unfinished ones of both kinds.

        Any number may overlap; they share the engine's batches and take turns in them. Cancelling the call stops the
        computation at its next batch. Raises InvalidRequest (a text that is too long or empty, which the message
        counts from 0; a model that was loaded to generate), ModelBusy, EngineFailed, and WorkerDied or Cancelled at the
        end of the engine; after any of them nothing of the request goes on.
        """
        ...


@runtime_checkable
class ParksKv(Protocol):
    """The ability to set conversations aside in a block, which outlives the worker, and to take them back.

    An engine that was loaded to make vectors has none, and answers with nothing.
    """

    async def park(self, block: Block) -> m.Parked:
        """Copy the conversations of slots that nobody uses into the block, as far as it holds them.

        The engine keeps them too; the block stays the caller's, and what it holds is complete when this returns, also
        for a worker that is killed right after. Raises EngineFailed (not loaded, or the worker does not take the
        block), WorkerDied, and Cancelled when the engine is unloaded. No time limit: a caller that cannot wait cancels,
        and then what the block holds is of no use.
        """
        ...

    async def restore(self, block: Block) -> m.Restored:
        """Take back what `park` copied, if it was another worker with the same weights, settings and build.

        Requests that are made afterwards find the conversations, each under its own scope. What does not fit or is
        damaged is dropped, never an error: `problem` says why. The block stays the caller's and is not changed. Raises
        as `park`.
        """
        ...


EngineFactory = Callable[[str], Engine]
"""Makes an unloaded engine for a model id; cheap, does not start a process."""
