"""What every engine that makes vectors must do, as tests to inherit: the obligations of `engines.base.Embeds`.

Decides nothing about how an engine works, and nothing about what its vectors mean.
"""

import asyncio
import math
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import pytest

from hypnos_engine.domain.embedding import MOST_TEXTS
from hypnos_engine.domain.errors import Cancelled, EngineFailed, InvalidRequest, WorkerDied
from hypnos_engine.engines.base import Embeddings, Embeds, Engine
from hypnos_engine.ipc import messages as m
from hypnos_engine.testing.engine_conformance import deny, ignore, question

TEXTS = ("A cat sat on the mat.", "Stocks fell again today, and then some more.", "x")


class EmbeddingEngine(Engine, Embeds, Protocol):
    """An engine with the ability."""


def rows(answer: Embeddings) -> list[list[float]]:
    """The vectors, one by one."""
    values = array("f", answer.packed)
    assert len(values) == answer.dimensions * len(answer.prompt_tokens)
    return [list(values[start : start + answer.dimensions]) for start in range(0, len(values), answer.dimensions)]


def length(row: list[float]) -> float:
    return math.sqrt(sum(value * value for value in row))


def apart(one: list[float], other: list[float]) -> float:
    """The largest difference of two elements."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


class EmbeddingTests:
    """Inherit as a `Test…` class; the methods below say how to make the engine and what to ask it."""

    company_moves = 0.0
    """How far an element may be moved by what else is in the batch."""

    def make(self) -> EmbeddingEngine:
        """A new engine."""
        raise NotImplementedError

    def kill(self, engine: EmbeddingEngine) -> None:
        """Let the engine die as by a crash."""
        raise NotImplementedError

    def load_request(self) -> m.Load:
        """What `load` is called with; `embeddings` is set."""
        raise NotImplementedError

    def many(self, number: int) -> m.Embed:
        """A request that is not over before the loop has turned a few times."""
        return m.Embed(number, tuple(f"text {index} of many texts" * 4 for index in range(MOST_TEXTS)))

    @asynccontextmanager
    async def loaded(self) -> AsyncIterator[EmbeddingEngine]:
        """A loaded engine, unloaded in the end."""
        engine = self.make()
        try:
            await engine.load(self.load_request(), ignore, deny(engine))
            yield engine
        finally:
            await engine.unload(0.0)

    async def test_the_load_says_how_long_vectors_are(self) -> None:
        engine = self.make()
        try:
            loaded = await engine.load(self.load_request(), ignore, ignore)
            answer = await engine.embed(m.Embed(1, TEXTS))
            assert loaded.dimensions == answer.dimensions >= 1
        finally:
            await engine.unload()

    async def test_each_text_has_a_vector_of_length_one_in_order(self) -> None:
        async with self.loaded() as engine:
            answer = await engine.embed(m.Embed(1, TEXTS))
            single = [rows(await engine.embed(m.Embed(2, (text,))))[0] for text in TEXTS]
        assert all(length(row) == pytest.approx(1.0, abs=1e-5) for row in rows(answer))
        assert all(apart(row, alone) <= self.company_moves for row, alone in zip(rows(answer), single, strict=True))
        assert all(count >= 1 for count in answer.prompt_tokens)
        assert answer.truncated == ()
        assert answer.timing.queue_ms is not None

    async def test_vectors_may_keep_their_length(self) -> None:
        async with self.loaded() as engine:
            raw = rows(await engine.embed(m.Embed(1, TEXTS, normalise=False)))
            scaled = rows(await engine.embed(m.Embed(2, TEXTS)))
        for row, one in zip(raw, scaled, strict=True):
            assert apart([value / length(row) for value in row], one) < 1e-5

    async def test_a_text_that_is_too_long_is_refused_by_its_number_or_cut(self) -> None:
        async with self.loaded() as engine:
            long = "word " * (self.load_request().context_len + 100)
            with pytest.raises(InvalidRequest, match="text 1 "):
                await engine.embed(m.Embed(1, ("short", long)))
            cut = await engine.embed(m.Embed(1, ("short", long, "short"), truncate=True))
            assert cut.truncated == (1,)
            assert len(rows(cut)) == 3

    @pytest.mark.parametrize("count", [0, MOST_TEXTS + 1])
    async def test_the_number_of_texts_is_bounded(self, count: int) -> None:
        async with self.loaded() as engine:
            with pytest.raises(InvalidRequest):
                await engine.embed(m.Embed(1, ("a",) * count))
            assert len(rows(await engine.embed(m.Embed(1, ("a",))))) == 1

    async def test_an_engine_that_was_not_loaded_makes_nothing(self) -> None:
        engine = self.make()
        with pytest.raises(EngineFailed):
            await engine.embed(m.Embed(1, TEXTS))
        await engine.unload()

    async def test_no_conversation_is_answered(self) -> None:
        async with self.loaded() as engine:
            with pytest.raises(InvalidRequest):
                await anext(engine.generate(question(1, "Hello")))
            assert len(rows(await engine.embed(m.Embed(1, TEXTS)))) == len(TEXTS)

    async def test_requests_overlap_and_are_independent(self) -> None:
        async with self.loaded() as engine:
            requests = [m.Embed(number, TEXTS[number % 3 :]) for number in range(12)]
            requests[5] = m.Embed(5, ())
            answers = await asyncio.gather(*(engine.embed(request) for request in requests), return_exceptions=True)
            alone = rows(await engine.embed(m.Embed(1, TEXTS)))
        for number, answer in enumerate(answers):
            if number == 5:
                assert isinstance(answer, InvalidRequest)
                continue
            assert isinstance(answer, Embeddings)
            expected = alone[number % 3 :]
            assert all(apart(a, b) <= self.company_moves for a, b in zip(rows(answer), expected, strict=True))

    async def test_a_number_in_use_is_refused(self) -> None:
        async with self.loaded() as engine:
            task = asyncio.create_task(engine.embed(self.many(1)))
            await asyncio.sleep(0)
            with pytest.raises(ValueError, match="running"):
                await engine.embed(m.Embed(1, TEXTS))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(rows(await engine.embed(m.Embed(1, TEXTS)))) == len(TEXTS)

    async def test_cancelling_stops_the_computation(self) -> None:
        async with self.loaded() as engine:
            for number in range(20):  # requests that went on would soon be missed
                task = asyncio.create_task(engine.embed(self.many(number)))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert len(rows(await engine.embed(m.Embed(1, TEXTS)))) == len(TEXTS)

    async def test_unload_ends_requests_with_cancelled(self) -> None:
        async with self.loaded() as engine:
            task = asyncio.create_task(engine.embed(self.many(1)))
            await asyncio.sleep(0)
            await engine.unload()
            with pytest.raises(Cancelled):
                await task
            with pytest.raises(Cancelled):
                await engine.embed(m.Embed(2, TEXTS))

    async def test_death_fails_what_runs_and_what_comes_after(self) -> None:
        async with self.loaded() as engine:
            tasks = [asyncio.create_task(engine.embed(self.many(number))) for number in (1, 2)]
            await asyncio.sleep(0)
            self.kill(engine)
            for task in tasks:
                with pytest.raises(WorkerDied):
                    await task
            assert isinstance((await engine.exited()).error, WorkerDied)
            with pytest.raises(WorkerDied):
                await engine.embed(m.Embed(3, TEXTS))
