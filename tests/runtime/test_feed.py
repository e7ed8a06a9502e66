"""The change feed: what its readers know after each change is what a look tells, however slowly they read."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypnos_engine.domain.errors import ModelNotAvailable
from hypnos_engine.domain.kinds import Accelerator, EngineKind, Modality, Residency, Tier, Topology
from hypnos_engine.domain.memory import HardwareSnapshot, Placement
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.runtime.feed import GAP_S, MOST_READERS, RING, Change, ChangeFeed, ChangeKind, LoadStep
from hypnos_engine.runtime.snapshot import Decision, MemoryView, ModelView
from hypnos_engine.scheduler.effects import Record
from tests.loops import LoopFactory

HARDWARE = HardwareSnapshot(Topology.HOST, Accelerator.CPU, "CPU", 8, 4, 2)


def model(name: str, **fields: object) -> ModelView:
    spec = ModelSpec(ModelId(name), Modality.TEXT, EngineKind.FAKE, f"{name}.gguf")
    view = ModelView(
        spec=spec, enabled=True, tier=Tier.DISK, residency=Residency.COLD, placement=Placement(), active_leases=0,
        waiting=0, idle_s=0.0, requests_served=0, requests_per_minute=0.0, total_weight_bytes=1, expert_bytes=0,
        reload_estimate_ms=1.0, service_ms=None, estimated_wait_ms=None, problem=None,
    )  # fmt: skip
    return replace(view, **fields)  # type: ignore[arg-type]


def memory(*models: ModelView, used_bytes: int = 0) -> MemoryView:
    return MemoryView(
        hardware=HARDWARE, tier1_budget_bytes=10, tier1_used_bytes=used_bytes, tier1_real_free_bytes=4,
        tier1_real_total_bytes=8, tier2_budget_bytes=0, tier2_used_bytes=0, process_bytes=1, process_cap_bytes=None,
        models=models, evictions=(),
    )  # fmt: skip


@dataclass
class Stage:
    """Something to look at, and a feed that looks at it; the clock stands still until it is moved."""

    view: MemoryView = field(default_factory=lambda: memory(model("a"), model("b")))
    now_s: float = 0.0
    looks: int = 0

    def __post_init__(self) -> None:
        self.feed = ChangeFeed(self.look, clock=lambda: self.now_s)

    def look(self) -> MemoryView:
        self.looks += 1
        self.feed.touch()  # as a runtime does whose look takes a sample
        return self.view

    def set_model(self, number: int, **fields: object) -> None:
        models = list(self.view.models)
        models[number] = replace(models[number], **fields)  # type: ignore[arg-type]
        self.view = replace(self.view, models=tuple(models))


def decision(number: int) -> Decision:
    return Decision(number, 0, Record("load", ModelId("a"), "because"))


async def take(changes: AsyncIterator[Change], count: int) -> list[Change]:
    return [await anext(changes) for _ in range(count)]


async def test_a_reader_starts_with_everything_and_hears_what_differs(loop_factory: LoopFactory) -> None:
    stage = Stage()
    async with stage.feed.subscribe() as changes:
        first = await anext(changes)
        assert (first.kind, first.body) == (ChangeKind.SNAPSHOT, stage.view)
        stage.set_model(1, waiting=3)
        stage.feed.touch()
        second = await anext(changes)
        assert (second.kind, second.body) == (ChangeKind.MODEL, stage.view.models[1])
        stage.view = replace(stage.view, tier1_used_bytes=7)
        stage.feed.touch()
        third = await anext(changes)
        assert (third.kind, third.body) == (ChangeKind.TOTALS, stage.view)
        stage.feed.publish(ChangeKind.DECISION, decision(1))
        fourth = await anext(changes)
        assert (fourth.kind, fourth.body) == (ChangeKind.DECISION, decision(1))
    assert [change.seq - first.seq for change in (second, third, fourth)] == [1, 2, 3]
    assert stage.feed.readers == 0


async def test_what_time_alone_changes_is_no_change() -> None:
    stage = Stage()
    seen = stage.feed.refresh()
    stage.set_model(0, idle_s=5.0, requests_per_minute=0.3, estimated_wait_ms=4.0)
    again = stage.feed.refresh()
    assert again.seq == seen.seq
    assert again.view.models[0].idle_s == 5.0


async def test_a_look_that_samples_does_not_bring_about_the_next_one() -> None:
    stage = Stage()
    async with stage.feed.subscribe() as changes:
        await anext(changes)
        stage.set_model(0, waiting=1)
        stage.feed.touch()
        await anext(changes)
        looks = stage.looks
        for _ in range(3):
            passed = asyncio.Event()
            asyncio.get_running_loop().call_later(2 * GAP_S, passed.set)
            await passed.wait()
        assert stage.looks == looks


async def test_many_touches_are_one_look() -> None:
    stage = Stage()
    async with stage.feed.subscribe() as changes:
        await anext(changes)
        looks = stage.looks
        for number in range(1000):
            stage.set_model(0, requests_served=number)
            stage.feed.touch()
        change = await anext(changes)
    assert isinstance(change.body, ModelView)
    assert change.body.requests_served == 999
    assert stage.looks == looks + 1


async def test_nobody_is_looked_for_when_nobody_reads() -> None:
    stage = Stage()
    stage.feed.touch()
    for _ in range(3):
        await asyncio.sleep(0)
    assert stage.looks == 0


async def test_steps_of_a_load_are_told_at_most_ten_times_a_second() -> None:
    """wire.md: and what `refresh` returns is the step that was told."""
    stage = Stage()
    start = stage.feed.refresh().seq
    stage.set_model(0, residency=Residency.LOADING, load_phase="weights", load_progress=0.0)
    assert stage.feed.refresh().seq == start + 1
    seen = stage.feed.refresh()
    for step in range(1, 100):
        stage.now_s += 0.01
        stage.set_model(0, load_progress=step / 100)
        seen = stage.feed.refresh()
    told = seen.seq - start - 1
    assert 9 <= told <= 10
    assert seen.view.models[0].load_progress == pytest.approx(0.9, abs=0.1)
    stage.set_model(0, residency=Residency.READY, load_phase=None, load_progress=None)
    assert stage.feed.refresh().view.models[0].load_phase is None


async def test_the_last_step_of_a_load_is_told_although_it_came_too_soon() -> None:
    """The clock of this one runs."""
    stage = Stage()
    stage.feed = ChangeFeed(stage.look)
    async with stage.feed.subscribe() as changes:
        await anext(changes)
        steps: list[float] = []
        for progress in (0.0, 0.5, 1.0):
            stage.set_model(0, load_phase="weights", load_progress=progress)
            stage.feed.refresh()
        while not steps or steps[-1] < 1.0:
            body = (await anext(changes)).body
            if isinstance(body, LoadStep):
                steps.append(body.progress)
    assert steps == [1.0]


async def test_a_model_that_is_gone_is_missing_from_the_totals() -> None:
    stage = Stage()
    async with stage.feed.subscribe() as changes:
        await anext(changes)
        stage.view = memory(stage.view.models[1], model("c"))
        stage.feed.touch()
        added, totals = await take(changes, 2)
    assert isinstance(added.body, ModelView)
    assert added.body.spec.id == "c"
    assert isinstance(totals.body, MemoryView)
    assert [one.spec.id for one in totals.body.models] == ["b", "c"]


async def test_a_reader_goes_on_where_it_was() -> None:
    stage = Stage()
    async with stage.feed.subscribe() as changes:
        first = await anext(changes)
    stage.set_model(0, waiting=1)
    async with stage.feed.subscribe(first.seq) as changes:
        change = await anext(changes)
    assert (change.kind, change.seq) == (ChangeKind.MODEL, first.seq + 1)


@pytest.mark.parametrize("offset", [-RING - 1, 1, 10**6])
async def test_a_number_that_is_not_kept_gets_a_snapshot(offset: int) -> None:
    """Too old, or of another process."""
    stage = Stage()
    stage.feed.refresh()
    for number in range(2 * RING):
        stage.feed.publish(ChangeKind.DECISION, decision(number))
    newest = stage.feed.refresh().seq
    async with stage.feed.subscribe(newest + offset) as changes:
        change = await anext(changes)
    assert (change.kind, change.seq) == (ChangeKind.SNAPSHOT, newest)


@pytest.mark.parametrize(("behind", "kind"), [(RING, ChangeKind.DECISION), (RING + 1, ChangeKind.SNAPSHOT)])
async def test_a_slow_reader_gets_a_snapshot_and_costs_nothing(behind: int, kind: ChangeKind) -> None:
    stage = Stage()
    async with stage.feed.subscribe() as changes:
        await anext(changes)
        for number in range(behind):
            stage.feed.publish(ChangeKind.DECISION, decision(number))
        change = await anext(changes)
        assert change.kind is kind
        assert len(await take(changes, behind - 1 if kind is ChangeKind.DECISION else 0)) <= RING


async def test_readers_are_bounded_and_let_go() -> None:
    stage = Stage()
    async with AsyncExitStack() as stack:
        for _ in range(MOST_READERS):
            await stack.enter_async_context(stage.feed.subscribe())
        with pytest.raises(ModelNotAvailable, match="readers"):
            async with stage.feed.subscribe():
                raise AssertionError("one too many")
        assert stage.feed.readers == MOST_READERS
    assert stage.feed.readers == 0


async def test_a_reader_that_is_cancelled_takes_nobody_along(loop_factory: LoopFactory) -> None:
    stage = Stage()

    both = asyncio.Event()

    async def read() -> list[Change]:
        async with stage.feed.subscribe() as changes:
            first = await anext(changes)
            if stage.feed.readers == 2:
                both.set()
            return [first, await anext(changes)]

    patient, hasty = asyncio.create_task(read()), asyncio.create_task(read())
    await both.wait()
    hasty.cancel()
    await asyncio.wait((hasty,))
    assert stage.feed.readers == 1
    stage.feed.publish(ChangeKind.DECISION, decision(1))
    assert [change.kind for change in await patient] == [ChangeKind.SNAPSHOT, ChangeKind.DECISION]


class Follower:
    """What a reader knows that has taken every change up to one."""

    def __init__(self) -> None:
        self.seq = 0
        self.models: dict[str, ModelView] = {}
        self.totals: MemoryView | None = None

    def take(self, change: Change) -> None:
        self.seq = change.seq
        match change.body:
            case MemoryView():
                if change.is_snapshot:
                    self.models = {one.spec.id: one for one in change.body.models}
                self.models = {one.spec.id: self.models[one.spec.id] for one in change.body.models}
                self.totals = replace(change.body, models=())
            case ModelView():
                self.models[change.body.spec.id] = change.body
            case LoadStep(name, phase, progress):
                self.models[name] = replace(self.models[name], load_phase=phase, load_progress=progress)
            case _:
                pass


STEPS = st.one_of(
    st.tuples(st.just("model"), st.integers(0, 2), st.sampled_from(
        [("waiting", 1), ("waiting", 2), ("active_leases", 1), ("active_leases", 0), ("enabled", False),
         ("load_phase", "weights"), ("load_phase", None), ("load_progress", 0.25), ("load_progress", 0.75)])),
    st.tuples(st.just("used"), st.integers(0, 3), st.none()),
    st.tuples(st.just("pool"), st.integers(0, 3), st.none()),
    st.tuples(st.just("time"), st.sampled_from([1, 5, 20]), st.none()),
    st.tuples(st.just("decide"), st.integers(1, 300), st.none()),
    st.tuples(st.just("read"), st.integers(1, 20), st.none()),
    st.tuples(st.just("reconnect"), st.none(), st.none()),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_whoever_follows_knows_what_a_look_tells(
    steps: list[tuple[str, int | None, tuple[str, object] | None]],
) -> None:
    """At the number of every look, however far the reader was behind and however often it came back."""
    stage = Stage(memory(model("a"), model("b"), model("c")))
    follower = Follower()
    at: int | None = None
    pool = (("a", "b", "c"), ("a", "c"), ("c", "a"), ("a", "b", "c", "d"))
    for name, number, value in steps:
        match name:
            case "model" if value is not None and number is not None and number < len(stage.view.models):
                stage.set_model(number, **{value[0]: value[1]})
            case "used":
                stage.view = replace(stage.view, tier1_used_bytes=number or 0)
            case "pool":
                known = {str(one.spec.id): one for one in stage.view.models}
                names = pool[number or 0]
                stage.view = replace(stage.view, models=tuple(known.get(one) or model(one) for one in names))
            case "time":
                stage.now_s += (number or 0) / 100
            case "decide":
                for one in range(number or 0):
                    stage.feed.publish(ChangeKind.DECISION, decision(one))
            case "reconnect":
                stage.feed.refresh()
            case _:
                for _ in range(number or 0):
                    if (change := stage.feed.after(at)) is not None:
                        follower.take(change)
                        at = change.seq
    seen = stage.feed.refresh()
    while (change := stage.feed.after(at)) is not None:
        follower.take(change)
        at = change.seq
    assert follower.seq == seen.seq
    assert tuple(follower.models.values()) == seen.view.models
    assert follower.totals == replace(seen.view, models=())
