"""Models whose caches cannot be cut like plain attention: a reused prefix must never change an answer."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from hypnos_engine.ipc import messages as m
from tests.workers.driver import Worker, chat

GENERATORS = ("llama", "sliding_window", "hybrid", "delta_net", "moe", "mla", "shared_kv")
PROMPT = " ".join(f"Sentence {number} of the prompt is here." for number in range(12))


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_cached_prefix_gives_the_text_of_a_fresh_one(tiny: Mapping[str, Path], kind: str) -> None:
    follow_up = (PROMPT, "An answer.", "And what else?")
    with Worker("llama") as worker:
        worker.load(tiny[kind], context_len=4096, slots=2, threads=1)
        fresh = [worker.ask(chat(1, *texts, max_tokens=8, scope="fresh")).text for texts in ((PROMPT,), follow_up)]
        for texts in ((PROMPT,), (PROMPT,), (PROMPT, "Something else.", "Other?"), follow_up):
            last = worker.ask(chat(1, *texts, max_tokens=8, scope="warm"))
            again = worker.ask(chat(1, *texts, max_tokens=8, scope="warm"))
            assert last.text == again.text
            if texts != (PROMPT, "Something else.", "Other?"):
                assert last.text == fresh[texts == follow_up]


@pytest.mark.parametrize("kind", GENERATORS)
def test_requests_share_steps(tiny: Mapping[str, Path], kind: str) -> None:
    with Worker("llama") as worker:
        worker.load(tiny[kind], context_len=4096, slots=3, threads=1)
        requests = [chat(number, f"{number} {PROMPT}", max_tokens=6, sampling=m.Sampling()) for number in range(5)]
        replies = worker.ask_all(*requests) + worker.ask_all(*requests)
        assert all(reply.end.completion_tokens <= 6 for reply in replies)
        assert max(reply.end.timing.concurrent_slots or 0 for reply in replies) >= 2


@pytest.mark.parametrize("kind", ["sliding_window", "hybrid", "delta_net", "shared_kv"])
def test_growing_the_cache_keeps_what_cannot_be_cut(tiny: Mapping[str, Path], kind: str) -> None:
    with Worker("llama") as worker:
        worker.load(tiny[kind], context_len=1024, slots=2, threads=1)
        undisturbed = worker.ask(chat(1, PROMPT, max_tokens=12)).text
        worker.start(chat(1, PROMPT, max_tokens=12, scope="other"))
        worker.until(lambda: worker.reply(1).accepted is not None)
        worker.send(m.ResizeContext(2048))
        worker.until_over(1)
        assert worker.next_of(m.ContextResized).context_len == 2048
        assert worker.reply(1).text == undisturbed
