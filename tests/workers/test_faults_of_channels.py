"""A worker whose supervisor is slow, gone or waiting: it loses no frame, piles nothing up, and says that it turns."""

import select
import signal
import socket
import threading
from pathlib import Path

import psutil
import pytest

from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.channel import Channel
from hypnos_engine.workers.process import EXIT_ORPHANED
from tests.workers.driver import WITHIN_S, Worker, chat

MANY_WORDS = "Tell a story of 6000 words."


@pytest.mark.parametrize("pipes", [False, True], ids=["socket", "pipes"])
def test_a_supervisor_that_does_not_read_costs_neither_memory_nor_text(pipes: bool) -> None:
    with Worker("fake", pipes=pipes) as worker:
        worker.load(slots=8, context_len=8192)
        numbers = range(1, 9)
        process = psutil.Process(worker.process.pid)
        worker.start(*(chat(number, MANY_WORDS, max_tokens=6000) for number in numbers))
        _until_idle(process)
        before_bytes = process.memory_info().rss
        worker.send(*(m.Ping(number) for number in range(1000)))
        _until_idle(process)
        assert process.memory_info().rss - before_bytes < 8 * 2**20
        worker.until_over(*numbers)
        assert all(worker.reply(number).end.completion_tokens == 6000 for number in numbers)
        assert all(len(worker.reply(number).text.split()) == 6000 for number in numbers)
        worker.until(lambda: len(worker.all_of(m.Pong)) == 1000)
        assert [pong.nonce for pong in worker.all_of(m.Pong)] == list(range(1000))


@pytest.mark.parametrize("pipes", [False, True], ids=["socket", "pipes"])
def test_a_worker_that_waits_in_a_write_ends_with_its_channel(pipes: bool) -> None:
    with Worker("fake", pipes=pipes) as worker:
        worker.load(slots=8, context_len=8192)
        worker.start(*(chat(number, MANY_WORDS, max_tokens=6000) for number in range(8)))
        _until_idle(psutil.Process(worker.process.pid))
        worker.hang_up()
        assert worker.exit_status() == EXIT_ORPHANED


def test_a_stopped_worker_goes_on_where_it_was() -> None:
    with Worker("fake") as worker:
        worker.load(step_delay_ms=1.0)
        worker.start(chat(1, MANY_WORDS, max_tokens=200))
        worker.until(lambda: bool(worker.reply(1).text))
        worker.process.send_signal(signal.SIGSTOP)
        worker.process.send_signal(signal.SIGCONT)
        worker.until_over(1)
        assert worker.reply(1).end.completion_tokens == 200


# --- signs of life --------------------------------------------------------------------------------------------------


def test_a_slow_engine_says_that_it_turns() -> None:
    with Worker("fake") as worker:
        worker.load(step_delay_ms=60_000.0)
        worker.start(chat(1, "Hello"))
        worker.next_of(m.Beat, seen=1)
        worker.cancel(1)


def test_an_engine_that_has_answered_says_nothing() -> None:
    with Worker("fake") as worker:
        worker.load(step_delay_ms=5.0)
        worker.ask(chat(1, "Hello"))
        worker.send(m.Ping(1))
        worker.next_of(m.Pong)
        assert not worker.all_of(m.Beat)


@pytest.mark.starter
def test_a_long_prompt_says_that_it_is_being_read(starter: Path) -> None:
    with Worker("llama") as worker:
        worker.load(starter, context_len=8192, slots=1, threads=1)
        worker.start(chat(1, "word " * 6000))
        worker.next_of(m.Beat)
        assert worker.reply(1).accepted is not None
        assert not worker.reply(1).text
        worker.cancel(1)


def test_a_channel_beats_only_after_a_silence() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel[m.ToWorker](ours.fileno(), ours.fileno())
        channel.send(m.Pong(1))
        channel.beat()
        theirs.settimeout(WITHIN_S)
        sent = theirs.recv(65536)
        channel.beat()
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
    assert b"Beat" not in sent


def test_a_busy_loop_that_waits_for_messages_beats() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel[m.ToWorker](ours.fileno(), ours.fileno())
        theirs.settimeout(WITHIN_S)

        def post_after_a_beat() -> None:
            assert b"Beat" in theirs.recv(65536)
            channel.inbox.put(m.Ping(1))

        thread = threading.Thread(target=post_after_a_beat)
        thread.start()
        assert channel.next_message(busy=True) == m.Ping(1)
        thread.join()


def _until_idle(process: psutil.Process) -> None:
    """Return once the process has stopped working: it waits for somebody to read."""
    before, same = -1.0, 0
    while same < 20:
        times = process.cpu_times()
        same = same + 1 if times.user + times.system == before else 0
        before = times.user + times.system
        select.select([], [], [], 0.02)
