"""A worker engine against workers that break every rule: each ends alone, with an error that says what happened."""

import asyncio
import itertools
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from hypnos_engine.domain.errors import (
    Cancelled,
    DeviceOutOfMemory,
    EngineFailed,
    EngineTimeout,
    InvalidRequest,
    LoadFailed,
    ModelBusy,
    WorkerDied,
)
from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.engines.base import GenerationEvent
from hypnos_engine.engines.process import Transport
from hypnos_engine.engines.runtimes import WorkerRuntime
from hypnos_engine.engines.watch import Patience
from hypnos_engine.engines.worker_engine import WorkerEngine
from hypnos_engine.ipc import messages as m
from hypnos_engine.testing.engine_conformance import complete, ignore, question, until_first_text

BadRuntime = Callable[[str], WorkerRuntime]
LOAD = m.Load("tiny", "/nowhere/tiny.gguf", context_len=256, slots=2)


@pytest.fixture(params=list(Transport), ids=lambda transport: transport.value)
def transport(request: pytest.FixtureRequest) -> Transport:
    """Each way to connect a worker in turn."""
    chosen = request.param
    assert isinstance(chosen, Transport)
    return chosen


class WorkerLog(logging.Handler):
    """What the worker of 'tiny' wrote to stderr, as the log shows it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self.told = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.told.set()


@pytest.fixture
def worker_log() -> Iterator[WorkerLog]:
    handler, logger = WorkerLog(), logging.getLogger("hypnos.worker.tiny")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def engine_of(runtime: WorkerRuntime, **options: object) -> WorkerEngine:
    return WorkerEngine("tiny", EngineKind.FAKE, runtime, **options)  # type: ignore[arg-type]


async def load(engine: WorkerEngine) -> m.Loaded:
    return await engine.load(LOAD, ignore, ignore)


@asynccontextmanager
async def loaded(runtime: WorkerRuntime, **options: object) -> AsyncIterator[WorkerEngine]:
    engine = engine_of(runtime, **options)
    try:
        await load(engine)
        yield engine
    finally:
        await engine.unload(0.0)


async def drain(events: AsyncIterator[GenerationEvent], text: list[str] | None = None) -> None:
    """Read to the end and put the text, as it comes, into `text`."""
    async for event in events:
        if isinstance(event, m.Delta) and text is not None:
            text.append(event.text)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


# --- loading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "error", "words"),
    [
        ("old_protocol", LoadFailed, r"speaks protocol 2, this program 1"),
        ("wrong_kind", LoadFailed, r"runs the engine 'docling' instead of 'fake'"),
        ("no_hello", LoadFailed, r"did not say hello"),
        ("missing_library", LoadFailed, r"does not run\..*status 3.*No module named 'llama_cpp'"),
        ("refuses", LoadFailed, r"tiny\.gguf is damaged"),
        ("leaves_after_refusal", LoadFailed, r"tiny\.gguf is damaged"),
        ("unknown_code", LoadFailed, r"something new"),
        ("aborts_while_loading", WorkerDied, r"'tiny'.*SIGABRT.*GGML_ASSERT\(n_layer <= 512\) failed"),
    ],
)
async def test_a_load_that_cannot_succeed_fails_typed_and_leaves_no_process(
    mode: str, error: type[Exception], words: str, bad_runtime: BadRuntime, transport: Transport
) -> None:
    engine = engine_of(bad_runtime(mode), transport=transport)
    with pytest.raises(error, match=words) as caught:
        await load(engine)
    assert type(caught.value) is error
    assert engine.pid is None
    await engine.exited()


async def test_a_worker_that_says_nothing_times_out(bad_runtime: BadRuntime) -> None:
    engine = engine_of(bad_runtime("silent"), hello_within_s=0.05)
    with pytest.raises(EngineTimeout, match=r"did not answer within 0\.05 s"):
        await load(engine)
    assert (await engine.exited()).expected


async def test_a_load_that_makes_no_progress_is_given_up(bad_runtime: BadRuntime) -> None:
    """A hung disk or driver must not hold up every other model."""
    engine = engine_of(bad_runtime("hangs_while_loading"), load_patience=Patience(least_s=0.2))
    with pytest.raises(EngineTimeout, match=r"made no progress for 0\.\d+ s \(its process was sleeping\)"):
        await load(engine)
    assert engine.pid is None
    assert (await engine.exited()).expected


async def test_a_program_that_does_not_exist_is_named() -> None:
    missing = WorkerRuntime("gone", ("/nowhere/hypnos-worker",), frozenset({EngineKind.FAKE}))
    engine = engine_of(missing)
    with pytest.raises(LoadFailed, match=r"/nowhere/hypnos-worker.*No such file"):
        await load(engine)
    assert (await engine.exited()).expected


async def test_workers_are_started_on_the_main_thread_only(bad_runtime: BadRuntime) -> None:
    def elsewhere() -> None:
        asyncio.run(load(engine_of(bad_runtime("behaves"))))

    with pytest.raises(RuntimeError, match="main thread"):
        await asyncio.to_thread(elsewhere)


async def test_cancelling_a_load_kills_the_worker_first(bad_runtime: BadRuntime, loop_factory: object) -> None:
    engine = engine_of(bad_runtime("loads_for_ever"))
    progressing = asyncio.Event()
    task = asyncio.create_task(engine.load(LOAD, lambda _: progressing.set(), ignore))
    await progressing.wait()
    pid = engine.pid
    assert pid is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_progress_is_thinned_and_the_newest_arrives(bad_runtime: BadRuntime) -> None:
    engine = engine_of(bad_runtime("loads_for_ever"))
    clock = asyncio.get_running_loop().time
    seen: list[tuple[float, m.LoadProgress]] = []
    at_context = asyncio.Event()

    def on_progress(progress: m.LoadProgress) -> None:
        seen.append((clock(), progress))
        if progress.phase == "context":
            at_context.set()

    task = asyncio.create_task(engine.load(LOAD, on_progress, ignore))
    await at_context.wait()
    await engine.unload()
    with pytest.raises(Cancelled):
        await task
    times = [at for at, _ in seen]
    assert all(later - earlier > 0.09 for earlier, later in itertools.pairwise(times))
    assert len(seen) < 20


async def test_a_receiver_of_progress_that_fails_does_not_fail_the_load(
    bad_runtime: BadRuntime, expected_log: list[str]
) -> None:
    expected_log.append("the receiver of load progress failed")
    engine = engine_of(bad_runtime("loads_for_ever"))
    called = asyncio.Event()

    def fail(_: m.LoadProgress) -> None:
        called.set()
        raise ZeroDivisionError

    task = asyncio.create_task(engine.load(LOAD, fail, ignore))
    await called.wait()
    assert not task.done()
    await engine.unload()
    with pytest.raises(Cancelled):
        await task


async def test_messages_of_the_load_that_come_again_change_nothing(bad_runtime: BadRuntime) -> None:
    async with loaded(bad_runtime("twice_everything")) as engine:
        assert (await complete(engine, question(1, "x"))).text == "fine"


# --- death ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "error", "words"),
    [
        ("garbage", WorkerDied, r"'tiny' was ended because it sent what is no message"),
        ("enormous_frame", WorkerDied, r"4294967295 bytes"),
        ("prints", WorkerDied, r"sent what is no message"),
        ("half_frame_then_dies", WorkerDied, r"'tiny' was killed \(signal SIGKILL\)"),
        ("aborts", WorkerDied, r"ran out of memory and .*SIGABRT.*GGML_ASSERT\(ctx->mem_buffer != NULL\) failed"),
        ("out_of_memory", DeviceOutOfMemory, r"'tiny' ran out of device memory: CUDA error: out of memory"),
        ("survived_pinned_failure", WorkerDied, r"SIGSEGV"),
        ("leaves", WorkerDied, r"ended with status 0"),
        ("closes_channel", WorkerDied, r"SIGKILL"),
        ("stray_keeps_channel", WorkerDied, r"SIGKILL"),
    ],
)
async def test_a_dying_worker_gives_its_text_and_then_the_reason(
    mode: str, error: type[Exception], words: str, bad_runtime: BadRuntime, transport: Transport
) -> None:
    async with loaded(bad_runtime(mode), transport=transport) as engine:
        events, text = engine.generate(question(1, "x")), list[str]()
        with pytest.raises(error, match=words):
            await drain(events, text)
        # Bytes that are no message may take with them what came in the same read.
        assert text == ["so far "] or "no message" in words or "bytes" in words
        end = await engine.exited()
        assert not end.expected
        assert type(end.error) is error
        with pytest.raises(error):
            await anext(engine.generate(question(2, "x")))


async def test_every_running_request_gets_an_error_of_its_own(bad_runtime: BadRuntime) -> None:
    async with loaded(bad_runtime("reports_cancels")) as engine:
        running = [engine.generate(question(number, "x")) for number in range(5)]
        for events in running:
            await until_first_text(events)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        results = await asyncio.gather(*(drain(events) for events in running), return_exceptions=True)
    assert all(isinstance(result, WorkerDied) for result in results)
    assert len({id(result) for result in results}) == 5


async def test_other_workers_do_not_notice_a_death(bad_runtime: BadRuntime) -> None:
    async with loaded(bad_runtime("behaves")) as healthy, loaded(bad_runtime("garbage")) as sick:
        with pytest.raises(WorkerDied):
            await complete(sick, question(1, "x"))
        assert (await complete(healthy, question(1, "x"))).text == "fine"


@pytest.mark.parametrize("mode", ["ignores_shutdown", "dies_with_child"])
async def test_a_workers_children_end_with_it(mode: str, bad_runtime: BadRuntime, worker_log: WorkerLog) -> None:
    async with loaded(bad_runtime(mode)) as engine:
        if mode == "dies_with_child":
            with pytest.raises(WorkerDied):
                await complete(engine, question(1, "x"))
        else:
            await asyncio.to_thread(worker_log.told.wait)
            await engine.unload(0.01)
    child = int(worker_log.lines[0].removeprefix("child "))
    try:
        watched = os.pidfd_open(child)
    except ProcessLookupError:
        return
    assert select.select([watched], [], [], 5.0)[0]
    os.close(watched)
    assert not is_running(child)


async def test_a_worker_that_ignores_everything_is_killed_after_the_grace(bad_runtime: BadRuntime) -> None:
    async with loaded(bad_runtime("reads_nothing")) as engine:
        pid = engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await engine.unload(0.05)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert (await engine.exited()).expected


async def test_a_cancelled_unload_goes_on(bad_runtime: BadRuntime) -> None:
    async with loaded(bad_runtime("reads_nothing")) as engine:
        task = asyncio.create_task(engine.unload(0.05))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await engine.exited()).expected


async def test_a_talkative_worker_is_neither_blocked_nor_kept(bad_runtime: BadRuntime, worker_log: WorkerLog) -> None:
    async with loaded(bad_runtime("talkative")) as engine:
        assert (await complete(engine, question(1, "x"))).text == "fine"
    assert sum(line.startswith("line ") for line in worker_log.lines) == 5000


# --- silence --------------------------------------------------------------------------------------------------------

IMPATIENT = Patience(least_s=0.3, busy_times=2.0)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("falls_silent", r"made no step for 0\.\d+ s \(its process was sleeping\) and was ended; try again\.$"),
        ("stops", r"was stopped\).* Its last words: about to stop: ggml_backend_sched failed"),
        ("spins", r"was running\)"),
        ("half_frame_then_silence", r"was sleeping\)"),
        ("drips", r"made no step"),
        ("pongs", r"made no step"),
    ],
)
async def test_a_worker_that_makes_no_steps_is_ended(
    mode: str, words: str, bad_runtime: BadRuntime, transport: Transport
) -> None:
    async with loaded(bad_runtime(mode), transport=transport, step_patience=IMPATIENT) as engine:
        events, text = engine.generate(question(1, "x")), list[str]()
        with pytest.raises(WorkerDied, match=words):
            await drain(events, text)
        assert text == ["so far "]
        with pytest.raises(WorkerDied, match="made no step"):
            await anext(engine.generate(question(2, "x")))
        end = await engine.exited()
        assert not end.expected
        assert type(end.error) is WorkerDied
        assert engine.pid is None


async def test_a_worker_that_stops_before_it_accepts_fails_all_that_wait(bad_runtime: BadRuntime) -> None:
    async with loaded(bad_runtime("stops_at_once"), step_patience=IMPATIENT) as engine:
        waiting = [asyncio.create_task(drain(engine.generate(question(number, "x")))) for number in range(3)]
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, WorkerDied) for result in results)


async def test_a_worker_that_hangs_is_ended_although_its_client_has_left(bad_runtime: BadRuntime) -> None:
    """Else the next client would be the one to wait."""
    async with loaded(bad_runtime("falls_silent"), step_patience=IMPATIENT) as engine:
        events = engine.generate(question(1, "x"))
        await until_first_text(events)
        await events.aclose()
        end = await engine.exited()
        assert isinstance(end.error, WorkerDied)


async def test_a_worker_without_work_may_be_silent(bad_runtime: BadRuntime) -> None:
    async with loaded(bad_runtime("behaves"), step_patience=Patience(least_s=0.05)) as engine:
        assert (await complete(engine, question(1, "x"))).text == "fine"
        await asyncio.wait([asyncio.ensure_future(engine.exited())], timeout=0.4)
        assert (await complete(engine, question(2, "x"))).text == "fine"


async def test_a_worker_that_says_that_it_turns_is_left_alone(bad_runtime: BadRuntime, transport: Transport) -> None:
    patience = Patience(least_s=0.3, slowest_steps=0.0)
    async with loaded(bad_runtime("beats"), transport=transport, step_patience=patience) as engine:
        assert (await complete(engine, question(1, "x"))).text == "at last"


async def test_others_are_served_while_a_worker_hangs(bad_runtime: BadRuntime) -> None:
    async with (
        loaded(bad_runtime("behaves")) as healthy,
        loaded(bad_runtime("stops"), step_patience=IMPATIENT) as sick,
    ):
        hanging = asyncio.create_task(drain(sick.generate(question(1, "x"))))
        while not hanging.done():
            assert (await complete(healthy, question(1, "x"))).text == "fine"
        assert isinstance(hanging.exception(), WorkerDied)


# --- floods ---------------------------------------------------------------------------------------------------------


class Pulse:
    """How long the loop was held up at most, in processor time: what the machine does besides is no fault of ours."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._before_s = time.thread_time()
        self.longest_s = 0.0
        self._handle = self._loop.call_soon(self._beat)

    def _beat(self) -> None:
        now_s = time.thread_time()
        self.longest_s = max(self.longest_s, now_s - self._before_s)
        self._before_s = now_s
        self._handle = self._loop.call_later(0.001, self._beat)

    def stop(self) -> None:
        self._handle.cancel()


@pytest.mark.parametrize(
    "mode", ["floods_unknown", "floods_empty", "floods_beats", "floods_wishes", "floods_cancelled"]
)
async def test_a_flood_ends_the_worker_and_holds_nobody_up(
    mode: str, bad_runtime: BadRuntime, transport: Transport, expected_log: list[str]
) -> None:
    expected_log += ["worker of tiny: ended a request", "worker of tiny: sent more text"]
    wishes = list[object]()
    engine, before_bytes = engine_of(bad_runtime(mode), transport=transport), _resident_bytes()
    await engine.load(LOAD, ignore, wishes.append)
    pulse = Pulse()
    results = await asyncio.gather(drain(engine.generate(question(1, "x"))), return_exceptions=True)
    end = await engine.exited()
    pulse.stop()
    assert isinstance(results[0], EngineFailed)
    assert isinstance(end.error, WorkerDied)
    assert "flooded its channel" in end.error.message
    assert pulse.longest_s < 0.5
    assert len(wishes) < 25_000
    assert sum(isinstance(wish, m.ContextWanted) for wish in wishes) <= 1
    assert _resident_bytes() - before_bytes < 32 * 2**20


async def test_a_flood_of_progress_ends_the_load(bad_runtime: BadRuntime, transport: Transport) -> None:
    with pytest.raises(WorkerDied, match="flooded its channel"):
        await load(engine_of(bad_runtime("floods_progress"), transport=transport))


def _resident_bytes() -> int:
    return psutil.Process().memory_info().rss


# --- broken conversations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "log"),
    [
        ("text_before_accepted", "sent text for a request that it had not accepted"),
        ("finished_before_accepted", "finished a request that it had not accepted"),
        ("accepted_twice", "accepted a request twice"),
    ],
)
async def test_a_request_answered_out_of_order_fails_alone(
    mode: str, log: str, bad_runtime: BadRuntime, expected_log: list[str]
) -> None:
    expected_log.append(f"worker of tiny: {log}")
    async with loaded(bad_runtime(mode)) as engine:
        with pytest.raises(EngineFailed, match=f"broke its protocol: it {log}"):
            await complete(engine, question(1, "x"))
        assert (await complete(engine, question(1, "x"))).text == "fine"


async def test_a_second_end_of_a_request_is_logged_and_ignored(
    bad_runtime: BadRuntime, expected_log: list[str]
) -> None:
    expected_log.append("worker of tiny: ended a request that was not running")
    async with loaded(bad_runtime("finished_twice")) as engine:
        assert (await complete(engine, question(1, "x"))).text == "so far "
        assert (await complete(engine, question(2, "x"))).text == "fine"


async def test_unknown_numbers_are_ignored(bad_runtime: BadRuntime) -> None:
    async with loaded(bad_runtime("unknown_numbers")) as engine:
        assert (await complete(engine, question(1, "x"))).text == "so far "
        assert (await complete(engine, question(2, "x"))).text == "fine"


async def test_text_without_an_end_fails_its_request(
    bad_runtime: BadRuntime, transport: Transport, expected_log: list[str]
) -> None:
    expected_log.append("worker of tiny: sent more text than the request asked for")
    async with loaded(bad_runtime("endless_text"), transport=transport) as engine:
        with pytest.raises(EngineFailed, match="more text"):
            await complete(engine, question(1, "x"))


async def test_a_flood_reaches_a_slow_reader_joined(
    bad_runtime: BadRuntime, transport: Transport, loop_factory: object
) -> None:
    async with loaded(bad_runtime("floods"), transport=transport) as engine:
        events = engine.generate(question(1, "x", max_tokens=40000))
        text = (await until_first_text(events)).text
        assert (await complete(engine, question(2, "x"))).text == "fine"  # everything of the first came before it
        rest = [event async for event in events]
    assert len(rest) == 2
    assert isinstance(rest[0], m.Delta)
    assert text + rest[0].text == "so far " + "ab" * 40000


async def test_a_request_is_cancelled_once_and_its_late_words_reach_nobody(
    bad_runtime: BadRuntime, transport: Transport, loop_factory: object
) -> None:
    async with loaded(bad_runtime("reports_cancels"), transport=transport) as engine:
        events = engine.generate(question(7, "x"))
        await until_first_text(events)
        await events.aclose()
        await events.aclose()
        again = await complete(engine, question(7, "x"))
    assert again.text == "[1]"


async def test_a_worker_that_does_not_read_refuses_requests_instead_of_filling_memory(
    bad_runtime: BadRuntime, transport: Transport
) -> None:
    async with loaded(bad_runtime("reads_nothing"), transport=transport) as engine:
        requests = [question(number, "x" * 1_000_000) for number in range(20)]
        waiting = [asyncio.create_task(drain(engine.generate(request))) for request in requests]
        with pytest.raises(ModelBusy, match="hands full"):
            await waiting[-1]
    results = await asyncio.gather(*waiting, return_exceptions=True)
    taken = [isinstance(result, Cancelled) for result in results]
    assert taken.index(False) in {9, 10}  # 8 MiB wait, and what the system's own buffer holds
    assert not any(taken[taken.index(False) :])


async def test_a_request_that_fits_no_frame_is_the_clients_error(bad_runtime: BadRuntime) -> None:
    async with loaded(bad_runtime("behaves")) as engine:
        with pytest.raises(InvalidRequest, match="too large"):
            await complete(engine, question(1, "x" * (65 * 1024 * 1024)))
        assert (await complete(engine, question(1, "x"))).text == "fine"


async def test_wishes_for_context_are_passed_both_ways(bad_runtime: BadRuntime) -> None:
    engine, news = engine_of(bad_runtime("wants_context")), asyncio.Queue[object]()
    await engine.load(LOAD, ignore, news.put_nowait)
    assert await news.get() == m.ContextWanted(512)
    engine.send(m.ResizeContext(512))
    resized = await news.get()
    assert isinstance(resized, m.ContextResized)
    assert resized.context_len == 512
    await engine.unload(0.0)


async def test_a_worker_sees_no_secret_and_leads_its_own_group(
    bad_runtime: BadRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYPNOS_API_KEYS", "very-secret")
    async with loaded(bad_runtime("shows_environment")) as engine:
        text = (await complete(engine, question(1, "x"))).text
    assert "very-secret" not in text
    assert "GOMP_SPINCOUNT=300" in text
    assert "SESSION=True" in text
    assert f"--kind fake --parent {os.getpid()}" in text


async def test_a_request_before_the_load_is_refused() -> None:
    engine = engine_of(WorkerRuntime("none", (sys.executable,), frozenset()))
    with pytest.raises(EngineFailed, match="not loaded"):
        await complete(engine, question(1, "x"))
