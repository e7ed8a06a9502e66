"""The dispatcher: effects are performed, every outcome is one event, and nothing is left behind."""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack

import pytest

from hypnos_engine.domain.errors import Cancelled, EngineFailed, LoadFailed, ModelNotFound, WorkerDied
from hypnos_engine.domain.kinds import Residency, Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.engines.fake import FakeScript, counting
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.lease import Ask
from hypnos_engine.scheduler import events as ev
from tests.runtime.bench import HELLO, ONE_MODEL, ask, bench, read

A, B = ModelId("a"), ModelId("b")


async def test_a_request_loads_its_model_and_gets_its_answer() -> None:
    async with bench("a") as on:
        assert await ask(on, "a") == "one two three"
        assert on.leases("a") == 0
        assert on.dispatcher.scheduler.state.models[A].residency is Residency.READY


async def test_the_switch_says_what_had_to_happen() -> None:
    async with bench("a") as on:
        async with on.dispatcher.lease(Ask(A)) as lease:
            assert lease.switch.previous_tier is Tier.DISK
            assert lease.switch.phases is not None
            assert lease.placement.primary_tier is Tier.GPU
        async with on.dispatcher.lease(Ask(A)) as lease:
            assert lease.switch.previous_tier is Tier.GPU
            assert lease.switch.phases is None
            assert lease.switch.latency_ms == 0.0


async def test_many_first_requests_start_one_worker() -> None:
    async with bench("a", slots=4) as on:
        answers = await asyncio.gather(*(ask(on, "a") for _ in range(8)))
        assert answers == ["one two three"] * 8
        assert len(on.engines) == 1


async def test_an_idle_model_leaves_for_another_and_its_process_is_gone_first() -> None:
    gate = asyncio.Event()
    async with bench("a", "b", memory_bytes=ONE_MODEL, scripts={"a": [FakeScript(unload_gate=gate)]}) as on:
        await ask(on, "a")
        waiting = asyncio.create_task(ask(on, "b"))
        await on.dispatcher.until(lambda: on.queued("b") == 1)
        assert len(on.engines) == 1, "the other worker must not start before the first is gone"
        gate.set()
        assert await waiting == "one two three"
        assert [record.model for record in on.dispatcher.evictions] == [A]
        assert on.dispatcher.evictions[0].reason == "memory_budget"


async def test_a_failed_load_reaches_every_waiter_and_the_next_request_tries_again() -> None:
    gate = asyncio.Event()
    broken = FakeScript(load_gate=gate, load_error=LoadFailed("the file is damaged"))
    async with bench("a", scripts={"a": [broken, FakeScript()]}) as on:
        waiting = [asyncio.create_task(ask(on, "a")) for _ in range(3)]
        await on.dispatcher.until(lambda: on.queued("a") == 3)
        gate.set()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [LoadFailed] * 3
        assert len({id(result) for result in results}) == 3, "each waiter needs an exception of its own"
        assert await ask(on, "a") == "one two three"


@pytest.fixture
def expected_log() -> list[str]:
    return ["loading a failed: the file is damaged", "the worker of a died", "a decision could not be carried out"]


async def test_a_worker_that_dies_mid_stream_fails_that_request_only() -> None:
    async with bench("a", "b", scripts={"a": [FakeScript(die_after=2), FakeScript()]}) as on:
        other = asyncio.create_task(ask(on, "b"))
        with pytest.raises(WorkerDied):
            await ask(on, "a")
        assert await other == "one two three"
        assert await ask(on, "a") == "one two three"
        assert on.leases("a") == 0


async def test_cancelling_a_waiter_gives_its_place_up() -> None:
    gate = asyncio.Event()
    async with bench("a", scripts={"a": [FakeScript(load_gate=gate)]}) as on:
        waiting = asyncio.create_task(ask(on, "a"))
        await on.dispatcher.until(lambda: on.queued("a") == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert on.queued("a") == 0
        gate.set()
        assert await ask(on, "a") == "one two three"


async def test_leaving_at_any_turn_of_the_loop_leaves_no_lease() -> None:
    """Whatever await a client leaves at, its lease and its place in the queue end."""
    for turns in range(40):
        async with bench("a", scripts={"a": [FakeScript(reply=counting)]}) as on:
            request = asyncio.create_task(ask(on, "a", max_tokens=100_000))
            for _ in range(turns):
                await asyncio.sleep(0)
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            assert on.leases("a") == 0
            assert on.queued("a") == 0
            assert len(on.dispatcher.wishes) == 0
            await on.dispatcher.drain(0.0)
            assert all(engine.running == 0 for engine in on.engines)


async def test_leaving_a_stream_midway_stops_its_generation() -> None:
    async with bench("a", scripts={"a": [FakeScript(reply=counting)]}) as on:
        async with on.dispatcher.lease(Ask(A)) as lease:
            events = lease.generate(HELLO, max_tokens=10_000)
            assert isinstance(await anext(events), m.Accepted)
            assert isinstance(await anext(events), m.Delta)
            await events.aclose()
            assert on.engine("a").running == 0
        assert on.leases("a") == 0


async def test_a_request_for_nobody_is_refused() -> None:
    async with bench("a") as on:
        with pytest.raises(ModelNotFound, match="nobody"):
            await ask(on, "nobody")


async def test_drain_lets_running_requests_end_and_refuses_the_rest() -> None:
    async with bench("a", slots=1) as on, AsyncExitStack() as running:
        lease = await running.enter_async_context(on.dispatcher.lease(Ask(A)))
        waiting = asyncio.create_task(ask(on, "a"))
        await on.dispatcher.until(lambda: on.queued("a") == 1)
        draining = asyncio.create_task(on.dispatcher.drain(60.0))
        with pytest.raises(Cancelled):
            await waiting
        assert await read(lease) == "one two three"
        assert not draining.done()
        await running.aclose()
        assert await draining


async def test_drain_says_when_somebody_stayed() -> None:
    async with bench("a") as on, on.dispatcher.lease(Ask(A)):
        assert not await on.dispatcher.drain(0.0)


async def test_stop_ends_a_worker_that_is_loading_and_tells_whoever_waits_for_it() -> None:
    gate = asyncio.Event()
    async with bench("a", scripts={"a": [FakeScript(load_gate=gate)]}) as on:
        waiting = asyncio.create_task(ask(on, "a"))
        await on.dispatcher.until(lambda: bool(on.engines))
        await on.dispatcher.stop()
        assert (await on.engines[0].exited()).expected
        with pytest.raises(Cancelled):
            await waiting


async def test_a_wish_for_more_context_is_answered() -> None:
    async with bench("a") as on:
        await ask(on, "a")
        engine = on.engine("a")
        engine.report_context(m.ContextWanted(4096))
        assert engine.sent[-1] == m.ResizeContext(4096)
        memory = m.MemoryReport(0, 0, 0, 0, 0, 5)
        engine.report_context(m.ContextResized(4096, 1.0, memory))
        state = on.dispatcher.scheduler.state.models[A]
        assert state.placement.allocated_context_len == 4096
        assert state.footprint.anonymous == 5


async def test_events_that_arise_while_one_is_handled_are_taken_in_turn() -> None:
    async with bench("a") as on:
        on.dispatcher.post(ev.StageRequested(A), ev.Woken(), ev.Woken())
        await on.dispatcher.until(lambda: on.dispatcher.scheduler.state.models[A].residency is Residency.READY)
        assert len(on.engines) == 1


async def test_waiters_of_a_worker_that_dies_are_served_by_the_next_one() -> None:
    """The death is known before the leases on the dead worker end, so nobody is granted a dead worker."""
    begun: list[m.Generate] = []
    both = asyncio.Event()

    def begin(request: m.Generate) -> Iterable[str]:
        begun.append(request)
        if len(begun) == 2:
            both.set()
        return counting(request)

    dying = FakeScript(reply=begin, token_gate=asyncio.Semaphore(0))
    async with bench("a", slots=2, scripts={"a": [dying, FakeScript()]}) as on:
        running = [asyncio.create_task(ask(on, "a", max_tokens=1000)) for _ in range(2)]
        waiting = [asyncio.create_task(ask(on, "a")) for _ in range(3)]
        await both.wait()
        assert on.queued("a") == 3
        on.engine("a").die()
        lost = await asyncio.gather(*running, return_exceptions=True)
        assert [type(result) for result in lost] == [WorkerDied] * 2
        assert await asyncio.gather(*waiting) == ["one two three"] * 3


async def test_an_engine_that_cannot_be_made_fails_its_load_and_leaves_the_others_alone() -> None:
    async with bench("a", "b") as on:
        on.unmakeable.add("a")
        with pytest.raises(EngineFailed, match="RuntimeError"):
            await ask(on, "a")
        assert on.leases("a") == on.queued("a") == 0
        assert await ask(on, "b") == "one two three"
        on.unmakeable.clear()
        assert await ask(on, "a") == "one two three"


async def test_a_machine_that_cannot_be_sampled_leaves_no_request_behind() -> None:
    async with bench("a") as on:
        on.blind = True
        with pytest.raises(OSError, match="no sample"):
            await ask(on, "a")
        on.blind = False
        assert on.leases("a") == on.queued("a") == 0
        assert await ask(on, "a") == "one two three"


async def test_a_request_whose_worker_dies_before_it_says_anything_is_served_by_the_next_one() -> None:
    async with bench("a", scripts={"a": [FakeScript(), FakeScript()]}) as on:
        async with on.dispatcher.lease(Ask(A)) as lease:
            on.engines[0].die(WorkerDied("killed"))
            assert await read(lease) == "one two three"
        assert len(on.engines) == 2
        assert on.leases("a") == on.queued("a") == 0


async def test_leaving_while_the_next_worker_is_awaited_leaves_nothing_behind() -> None:
    gate = asyncio.Event()
    async with bench("a", scripts={"a": [FakeScript(), FakeScript(load_gate=gate)]}) as on:

        async def unlucky() -> str:
            async with on.dispatcher.lease(Ask(A)) as lease:
                on.engines[0].die(WorkerDied("killed"))
                return await read(lease)

        request = asyncio.create_task(unlucky())
        await on.dispatcher.until(lambda: len(on.engines) == 2 and on.queued("a") == 1)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert on.leases("a") == on.queued("a") == 0
