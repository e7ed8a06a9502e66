"""What every engine must do, as tests to inherit: the obligations of `engines.base.Engine`, one by one.

Decides nothing about how an engine works; it only watches events, errors and ends.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import pytest

from hypnos_engine.domain.errors import Cancelled, InvalidRequest, WorkerDied
from hypnos_engine.engines.base import ContextSink, Engine, GenerationEvent
from hypnos_engine.ipc import messages as m


@dataclass(slots=True)
class Answer:
    """A generation that was read to its end."""

    accepted: m.Accepted
    finished: m.Finished
    deltas: list[m.Delta] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Everything that is not reasoning."""
        return "".join(delta.text for delta in self.deltas if not delta.reasoning)


def answer_of(events: list[GenerationEvent]) -> Answer:
    """Check the order of a whole generation's events and take it apart."""
    first, last = events[0], events[-1]
    assert isinstance(first, m.Accepted)
    assert isinstance(last, m.Finished)
    deltas = [event for event in events if isinstance(event, m.Delta)]
    assert len(deltas) == len(events) - 2
    return Answer(first, last, deltas)


def question(number: int, text: str, *, max_tokens: int = 16, scope: str = "local") -> m.Generate:
    """A request with one user message, answered greedily."""
    message = m.ChatMessage("user", (m.TextPart(text),))
    return m.Generate(number, scope, (message,), max_tokens, sampling=m.Sampling(temperature=0.0, seed=1))


async def complete(engine: Engine, request: m.Generate) -> Answer:
    """Run a request to its end."""
    return answer_of([event async for event in engine.generate(request)])


async def until_first_text(events: AsyncIterator[GenerationEvent]) -> m.Delta:
    """Read up to the first text and leave the generation running."""
    async for event in events:
        if isinstance(event, m.Delta):
            return event
    raise AssertionError("the generation ended without text")


def ignore(_: object) -> None:
    """A sink for news that a test does not look at."""


def deny(engine: Engine) -> ContextSink:
    """A sink that answers every wish for more context with no."""

    def answer(news: m.ContextWanted | m.ContextResized) -> None:
        if isinstance(news, m.ContextWanted):
            engine.send(m.DenyContext())

    return answer


class EngineTests:
    """Inherit as a `Test…` class; the four methods below say how to make the engine and what to ask it."""

    same_text_in_company = True
    """False for engines whose arithmetic depends on what else is in the batch."""

    def make(self) -> Engine:
        """A new engine."""
        raise NotImplementedError

    def make_slow_to_load(self) -> Engine:
        """A new engine whose load takes longer than two turns of the loop."""
        return self.make()

    def kill(self, engine: Engine) -> None:
        """Let the engine die as by a crash."""
        raise NotImplementedError

    def load_request(self) -> m.Load:
        """What `load` is called with; at least two slots."""
        raise NotImplementedError

    def short(self, number: int) -> m.Generate:
        """A request that ends within 16 tokens; another text for each number."""
        return question(number, f"Say the number {number} and the word hello.")

    def long(self, number: int, max_tokens: int = 1000) -> m.Generate:
        """A request that goes on for hundreds of tokens unless `max_tokens` stops it."""
        raise NotImplementedError

    @asynccontextmanager
    async def loaded(self) -> AsyncIterator[Engine]:
        """A loaded engine, unloaded in the end."""
        engine = self.make()
        try:
            await engine.load(self.load_request(), ignore, deny(engine))
            yield engine
        finally:
            await engine.unload(0.0)

    # --- load -------------------------------------------------------------------------------------------------------

    async def test_load_reports_what_was_loaded(self) -> None:
        engine, progress = self.make(), list[m.LoadProgress]()
        try:
            loaded = await engine.load(self.load_request(), progress.append, ignore)
            assert loaded.context_len >= 1
            assert loaded.layers >= 1
            assert loaded.architecture
            assert loaded.library
            assert loaded.phases.load_mode in {"mmap", "read"}
            assert all(0.0 <= one.fraction <= 1.0 for one in progress)
        finally:
            await engine.unload()

    async def test_an_engine_is_loaded_once(self) -> None:
        async with self.loaded() as engine:
            with pytest.raises(RuntimeError):
                await engine.load(self.load_request(), ignore, ignore)
            assert (await complete(engine, self.short(1))).finished.id == 1

    async def test_a_cancelled_load_leaves_nothing_behind(self) -> None:
        engine = self.make_slow_to_load()
        task = asyncio.create_task(engine.load(self.load_request(), ignore, ignore))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await engine.exited()).error is None

    async def test_unload_during_load_ends_the_load_with_cancelled(self) -> None:
        engine = self.make_slow_to_load()
        task = asyncio.create_task(engine.load(self.load_request(), ignore, ignore))
        await asyncio.sleep(0)
        await engine.unload()
        with pytest.raises(Cancelled):
            await task
        assert (await engine.exited()).expected

    async def test_unload_before_load_is_the_end(self) -> None:
        engine = self.make()
        await engine.unload()
        assert (await engine.exited()).expected
        with pytest.raises(Cancelled):
            await engine.load(self.load_request(), ignore, ignore)

    # --- generate ---------------------------------------------------------------------------------------------------

    async def test_events_come_in_order_and_carry_the_callers_number(self) -> None:
        async with self.loaded() as engine:
            events = [event async for event in engine.generate(self.short(4711))]
        answer = answer_of(events)
        assert {event.id for event in events} == {4711}
        assert answer.text
        assert answer.finished.finish_reason in {"stop", "length"}
        assert 1 <= answer.finished.completion_tokens <= 16
        assert answer.accepted.prompt_tokens == answer.finished.prompt_tokens >= 1

    async def test_the_same_question_gets_the_same_answer(self) -> None:
        async with self.loaded() as engine:
            first = await complete(engine, self.short(1))
            second = await complete(engine, msgspec.structs.replace(self.short(1), id=2))
        assert first.text == second.text

    async def test_max_tokens_ends_an_answer_with_length(self) -> None:
        async with self.loaded() as engine:
            answer = await complete(engine, self.long(1, max_tokens=3))
        assert answer.finished.finish_reason == "length"
        assert answer.finished.completion_tokens == 3

    async def test_a_generation_that_is_never_read_does_not_start(self) -> None:
        async with self.loaded() as engine:
            unread = engine.generate(self.long(1))
            await unread.aclose()
            # The number is free, which it would not be had the request begun.
            assert (await complete(engine, self.short(1))).text

    async def test_a_prompt_longer_than_the_window_is_refused_before_it_is_accepted(self) -> None:
        async with self.loaded() as engine:
            endless = question(1, "word " * (self.load_request().context_len + 100))
            with pytest.raises(InvalidRequest):
                await anext(engine.generate(endless))
            assert (await complete(engine, self.short(2))).text

    async def test_a_number_in_use_is_refused(self) -> None:
        async with self.loaded() as engine:
            events = engine.generate(self.long(1))
            await until_first_text(events)
            with pytest.raises(ValueError, match="running"):
                await anext(engine.generate(self.short(1)))
            await events.aclose()

    async def test_closing_the_iterator_stops_the_generation(self) -> None:
        async with self.loaded() as engine:
            for number in range(3 * self.load_request().slots):  # a slot that stayed busy would soon be missed
                events = engine.generate(self.long(number))
                await until_first_text(events)
                await events.aclose()
            assert (await complete(engine, self.short(1))).text

    async def test_cancelling_the_consumer_stops_the_generation(self) -> None:
        async with self.loaded() as engine:
            for number in range(3 * self.load_request().slots):
                events = engine.generate(self.long(number))
                await until_first_text(events)
                task = asyncio.create_task(_drain(events))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert (await complete(engine, self.short(1))).text

    async def test_concurrent_generations_are_independent(self) -> None:
        numbers = range(1, self.load_request().slots + 3)
        async with self.loaded() as engine:
            together = await asyncio.gather(*(complete(engine, self.short(number)) for number in numbers))
            assert [answer.finished.id for answer in together] == list(numbers)
            assert all(answer.text for answer in together)
            if self.same_text_in_company:
                alone = [await complete(engine, self.short(number)) for number in numbers]
                assert [answer.text for answer in together] == [answer.text for answer in alone]

    async def test_a_consumer_that_stops_reading_stalls_nobody(self) -> None:
        async with self.loaded() as engine:
            slow = engine.generate(self.long(1, max_tokens=40))
            events: list[GenerationEvent] = [await anext(slow)]
            for number in range(2, 2 + 2 * self.load_request().slots):
                assert (await complete(engine, self.short(number))).text
            events += [event async for event in slow]
            answer = answer_of(events)
            assert answer.finished.completion_tokens == 40
            if self.same_text_in_company:
                assert answer.text == (await complete(engine, self.long(1, max_tokens=40))).text

    async def test_settings_may_be_sent_at_any_time(self) -> None:
        engine = self.make()
        engine.send(m.SetThreads(1))
        try:
            await engine.load(self.load_request(), ignore, ignore)
            events = engine.generate(self.long(1))
            await until_first_text(events)
            engine.send(m.SetThreads(1))
            await events.aclose()
            assert (await complete(engine, self.short(2))).text
        finally:
            await engine.unload()
        engine.send(m.SetThreads(1))

    # --- the end ----------------------------------------------------------------------------------------------------

    async def test_unload_ends_running_generations_with_cancelled(self) -> None:
        async with self.loaded() as engine:
            events = engine.generate(self.long(1))
            await until_first_text(events)
            await engine.unload()
            with pytest.raises(Cancelled):
                await _drain(events)
            with pytest.raises(StopAsyncIteration):
                await anext(events)
            with pytest.raises(Cancelled):
                await complete(engine, self.short(2))

    async def test_unload_is_idempotent_and_may_overlap(self) -> None:
        async with self.loaded() as engine:
            await asyncio.gather(engine.unload(), engine.unload(5.0), engine.unload(0.0))
            await engine.unload()
            assert (await engine.exited()).expected

    async def test_the_end_is_told_to_everyone_who_asks(self) -> None:
        async with self.loaded() as engine:
            early = [asyncio.create_task(engine.exited()) for _ in range(3)]
            impatient = asyncio.create_task(engine.exited())
            await asyncio.sleep(0)
            impatient.cancel()
            assert not any(task.done() for task in early)
            await engine.unload()
            ends = [*await asyncio.gather(*early), await engine.exited()]
        assert [(end.expected, end.error) for end in ends] == [(True, None)] * 4

    async def test_death_fails_what_runs_and_what_comes_after(self) -> None:
        async with self.loaded() as engine:
            running = [engine.generate(self.long(number)) for number in (1, 2)]
            for events in running:
                await until_first_text(events)
            self.kill(engine)
            for events in running:
                with pytest.raises(WorkerDied):
                    await _drain(events)
            end = await engine.exited()
            assert not end.expected
            assert isinstance(end.error, WorkerDied)
            with pytest.raises(WorkerDied):
                await anext(engine.generate(self.short(3)))
            engine.send(m.SetThreads(1))


async def _drain(events: AsyncIterator[GenerationEvent]) -> None:
    async for _ in events:
        pass
