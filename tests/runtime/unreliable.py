"""A dispatcher in surroundings that fail, hang, die and answer late, and the books that are kept about it.

Every await of an engine or a holder passes a gate, which a test opens, well or badly, when it likes.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypnos_engine.domain.errors import DeviceOutOfMemory, HypnosError, LoadFailed
from hypnos_engine.domain.kinds import Priority, Residency
from hypnos_engine.domain.model import ModelId, ModelShape, ModelSpec
from hypnos_engine.engines.base import ContextSink, ProgressSink
from hypnos_engine.engines.fake import FakeEngine, FakeScript, counting
from hypnos_engine.engines.holder import HolderReport
from hypnos_engine.engines.holder_fake import FakeHolder
from hypnos_engine.hardware.monitor import DeviceSample
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.accelerators import use_of
from hypnos_engine.runtime.by_hand import ByHand
from hypnos_engine.runtime.dispatcher import Dispatcher, Surroundings
from hypnos_engine.runtime.inspection import Inspection
from hypnos_engine.runtime.lease import Ask
from hypnos_engine.runtime.parking import ParkedConversations
from hypnos_engine.runtime.recount import recount
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler import ledger
from hypnos_engine.scheduler.core import Scheduler
from hypnos_engine.scheduler.limits import Budgets, Limits
from tests.runtime.bench import HELLO
from tests.scheduler.made_up import GIB, shape, spec

UNIT = GIB // 4
"""The smallest model; files of this length exist, although nothing is in them."""

SIZES = {"small": UNIT, "middle": 3 * UNIT, "large": 5 * UNIT, "kept": 2 * UNIT, "huge": 40 * UNIT, "twin": 3 * UNIT}
SETTINGS: dict[str, dict[str, object]] = {
    "small": {"priority": Priority.LOW},
    "large": {"priority": Priority.HIGH},
    "kept": {"keep_warm_in_ram": True},
    "twin": {"weights_path": "middle.gguf", "slots": 1},
}
NAMES = tuple(SIZES)
HOST_BYTES = 12 * UNIT


@dataclass(slots=True)
class Gate:
    """A point where somebody waits until the test lets him go on."""

    what: str
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    fails: bool = False
    before: Callable[["Gate"], None] = lambda gate: None
    """Called when it is opened, before anybody goes on."""

    def open(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.before(self)
        self.opened.set()


class LateHolder:
    """A FakeHolder that answers when its gates are opened; implements PageHolder."""

    def __init__(self, on_lost: Callable[[str], None], add: Callable[[Gate], None]) -> None:
        self.inner = FakeHolder(on_lost)
        self._add = add

    async def fill(self, files: str, paths: Sequence[Path], on_progress: Callable[[float], None]) -> int:
        gate = await self._pass(f"fill {files}")
        return 0 if gate.fails else await self.inner.fill(files, paths, on_progress)

    async def drop(self, files: str) -> None:
        await self._pass(f"drop {files}")
        await self.inner.drop(files)

    def report(self) -> HolderReport:
        return self.inner.report()

    async def stop(self) -> None:
        await self.inner.stop()

    async def _pass(self, what: str) -> Gate:
        gate = Gate(what)
        self._add(gate)
        await gate.opened.wait()
        return gate


class CountedEngine(FakeEngine):
    """Knows whether its worker is there."""

    def __init__(self, model: str, script: FakeScript, shares: tuple[int, ...]) -> None:
        super().__init__(model, script)
        self.shares = shares
        """Of each accelerator, while it is there."""
        self.there = False

    async def load(self, request: m.Load, on_progress: ProgressSink, on_context: ContextSink) -> m.Loaded:
        loaded = await super().load(request, on_progress, on_context)
        self.there = True
        return loaded

    async def unload(self, grace_s: float = 2.0) -> None:
        await super().unload(grace_s)
        self.there = False

    def die(self, error: HypnosError | None = None) -> None:
        self.there = False
        super().die(error)


class MadeUpDevices:
    """Accelerators whose figures a test sets; implements Monitor."""

    def __init__(self, sizes: tuple[int, ...], scheduler: Scheduler, engines: Sequence[CountedEngine] = ()) -> None:
        self._engines = engines
        self.sizes = sizes
        self.others = [0] * len(sizes)
        self.host_others = 0
        self.lost: set[int] = set()
        self._state = scheduler.state

    def sample(self) -> DeviceSample:
        use = use_of(self._state)
        there = [engine.shares for engine in self._engines if engine.there and engine.shares]
        own = [sum(shares[index] for shares in there) for index in range(len(self.sizes))]
        free = tuple(
            0 if index in self.lost else max(0, size - own[index] - self.others[index])
            for index, size in enumerate(self.sizes)
        )
        return DeviceSample(
            free,
            tuple(sorted(self.lost)),
            (None,) * len(free),
            tuple(self.others),
            max(0, HOST_BYTES - use.host_bytes - self.host_others),
        )

    async def fresh(self) -> DeviceSample:
        await asyncio.sleep(0)
        return self.sample()

    async def run(self, on_change: Callable[[], None]) -> None:
        await asyncio.Event().wait()


class Watched(Scheduler):
    """Keeps books about what it asked for and what it was told."""

    def __init__(self, specs: Sequence[ModelSpec], limits: Limits) -> None:
        super().__init__(specs, limits)
        self.owed: Counter[tuple[str, object]] = Counter()
        """What was asked for and not answered yet."""
        self.wrong: list[str] = []

    def on(self, event: ev.Event, now: float) -> list[fx.Effect]:
        self._note_event(event)
        effects = super().on(event, now)
        for effect in effects:
            self._note_effect(effect)
        return effects

    def _note_event(self, event: ev.Event) -> None:
        match event:
            case ev.LoadFinished(name) | ev.LoadFailed(name):
                self._note_answer("load", name)
            case ev.UnloadFinished(name):
                self._note_answer("unload", name)
            case ev.PagesFilled(files):
                self._note_answer("fill", files)
            case ev.PagesDropped(files):
                self._note_answer("drop", files)
            case ev.WorkerDied(name):
                if self.state.models[name].residency is not Residency.READY:
                    self.wrong.append(f"{name} died although it was {self.state.models[name].residency}")
            case ev.LeaseEnded(request) | ev.RequestCancelled(request) | ev.RequestReturned(request):
                self.owed.pop(("grant", request), None)
            case ev.MoveRequested(request):
                self.owed["move", request] += 1
            case _:
                pass

    def _note_effect(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Load(name):
                self.owed["load", name] += 1
            case fx.Unload(name):
                self.owed["unload", name] += 1
            case fx.FillPages(files):
                self.owed["fill", files] += 1
            case fx.DropPages(files):
                self.owed["drop", files] += 1
            case fx.Grant(request):
                self.owed["grant", request] += 1
            case fx.Moved(request) | fx.Refuse(request):
                self.owed.pop(("move", request), None)
            case _:
                pass
        for what, count in self.owed.items():
            if count > 1:
                self.wrong.append(f"{what} was asked for twice at once")

    def _note_answer(self, what: str, name: object) -> None:
        if self.owed[what, name] != 1:
            self.wrong.append(f"{what} {name} was answered {1 - self.owed[what, name]} times too often")
        del self.owed[what, name]


class Unreliable:
    """Everything of one run. Made on the loop that it runs on."""

    def __init__(self, folder: Path, devices: tuple[int, ...], *, park_bytes: int, prompt: frozenset[str]) -> None:
        self._prompt = prompt
        self.gates: list[Gate] = []
        self.engines: list[CountedEngine] = []
        self.specs = [spec(name, **SETTINGS.get(name, {})) for name in NAMES]
        self.scheduler = Watched(self.specs, Limits(max_queue_per_model=6, hold_uses_cpu=park_bytes > 0))
        self.monitor = MadeUpDevices(devices, self.scheduler, self.engines)
        self.holder = LateHolder(lambda files: self.dispatcher.pages.lost(files), self._add)
        self.conversations = ParkedConversations(
            enabled=park_bytes > 0,
            max_bytes=park_bytes,
            on_dropped=lambda model: self.dispatcher.post(ev.KvParked(model, 0)),
            clock=asyncio.get_running_loop().time,
        )
        self.workflows: list[str] = []
        self.holding = 0
        """Clients with a lease."""
        self._folder = folder
        around = Surroundings(
            self._engine,
            self._files,
            monitor=self.monitor,
            device_totals=devices,
            holder=self.holder,
            conversations=self.conversations,
            measure=lambda engine: 50 * 2**20,
            on_change=self.check,
            on_workflow_ended=lambda name, seconds: self.workflows.append(name),
        )
        self.dispatcher = Dispatcher(self.scheduler, around)
        self.by_hand = ByHand(self.dispatcher, self)
        self.budgets = Budgets(
            devices, HOST_BYTES, 4, device_layers=bool(devices), tier2_bytes=6 * UNIT, park_bytes=park_bytes
        )

    def start(self) -> None:
        for name, size in SIZES.items():
            self.dispatcher.post(ev.ModelInspected(ModelId(name), shape(size), None))
        self.dispatcher.machine_changed()
        self.dispatcher.post(ev.BudgetsSet(self.budgets))

    # --- what the surroundings do -----------------------------------------------------------------------------------

    def _files(self, model: ModelId) -> Inspection | None:
        configured = self.scheduler.state.models[model].spec
        path = self._folder / configured.weights_path
        return Inspection(path, None, None, files=(path,), weights_path=configured.weights_path)

    async def look(self, spec: ModelSpec) -> Inspection:
        """What its files say."""
        await asyncio.sleep(0)
        return Inspection(self._folder / spec.weights_path, self.shape(spec), None)

    @staticmethod
    def shape(configured: ModelSpec) -> ModelShape:
        return shape(SIZES[configured.weights_path.removesuffix(".gguf")])

    def _engine(self, configured: ModelSpec) -> CountedEngine:
        state = self.scheduler.state.models[configured.id]
        assert state.plan is not None
        planned = state.plan.footprint
        private = planned.total - planned.file_pages - planned.device - planned.device_context
        loading, parking, leaving = (Gate(f"{what} {configured.id}") for what in ("load", "park", "unload"))
        script = FakeScript(
            load_gate=loading.opened,
            park_gate=parking.opened,
            unload_gate=leaving.opened,
            reply=counting,
            progress=(m.LoadProgress("weights", 0.5),),
            conversations=(3, 4),
            memory=m.MemoryReport(planned.file_pages + planned.device, planned.device, 0, 0, 0, private),
        )

        def spoil(gate: Gate) -> None:
            if gate.fails:
                kind = DeviceOutOfMemory if planned.device else LoadFailed
                script.load_error = kind(f"{configured.id} could not be loaded")

        def hurt(gate: Gate) -> None:
            script.park_error = LoadFailed("no") if gate.fails else None

        loading.before, parking.before = spoil, hurt
        for gate in (loading, parking, leaving):
            self._add(gate)
        engine = CountedEngine(configured.id, script, state.plan.device_shares)
        self.engines.append(engine)
        return engine

    def _add(self, gate: Gate) -> None:
        self.gates.append(gate)
        if gate.what.split()[0] in self._prompt:
            gate.open()

    # --- what clients do --------------------------------------------------------------------------------------------

    async def ask(self, ask: Ask, words: int) -> None:
        async with self.dispatcher.lease(ask) as lease:
            self.holding += 1
            try:
                events = lease.generate(HELLO, max_tokens=words)
                async for _ in events:
                    pass
            finally:
                self.holding -= 1

    # --- what must hold ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """After every batch of events."""
        state = self.scheduler.state
        wrong = self.scheduler.wrong
        if not state.shrinking and ledger.host_booked(state) > ledger.host_budget(state):
            wrong.append(f"{ledger.host_booked(state)} bytes are booked of {ledger.host_budget(state)}")
        for index, size in enumerate(state.budgets.device_bytes):
            if not state.shrinking and ledger.device_booked(state, index) > size:
                wrong.append(f"device {index}: {ledger.device_booked(state, index)} bytes are booked of {size}")
        for name, model in state.models.items():
            if len(model.leases) > model.spec.slots and not any(w.waiting.returned for w in model.leases.values()):
                wrong.append(f"{name} has {len(model.leases)} leases")

    def situation(self, clients: Iterable["asyncio.Task[Any]"]) -> str:
        """Who waits for what, for a test that failed."""
        state = self.scheduler.state
        waiting = [str(client.get_coro()) for client in clients if not client.done() or client.cancelling()]
        models = [
            f"{name}: {model.residency} leases {list(model.leases)} waiting {list(model.waiting)}"
            f" closing {model.closing} change {model.change} move {model.move} staged {model.staged}"
            f" enabled {model.spec.enabled} retry in {model.retry_at - self.dispatcher.now:.1f}"
            for name, model in state.models.items()
        ]
        files = [f"{path}: {files.pages} {files.held_bytes}" for path, files in state.files.items()]
        owed, wanted = dict(+self.scheduler.owed), dict(state.wanted_pages)
        parts = (waiting, models, files, f"owed {owed} wanted {wanted} hold {state.hold} lost {state.lost_devices}")
        return "\n".join(str(part) for part in parts)

    def check_at_rest(self) -> None:
        """Nothing is under way and nobody waits: everything was answered, and the ledger is right."""
        state = self.scheduler.state
        assert not self.scheduler.wrong
        assert not +self.scheduler.owed, f"not answered: {self.scheduler.owed}"
        assert len(self.dispatcher.wishes) == 0
        assert self.holding == sum(len(model.leases) for model in state.models.values()) == 0
        assert not any(model.waiting for model in state.models.values())
        assert recount(self.dispatcher) == ()


@asynccontextmanager
async def unreliable(
    folder: Path, devices: tuple[int, ...] = (), *, park_bytes: int = UNIT, prompt: frozenset[str] = frozenset()
) -> AsyncIterator[Unreliable]:
    """Run for the length of the block; afterwards no task, wait or lease is left.

    `prompt` are the steps that end at once and well: load, park, unload, fill, drop.
    """
    for name in set(SIZES) - {"huge"}:  # nobody has room for that one
        size = SIZES[name]
        with (folder / f"{name}.gguf").open("wb") as file:
            file.truncate(size)
    run = Unreliable(folder, devices, park_bytes=park_bytes, prompt=prompt)
    run.start()
    try:
        yield run
    finally:
        opening = asyncio.create_task(_open_all(run))
        await run.dispatcher.stop()
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await run.holder.stop()
        run.conversations.close()
    await asyncio.sleep(0)
    assert len(run.dispatcher.wishes) == 0
    assert run.dispatcher.residents.tasks == run.dispatcher.pages.tasks == 0
    assert run.dispatcher.residents.all() == ()
    assert all(engine.running == 0 for engine in run.engines)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"left behind: {left}"


async def _open_all(run: Unreliable) -> None:
    while True:
        for gate in run.gates:
            if not gate.opened.is_set():
                gate.open()
        await asyncio.sleep(0.05)


async def until_rest(run: Unreliable, clients: set["asyncio.Task[None]"]) -> list[HypnosError]:
    """Open every gate, give everything back that was taken, and wait until all clients have their answers."""
    opening = asyncio.create_task(_open_all(run))
    state = run.scheduler.state
    try:
        async with asyncio.timeout(600):  # virtual seconds: back-offs and patience are part of it
            done = await asyncio.gather(*clients, return_exceptions=True)
            await run.dispatcher.until(lambda: not +run.scheduler.owed)
    except TimeoutError:
        raise AssertionError(f"nobody comes to rest: {run.situation(clients)}") from None
    finally:
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
    await asyncio.sleep(0)
    assert not state.draining
    unexpected = [one for one in done if isinstance(one, Exception) and not isinstance(one, HypnosError)]
    assert not unexpected, unexpected
    return [one for one in done if isinstance(one, HypnosError)]
