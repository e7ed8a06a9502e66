"""The demonstration engine keeps the promises of a real one."""

from collections.abc import Iterator

import pytest

from hypnos_engine.ipc import messages as m
from tests.workers.driver import Reply, Worker, chat

LONG = "Please write 5000 words."


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker("fake") as worker:
        worker.load(slots=2, context_len=1000)
        yield worker


def _seeded(number: int, seed: int | None, text: str = "Hello") -> m.Generate:
    return chat(number, text, max_tokens=500, sampling=m.Sampling(seed=seed))


def test_a_load_reports_itself() -> None:
    with Worker("fake") as worker:
        loaded = worker.load(context_len=777, gpu_layers=-1, load_mode="read")
        assert (loaded.context_len, loaded.gpu_layers, loaded.phases.load_mode) == (777, loaded.layers, "read")
        assert loaded.memory.anonymous_bytes > 0
        assert [progress.fraction for progress in worker.all_of(m.LoadProgress)] == [1.0, 1.0, 1.0]


def test_an_answer_says_that_it_is_a_demonstration(worker: Worker) -> None:
    reply = worker.ask(chat(1, "Hello", max_tokens=500))
    assert "demonstration" in reply.text
    assert reply.end.finish_reason == "stop"
    assert reply.end.completion_tokens == len(reply.deltas) == len(reply.text.split())


def test_the_same_conversation_and_seed_give_the_same_text(worker: Worker) -> None:
    texts = [worker.ask(_seeded(1, seed)).text for seed in (None, 1, 2, None, 1)]
    assert texts[0] == texts[3]
    assert texts[1] == texts[4]
    assert len(set(texts)) == 3
    assert worker.ask(_seeded(1, 1, "Goodbye")).text != texts[1]


def test_max_tokens_and_window_end_with_length(worker: Worker) -> None:
    short = worker.ask(chat(1, LONG, max_tokens=3))
    assert (short.end.finish_reason, short.end.completion_tokens) == ("length", 3)
    narrow = worker.ask(chat(1, LONG, max_tokens=500, num_ctx=20))
    assert (narrow.end.finish_reason, narrow.end.prompt_tokens + narrow.end.completion_tokens) == ("length", 20)


def test_a_stop_string_ends_the_answer(worker: Worker) -> None:
    reply = worker.ask(chat(1, "Hello", max_tokens=500, stop=("no model", "words are")))
    assert reply.text == "This is a demonstration: "
    assert reply.end.finish_reason == "stop"


def test_a_prompt_that_does_not_fit_names_both_numbers(worker: Worker) -> None:
    failed = worker.ask(chat(1, "word " * 1200)).failed
    assert failed is not None
    assert failed.code == "invalid_request"
    assert "1201" in failed.message
    assert "1000" in failed.message


def test_a_cached_prefix_counts_for_its_own_key_only(worker: Worker) -> None:
    prompt = " ".join(f"word{index}" for index in range(50))
    first, again = worker.ask(chat(1, prompt)), worker.ask(chat(1, prompt))
    stranger = worker.ask(chat(1, prompt, scope="another key"))
    assert [reply.end.cached_tokens for reply in (first, again, stranger)] == [0, 50, 0]
    assert again.end.prompt_tokens == 51
    assert first.text == again.text == stranger.text


def test_requests_beyond_the_slots_wait_for_their_turn(worker: Worker) -> None:
    worker.send(*(chat(number, LONG, max_tokens=200) for number in (1, 2, 3)))
    worker.until(lambda: worker.reply(3).accepted is not None)
    assert worker.reply(1).over
    assert worker.reply(2).over
    worker.until(lambda: worker.reply(3).over)
    timing = worker.reply(3).end.timing
    assert timing.queue_ms is not None
    assert timing.queue_ms > 0
    assert worker.reply(1).end.timing.concurrent_slots == 2


def test_running_requests_share_each_step(worker: Worker) -> None:
    worker.ask_all(*(chat(number, LONG, max_tokens=50) for number in (1, 2)))
    shared = [step for step in worker.all_of(m.Step) if len(step.deltas) == 2]
    assert len(shared) >= 49


def test_a_cancelled_request_gives_its_slot_back() -> None:
    with Worker("fake") as worker:
        worker.load(slots=1, step_delay_ms=1.0)
        worker.send(chat(1, LONG, max_tokens=5000), chat(2, "Hello"), chat(3, "Hello"))
        worker.until(lambda: bool(worker.reply(1).deltas))
        worker.send(m.Cancel(2), m.Cancel(1), m.Cancel(99))
        worker.until(lambda: worker.reply(3).over)
        assert [_code(worker.reply(number)) for number in (1, 2)] == ["cancelled", "cancelled"]
        assert worker.reply(3).end.completion_tokens > 0


def test_words_come_at_the_pace_of_the_demonstration() -> None:
    with Worker("fake") as worker:
        worker.load(step_delay_ms=20.0)
        timing = worker.ask(chat(1, LONG, max_tokens=11)).end.timing
        assert timing.decode_ms is not None
        assert timing.decode_ms >= 200
        assert timing.ttft_ms is not None
        assert timing.ttft_ms >= 20


def test_settings_may_come_at_any_time(worker: Worker) -> None:
    worker.send(m.SetThreads(3), m.DenyContext(), m.ResizeContext(3000), m.Ping(5))
    assert worker.next_of(m.Pong).nonce == 5
    assert worker.next_of(m.ContextResized).context_len == 3000
    assert worker.ask(chat(1, "word " * 1200)).end.prompt_tokens == 1201


def _code(reply: Reply) -> str | None:
    return reply.failed.code if reply.failed is not None else None
