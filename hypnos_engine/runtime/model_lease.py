"""A lease as the server holds it: one model's engine, for one request."""

from collections.abc import AsyncGenerator, Awaitable, Callable

from hypnos_engine.domain.errors import DeviceOutOfMemory, HypnosError, InvalidRequest, WorkerDied
from hypnos_engine.domain.memory import Placement
from hypnos_engine.domain.model import ModelSpec
from hypnos_engine.engines.base import Embeddings, Embeds, Engine, GenerationEvent
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.lease import Switch

AnotherEngine = Callable[[HypnosError], Awaitable[Engine]]
"""Takes why an engine died; puts the request back in line and waits for the next engine, or raises the refusal."""


class ModelLease:
    """Implements `runtime.lease.Lease` over an engine; gives up nothing by itself, the dispatcher ends it."""

    def __init__(self, spec: ModelSpec, switch: Switch, engine: Engine, scope: str, request: int) -> None:
        self.spec = spec
        self.switch = switch
        self.finished_well = False
        """True once a generation came to its own end, or all vectors were made."""
        self.death: HypnosError | None = None
        """Set when the worker died under the lease, and the request with it."""
        self._engine = engine
        self._scope = scope
        self._request = request
        self._placement: Callable[[], Placement] = Placement
        self._again: AnotherEngine | None = None

    def may_return(self, again: AnotherEngine) -> None:
        """Say where another engine comes from when this one dies before it has said anything. It is asked once."""
        self._again = again

    def place(self, placement: Callable[[], Placement]) -> None:
        """Say where the present placement can be read."""
        self._placement = placement

    @property
    def placement(self) -> Placement:
        """Where the model is now."""
        return self._placement()

    async def generate(
        self,
        messages: tuple[m.ChatMessage, ...],
        *,
        max_tokens: int,
        num_ctx: int | None = None,
        sampling: m.Sampling | None = None,
        stop: tuple[str, ...] = (),
        thinking: bool = False,
    ) -> AsyncGenerator[GenerationEvent, None]:
        """Answer a conversation; obligations as `Engine.generate`."""
        request = m.Generate(
            id=self._request,
            scope=self._scope,
            messages=messages,
            max_tokens=max_tokens,
            num_ctx=num_ctx,
            sampling=sampling or m.Sampling(),
            stop=stop,
            thinking=thinking,
        )
        said = False
        while True:
            events = self._engine.generate(request)
            try:
                async for event in events:
                    said = True
                    if isinstance(event, m.Finished):
                        self.finished_well = True
                    yield event
            except (WorkerDied, DeviceOutOfMemory) as error:
                again = self._after_death(error, said=said)
                if again is None:
                    raise
            else:
                return
            finally:
                await events.aclose()
            self._engine = await again

    async def embed(self, texts: tuple[str, ...], *, truncate: bool = False, normalise: bool = True) -> Embeddings:
        """Make one vector of each text; obligations as `Embeds.embed`."""
        while True:
            if not isinstance(self._engine, Embeds):
                raise InvalidRequest(f"The model '{self.spec.id}' makes no vectors of texts: use an embedding model.")
            try:
                answer = await self._engine.embed(m.Embed(self._request, texts, truncate, normalise))
            except (WorkerDied, DeviceOutOfMemory) as error:
                again = self._after_death(error, said=False)
                if again is None:
                    raise
            else:
                self.finished_well = True
                return answer
            self._engine = await again

    def _after_death(self, error: HypnosError, *, said: bool) -> Awaitable[Engine] | None:
        """Another engine for the same request, if that is still possible; else note the death."""
        again, self._again = self._again, None
        if said or again is None:
            self.death = error
            return None
        return again(error)
