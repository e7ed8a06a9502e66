"""The ledger of cells: waiting, dropping idle prefixes, growing the cache, and living with a refusal."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hypnos_engine.ipc import messages as m
from tests.workers.driver import Worker, chat

STORY = "Write a long story about a dog and a cat."
FRESH = m.Sampling(seed=None, temperature=1.0)
"""Not reproducible: nothing is set aside for it."""


@pytest.fixture
def small(tiny: Mapping[str, Path]) -> Iterator[Worker]:
    """Two slots over 512 cells of a tiny model, for which a letter is a token."""
    with Worker("llama") as worker:
        worker.load(tiny["llama"], context_len=512, slots=2, threads=1)
        yield worker


@pytest.mark.starter
def test_growing_the_cache_leaves_a_running_answer_alone(starter: Path) -> None:
    """§7.1-20: a window above the cache is served after a rebuild."""
    with Worker("llama") as worker:
        # With q8_0 the arithmetic does not depend on where in the cache a sequence lies, nor on company.
        worker.load(starter, context_len=512, slots=2, kv_type="q8_0")
        undisturbed = worker.ask(chat(1, STORY, max_tokens=40)).text
        worker.start(chat(1, STORY, max_tokens=40, scope="other"))
        worker.until(lambda: len(worker.reply(1).deltas) >= 5)
        worker.start(chat(2, "Say hello.", max_tokens=4, num_ctx=1500))
        assert worker.next_of(m.ContextWanted).context_len == 2048
        worker.send(m.ResizeContext(2048))
        worker.until_over(1, 2)
        assert worker.reply(1).text == undisturbed
        resized = worker.next_of(m.ContextResized)
        assert resized.context_len == 2048
        assert resized.rebuild_ms > 0
        assert resized.memory.kv_bytes == pytest.approx(4 * worker.all_of(m.Loaded)[0].memory.kv_bytes, rel=0.01)
        context_ms = worker.reply(2).end.timing.context_ms
        assert context_ms is not None
        assert context_ms > 0
        # The first answer's prefix moved with the cache.
        assert worker.ask(chat(3, STORY, max_tokens=4, scope="other", sampling=FRESH)).end.cached_tokens > 0


def test_a_cache_is_asked_for_once_and_a_refusal_is_lived_with(small: Worker) -> None:
    small.start(chat(1, STORY, max_tokens=1800), chat(2, STORY, max_tokens=4))
    assert small.next_of(m.ContextWanted).context_len == 2048
    small.send(m.DenyContext())
    small.until_over(1, 2)
    end = small.reply(1).end
    assert end.finish_reason == "length"
    assert end.prompt_tokens + end.completion_tokens == 512
    assert small.reply(2).end.completion_tokens == 4
    assert len(small.all_of(m.ContextWanted)) == 1


def test_a_prompt_beyond_a_cache_that_may_not_grow_names_both_numbers(small: Worker) -> None:
    small.start(chat(1, "x" * 600, max_tokens=4))
    assert small.next_of(m.ContextWanted).context_len == 1024
    small.send(m.DenyContext())
    small.until_over(1)
    failed = small.reply(1).failed
    assert failed is not None
    assert failed.code == "invalid_request"
    assert re.search(r"has 6\d\d tokens .* window is 512", failed.message)
    assert not small.reply(1).accepted


def test_a_window_beyond_the_cache_is_served_without_it(small: Worker) -> None:
    small.start(chat(1, STORY, max_tokens=4, num_ctx=4000))
    assert small.next_of(m.ContextWanted).context_len == 4096
    small.send(m.DenyContext())
    small.until_over(1)
    assert small.reply(1).end.completion_tokens == 4


def test_a_cancelled_wish_leaves_the_next_one_its_turn(small: Worker) -> None:
    small.start(chat(1, STORY, max_tokens=600), chat(2, STORY, max_tokens=900))
    small.next_of(m.ContextWanted)
    small.cancel(1)
    small.send(m.DenyContext())
    assert small.next_of(m.ContextWanted, seen=1).context_len == 1024
    small.send(m.ResizeContext(1024))
    small.until_over(2)
    assert small.reply(2).end.completion_tokens == 900


def test_a_request_waits_for_cells_that_running_ones_will_free(small: Worker) -> None:
    small.start(chat(1, STORY, max_tokens=12), chat(2, STORY, max_tokens=420))
    small.until_over(1, 2)
    assert not small.all_of(m.ContextWanted)
    order = [type(message) for message in small.journal if isinstance(message, m.Accepted | m.Finished)]
    assert order == [m.Accepted, m.Finished, m.Accepted, m.Finished]
    queued_ms = small.reply(2).end.timing.queue_ms
    assert queued_ms is not None
    assert queued_ms > 0


def test_idle_prefixes_make_room(small: Worker) -> None:
    kept = chat(1, "x" * 150, max_tokens=1, scope="kept", sampling=FRESH)
    prompt = small.ask(kept).end.prompt_tokens
    small.ask(chat(1, "y" * 150, max_tokens=1, scope="other", sampling=FRESH))  # both fit
    assert small.ask(kept).end.cached_tokens == prompt - 1
    small.ask(chat(1, "z" * 350, max_tokens=1, scope="other", sampling=FRESH))  # both do not
    assert small.ask(kept).end.cached_tokens == 0
    assert not small.all_of(m.ContextWanted)


@pytest.fixture
def three(tiny: Mapping[str, Path]) -> Iterator[Worker]:
    """Three slots over 512 cells."""
    with Worker("llama") as worker:
        worker.load(tiny["llama"], context_len=512, slots=3, threads=1)
        yield worker


def _text(scope: str, letters: int) -> m.Generate:
    """A prompt of so many tokens and a header, of a client of its own."""
    return chat(1, scope * letters, max_tokens=1, scope=scope, sampling=FRESH)


def _is_cached(worker: Worker, request: m.Generate) -> bool:
    return worker.ask(request).end.cached_tokens > 0


def test_a_long_prefix_outlives_a_short_one_that_is_newer(three: Worker) -> None:
    long, short = _text("a", 200), _text("b", 40)
    three.ask(long)
    three.ask(short)
    three.ask(_text("c", 240))
    assert _is_cached(three, long)
    assert not _is_cached(three, short)


def test_a_prefix_in_use_outlives_a_longer_one_that_nobody_asks_for(three: Worker) -> None:
    long, short = _text("a", 200), _text("b", 60)
    three.ask(long)
    for _ in range(10):
        three.ask(short)
    three.ask(_text("c", 250))
    assert _is_cached(three, short)
    assert not _is_cached(three, long)


def test_no_more_prefixes_are_dropped_than_needed(three: Worker) -> None:
    """The short one is worth less, but the long one has to go, and then its cells are enough."""
    short, long = _text("a", 40), _text("b", 200)
    three.ask(short)
    three.ask(long)
    three.ask(_text("c", 330))
    assert _is_cached(three, short)
    assert not _is_cached(three, long)


def test_a_reproducible_answer_gives_other_prefixes_back(small: Worker) -> None:
    request = chat(1, "x" * 100, max_tokens=1, scope="a", sampling=FRESH)
    first = small.ask(request).end
    small.ask(chat(2, "y" * 100, max_tokens=3, scope="b", sampling=m.Sampling(seed=1)))
    assert small.ask(request).end.cached_tokens == first.prompt_tokens - 1


def test_a_cache_that_does_not_get_its_memory_stays_as_it_was(small: Worker) -> None:
    undisturbed = small.ask(chat(1, STORY, max_tokens=60)).text
    small.limit_memory(2**29)
    small.start(chat(1, STORY, max_tokens=60, scope="other"))
    small.until(lambda: bool(small.reply(1).deltas))
    small.send(m.ResizeContext(2**23))
    assert small.next_of(m.ContextResized).context_len == 512
    small.until_over(1)
    assert small.reply(1).text == undisturbed


def test_smaller_contexts_than_the_present_one_change_nothing(small: Worker) -> None:
    small.send(m.ResizeContext(256), m.ResizeContext(-1), m.DenyContext())
    assert small.next_of(m.ContextResized, seen=1).context_len == 512
    assert small.ask(chat(1, STORY, max_tokens=4)).end.completion_tokens == 4
