"""Whatever engines, holder, devices, people and clients do, in whatever order: everything is answered exactly once.

Nothing takes real time here; what hangs is given up when the loop's clock has jumped far enough.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hypnos_engine.domain.errors import DeviceOutOfMemory, HypnosError
from hypnos_engine.domain.kinds import MoeOffload, Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.runtime.lease import Ask
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.limits import Limits
from hypnos_engine.testing.monitor_conformance import MonitorTests
from tests.runtime.unreliable import NAMES, UNIT, MadeUpDevices, Unreliable, Watched, unreliable, until_rest
from tests.runtime.virtual_time import run

Action = Callable[["Play"], None]
STEPS = ("load", "park", "unload", "fill", "drop")
numbers = st.integers(0, 30)
names = st.sampled_from([ModelId(name) for name in NAMES])


class Play:
    """One run and whoever takes part in it."""

    def __init__(self, on: Unreliable) -> None:
        self.on = on
        self.clients: list[asyncio.Task[None]] = []

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        self.clients.append(asyncio.ensure_future(work))

    @property
    def there(self) -> list[asyncio.Task[None]]:
        return [client for client in self.clients if not client.done()]


# --- what can happen ------------------------------------------------------------------------------------------------


def ask(
    name: ModelId, words: int, deadline: float | None, task: ev.Workflow | None, following: ModelId | None
) -> Action:
    wish = Ask(name, f"key {words % 2}", deadline, workflow=task, next_model=following, weight=1.0 + words % 3)
    return lambda play: play.begin(play.on.ask(wish, words))


def leave(number: int) -> Action:
    def do(play: Play) -> None:
        if there := play.there:
            there[number % len(there)].cancel()

    return do


def go_on(number: int, fails: bool) -> Action:
    def do(play: Play) -> None:
        closed = [gate for gate in play.on.gates if not gate.opened.is_set()]
        if closed:
            closed[number % len(closed)].open(fails=fails)

    return do


def die(number: int, for_memory: bool) -> Action:
    def do(play: Play) -> None:
        there = [engine for engine in play.on.engines if engine.there]
        if there:
            there[number % len(there)].die(DeviceOutOfMemory("cudaMalloc failed") if for_memory else None)

    return do


def lose_pages(number: int) -> Action:
    def do(play: Play) -> None:
        held = play.on.holder.report().held
        if held:
            play.on.holder.inner.lose(held[number % len(held)].files)

    return do


def holder_dies(_: int) -> Action:
    return lambda play: play.on.holder.inner.die()


def by_hand(what: str, name: ModelId, number: int) -> Action:
    def do(play: Play) -> None:
        hand = play.on.by_hand
        spec = next(spec for spec in play.on.specs if spec.id == name)
        match what:
            case "move":
                play.begin(hand.move(name, list(Tier)[number % 3], (None, 4096)[number % 2]))
            case "off" | "on":
                play.begin(hand.switch(name, enabled=what == "on"))
            case "offload":
                play.begin(hand.set_expert_offload(name, list(MoeOffload)[number % 3]))
            case "free":
                play.begin(hand.free((None, 5.0)[number % 2]))
            case "restore":
                play.begin(hand.restore())
            case "replace":
                play.begin(hand.replace(replace(spec, slots=1 + number % 3), within_s=float(number)))
            case "remove":
                play.begin(hand.remove(name, within_s=float(number)))
            case _:
                play.begin(hand.add(spec))

    return do


def others(number: int, used_gib: int) -> Action:
    def do(play: Play) -> None:
        monitor = play.on.monitor
        if number % 2 and monitor.sizes:
            monitor.others[number % len(monitor.sizes)] = used_gib * UNIT
        else:
            monitor.host_others = used_gib * UNIT
        play.on.dispatcher.machine_changed()

    return do


def device(number: int, lost: bool) -> Action:
    def do(play: Play) -> None:
        monitor = play.on.monitor
        if monitor.sizes:
            (monitor.lost.add if lost else monitor.lost.discard)(number % len(monitor.sizes))
            play.on.dispatcher.machine_changed()

    return do


def park(enabled: bool, bound: int) -> Action:
    def do(play: Play) -> None:
        dropped = play.on.conversations.configure(enabled=enabled, max_bytes=bound)
        play.on.budgets = replace(play.on.budgets, park_bytes=bound if enabled else 0)
        play.on.dispatcher.post(*(ev.KvParked(name, 0) for name in dropped), ev.BudgetsSet(play.on.budgets))

    return do


def grow(number: int, to_bytes: int) -> Action:
    def do(play: Play) -> None:
        there = [name for name, live in play.on.dispatcher.residents.all() if live.loaded and not live.leaving]
        if there:
            play.on.dispatcher.post(ev.WorkerMeasured(there[number % len(there)], to_bytes))

    return do


tasks = st.none() | st.builds(ev.Workflow, st.sampled_from(["w", "x"]), st.just("1"), st.booleans())
hands = st.sampled_from(["move", "move", "off", "on", "offload", "free", "restore", "replace", "remove", "add"])
actions = st.one_of(
    st.builds(ask, names, numbers, st.none() | st.floats(0.0, 40.0), tasks, st.none() | names),
    st.builds(ask, names, numbers, st.none(), st.none(), st.none()),
    st.builds(go_on, numbers, st.booleans()),
    st.builds(go_on, numbers, st.just(False)),
    st.builds(leave, numbers),
    st.builds(die, numbers, st.booleans()),
    st.builds(lose_pages, numbers),
    st.builds(holder_dies, numbers),
    st.builds(by_hand, hands, names, numbers),
    st.builds(others, numbers, st.integers(0, 12)),
    st.builds(device, numbers, st.booleans()),
    st.builds(park, st.booleans(), st.sampled_from([0, 4096 * 20, UNIT])),
    st.builds(grow, numbers, st.sampled_from([UNIT // 4, UNIT, 6 * UNIT])),
)
pauses = st.one_of(st.integers(0, 12), st.sampled_from([0.5, 3.5, 70.0, 200.0]))
"""Turns of the loop, or seconds."""
plays = st.lists(st.tuples(actions, pauses), min_size=20, max_size=80)
prompt_steps = st.sampled_from(
    [frozenset(), frozenset(STEPS), *(frozenset(STEPS) - {late} for late in STEPS), frozenset(("load", "unload"))]
)


async def perform(play: Play, script: list[tuple[Action, int | float]]) -> None:
    for action, pause in script:
        action(play)
        if isinstance(pause, float):
            await asyncio.sleep(pause)
        for _ in range(pause if isinstance(pause, int) else 0):
            await asyncio.sleep(0)


@pytest.fixture
def expected_log() -> list[str]:
    return ["loading ", "the worker of ", "letting go of ", "keeping ", "parking ", "restoring "]


@pytest.fixture(autouse=True)
def little_log() -> None:
    logging.getLogger("hypnos.scheduler").setLevel(logging.WARNING)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    script=plays,
    devices=st.sampled_from([(), (8 * UNIT,), (4 * UNIT, 6 * UNIT)]),
    parks=st.booleans(),
    prompt=prompt_steps,
)
def test_everything_is_answered_once_and_nobody_is_forgotten(
    script: list[tuple[Action, int | float]],
    devices: tuple[int, ...],
    parks: bool,
    prompt: frozenset[str],
    tmp_path: Path,
) -> None:
    async def whole() -> None:
        async with unreliable(tmp_path, devices, park_bytes=UNIT if parks else 0, prompt=prompt) as on:
            play = Play(on)
            await perform(play, script)
            on.monitor.lost.clear()
            on.monitor.others, on.monitor.host_others = [0] * len(devices), 0
            on.dispatcher.machine_changed()
            play.begin(on.by_hand.restore())
            await until_rest(on, set(play.clients))
            on.check_at_rest()

    run(whole())


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=plays, devices=st.sampled_from([(), (8 * UNIT,)]), prompt=prompt_steps)
@example(script=[], devices=(), prompt=frozenset())
def test_the_end_may_come_at_any_moment(
    script: list[tuple[Action, int | float]], devices: tuple[int, ...], prompt: frozenset[str], tmp_path: Path
) -> None:
    async def whole() -> None:
        async with unreliable(tmp_path, devices, prompt=prompt) as on:
            play = Play(on)
            await perform(play, script)
        ended = await asyncio.gather(*play.clients, return_exceptions=True)
        assert not [one for one in ended if isinstance(one, Exception) and not isinstance(one, HypnosError)]
        assert on.holding == sum(len(model.leases) for model in on.scheduler.state.models.values()) == 0
        assert not on.scheduler.wrong

    run(whole())


class TestMadeUpDevices(MonitorTests):
    devices = 2

    def monitor(self) -> MadeUpDevices:
        return MadeUpDevices((UNIT, 2 * UNIT), Watched([], Limits()))
