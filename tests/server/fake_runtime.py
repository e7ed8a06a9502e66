"""A runtime that keeps every promise of the protocol without a model: what it says and when is written in a script.

Its queue, slots and leases are real: tests count them to see that nothing was left behind.
"""

import asyncio
import time
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hypnos_engine.domain.errors import (
    DeadlineUnmeetable,
    HypnosError,
    InvalidRequest,
    ModelBusy,
    ModelDisabled,
    ModelNotFound,
)
from hypnos_engine.domain.kinds import Accelerator, EngineKind, Modality, MoeOffload, Residency, Tier, Topology
from hypnos_engine.domain.memory import HardwareSnapshot, Placement
from hypnos_engine.domain.model import ModelId, ModelShape, ModelSpec
from hypnos_engine.engines.base import Embeddings, GenerationEvent
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.feed import ChangeFeed, ChangeKind
from hypnos_engine.runtime.lease import Ask, Lease, Switch
from hypnos_engine.runtime.parking import ParkView
from hypnos_engine.runtime.snapshot import (
    Decision,
    DeviceView,
    EvictionRecord,
    HoldView,
    MemoryView,
    ModelView,
    MovedModel,
    OffloadChange,
)

if TYPE_CHECKING:
    from hypnos_engine.engines.holder import HolderReport
    from hypnos_engine.hardware.monitor import GpuSample

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
    tier: Tier = Tier.GPU
    refuse_move: HypnosError | None = None
    """Raised by a wish to move, switch or offload the model."""
    before_moved: Gate | None = None
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
        self.moves: list[tuple[ModelId, Tier, int | None]] = []
        self.said: list[Said] = []
        self.generating = 0
        self._held: dict[ModelId, int] = dict.fromkeys(self.scripts, 0)
        self._waiting: dict[ModelId, int] = dict.fromkeys(self.scripts, 0)
        self._served: dict[ModelId, int] = dict.fromkeys(self.scripts, 0)
        self._changed = asyncio.Event()
        self.hardware = HARDWARE
        self.used_bytes = 3 * GIB
        self.gpu: GpuSample | None = None
        self.pages: HolderReport | None = None
        self.recorded: list[Decision] = []
        self.park = ParkView(False, GIB, 0, ())
        self._hold: HoldView | None = None
        self._feed = ChangeFeed(self.memory)

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
        self._feed.touch()

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
            tier=script.tier,
            residency=Residency.READY if script.tier is Tier.GPU else Residency.COLD,
            placement=PLACEMENT if script.tier is Tier.GPU else Placement(primary_tier=script.tier),
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
            device_bytes=2 * GIB if script.tier is Tier.GPU else 0,
            host_bytes=GIB if script.tier is Tier.GPU else 0,
            held_bytes=GIB if script.tier is Tier.RAM else 0,
        )

    def memory(self) -> MemoryView:
        return MemoryView(
            hardware=self.hardware,
            tier1_budget_bytes=12 * GIB,
            tier1_used_bytes=self.used_bytes,
            tier1_real_free_bytes=8 * GIB,
            tier1_real_total_bytes=16 * GIB,
            tier2_budget_bytes=10 * GIB,
            tier2_used_bytes=GIB,
            process_bytes=2 * GIB,
            process_cap_bytes=None,
            models=self.models(),
            evictions=(EvictionRecord(ModelId("old"), ModelId("fake"), "memory_budget", Tier.DISK, 1_793_481_500_000),),
            devices=(DeviceView("Fake GPU", 12 * GIB, self.used_bytes, 8 * GIB, 16 * GIB),),
            tier1_unaccounted_bytes=5 * GIB,
            tier1_effective_free_bytes=8 * GIB,
            pages=self.pages,
            parking=self.park,
            hold=self._hold,
            gpu=self.gpu,
            tier2_to_tier1_bytes_per_s=25e9,
        )

    # --- tiers by hand ----------------------------------------------------------------------------------------------

    async def move(self, model: ModelId, tier: Tier, *, context_len: int | None = None) -> ModelView:
        script = await self._movable(model)
        if not script.enabled:
            raise ModelDisabled(f"{model} is off")
        if self._held[model]:
            raise ModelBusy(f"{model} is in use")
        script.tier = tier
        self.moves.append((model, tier, context_len))
        self._tell()
        return self._view(model, script)

    async def switch(self, model: ModelId, *, enabled: bool) -> ModelView:
        script = await self._movable(model)
        if self._held[model] and not enabled:
            raise ModelBusy(f"{model} is in use")
        script.enabled = enabled
        if not enabled:
            script.tier = Tier.DISK
        self._tell()
        return self._view(model, script)

    async def set_expert_offload(self, model: ModelId, mode: MoeOffload) -> OffloadChange:
        script = await self._movable(model)
        script.spec = replace(script.spec, moe_offload=mode)
        idle = not self._held[model]
        if idle and script.tier is Tier.GPU:
            script.tier = Tier.RAM
        self._tell()
        return OffloadChange(self._view(model, script), applies_now=idle)

    # --- the pool ---------------------------------------------------------------------------------------------------

    def pins_problem(self, spec: ModelSpec, shape: ModelShape | None) -> None:
        """It has room for everybody."""

    async def add(self, spec: ModelSpec) -> ModelView:
        if spec.id in self.scripts:
            raise InvalidRequest(f"There is a model '{spec.id}' already.")
        self._held[spec.id] = self._waiting[spec.id] = self._served[spec.id] = 0
        return self._take(spec)

    async def replace(self, spec: ModelSpec, within_s: float) -> ModelView:
        await self._unused(spec.id, within_s)
        return self._take(spec)

    async def remove(self, model: ModelId, within_s: float) -> None:
        await self._unused(model, within_s)
        del self.scripts[model]
        self._tell()

    def _take(self, spec: ModelSpec) -> ModelView:
        script = self.scripts[spec.id] = Script(spec=spec, enabled=spec.enabled, tier=Tier.DISK)
        self._tell()
        return self._view(spec.id, script)

    async def _unused(self, model: ModelId, within_s: float) -> None:
        if model not in self.scripts:
            raise ModelNotFound(f"no model {model}")
        try:
            async with asyncio.timeout(within_s):
                await self.until(lambda: not self._held[model])
        except TimeoutError:
            raise ModelBusy(f"{model} is in use") from None

    async def _movable(self, model: ModelId) -> Script:
        script = self.scripts.get(model)
        if script is None:
            raise ModelNotFound(f"no model {model}")
        if script.before_moved is not None:
            await script.before_moved.passed()
        if script.refuse_move is not None:
            raise script.refuse_move
        return script

    async def free(self, until_s: float | None) -> HoldView:
        until_unix_ms = None if until_s is None else int((time.time() + until_s) * 1e3)
        moved = []
        for model, script in self.scripts.items():
            if script.tier is Tier.GPU and not self._held[model]:
                script.tier = Tier.RAM
                moved.append(MovedModel(model, Tier.GPU, Tier.RAM))
        self._hold = HoldView(True, until_unix_ms, tuple(moved))
        self._tell()
        return self._hold

    async def restore(self) -> HoldView:
        hold, self._hold = self._hold, None
        gone = () if hold is None else hold.moved
        for one in gone:
            self.scripts[one.model].tier = Tier.GPU
        self._tell()
        return HoldView(False, None, tuple(MovedModel(one.model, one.to_tier, one.from_tier) for one in gone))

    def hold(self) -> HoldView | None:
        return self._hold

    # --- what was decided and what changes --------------------------------------------------------------------------

    def decisions(self, limit: int) -> tuple[Decision, ...]:
        return tuple(self.recorded[-limit:][::-1])

    def decide(self, decision: Decision) -> None:
        self.recorded.append(decision)
        self._feed.publish(ChangeKind.DECISION, decision)

    def changes(self) -> ChangeFeed:
        return self._feed

    # --- parked conversations ---------------------------------------------------------------------------------------

    def parking(self) -> ParkView:
        return self.park

    async def set_parking(self, *, enabled: bool | None, max_bytes: int | None) -> ParkView:
        self.park = replace(
            self.park,
            enabled=self.park.enabled if enabled is None else enabled,
            max_bytes=self.park.max_bytes if max_bytes is None else max_bytes,
        )
        if not self.park.enabled:
            self.park = replace(self.park, used_bytes=0, models=())
        self._tell()
        return self.park


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
