"""A lease as the server holds it: one model's engine, for one request."""

from collections.abc import AsyncGenerator, Callable

from hypnos_engine.domain.errors import DeviceOutOfMemory, HypnosError, WorkerDied
from hypnos_engine.domain.memory import Placement
from hypnos_engine.domain.model import ModelSpec
from hypnos_engine.engines.base import Engine, GenerationEvent
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.lease import Switch


class ModelLease:
    """Implements `runtime.lease.Lease` over an engine; gives up nothing by itself, the dispatcher ends it."""

    def __init__(self, spec: ModelSpec, switch: Switch, engine: Engine, scope: str, request: int) -> None:
        self.spec = spec
        self.switch = switch
        self.finished_well = False
        """True once a generation came to its own end."""
        self.death: HypnosError | None = None
        """Set when the worker died under the lease."""
        self._engine = engine
        self._scope = scope
        self._request = request
        self._placement: Callable[[], Placement] = Placement

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
        events = self._engine.generate(request)
        try:
            async for event in events:
                if isinstance(event, m.Finished):
                    self.finished_well = True
                yield event
        except (WorkerDied, DeviceOutOfMemory) as error:
            self.death = error
            raise
        finally:
            await events.aclose()
