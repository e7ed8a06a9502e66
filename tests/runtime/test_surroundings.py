"""What the dispatcher makes of engines, holders and devices that do not do what was hoped for, one case at a time."""

import asyncio
from pathlib import Path

import pytest

from hypnos_engine.domain.errors import DeviceOutOfMemory, HypnosError, LoadFailed, ModelNotAvailable, WorkerDied
from hypnos_engine.domain.kinds import Pages, Residency, Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.runtime.lease import Ask
from hypnos_engine.runtime.pages import SILENT_S
from hypnos_engine.runtime.parking import PARK_WITHIN_S
from hypnos_engine.runtime.residents import MEASURE_EVERY
from hypnos_engine.scheduler import events as ev
from tests.runtime.unreliable import UNIT, Unreliable, unreliable
from tests.runtime.virtual_time import run

SMALL, MIDDLE, LARGE, KEPT = (ModelId(name) for name in ("small", "middle", "large", "kept"))
AT_ONCE = frozenset(("load", "park", "unload", "fill", "drop"))
CARD = (12 * UNIT,)


@pytest.fixture
def expected_log() -> list[str]:
    return ["loading ", "the worker of ", "keeping "]


def residency(on: Unreliable, model: ModelId) -> Residency:
    return on.scheduler.state.models[model].residency


async def until(on: Unreliable, what: str) -> None:
    """A gate of this name is waited at."""
    assert await on.dispatcher.until(lambda: any(gate.what == what for gate in on.gates), within_s=1000)


def open_gate(on: Unreliable, what: str, *, fails: bool = False) -> None:
    next(gate for gate in reversed(on.gates) if gate.what == what and not gate.opened.is_set()).open(fails=fails)


# --- device memory --------------------------------------------------------------------------------------------------


def test_a_request_that_was_sent_nothing_goes_back_once_when_the_device_runs_out(tmp_path: Path) -> None:
    async def whole() -> None:
        async with unreliable(tmp_path, CARD, prompt=AT_ONCE) as on:
            async with on.dispatcher.lease(Ask(MIDDLE)) as lease:
                on.engines[-1].die(DeviceOutOfMemory("cudaMalloc failed: out of memory"))
                events = [event async for event in lease.generate((), max_tokens=2)]
                assert len(events) == 4
            assert len(on.engines) == 2
            assert on.scheduler.state.doubted_bytes[0] > 0, "the planner believes the card less"

    run(whole())


def test_a_request_in_the_middle_of_its_answer_gets_the_error(tmp_path: Path) -> None:
    async def whole() -> None:
        async with unreliable(tmp_path, CARD, prompt=AT_ONCE) as on:
            asking = asyncio.create_task(on.ask(Ask(MIDDLE), 10_000))
            await on.dispatcher.until(lambda: bool(on.engines) and on.engines[-1].running > 0)
            for _ in range(10):
                await asyncio.sleep(0)
            on.engines[-1].die(DeviceOutOfMemory("cudaMalloc failed: out of memory"))
            with pytest.raises(DeviceOutOfMemory):
                await asking
            await on.ask(Ask(MIDDLE), 3)
            on.check_at_rest()

    run(whole())


def test_a_load_that_runs_out_lets_what_is_idle_go_and_is_tried_once_more(tmp_path: Path) -> None:
    async def whole() -> None:
        async with unreliable(tmp_path, CARD, prompt=AT_ONCE - {"load"}) as on:
            first = asyncio.create_task(on.ask(Ask(SMALL), 1))
            await until(on, "load small")
            open_gate(on, "load small")
            await first
            second = asyncio.create_task(on.ask(Ask(MIDDLE), 1))
            await until(on, "load middle")
            open_gate(on, "load middle", fails=True)
            await on.dispatcher.until(lambda: len(on.engines) == 3)
            open_gate(on, "load middle")
            await second
            on.check_at_rest()

    run(whole())


def test_what_a_dead_worker_held_is_free_for_the_next_one_at_once(tmp_path: Path) -> None:
    """Nobody else has to leave because the devices were looked at before it died."""

    async def whole() -> None:
        async with unreliable(tmp_path, CARD, prompt=AT_ONCE) as on:
            await on.ask(Ask(SMALL), 1)
            await on.ask(Ask(LARGE), 1)
            large = on.engines[-1]
            stale = on.monitor.sample()
            on.monitor.sample = lambda: stale  # type: ignore[method-assign]
            large.die()
            await on.dispatcher.until(lambda: residency(on, LARGE) is Residency.COLD)
            asking = asyncio.create_task(on.ask(Ask(LARGE), 1))
            await on.dispatcher.until(lambda: len(on.engines) == 3)
            assert residency(on, SMALL) is Residency.READY
            await asking

    run(whole())


def test_a_device_that_is_lost_takes_its_models_along_and_brings_them_back(tmp_path: Path) -> None:
    async def whole() -> None:
        async with unreliable(tmp_path, CARD, prompt=AT_ONCE) as on:
            await on.ask(Ask(SMALL), 1)
            on.monitor.lost.add(0)
            on.dispatcher.machine_changed()
            await on.dispatcher.until(lambda: residency(on, SMALL) is Residency.COLD)
            with pytest.raises(HypnosError, match="does not answer"):
                await on.ask(Ask(MIDDLE), 1)
            on.monitor.lost.clear()
            on.dispatcher.machine_changed()
            await on.dispatcher.until(lambda: residency(on, SMALL) is Residency.READY)
            on.check_at_rest()

    run(whole())


# --- host memory ----------------------------------------------------------------------------------------------------


def test_a_worker_that_grows_is_measured_and_started_anew(tmp_path: Path) -> None:
    async def whole() -> None:
        async with unreliable(tmp_path, prompt=AT_ONCE) as on:
            on.dispatcher.residents._measure = lambda engine: 6 * UNIT
            for _ in range(MEASURE_EVERY):
                await on.ask(Ask(SMALL), 1)
            await on.dispatcher.until(lambda: len(on.engines) == 2 and residency(on, SMALL) is Residency.READY)
            assert [record.record.kind for record in on.dispatcher.decisions].count("grown") == 1
            on.check_at_rest()

    run(whole())


def test_pages_that_are_only_kept_warm_are_not_there_for_the_taking(tmp_path: Path) -> None:
    async def whole() -> None:
        async with unreliable(tmp_path, prompt=AT_ONCE) as on:
            await on.dispatcher.until(lambda: on.scheduler.state.files["kept.gguf"].pages is Pages.HELD)
            on.monitor.host_others = 0
            seen = on.dispatcher.sample().host_available_bytes
            assert seen == on.monitor.sample().host_available_bytes, "a made-up machine counts its pages itself"

    run(whole())


# --- pages ----------------------------------------------------------------------------------------------------------


def test_a_fill_that_hangs_is_given_up_and_the_next_one_begins(tmp_path: Path) -> None:
    async def whole() -> None:
        async with unreliable(tmp_path, prompt=AT_ONCE - {"fill"}) as on:
            moving = asyncio.create_task(on.by_hand.move(SMALL, Tier.RAM, None))
            await until(on, "fill kept.gguf")
            began = on.dispatcher.now
            await until(on, "fill small.gguf")
            assert on.dispatcher.now - began >= SILENT_S
            open_gate(on, "fill small.gguf")
            await moving
            assert on.scheduler.tier(SMALL) is Tier.RAM

    run(whole())


def test_pages_that_cannot_be_read_are_no_move(tmp_path: Path) -> None:
    async def whole() -> None:
        async with unreliable(tmp_path, prompt=AT_ONCE - {"fill"}) as on:
            await until(on, "fill kept.gguf")
            open_gate(on, "fill kept.gguf")
            moving = asyncio.create_task(on.by_hand.move(SMALL, Tier.RAM, None))
            await until(on, "fill small.gguf")
            open_gate(on, "fill small.gguf", fails=True)
            with pytest.raises(ModelNotAvailable, match="although there is room"):
                await moving

    run(whole())


def test_a_worker_that_does_not_hand_its_conversations_over_leaves_without_them(tmp_path: Path) -> None:
    async def whole() -> None:
        async with unreliable(tmp_path, prompt=AT_ONCE - {"park"}) as on:
            await on.ask(Ask(SMALL), 1)
            began = on.dispatcher.now
            await on.by_hand.move(SMALL, Tier.RAM, None)
            assert PARK_WITHIN_S <= on.dispatcher.now - began < PARK_WITHIN_S + 5
            assert on.scheduler.state.models[SMALL].parked_bytes == 0
            on.check_at_rest()

    run(whole())


def test_conversations_that_are_given_up_while_they_are_parked_are_not_kept(tmp_path: Path) -> None:
    async def whole() -> None:
        async with unreliable(tmp_path, prompt=AT_ONCE - {"park"}) as on:
            await on.ask(Ask(SMALL), 1)
            moving = asyncio.create_task(on.by_hand.move(SMALL, Tier.RAM, None))
            await on.dispatcher.until(lambda: residency(on, SMALL) is Residency.UNLOADING)
            on.dispatcher.post(ev.ModelSwitched(SMALL, False))
            open_gate(on, "park small")
            with pytest.raises(HypnosError):
                await moving
            await on.dispatcher.until(lambda: residency(on, SMALL) is Residency.COLD)
            assert on.conversations.view().models == ()
            await on.dispatcher.until(lambda: not +on.scheduler.owed)
            on.check_at_rest()

    run(whole())


# --- workers --------------------------------------------------------------------------------------------------------


def test_a_worker_that_dies_while_its_conversations_come_back_is_dead(tmp_path: Path) -> None:
    async def whole() -> None:
        async with unreliable(tmp_path, prompt=AT_ONCE - {"park"}) as on:
            await on.ask(Ask(SMALL), 1)
            moving = asyncio.create_task(on.by_hand.move(SMALL, Tier.RAM, None))
            await on.dispatcher.until(lambda: residency(on, SMALL) is Residency.UNLOADING)
            open_gate(on, "park small")
            await moving
            assert on.scheduler.state.models[SMALL].parked_bytes
            asking = asyncio.create_task(on.ask(Ask(SMALL), 1))
            await on.dispatcher.until(lambda: len(on.engines) == 2)
            for _ in range(5):
                await asyncio.sleep(0)
            on.engines[-1].die(WorkerDied("killed"))
            await on.dispatcher.until(lambda: len(on.engines) == 3)
            await asking
            on.check_at_rest()

    run(whole())


def test_a_load_that_fails_for_good_is_told_to_everybody(tmp_path: Path) -> None:
    async def whole() -> None:
        async with unreliable(tmp_path, prompt=AT_ONCE - {"load"}) as on:
            asking = [asyncio.create_task(on.ask(Ask(SMALL), 1)) for _ in range(3)]
            await until(on, "load small")
            open_gate(on, "load small", fails=True)
            answers = await asyncio.gather(*asking, return_exceptions=True)
            assert [type(answer) for answer in answers] == [LoadFailed] * 3
            on.check_at_rest()

    run(whole())


def test_a_holder_that_dies_with_all_it_holds_is_filled_again(tmp_path: Path) -> None:
    async def whole() -> None:
        async with unreliable(tmp_path, prompt=AT_ONCE) as on:
            await on.dispatcher.until(lambda: on.scheduler.tier(KEPT) is Tier.RAM)
            on.holder.inner.die()
            assert on.scheduler.tier(KEPT) is Tier.DISK
            await on.dispatcher.until(lambda: on.scheduler.tier(KEPT) is Tier.RAM)
            on.check_at_rest()

    run(whole())
