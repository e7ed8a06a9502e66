"""Real text workers that die of real causes: what their clients are told, and that the next worker works."""

import logging
import os
import resource
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from hypnos_engine.domain.errors import EngineFailed, LoadFailed, WorkerDied
from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.engines.runtimes import WorkerRuntime, default_runtime
from hypnos_engine.engines.watch import Patience
from hypnos_engine.engines.worker_engine import WorkerEngine
from hypnos_engine.ipc import messages as m
from hypnos_engine.testing import tiny_gguf
from hypnos_engine.testing.engine_conformance import complete, ignore, question, until_first_text
from tests.engines.test_workers import kept, starter_model
from tests.workers.damage import NOT_A_NUMBER, cut, overwrite_tensors, write_aborting

ABORTING = WorkerRuntime(
    "aborting", (sys.executable, "-P", str(Path(__file__).with_name("aborting_worker.py"))), frozenset(EngineKind)
)
IMPATIENT = Patience(least_s=4.0, slowest_steps=0.0)
"""A worker says each second that its loop turns."""
LIMITED = "import os, resource, sys; resource.setrlimit(int(sys.argv[1]), (int(sys.argv[2]),) * 2); "
LIMITED += "os.execv(sys.executable, [sys.executable, *sys.argv[3:]])"


def limited(limit: int, mib: int) -> WorkerRuntime:
    """The worker program, started under a limit of the operating system."""
    program = (sys.executable, "-c", LIMITED, str(limit), str(mib * 2**20), "-P", "-m", "hypnos_engine.workers")
    return WorkerRuntime("limited", program, frozenset(EngineKind))


def engine(runtime: WorkerRuntime | None = None, patience: Patience | None = None) -> WorkerEngine:
    return WorkerEngine(
        "tiny", EngineKind.LLAMA, runtime or default_runtime(), step_patience=patience or Patience(least_s=60.0)
    )


async def load(one: WorkerEngine, path: Path, **options: object) -> m.Loaded:
    settings: dict[str, object] = {"context_len": 2048, "slots": 2, "threads": 1, "load_mode": "mmap", **options}
    return await one.load(m.Load("tiny", str(path), **settings), ignore, ignore)  # type: ignore[arg-type]


@asynccontextmanager
async def loaded(path: Path, runtime: WorkerRuntime | None = None, **options: object) -> AsyncIterator[WorkerEngine]:
    one = engine(runtime)
    try:
        await load(one, path, **options)
        yield one
    finally:
        await one.unload(0.0)


async def fails(one: WorkerEngine, number: int = 1) -> EngineFailed:
    with pytest.raises(EngineFailed) as caught:
        await complete(one, question(number, "Hello", max_tokens=400))
    return caught.value


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    tiny_gguf.write_llama(path)
    return path


async def until_cause(one: WorkerEngine, cause: Callable[[int], None]) -> WorkerDied:
    """Two long answers that run while something happens to their worker; the error that both get."""
    running = [
        one.generate(question(number, "Tell me a very long story about the sea, with many details.", max_tokens=900))
        for number in range(2)
    ]
    for events in running:
        await until_first_text(events)
    assert one.pid is not None
    cause(one.pid)
    errors = []
    for events in running:
        with pytest.raises(WorkerDied) as caught:
            async for _ in events:
                pass
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert errors[0].message == errors[1].message
    end = await one.exited()
    assert not end.expected
    return errors[0]


# --- abort ----------------------------------------------------------------------------------------------------------


@pytest.mark.starter
async def test_an_abort_inside_the_library_is_told_in_its_own_words(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hypnos_engine.engines")
    async with loaded(starter_model(), ABORTING) as dying, loaded(model) as other:
        error = await until_cause(dying, lambda pid: os.kill(pid, signal.SIGUSR1))
        assert error.message == (
            "The worker of 'tiny' was ended by signal SIGABRT: ops.cpp:4711: GGML_ASSERT(ne00 == ne10) failed"
        )
        assert (await complete(other, question(1, "Hello", max_tokens=4))).finished
    assert any("last words of the worker of tiny" in line and "ops.cpp:4711" in line for line in caplog.messages)
    async with loaded(model) as again:
        assert (await complete(again, question(1, "Hello", max_tokens=4))).finished


async def test_a_header_that_makes_the_library_abort_fails_the_load(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    write_aborting(path)
    for _ in range(2):
        with pytest.raises(WorkerDied, match=r"SIGABRT: qwen3moe\.cpp:\d+: GGML_ASSERT\(n_embd_head == n_rot\) failed"):
            await load(engine(), path)
    tiny_gguf.write_moe(path)
    async with loaded(path) as mended:
        assert (await complete(mended, question(1, "Hello", max_tokens=4))).finished


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.starter
async def test_a_file_cut_short_under_a_worker_is_named_as_the_cause(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    shutil.copyfile(starter_model(), model)
    async with loaded(model) as dying:
        error = await until_cause(dying, lambda _: cut(model, model.stat().st_size // 2))
    assert "SIGBUS: a file that it had mapped, most likely the model's own, was cut short or replaced" in error.message
    with pytest.raises(LoadFailed, match="not within the file bounds"):
        await load(engine(), model)
    tiny_gguf.write_llama(model)
    async with loaded(model) as again:
        assert (await complete(again, question(1, "Hello", max_tokens=4))).finished


async def test_weights_that_spoil_fail_requests_and_then_the_worker(model: Path) -> None:
    async with loaded(model) as dying:
        overwrite_tensors(model, NOT_A_NUMBER)
        for number in range(3):
            assert "computes what are no numbers" in (await fails(dying, number)).message
        end = await dying.exited()
        assert isinstance(end.error, WorkerDied)
        assert "computes what are no numbers" in end.error.message
    with pytest.raises(LoadFailed, match="are damaged"):
        await load(engine(), model)


# --- hangs ----------------------------------------------------------------------------------------------------------


@pytest.mark.starter
async def test_a_stopped_worker_is_ended_and_its_clients_are_told(model: Path) -> None:
    dying = engine(patience=IMPATIENT)
    await load(dying, starter_model())
    error = await until_cause(dying, lambda pid: os.kill(pid, signal.SIGSTOP))
    assert "made no step for" in error.message
    assert "(its process was stopped) and was ended; try again." in error.message
    async with loaded(model) as again:
        assert (await complete(again, question(1, "Hello", max_tokens=4))).finished


# --- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.starter
@pytest.mark.parametrize(
    ("limit", "mib", "context_len"),
    [
        (resource.RLIMIT_AS, 250, 1024),
        (resource.RLIMIT_AS, 700, 32768),
        (resource.RLIMIT_DATA, 120, 1024),
        (resource.RLIMIT_DATA, 250, 32768),
    ],
)
async def test_a_worker_without_memory_says_so(limit: int, mib: int, context_len: int) -> None:
    with pytest.raises(EngineFailed, match="memory") as caught:
        await load(engine(limited(limit, mib)), starter_model(), context_len=context_len)
    assert type(caught.value) in (LoadFailed, WorkerDied)
    assert "device" not in caught.value.message


async def test_memory_that_ends_while_a_worker_serves_costs_it_alone(model: Path) -> None:
    async with loaded(model) as other, loaded(model) as starved:
        assert starved.pid is not None
        mapped = psutil.Process(starved.pid).memory_info().vms
        resource.prlimit(starved.pid, resource.RLIMIT_AS, (mapped, mapped))
        starved.send(m.ResizeContext(2**22))
        error = await fails(starved)
        assert "memory" in error.message
        assert (await complete(other, question(1, "Hello", max_tokens=4))).finished


# --- nothing is left ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.starter
async def test_deaths_leave_nothing_behind() -> None:
    causes: list[Callable[[int], None]] = [
        lambda pid: os.kill(pid, signal.SIGABRT),
        lambda pid: os.kill(pid, signal.SIGSTOP),
        lambda pid: os.kill(pid, signal.SIGKILL),
        lambda pid: os.kill(pid, signal.SIGSEGV),
    ]

    async def die(cause: Callable[[int], None]) -> None:
        one = engine(patience=IMPATIENT)
        await load(one, starter_model())
        await until_cause(one, cause)

    await die(causes[0])
    before = kept()
    for cause in causes:
        await die(cause)
    assert kept() == before
