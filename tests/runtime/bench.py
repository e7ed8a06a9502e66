"""A runtime on scripted engines, with the memory of a machine that a test chooses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from hypnos_engine.domain.kinds import EngineKind, Modality
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.engines.fake import FakeEngine, FakeScript
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.dispatcher import Dispatcher, Surroundings
from hypnos_engine.runtime.lease import Ask, Lease
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.core import Scheduler
from hypnos_engine.scheduler.limits import Budgets, Limits
from hypnos_engine.scheduler.placement import WORKER_BYTES

ONE_MODEL = int(WORKER_BYTES * 1.5)
TWO_MODELS = int(WORKER_BYTES * 2.5)
ONE_WORKER = m.MemoryReport(0, 0, 0, 0, 0, anonymous_bytes=WORKER_BYTES)
HELLO = (m.ChatMessage("user", (m.TextPart("one two three"),)),)


def fake_spec(name: str, slots: int = 2) -> ModelSpec:
    return ModelSpec(ModelId(name), Modality.TEXT, EngineKind.FAKE, "", context_len=1024, slots=slots)


@dataclass
class Bench:
    """The dispatcher under test and every engine that it made."""

    dispatcher: Dispatcher = field(init=False)
    engines: list[FakeEngine] = field(default_factory=list)
    unmakeable: set[str] = field(default_factory=set)
    """Models whose engine cannot be made, against all expectation."""
    blind: bool = False
    """The machine cannot be sampled, against all expectation."""

    def engine(self, name: str) -> FakeEngine:
        """The newest engine of a model."""
        return next(engine for engine in reversed(self.engines) if engine.loads and engine.loads[0].model == name)

    def leases(self, name: str) -> int:
        return len(self.dispatcher.scheduler.state.models[ModelId(name)].leases)

    def queued(self, name: str) -> int:
        return len(self.dispatcher.scheduler.state.models[ModelId(name)].waiting)


@asynccontextmanager
async def bench(
    *names: str, memory_bytes: int = TWO_MODELS, scripts: dict[str, list[FakeScript]] | None = None, slots: int = 2
) -> AsyncIterator[Bench]:
    """Run a dispatcher for the length of the block; the scripts of a model are used in turn, the last for ever."""
    scheduler = Scheduler([fake_spec(name, slots) for name in names], Limits())
    on = Bench()
    left = {name: list(those) for name, those in (scripts or {}).items()}

    def make(spec: ModelSpec) -> FakeEngine:
        if spec.id in on.unmakeable:
            raise RuntimeError("nobody expected this")
        those = left.get(spec.id, [])
        script = those.pop(0) if len(those) > 1 else those[0] if those else FakeScript()
        script.memory = ONE_WORKER
        on.engines.append(FakeEngine(spec.id, script))
        return on.engines[-1]

    def sample() -> ev.MachineSampled:
        if on.blind:
            raise OSError("no sample")
        return ev.MachineSampled(memory_bytes)

    on.dispatcher = Dispatcher(scheduler, Surroundings(make, lambda _model: None, sample=sample))
    budgets = Budgets((), memory_bytes, 2, device_layers=False)
    on.dispatcher.post(ev.MachineSampled(memory_bytes), ev.BudgetsSet(budgets))
    try:
        yield on
    finally:
        await on.dispatcher.stop()


async def ask(on: Bench, name: str, *, max_tokens: int = 16) -> str:
    """One whole request; the text of its answer."""
    async with on.dispatcher.lease(Ask(ModelId(name))) as lease:
        return await read(lease, max_tokens=max_tokens)


async def read(lease: Lease, *, max_tokens: int = 16) -> str:
    events = [event async for event in lease.generate(HELLO, max_tokens=max_tokens)]
    return "".join(event.text for event in events if isinstance(event, m.Delta))
