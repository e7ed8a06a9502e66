"""Whatever is asked, added, replaced, removed and released in whatever order: no request is lost, and none is served by
a model that was not the current one when it was granted.

Seen from outside only: each version of a model answers with its own name, and a logical clock says what overlapped.
Nothing takes real time here.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypnos_engine.catalog.shelf import Shelf
from hypnos_engine.config.load import load
from hypnos_engine.config.overlay import Overlay
from hypnos_engine.config.render import render_model
from hypnos_engine.domain.errors import HypnosError, InvalidRequest, ModelBusy, ModelNotFound
from hypnos_engine.domain.kinds import EngineKind, Modality
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.engines.fake import FakeEngine, FakeScript
from hypnos_engine.hardware.machine import host_memory, snapshot
from hypnos_engine.runtime.lease import Ask
from hypnos_engine.runtime.local import LocalRuntime, Machine
from hypnos_engine.runtime.pool import FromBlock, Pool
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.limits import Budgets, Limits
from tests.runtime.bench import ONE_MODEL, ONE_WORKER, TWO_MODELS, read
from tests.runtime.virtual_time import run

NAMES = ("x", "y", "z")
LATER = NAMES[-1]
"""Not there at first."""
FIRST = "the first one"
TURNS = 20
"""Of the loop; more than a request takes to be granted when nothing is in its way."""


def spec(name: str, version: str) -> ModelSpec:
    model = ModelSpec(ModelId(name), Modality.TEXT, EngineKind.FAKE, f"{name}.gguf", context_len=1024, slots=2)
    return replace(model, name=version)


@dataclass(slots=True)
class Changed:
    """A change of one model, from when until when, and what became of it."""

    version: str | None
    """None = removed."""
    begun: int
    ended: float = math.inf
    made: bool = True
    """False once it was refused."""


@dataclass(slots=True)
class Play:
    """One run: the pool under test, and the books of those who use it."""

    pool: Pool
    runtime: LocalRuntime
    folder: Path
    engines: list["GatedEngine"]
    now: int = 0
    """Moves on with everything that begins or ends."""
    versions: int = 0
    changes: dict[str, list[Changed]] = field(
        default_factory=lambda: {name: [Changed(None if name == LATER else FIRST, 0, 0)] for name in NAMES}
    )
    answers: list[tuple[str, str, int, int]] = field(default_factory=list)
    """Who answered as which version, and from when until when that took."""
    absences: list[tuple[str, int, int]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    asking: list[asyncio.Task[None]] = field(default_factory=list)

    def tick(self) -> int:
        self.now += 1
        return self.now

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.tasks.append(asyncio.ensure_future(work))
        return self.tasks[-1]

    # --- those who use it -------------------------------------------------------------------------------------------

    async def ask(self, name: str) -> None:
        begun = self.tick()
        try:
            async with self.runtime.lease(Ask(ModelId(name))) as lease:
                answer = await read(lease)
                shown = self.runtime.model(ModelId(name))
                if shown is None or shown.spec.name != answer or lease.spec.name != answer:
                    self.wrong.append(f"{name}: {answer} answered under a lease of {lease.spec.name}")
            self.answers.append((name, answer, begun, self.tick()))
        except ModelNotFound:
            self.absences.append((name, begun, self.tick()))

    async def change(self, name: str, what: str, drain_s: float) -> None:
        self.versions += 1
        version = f"version {self.versions}"
        block = FromBlock(render_model(spec(name, version)))
        note = Changed(None if what == "remove" else version, self.tick())
        self.changes[name].append(note)
        try:
            match what:
                case "add":
                    made = await self.pool.add(block)
                case "replace":
                    made = await self.pool.replace(ModelId(name), block, drain_s)
                case _:
                    made = await self.pool.remove(ModelId(name), drain_s)
            if not made.persisted:
                self.wrong.append(f"{name}: the change was not kept")
        except (ModelBusy, ModelNotFound, InvalidRequest):
            note.made = False
        finally:
            note.ended = self.tick()

    async def release(self, name: str, turns: int) -> None:
        try:
            async with self.runtime.release([self.folder / f"{name}.gguf"], 50.0):
                for _ in range(turns + 1):
                    if any(engine.there for engine in self.engines if engine.name == name):
                        self.wrong.append(f"{name} is there although its file was released")
                    await asyncio.sleep(0)
        except ModelBusy:
            pass

    # --- what must hold ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Once it is known what became of every change."""
        for answer in self.answers:
            self.check_answer(*answer)
        for absence in self.absences:
            self.check_absence(*absence)

    def check_answer(self, name: str, version: str, begun: int, ended: int) -> None:
        """The version was asked for before the end, and no later one was in its place when the request came."""
        notes = self.changes[name]
        mine = next((note for note in notes if note.version == version and note.begun < ended), None)
        if mine is None or not mine.made:
            self.wrong.append(f"{name} was served by {version}, which never was the model")
        elif any(note.made and mine.ended < note.ended < begun for note in notes):
            self.wrong.append(f"{name} was served by {version} although it had been replaced before")

    def check_absence(self, name: str, begun: int, ended: int) -> None:
        """Only while the model is not there may it not be found."""
        notes = self.changes[name]
        last = max((note for note in notes if note.made and note.ended < begun), key=lambda note: note.ended)
        gone = any(n.version is None and n.made and n.begun < ended and n.ended > begun for n in notes)
        if last.version is not None and not gone:
            self.wrong.append(f"{name} was not found although it was there all the time")


class GatedEngine(FakeEngine):
    """Answers and leaves when the test lets it, and loads so unless it is prompt; answers with its version's name."""

    def __init__(self, model: ModelSpec, *, prompt: bool) -> None:
        self.name = model.id
        self.gates = [asyncio.Event(), asyncio.Event()]
        if prompt:
            self.gates[0].set()
        self.tokens = asyncio.Semaphore(0)
        self.there = False
        script = FakeScript(reply=lambda _: [model.name], memory=ONE_WORKER, token_gate=self.tokens)
        script.load_gate, script.unload_gate = self.gates
        super().__init__(model.id, script)

    async def load(self, *given: Any) -> Any:
        self.there = True
        return await super().load(*given)

    async def unload(self, grace_s: float = 2.0) -> None:
        await super().unload(grace_s)
        self.there = False


Action = Callable[[Play], None]
names = st.sampled_from(NAMES)
numbers = st.integers(0, 20)


def ask(name: str) -> Action:
    return lambda play: play.asking.append(play.begin(play.ask(name)))


def leave(number: int) -> Action:
    def do(play: Play) -> None:
        if there := [task for task in play.asking if not task.done()]:
            there[number % len(there)].cancel()

    return do


def change(name: str, what: str, drain_s: float) -> Action:
    def do(play: Play) -> None:
        play.tasks.append(asyncio.ensure_future(play.change(name, what, drain_s)))

    return do


def crowd(name: str, what: str, drain_s: float) -> Action:
    """A change while a request runs, and one that comes meanwhile."""

    async def scene(play: Play) -> None:
        running = play.begin(play.ask(name))
        play.asking.append(running)
        for _ in range(TURNS):
            for engine in play.engines:
                if engine.name == name:
                    engine.gates[0].set()
            await asyncio.sleep(0)
        changed = play.begin(play.change(name, what, drain_s))
        for _ in range(TURNS):
            await asyncio.sleep(0)
        await asyncio.gather(running, changed, play.ask(name), return_exceptions=True)

    def do(play: Play) -> None:
        play.tasks.append(asyncio.ensure_future(scene(play)))

    return do


def release(name: str, turns: int) -> Action:
    def do(play: Play) -> None:
        play.tasks.append(asyncio.ensure_future(play.release(name, turns)))

    return do


def open_gate(number: int) -> Action:
    """Let an engine come or go."""

    def do(play: Play) -> None:
        closed = [gate for engine in play.engines for gate in engine.gates if not gate.is_set()]
        if closed:
            closed[number % len(closed)].set()

    return do


def speak(number: int) -> Action:
    """Let an engine say a word, which ends a request."""

    def do(play: Play) -> None:
        if play.engines:
            play.engines[number % len(play.engines)].tokens.release()

    return do


changes = st.sampled_from(["replace", "remove", "add"])
actions = st.one_of(
    st.builds(ask, names),
    st.builds(ask, names),
    st.builds(change, names, changes, st.sampled_from([5.0, 120.0, 0.0])),
    st.builds(crowd, names, changes, st.sampled_from([5.0, 120.0])),
    st.builds(open_gate, st.just(0)),  # the oldest
    st.builds(open_gate, numbers),
    st.builds(speak, numbers),
    st.builds(leave, numbers),
    st.builds(release, names, st.integers(0, 5)),
)
pauses = st.one_of(st.integers(0, 10), st.integers(0, 10), st.integers(0, 10), st.sampled_from([1.0, 10.0]))
"""Turns of the loop, or seconds."""


async def play(script: list[tuple[Action, int | float]], memory_bytes: int, prompt: bool, folder: Path) -> None:
    config = folder / "hypnos.toml"
    config.write_text("".join(render_model(spec(name, FIRST)) for name in NAMES if name != LATER), encoding="utf-8")
    overlay_path = folder / "hypnos.models.toml"
    overlay_path.unlink(missing_ok=True)
    engines: list[GatedEngine] = []

    def make(model: ModelSpec) -> GatedEngine:
        engines.append(GatedEngine(model, prompt=prompt))
        return engines[-1]

    runtime = LocalRuntime(load(config).models, [folder], make, Limits(max_queue_per_model=1000))
    runtime.dispatcher.around.sample = lambda: ev.MachineSampled(memory_bytes)
    hardware = snapshot(host_memory(), None)
    await runtime.start(Machine(hardware, Budgets((), memory_bytes, 2, device_layers=False), 0))
    pool = Pool(runtime, [folder], Shelf([folder]), Overlay(overlay_path, config))
    on = Play(pool, runtime, folder, engines)
    try:
        for action, pause in script:
            action(on)
            if isinstance(pause, float):
                await asyncio.sleep(pause)
            for _ in range(pause if isinstance(pause, int) else 0):
                await asyncio.sleep(0)
        await until_rest(on)
        on.check()
        assert not on.wrong, on.wrong
        assert runtime.recount() == ()
        kept = {model.id: model.name for model in load(config).models}
        assert kept == {view.spec.id: view.spec.name for view in runtime.models()}, "the next start has the same pool"
    finally:
        opening = asyncio.create_task(open_all(engines))
        await pool.close()
        await runtime.stop()
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)


async def open_all(engines: list[GatedEngine]) -> None:
    while True:
        for engine in engines:
            for gate in engine.gates:
                gate.set()
            engine.tokens.release()
        await asyncio.sleep(0.01)


async def until_rest(on: Play) -> None:
    opening = asyncio.create_task(open_all(on.engines))
    try:
        async with asyncio.timeout(600):  # virtual seconds
            ended: list[BaseException | None] = []
            while len(ended) < len(on.tasks):  # a scene brings further ones with it
                ended = await asyncio.gather(*on.tasks, return_exceptions=True)
    finally:
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
    failed = [one for one in ended if isinstance(one, Exception)]
    assert not [one for one in failed if not isinstance(one, HypnosError)], failed
    assert not failed, f"requests that met something else than an absent model: {failed}"
    assert len(on.runtime.dispatcher.wishes) == 0


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    script=st.lists(st.tuples(actions, pauses), min_size=40, max_size=100),
    memory_bytes=st.sampled_from([ONE_MODEL, TWO_MODELS, 2 * TWO_MODELS]),
    prompt=st.booleans(),
)
def test_no_request_is_lost_and_none_meets_a_model_of_another_time(
    script: list[tuple[Action, int | float]], memory_bytes: int, prompt: bool, tmp_path: Path
) -> None:
    """[§6.4-28] [§6.4-29] [§6.4-31] [§6.4-34..36] [§17-05] [§17-08]"""
    run(play(script, memory_bytes, prompt, tmp_path))
