"""A runtime that keeps every promise of the protocol without a model: what it says and when is written in a script.

Its queue, slots and leases are real: tests count them to see that nothing was left behind.
"""

import asyncio
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace

from hypnos_engine.domain.errors import DeadlineUnmeetable, HypnosError, ModelBusy, ModelDisabled, ModelNotFound
from hypnos_engine.domain.kinds import Accelerator, EngineKind, Modality, Residency, Tier, Topology
from hypnos_engine.domain.memory import HardwareSnapshot, Placement
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.engines.base import Embeddings, GenerationEvent
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.lease import Ask, EvictionRecord, Lease, MemoryView, ModelView, Switch

GIB = 1024**3
WARM = Switch(previous_tier=Tier.GPU, latency_ms=0.0, phases=None, evicted=(), waited_ms=0.0, estimated_wait_ms=None)

TIMING = m.EngineTiming(prefill_ms=1.5, decode_ms=2.25, cached_tokens=0, concurrent_slots=1)
SPEC = ModelSpec(ModelId("fake"), Modality.TEXT, EngineKind.FAKE, "fake.gguf")


class Gate:
    """A point of a script that waits until the test opens it, and tells the test when it was reached."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def passed(self) -> None:
        self.reached.set()
        await self.opened.wait()


@dataclass
class Script:
    """What one model does with each request."""

    pieces: tuple[str, ...] = ("Hello", ", ", "world")
    thoughts: tuple[str, ...] = ()
    finish_reason: str = "stop"
    prompt_tokens: int = 7
    cached_tokens: int = 0
    timing: m.EngineTiming = TIMING
    switch: Switch = WARM
    refuse: HypnosError | None = None
    """Raised on entering the lease."""
    reject: BaseException | None = None
    """Raised by the generation before the prompt is accepted."""
    fail: BaseException | None = None
    """Raised once all pieces are out, instead of the end."""
    ends_silently: bool = False
    before_grant: Gate | None = None
    before_accept: Gate | None = None
    before_end: Gate | None = None
    gates: dict[int, Gate] = field(default_factory=dict)
    """By the number of the piece that waits."""
    spec: ModelSpec = SPEC
    enabled: bool = True
    slots: int = 4
    max_queue: int = 64


@dataclass(frozen=True)
class Said:
    """One call of `generate`, as the model saw it."""

    ask: Ask
    messages: tuple[m.ChatMessage, ...]
    max_tokens: int
    num_ctx: int | None
    sampling: m.Sampling
    stop: tuple[str, ...]
    thinking: bool


class FakeRuntime:
    """`Runtime` over scripts, by model id."""

    def __init__(self, **scripts: Script) -> None:
        self.scripts = {ModelId(name): script for name, script in (scripts or {"fake": Script()}).items()}
        self.staging = False
        self.estimate_ms: float | None = None
        self.asks: list[Ask] = []
        self.said: list[Said] = []
        self.generating = 0
        self._held: dict[ModelId, int] = dict.fromkeys(self.scripts, 0)
        self._waiting: dict[ModelId, int] = dict.fromkeys(self.scripts, 0)
        self._served: dict[ModelId, int] = dict.fromkeys(self.scripts, 0)
        self._changed = asyncio.Event()

    @property
    def leases(self) -> int:
        return sum(self._held.values())

    @property
    def waiting(self) -> int:
        return sum(self._waiting.values())

    @property
    def idle(self) -> bool:
        return self.leases == 0 and self.waiting == 0 and self.generating == 0

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; it is asked after each change."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def lease(self, ask: Ask) -> AbstractAsyncContextManager[Lease]:
        return self._lease(ask)

    @asynccontextmanager
    async def _lease(self, ask: Ask) -> AsyncIterator[Lease]:
        self.asks.append(ask)
        script = self.scripts.get(ask.model)
        if script is None:
            raise ModelNotFound(f"no model {ask.model}")
        if not script.enabled:
            raise ModelDisabled(f"{ask.model} is off")
        if script.refuse is not None:
            raise script.refuse
        if self._held[ask.model] + self._waiting[ask.model] >= script.max_queue:
            raise ModelBusy(f"{script.max_queue} requests are queued or running for {ask.model}")
        if ask.deadline_s is not None and self.estimate_ms is not None and ask.deadline_s * 1000 < self.estimate_ms:
            raise DeadlineUnmeetable("the wait would be longer", retry_after_s=self.estimate_ms / 1000)
        await self._wait(ask.model, script)
        self._held[ask.model] += 1
        self._tell()
        try:
            yield FakeLease(self, ask, script)
        finally:
            self._held[ask.model] -= 1
            self._served[ask.model] += 1
            self._tell()

    async def _wait(self, model: ModelId, script: Script) -> None:
        self._waiting[model] += 1
        self._tell()
        try:
            if script.before_grant is not None:
                await script.before_grant.passed()
            await self.until(lambda: self._held[model] < script.slots)
        finally:
            self._waiting[model] -= 1
            self._tell()

    def count_generation(self, change: int) -> None:
        self.generating += change
        self._tell()

    def _tell(self) -> None:
        self._changed.set()

    def estimated_wait_ms(self, model: ModelId) -> float | None:
        return self.estimate_ms

    def model(self, model: ModelId) -> ModelView | None:
        script = self.scripts.get(model)
        return None if script is None else self._view(model, script)

    def models(self) -> tuple[ModelView, ...]:
        return tuple(self._view(model, script) for model, script in self.scripts.items())

    def _view(self, model: ModelId, script: Script) -> ModelView:
        return ModelView(
            spec=replace(script.spec, id=model),
            enabled=script.enabled,
            tier=Tier.GPU,
            residency=Residency.READY,
            placement=PLACEMENT,
            active_leases=self._held[model],
            waiting=self._waiting[model],
            idle_s=0.0,
            requests_served=self._served[model],
            requests_per_minute=0.0,
            total_weight_bytes=GIB,
            expert_bytes=0,
            reload_estimate_ms=1200.0,
            service_ms=self.estimate_ms,
            estimated_wait_ms=self.estimate_ms,
            problem=None,
        )

    def memory(self) -> MemoryView:
        return MemoryView(
            hardware=HARDWARE,
            tier1_budget_bytes=12 * GIB,
            tier1_used_bytes=3 * GIB,
            tier1_real_free_bytes=8 * GIB,
            tier1_real_total_bytes=16 * GIB,
            tier2_budget_bytes=10 * GIB,
            tier2_used_bytes=GIB,
            process_bytes=2 * GIB,
            process_cap_bytes=None,
            models=self.models(),
            evictions=(EvictionRecord(ModelId("old"), ModelId("fake"), "memory_budget", Tier.DISK, 1_793_481_500_000),),
        )


PLACEMENT = Placement(primary_tier=Tier.GPU, gpu_layers=30, vram_weight_bytes=GIB, allocated_context_len=8192)
HARDWARE = HardwareSnapshot(Topology.DISCRETE, Accelerator.CUDA, "Fake GPU", 32 * GIB, 20 * GIB, 8, simulated=True)


class FakeLease:
    def __init__(self, runtime: FakeRuntime, ask: Ask, script: Script) -> None:
        self.spec = script.spec
        self.switch = script.switch
        self.placement = PLACEMENT
        self._runtime = runtime
        self._ask = ask
        self._script = script

    async def generate(
        self,
        messages: tuple[m.ChatMessage, ...],
        *,
        max_tokens: int,
        num_ctx: int | None = None,
        sampling: m.Sampling = m.Sampling(),  # noqa: B008 - immutable
        stop: tuple[str, ...] = (),
        thinking: bool = False,
    ) -> AsyncGenerator[GenerationEvent, None]:
        script = self._script
        messages = m.unpacked(messages)
        self._runtime.said.append(Said(self._ask, messages, max_tokens, num_ctx, sampling, stop, thinking))
        self._runtime.count_generation(+1)
        try:
            if script.before_accept is not None:
                await script.before_accept.passed()
            if script.reject is not None:
                raise script.reject
            yield m.Accepted(1, script.prompt_tokens, script.cached_tokens)
            for thought in script.thoughts if thinking else ():
                yield m.Delta(1, thought, reasoning=True)
            for number, piece in enumerate(script.pieces):
                if number in script.gates:
                    await script.gates[number].passed()
                yield m.Delta(1, piece)
                await asyncio.sleep(0)
            if script.before_end is not None:
                await script.before_end.passed()
            if script.fail is not None:
                raise script.fail
            if not script.ends_silently:
                yield m.Finished(
                    1,
                    script.finish_reason,
                    script.prompt_tokens,
                    len(script.pieces),
                    script.cached_tokens,
                    script.timing,
                )
        finally:
            self._runtime.count_generation(-1)

    async def embed(self, texts: tuple[str, ...], *, truncate: bool = False, normalise: bool = True) -> Embeddings:
        """Two elements for each text: how long it is, and 1."""
        if self._script.reject is not None:
            raise self._script.reject
        values = array("f", [value for text in texts for value in (float(len(text)), 1.0)])
        counts = tuple(len(text.split()) for text in texts)
        return Embeddings(2, values.tobytes(), counts, (), self._script.timing)
