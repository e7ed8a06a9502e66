"""The scripted engine: the shared obligations, and each thing that a script can make it do."""

import asyncio

import pytest

from hypnos_engine.domain.errors import DeviceOutOfMemory, EngineFailed, LoadFailed, WorkerDied
from hypnos_engine.engines.base import Engine
from hypnos_engine.engines.fake import NO_MEMORY, FakeEngine, FakeScript, counting
from hypnos_engine.ipc import messages as m
from hypnos_engine.testing.engine_conformance import EngineTests, complete, ignore, question, until_first_text

LOAD = m.Load("tiny", "", context_len=256, slots=2, gpu_layers=3)


def _reply(request: m.Generate) -> list[str]:
    text = request.messages[-1].text()
    return list(counting_upto(1000)) if text == "count" else [f"{word} " for word in text.split()]


def counting_upto(limit: int) -> list[str]:
    return [f"{number} " for number in range(limit)]


class TestFakeEngine(EngineTests):
    def make(self) -> Engine:
        return FakeEngine("tiny", FakeScript(reply=_reply))

    def make_slow_to_load(self) -> Engine:
        return FakeEngine("tiny", FakeScript(load_gate=asyncio.Event()))

    def kill(self, engine: Engine) -> None:
        assert isinstance(engine, FakeEngine)
        engine.die()

    def load_request(self) -> m.Load:
        return LOAD

    def long(self, number: int, max_tokens: int = 1000) -> m.Generate:
        return question(number, "count", max_tokens=max_tokens)


async def test_a_load_waits_for_its_gate_and_reports_what_the_script_says() -> None:
    gate, progress = asyncio.Event(), [m.LoadProgress("weights", 0.5)]
    memory = m.MemoryReport(1, 2, 3, 4, 5, 6)
    engine = FakeEngine("tiny", FakeScript(load_gate=gate, progress=tuple(progress), memory=memory))
    seen: list[m.LoadProgress] = []
    task = asyncio.create_task(engine.load(LOAD, seen.append, ignore))
    await asyncio.sleep(0)
    assert seen == progress
    assert not task.done()
    gate.set()
    loaded = await task
    assert (loaded.memory, loaded.gpu_layers, loaded.context_len) == (memory, 3, 256)
    assert engine.loads == [LOAD]


async def test_a_load_fails_as_scripted_and_the_engine_is_gone() -> None:
    engine = FakeEngine("tiny", FakeScript(load_error=LoadFailed("damaged")))
    with pytest.raises(LoadFailed, match="damaged"):
        await engine.load(LOAD, ignore, ignore)
    assert (await engine.exited()).error is None


async def test_each_token_takes_one_permit() -> None:
    gate = asyncio.Semaphore(0)
    engine = FakeEngine("tiny", FakeScript(reply=counting, token_gate=gate))
    await engine.load(LOAD, ignore, ignore)
    events = engine.generate(question(1, "x", max_tokens=2))
    assert isinstance(await anext(events), m.Accepted)
    waiting = asyncio.create_task(anext(events))
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.release()
    assert await waiting == m.Delta(1, "0 ")
    gate.release()
    assert await anext(events) == m.Delta(1, "1 ")
    assert isinstance(await anext(events), m.Finished)


async def test_slots_bound_what_runs_at_once() -> None:
    gate = asyncio.Semaphore(0)
    engine = FakeEngine("tiny", FakeScript(token_gate=gate))
    await engine.load(LOAD, ignore, ignore)
    first, second, third = (engine.generate(question(number, "a")) for number in (1, 2, 3))
    assert isinstance(await anext(first), m.Accepted)
    assert isinstance(await anext(second), m.Accepted)
    waiting = asyncio.create_task(anext(third))
    await asyncio.sleep(0)
    assert not waiting.done()
    await first.aclose()
    assert isinstance(await waiting, m.Accepted)
    await engine.unload()


async def test_a_request_fails_after_its_tokens_and_the_next_one_too() -> None:
    engine = FakeEngine("tiny", FakeScript(reply=counting, fail_after=2))
    await engine.load(LOAD, ignore, ignore)
    for number in (1, 2):
        events = engine.generate(question(number, "x"))
        assert isinstance(await anext(events), m.Accepted)
        assert await anext(events) == m.Delta(number, "0 ")
        assert await anext(events) == m.Delta(number, "1 ")
        with pytest.raises(EngineFailed):
            await anext(events)


async def test_the_engine_dies_after_its_tokens() -> None:
    engine = FakeEngine("tiny", FakeScript(reply=counting, die_after=3))
    await engine.load(LOAD, ignore, ignore)
    with pytest.raises(WorkerDied):
        await complete(engine, question(1, "x"))
    assert not (await engine.exited()).expected


async def test_death_while_loading_fails_the_load() -> None:
    engine = FakeEngine("tiny", FakeScript(load_gate=asyncio.Event()))
    task = asyncio.create_task(engine.load(LOAD, ignore, ignore))
    await asyncio.sleep(0)
    engine.die(DeviceOutOfMemory("no room"))
    with pytest.raises(DeviceOutOfMemory):
        await task


async def test_unload_waits_for_its_gate() -> None:
    gate = asyncio.Event()
    engine = FakeEngine("tiny", FakeScript(unload_gate=gate))
    await engine.load(LOAD, ignore, ignore)
    task = asyncio.create_task(engine.unload())
    await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    await task
    assert (await engine.exited()).expected


async def test_context_news_and_settings_pass_through() -> None:
    engine = FakeEngine("tiny")
    news: list[object] = []
    await engine.load(LOAD, ignore, news.append)
    wanted, resized = m.ContextWanted(512), m.ContextResized(512, 1.0, NO_MEMORY)
    engine.report_context(wanted)
    engine.report_context(resized)
    engine.send(m.ResizeContext(512))
    assert news == [wanted, resized]
    assert engine.sent == [m.ResizeContext(512)]


async def test_concurrent_slots_are_counted() -> None:
    engine = FakeEngine("tiny", FakeScript(reply=counting))
    await engine.load(LOAD, ignore, ignore)
    other = engine.generate(question(1, "x", max_tokens=1000))
    await until_first_text(other)
    answer = await complete(engine, question(2, "x"))
    assert answer.finished.timing.concurrent_slots == 2
    await other.aclose()
    assert engine.running == 0
