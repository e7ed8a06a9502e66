"""Workers that are started ahead: they serve like others, are passed over when they fail, and go first."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from hypnos_engine.domain.errors import Cancelled
from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.engines.base import ContextSink, Engine, ProgressSink
from hypnos_engine.engines.process import DEFAULT_TRANSPORT, Transport
from hypnos_engine.engines.registry import EngineRegistry
from hypnos_engine.engines.runtimes import WorkerRuntime, default_runtime, environment_of
from hypnos_engine.engines.spares import (
    LEAST_TOTAL_BYTES,
    PLENTY_BYTES,
    SHORT_BYTES,
    Spares,
    SpareTimes,
    SystemMemory,
    automatic_count,
    likeliest,
)
from hypnos_engine.engines.worker_engine import WorkerEngine
from hypnos_engine.ipc import messages as m
from hypnos_engine.testing.engine_conformance import complete, ignore, question, until_first_text
from tests.engines import test_workers
from tests.engines.test_workers import FAKE_LOAD, LONG_STORY, kept

PLENTY = SystemMemory(16 * 2**30, 8 * 2**30)
AT_ONCE = SpareTimes(quiet_s=0.01, busy_s=0.0, look_s=0.02, answer_s=5.0, starting_s=5.0, back_off_s=0.0)
NEVER_S = 3600.0
RECORDING = Path(__file__).with_name("recording_program.py")
ENV = {**os.environ, "PYTHONPATH": str(RECORDING.parents[2])}
WITHIN_S = 30.0


class Machine:
    """Memory that a test sets; tells of every look at it."""

    def __init__(self) -> None:
        self.memory = PLENTY
        self.tells = True
        self._looked: asyncio.Queue[None] = asyncio.Queue()

    def __call__(self) -> SystemMemory:
        self._looked.put_nowait(None)
        if not self.tells:
            raise OSError(errno.EMFILE, "Too many open files", "/proc/meminfo")
        return self.memory

    async def after_looks(self, count: int = 3) -> None:
        """Return once the pool has looked so often again."""
        while not self._looked.empty():
            self._looked.get_nowait()
        async with asyncio.timeout(WITHIN_S):
            for _ in range(count):
                await self._looked.get()


@asynccontextmanager
async def pool(
    runtime: WorkerRuntime | None = None,
    kind: EngineKind = EngineKind.FAKE,
    *,
    count: int = 1,
    machine: Machine | None = None,
    times: SpareTimes = AT_ONCE,
    transport: Transport = DEFAULT_TRANSPORT,
) -> AsyncIterator[Spares]:
    spares = Spares(
        runtime or default_runtime(), kind, count, memory=machine or Machine(), times=times, transport=transport
    )
    spares.begin()
    try:
        yield spares
    finally:
        await spares.close()


async def until_ready(spares: Spares, count: int = 1) -> list[int]:
    """Process ids of this process's children, once so many spares are ready."""
    async with asyncio.timeout(WITHIN_S):
        await spares.until(lambda: spares.ready == count)
    return children()


async def until_gone(spares: Spares, *pids: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        await spares.until(lambda: not set(pids or children()).intersection(children()))


def children() -> list[int]:
    return [child.pid for child in psutil.Process().children()]


def engine_with(spares: Spares, runtime: WorkerRuntime | None = None) -> WorkerEngine:
    return WorkerEngine("tiny", EngineKind.FAKE, runtime or default_runtime(), spares=spares)


async def load(engine: WorkerEngine) -> m.Loaded:
    return await engine.load(FAKE_LOAD, ignore, ignore)


# --- a spare serves as any other worker -----------------------------------------------------------------------------


class Spared(WorkerEngine):
    """An engine whose process is there before its load."""

    def __init__(self, kind: EngineKind, transport: Transport) -> None:
        self._pool = Spares(default_runtime(), kind, 1, memory=Machine(), times=AT_ONCE, transport=transport)
        super().__init__("tiny", kind, default_runtime(), transport=transport, spares=self._pool)

    async def load(self, request: m.Load, on_progress: ProgressSink, on_context: ContextSink) -> m.Loaded:
        self._pool.begin()
        try:
            try:
                await until_ready(self._pool)
            except asyncio.CancelledError:
                await self.unload(0.0)
                raise
            return await super().load(request, on_progress, on_context)
        finally:
            await self._pool.close()


class SpareTests(test_workers.WorkerTests):
    """The obligations of an engine, for one that takes a spare over."""

    kind: ClassVar[EngineKind] = EngineKind.FAKE
    transport: ClassVar[Transport] = DEFAULT_TRANSPORT

    def make(self) -> Engine:
        return Spared(self.kind, self.transport)

    def load_request(self) -> m.Load:
        return FAKE_LOAD

    def long(self, number: int, max_tokens: int = 6000) -> m.Generate:
        return question(number, LONG_STORY, max_tokens=max_tokens)


@pytest.mark.usefixtures("loop_factory")
class TestSpareOverASocket(SpareTests):
    transport = Transport.SOCKET


class TestSpareOverPipes(SpareTests):
    transport = Transport.PIPES


@pytest.mark.starter
class TestLlamaSpare(test_workers.TestLlamaWorker):
    def make(self) -> Engine:
        return Spared(EngineKind.LLAMA, DEFAULT_TRANSPORT)


async def test_a_load_takes_the_spare_and_another_one_follows() -> None:
    async with pool() as spares:
        (spare,) = await until_ready(spares)
        assert spares.bytes > 2**20
        engine = engine_with(spares)
        await load(engine)
        assert engine.pid == spare
        assert (await complete(engine, question(1, "Hello there."))).text
        (other,) = set(await until_ready(spares)) - {spare}
        assert other != spare
        await engine.unload()


async def test_a_model_gets_the_name_of_its_worker_in_the_log() -> None:
    async with pool() as spares:
        await until_ready(spares)
        engine = engine_with(spares)
        await load(engine)
        os.kill(engine.pid or 0, signal.SIGKILL)
        ended = await engine.exited()
    assert ended.error is not None
    assert "'tiny'" in ended.error.message


async def test_other_kinds_and_other_programs_are_not_served_by_it() -> None:
    async with pool() as spares:
        (spare,) = await until_ready(spares)
        runtime = default_runtime()
        assert await spares.take(runtime, EngineKind.LLAMA) is None
        assert await spares.take(replace(runtime, name="pack"), EngineKind.FAKE) is None
        assert await until_ready(spares) == [spare]


@pytest.mark.parametrize("kind", [EngineKind.LLAMA, EngineKind.FAKE])
def test_one_environment_suits_every_model(kind: EngineKind) -> None:
    runtime = default_runtime()
    assert environment_of(runtime, kind, 1) == environment_of(runtime, kind, 8)


# --- when one is started --------------------------------------------------------------------------------------------


async def test_none_is_started_while_something_loads(bad_runtime: Callable[[str], WorkerRuntime]) -> None:
    async with pool() as spares:
        (spare,) = await until_ready(spares)
        engine = WorkerEngine("tiny", EngineKind.FAKE, bad_runtime("loads_for_ever"), spares=spares)
        begun = asyncio.Event()
        task = asyncio.create_task(engine.load(FAKE_LOAD, lambda _: begun.set(), ignore))
        await begun.wait()
        os.kill(spare, signal.SIGKILL)
        await until_gone(spares, spare)
        assert children() == [engine.pid]
        await engine.unload()
        await asyncio.gather(task, return_exceptions=True)
        assert len(await until_ready(spares)) == 1


async def test_running_answers_come_first_for_a_while() -> None:
    machine = Machine()
    async with pool(machine=machine, times=replace(AT_ONCE, busy_s=NEVER_S)) as spares:
        await until_ready(spares)
        engine = engine_with(spares)
        await load(engine)
        await until_ready(spares)
        events = engine.generate(question(1, LONG_STORY, max_tokens=6000))
        await until_first_text(events)
        (spare,) = set(children()) - {engine.pid}
        os.kill(spare, signal.SIGKILL)
        await until_gone(spares, spare)
        await machine.after_looks()
        assert children() == [engine.pid]
        await events.aclose()
        await until_ready(spares)
        await engine.unload()


async def test_on_a_machine_that_is_never_idle_one_is_started_all_the_same() -> None:
    async with pool(times=replace(AT_ONCE, busy_s=0.05)) as spares:
        await until_ready(spares)
        engine = engine_with(spares)
        await load(engine)
        events = engine.generate(question(1, LONG_STORY, max_tokens=6000))
        await until_first_text(events)
        await until_ready(spares)
        await events.aclose()
        await engine.unload()


async def test_it_is_given_up_when_memory_is_short_and_comes_back_with_plenty() -> None:
    machine = Machine()
    async with pool(machine=machine) as spares:
        await until_ready(spares)
        machine.memory = SystemMemory(PLENTY.total_bytes, SHORT_BYTES - 1)
        await until_gone(spares)
        assert spares.bytes == 0
        machine.memory = SystemMemory(PLENTY.total_bytes, PLENTY_BYTES - 1)
        await machine.after_looks()
        assert not children()
        machine.memory = PLENTY
        await until_ready(spares)


async def test_a_machine_that_does_not_tell_its_memory_for_a_while_changes_nothing_and_is_asked_again() -> None:
    machine = Machine()
    async with pool(machine=machine) as spares:
        there = await until_ready(spares)
        machine.tells = False
        await machine.after_looks()
        assert children() == there
        machine.tells = True
        machine.memory = SystemMemory(PLENTY.total_bytes, SHORT_BYTES - 1)
        await until_gone(spares)


async def test_nothing_is_started_before_the_pool_begins_and_nothing_after_it_has_closed() -> None:
    spares = Spares(default_runtime(), EngineKind.FAKE, 2, memory=Machine(), times=AT_ONCE)
    with spares.loading():
        pass
    assert not children()
    spares.begin()
    await until_ready(spares, 2)
    await spares.close()
    with spares.loading():
        pass
    assert not children()
    assert spares.bytes == 0


# --- one that fails -------------------------------------------------------------------------------------------------


async def test_one_that_hangs_is_passed_over(expected_log: list[str]) -> None:
    expected_log.append("a spare worker did not answer")
    async with pool(times=replace(AT_ONCE, answer_s=0.05)) as spares:
        (spare,) = await until_ready(spares)
        os.kill(spare, signal.SIGSTOP)
        engine = engine_with(spares)
        await load(engine)
        assert engine.pid != spare
        assert (await complete(engine, question(1, "Hello there."))).text
        await until_gone(spares, spare)
        await engine.unload()


async def test_one_that_is_killed_at_the_same_moment_does_no_harm(expected_log: list[str]) -> None:
    expected_log.append("a spare worker did not answer")
    async with pool() as spares:
        (spare,) = await until_ready(spares)
        os.kill(spare, signal.SIGKILL)
        engine = engine_with(spares)
        await load(engine)
        assert engine.pid != spare
        await engine.unload()


@pytest.mark.parametrize("mode", ["old_protocol", "wrong_kind", "no_hello", "missing_library", "garbage"])
async def test_one_that_cannot_be_used_is_not_tried_again_and_again(
    mode: str, bad_runtime: Callable[[str], WorkerRuntime]
) -> None:
    times = replace(AT_ONCE, back_off_s=NEVER_S)
    async with pool(bad_runtime(mode), times=times) as spares:
        await until_gone(spares)
        assert not children()
        assert await spares.take(bad_runtime(mode), EngineKind.FAKE) is None


async def test_one_that_says_nothing_is_ended(bad_runtime: Callable[[str], WorkerRuntime]) -> None:
    times = replace(AT_ONCE, ready_s=0.05, back_off_s=NEVER_S)
    async with pool(bad_runtime("silent"), times=times) as spares:
        await until_gone(spares)


async def test_a_program_that_cannot_be_started_is_no_trouble(expected_log: list[str]) -> None:
    expected_log.append("a spare worker could not be started")
    runtime = WorkerRuntime("none", ("/nowhere/hypnos-worker",), frozenset({EngineKind.FAKE}))
    async with pool(runtime, times=replace(AT_ONCE, back_off_s=NEVER_S)) as spares:
        assert spares.ready == 0
        assert await spares.take(runtime, EngineKind.FAKE) is None


async def test_a_load_does_not_wait_long_for_one_that_is_still_starting(
    bad_runtime: Callable[[str], WorkerRuntime], expected_log: list[str]
) -> None:
    expected_log.append("a spare worker did not answer")
    runtime = bad_runtime("silent")
    async with pool(runtime, times=replace(AT_ONCE, starting_s=0.05)) as spares:
        assert await spares.take(runtime, EngineKind.FAKE) is None


async def test_one_that_is_still_starting_is_waited_for() -> None:
    async with pool() as spares:
        (spare,) = children()
        engine = engine_with(spares)
        await load(engine)
        assert engine.pid == spare
        await engine.unload()


# --- ends -----------------------------------------------------------------------------------------------------------


async def test_an_unload_while_the_spare_is_asked_ends_both() -> None:
    async with pool() as spares:
        (spare,) = await until_ready(spares)
        os.kill(spare, signal.SIGSTOP)
        engine = engine_with(spares)
        task = asyncio.create_task(load(engine))
        await asyncio.sleep(0)
        await engine.unload()
        os.kill(spare, signal.SIGCONT)
        with pytest.raises(Cancelled):
            await task
        await until_gone(spares, spare)


async def test_a_cancelled_load_leaves_no_spare_behind() -> None:
    async with pool() as spares:
        (spare,) = await until_ready(spares)
        os.kill(spare, signal.SIGSTOP)
        engine = engine_with(spares)
        task = asyncio.create_task(load(engine))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_gone(spares, spare)


@pytest.mark.parametrize("transport", list(Transport), ids=lambda transport: transport.value)
async def test_pools_leave_nothing(transport: Transport) -> None:
    async def cycle(number: int) -> None:
        async with pool(count=2, transport=transport) as spares:
            if number % 3 == 0:
                return
            await spares.until(lambda: spares.ready > 0)
            engine = WorkerEngine("tiny", EngineKind.FAKE, default_runtime(), spares=spares, transport=transport)
            await load(engine)
            await engine.unload(0.0)

    await cycle(1)
    before = kept()
    for number in range(9):
        await cycle(number)
    assert kept() == before


def test_workers_are_started_on_the_main_thread_only() -> None:
    problems: list[BaseException] = []

    async def begin() -> None:
        try:
            Spares(default_runtime(), EngineKind.FAKE, 1, memory=Machine(), times=AT_ONCE).begin()
        except RuntimeError as error:
            problems.append(error)

    thread = threading.Thread(target=lambda: asyncio.run(begin()))
    thread.start()
    thread.join()
    assert "main thread" in str(problems)
    assert not children()


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_the_next_load_is_likeliest_of_the_text_engine() -> None:
    every = frozenset(EngineKind)
    some = [EngineKind.ONNX, EngineKind.GLINER, EngineKind.GLINER]
    assert likeliest([*some, EngineKind.LLAMA], every) is EngineKind.LLAMA
    assert likeliest(some, every) is EngineKind.GLINER
    assert likeliest(some, frozenset({EngineKind.ONNX})) is EngineKind.ONNX
    assert likeliest([EngineKind.FAKE], every) is None
    assert likeliest([], every) is None


def test_a_small_machine_keeps_none_unless_it_is_told_to() -> None:
    assert automatic_count(LEAST_TOTAL_BYTES) == 1
    assert automatic_count(LEAST_TOTAL_BYTES - 1) == 0


def test_the_registry_keeps_what_is_configured() -> None:
    assert EngineRegistry().keep_spares([EngineKind.LLAMA], 0) is None
    assert EngineRegistry().keep_spares([EngineKind.FAKE], 3) is None
    assert EngineRegistry().keep_spares([EngineKind.DOCLING], 3) is None
    assert EngineRegistry().keep_spares([EngineKind.FAKE, EngineKind.LLAMA], 1) is not None


async def test_a_spare_of_the_text_engine_has_its_library_and_a_renderer_and_no_model() -> None:
    async with pool(kind=EngineKind.LLAMA) as spares:
        (spare,) = await until_ready(spares)
        process = psutil.Process(spare)
        files = {mapped.path for mapped in process.memory_maps()}
        assert any("libllama" in path for path in files)
        while process.num_threads() > 2:  # its own, and who reads its channel; who imported is on its way out
            pass
        (renderer,) = process.children()
        both = sum(one.memory_info().rss - one.memory_info().shared for one in (process, renderer))
        assert spares.bytes == pytest.approx(both, rel=0.5)
    _, left = psutil.wait_procs([renderer], timeout=WITHIN_S)
    assert not left


def test_nothing_of_the_library_is_called_that_may_open_a_device() -> None:
    done = subprocess.run([sys.executable, "-P", str(RECORDING)], capture_output=True, text=True, check=True, env=ENV)
    assert done.stdout.split() == ["llama_log_set"]
