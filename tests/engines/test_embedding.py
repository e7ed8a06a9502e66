"""Engines that make vectors: the shared obligations, and workers that break the protocol."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from hypnos_engine.domain.errors import EngineFailed, InvalidRequest, WorkerDied
from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.engines.embedding import VectorBox
from hypnos_engine.engines.fake import FakeEngine, FakeScript
from hypnos_engine.engines.mailbox import OutOfOrder
from hypnos_engine.engines.process import DEFAULT_TRANSPORT, Transport
from hypnos_engine.engines.runtimes import WorkerRuntime, default_runtime
from hypnos_engine.engines.worker_engine import WorkerEngine
from hypnos_engine.ipc import messages as m
from hypnos_engine.testing.embedding_conformance import EmbeddingEngine, EmbeddingTests, rows
from hypnos_engine.testing.engine_conformance import complete, ignore, question
from hypnos_engine.testing.tiny_embedders import write_embedding_decoder
from hypnos_engine.testing.tiny_gguf import write_encoder

FAKE_LOAD = m.Load("tiny", "", context_len=256, embeddings=True, step_delay_ms=1.0)
TIMING = m.EngineTiming()


def worker(kind: EngineKind, transport: Transport = DEFAULT_TRANSPORT) -> WorkerEngine:
    return WorkerEngine("tiny", kind, default_runtime(), transport=transport)


class TestFakeEngine(EmbeddingTests):
    def make(self) -> EmbeddingEngine:
        return FakeEngine("tiny")

    def kill(self, engine: EmbeddingEngine) -> None:
        assert isinstance(engine, FakeEngine)
        engine.die()

    def load_request(self) -> m.Load:
        return FAKE_LOAD


class WorkerTests(EmbeddingTests):
    def kill(self, engine: EmbeddingEngine) -> None:
        assert isinstance(engine, WorkerEngine)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)


class FakeWorkerTests(WorkerTests):
    transport: ClassVar[Transport]

    def make(self) -> EmbeddingEngine:
        return worker(EngineKind.FAKE, self.transport)

    def load_request(self) -> m.Load:
        return FAKE_LOAD


@pytest.mark.usefixtures("loop_factory")
class TestFakeWorkerOverASocket(FakeWorkerTests):
    transport = Transport.SOCKET


class TestFakeWorkerOverPipes(FakeWorkerTests):
    transport = Transport.PIPES


class LlamaTests(WorkerTests):
    """With real, if random, models."""

    path: Path

    def make(self) -> EmbeddingEngine:
        return worker(EngineKind.LLAMA)

    def load_request(self) -> m.Load:
        return m.Load("tiny", str(self.path), context_len=256, threads=1, embeddings=True)


class TestEncoderWorker(LlamaTests):
    company_moves = 1e-3

    @pytest.fixture(autouse=True)
    def model(self, tmp_path: Path) -> None:
        self.path = tmp_path / "encoder.gguf"
        write_encoder(self.path)


class TestDecoderWorker(LlamaTests):
    company_moves = 5e-3

    @pytest.fixture(autouse=True)
    def model(self, tmp_path: Path) -> None:
        self.path = tmp_path / "decoder.gguf"
        write_embedding_decoder(self.path)


# --- the fake's script ------------------------------------------------------------------------------------------------


async def test_each_text_takes_one_permit() -> None:
    gate = asyncio.Semaphore(1)
    engine = FakeEngine("tiny", FakeScript(token_gate=gate, vector=lambda text: (float(len(text)), 0.0)))
    await engine.load(FAKE_LOAD, ignore, ignore)
    task = asyncio.create_task(engine.embed(m.Embed(1, ("abc", "abcd"), normalise=False)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    gate.release()
    assert rows(await task) == [[3.0, 0.0], [4.0, 0.0]]
    assert [request.id for request in engine.embeds] == [1]


async def test_an_engine_that_generates_makes_no_vectors() -> None:
    engine = FakeEngine("tiny")
    await engine.load(m.Load("tiny", "", context_len=64), ignore, ignore)
    with pytest.raises(InvalidRequest):
        await engine.embed(m.Embed(1, ("a",)))
    assert (await complete(engine, question(1, "a b"))).text == "a b"


async def test_a_request_fails_after_its_texts() -> None:
    engine = FakeEngine("tiny", FakeScript(fail_after=1))
    await engine.load(FAKE_LOAD, ignore, ignore)
    with pytest.raises(EngineFailed):
        await engine.embed(m.Embed(1, ("a", "b")))
    assert engine.running == 0


# --- a worker that breaks the protocol --------------------------------------------------------------------------------


def vectors(first: int, texts: int, dimensions: int = 2, rest: int = 0) -> m.Vectors:
    return m.Vectors(1, first, dimensions, bytes(texts * dimensions * 4 + rest))


def box(texts: int = 3) -> VectorBox:
    return VectorBox(m.Embed(1, ("a",) * texts))


@pytest.mark.parametrize(
    "wrong",
    [
        (vectors(1, 1),),
        (vectors(0, 4),),
        (vectors(0, 0),),
        (vectors(0, 1, rest=3),),
        (vectors(0, 1, dimensions=0),),
        (vectors(0, 1, dimensions=70_000),),
        (vectors(0, 1), vectors(1, 1, dimensions=3)),
        (vectors(0, 1), vectors(0, 1)),
    ],
    ids=["gap", "too many", "none", "half a number", "no elements", "too long", "another length", "twice"],
)
def test_vectors_out_of_order_are_refused(wrong: tuple[m.Vectors, ...]) -> None:
    collecting = box()
    for good in wrong[:-1]:
        collecting.put(good)
    with pytest.raises(OutOfOrder):
        collecting.put(wrong[-1])


@pytest.mark.parametrize(
    "end",
    [m.Embedded(1, (1, 1, 1), TIMING), m.Embedded(1, (1, 1), TIMING), m.Embedded(1, (1, 1), TIMING, (2,))],
    ids=["vectors missing", "counts missing", "no such text"],
)
def test_an_end_that_does_not_fit_is_refused(end: m.Embedded) -> None:
    collecting = box(2 if len(end.truncated) else 3)
    collecting.put(vectors(0, 2))
    with pytest.raises(OutOfOrder):
        collecting.finish(end)


async def test_what_comes_after_the_end_is_ignored() -> None:
    collecting = box(1)
    collecting.put(vectors(0, 1))
    collecting.finish(m.Embedded(1, (4,), TIMING))
    collecting.put(vectors(7, 9))
    collecting.finish(m.Embedded(1, (), TIMING))
    collecting.fail(WorkerDied("too late"))
    answer = await collecting.take()
    assert (answer.prompt_tokens, answer.dimensions, len(answer.packed)) == ((4,), 2, 8)


@pytest.mark.parametrize("mode", ["answers_vectors_with_text", "accepts_vectors", "sends_vectors_twice", "few_vectors"])
async def test_a_worker_that_answers_otherwise_fails_the_request(
    mode: str, bad_runtime: Callable[[str], WorkerRuntime], expected_log: list[str]
) -> None:
    expected_log.append("worker of tiny: ")
    engine = WorkerEngine("tiny", EngineKind.FAKE, bad_runtime(mode))
    await engine.load(FAKE_LOAD, ignore, ignore)
    with pytest.raises(EngineFailed, match="broke its protocol"):
        await engine.embed(m.Embed(1, ("a", "b")))
    await engine.unload(0.0)


async def test_a_conversation_is_not_answered_with_vectors(
    bad_runtime: Callable[[str], WorkerRuntime], expected_log: list[str]
) -> None:
    expected_log.append("worker of tiny: ")
    engine = WorkerEngine("tiny", EngineKind.FAKE, bad_runtime("answers_text_with_vectors"))
    await engine.load(m.Load("tiny", ""), ignore, ignore)
    with pytest.raises(EngineFailed, match="broke its protocol"):
        await complete(engine, question(1, "Hello"))
    await engine.unload(0.0)
