"""Answers that go on from what is cached are those of a fresh worker, for every kind of memory; and some is cached."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from llama_cpp import _utils

from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.llama import model as weights
from hypnos_engine.workers.llama import native
from tests.workers.decisive import DRAWN_DECISIVELY, LONG, Texts, conversation, drawn
from tests.workers.driver import Reply, Worker, chat
from tests.workers.memory_kinds import KINDS, KV_TYPE, STATEFUL, UNCUTTABLE, WINDOWED, write_all

TAIL = 64
"""Tokens at the end of a prompt that a next turn may have to compute again."""

EVERYDAY = ("full", "sliding_window", "hybrid", "recurrent")
"""One of each sort; the other kinds go through the longer tests in CI alone."""
SOME_SLOW = [kind if kind in EVERYDAY else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    native.start()
    yield write_all(tmp_path_factory.mktemp("kinds"))
    _utils.outnull_file.close()  # the binding leaves them to the collector, which complains
    _utils.errnull_file.close()


def _worker(path: Path, **options: object) -> Worker:
    worker = Worker("llama")
    settings: dict[str, object] = {"context_len": 4096, "slots": 2, "threads": 1, "kv_type": KV_TYPE, **options}
    worker.load(path, **settings)
    return worker


def _cached(reply: Reply) -> int:
    """Prompt tokens that were there already, as told at the beginning and at the end."""
    assert reply.accepted is not None
    assert reply.accepted.cached_tokens == reply.end.cached_tokens
    return reply.end.cached_tokens


def _fresh(path: Path, turns: tuple[Texts, ...], **options: object) -> dict[Texts, str]:
    """What a worker answers that never saw any of it: each question under a name of its own."""
    answers = {}
    with _worker(path) as worker:
        for number, texts in enumerate(dict.fromkeys(turns)):
            reply = worker.ask(chat(1, *texts, scope=f"fresh {number}", **options))  # type: ignore[arg-type]
            assert _cached(reply) == 0
            answers[texts] = reply.text
    return answers


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation_goes_on_from_what_is_cached(kinds: Mapping[str, Path], kind: str) -> None:
    turns = conversation(kinds[kind], kind)
    fresh = _fresh(kinds[kind], turns, max_tokens=drawn(kind))
    assert len(set(fresh.values())) > 1
    with _worker(kinds[kind]) as worker:
        replies = [worker.ask(chat(1, *texts, max_tokens=drawn(kind), scope="warm")) for texts in turns]
        assert [reply.text for reply in replies] == [fresh[texts] for texts in turns]
        lengths = [reply.end.prompt_tokens for reply in replies]
        cached = [_cached(reply) for reply in replies]
        assert cached[0] == 0
        # The question after an answer that was written anew, the same again, another one instead, the next one, and
        # another one instead of that: by then the windows have left all of what is common.
        for number, before in ((1, 0), (2, 1), (3, 0), (4, 3), (5, 3)):
            assert lengths[before] - TAIL <= cached[number] < lengths[number], (number, cached, lengths)
        # Nothing of it is for another key, before and after that key has used the slots.
        for other in range(2):
            reply = worker.ask(chat(1, *turns[4], max_tokens=drawn(kind), scope=f"other {other}"))
            assert (_cached(reply), reply.text) == (0, fresh[turns[4]])


@pytest.mark.parametrize("kind", SOME_SLOW)
def test_a_prompt_that_goes_on_exactly_needs_no_checkpoint(kinds: Mapping[str, Path], kind: str) -> None:
    first, second = conversation(kinds[kind], kind)[:2]
    fresh = _fresh(kinds[kind], (second,), max_tokens=drawn(kind))
    with _worker(kinds[kind]) as worker:
        before = worker.ask(chat(1, *first, max_tokens=1))  # the one token is drawn and not computed
        reply = worker.ask(chat(1, *second, max_tokens=drawn(kind)))
        assert _cached(reply) == before.end.prompt_tokens
        assert reply.text == fresh[second]


@pytest.mark.parametrize("kind", SOME_SLOW)
def test_conversations_beside_each_other(kinds: Mapping[str, Path], kind: str) -> None:
    """Three keys in two slots, always two at once: each is sent away by another one and comes back.

    Cells that one left are filled by the other: they lie in another order, and sums have another one.
    """
    turns = conversation(kinds[kind], kind, careful=True)
    fresh = _fresh(kinds[kind], turns, max_tokens=DRAWN_DECISIVELY)
    with _worker(kinds[kind]) as worker:
        for texts in (turns[0], turns[1], turns[4]):
            for pair in (("a", "b"), ("c", "a")):
                asked = [chat(n, *texts, max_tokens=DRAWN_DECISIVELY, scope=scope) for n, scope in enumerate(pair)]
                for reply in worker.ask_all(*asked):
                    assert reply.text == fresh[texts]


@pytest.mark.parametrize("kind", SOME_SLOW)
def test_a_larger_cache_changes_no_stream(kinds: Mapping[str, Path], kind: str) -> None:
    """Two answers and a prompt are under way; what they say is what each says alone. What is idle moves too."""
    path = kinds[kind]
    drawn, texts = 150, (("Tell me a story about a dog.",), ("Count to a hundred, slowly.",), ("Why? " * 40,))
    idle = (LONG[:250],)
    fresh = _fresh(path, texts, max_tokens=drawn)
    next_turn = (*idle, "Something else.", "Go on.")
    after = _fresh(path, (next_turn,), max_tokens=4)[next_turn]
    for _ in range(6):  # the answers may be through before the message is there
        with _worker(path, context_len=2048, slots=4) as worker:
            kept = worker.ask(chat(9, *idle, max_tokens=4, scope="idle"))
            worker.start(*(chat(n, *texts[n], max_tokens=drawn, scope=f"stream {n}") for n in (0, 1)))
            worker.until(lambda: all(worker.reply(n).deltas for n in (0, 1)))
            worker.start(chat(2, *texts[2], max_tokens=drawn, scope="stream 2"))
            worker.send(m.ResizeContext(4096))
            worker.until_over(0, 1, 2)
            assert [worker.reply(n).text for n in range(3)] == [fresh[text] for text in texts]
            assert worker.all_of(m.ContextResized)[0].context_len == 4096
            # The header of the answer is written anew: a checkpoint from the old context serves in the new one.
            reply = worker.ask(chat(9, *next_turn, max_tokens=4, scope="idle"))
            assert kept.end.prompt_tokens - TAIL <= _cached(reply) <= kept.end.prompt_tokens
            assert reply.text == after
            ends = [worker.journal.index(worker.reply(n).end) for n in (0, 1)]
            if worker.journal.index(worker.all_of(m.ContextResized)[0]) < min(ends):
                return
    pytest.fail("the cache never grew while answers were under way")


@pytest.mark.parametrize("kind", ["llama", "moe", "mla", "sliding_window", "shared_kv", "hybrid", "delta_net"])
def test_a_seed_gives_the_same_text_in_half_precision_too(tiny: Mapping[str, Path], kind: str) -> None:
    """§7.1-15: what is reused was computed in the blocks that a fresh prompt is computed in."""
    hot = m.Sampling(seed=3, temperature=1.5)
    with _worker(tiny[kind], kv_type="f16") as worker:
        request = chat(1, LONG, max_tokens=24, sampling=hot)
        first, again = worker.ask(request), worker.ask(request)
        worker.ask(chat(1, LONG, "Yes.", "And?", max_tokens=8))
        third = worker.ask(request)
        worker.ask(chat(1, LONG[:500], max_tokens=8, scope="another"))
        worker.ask(chat(1, LONG, "No.", "And?", max_tokens=8, sampling=hot))
        fourth = worker.ask(request)
        assert first.text == again.text == third.text == fourth.text
        assert first.text != worker.ask(chat(1, LONG, max_tokens=24, sampling=m.Sampling(seed=4, temperature=1.5))).text
        if kind not in WINDOWED:  # the cells of a window were used twice
            assert _cached(again) > 0
            assert _cached(again) % 64 == 0


@pytest.mark.parametrize("kind", STATEFUL)
def test_a_prompt_that_was_stopped_half_way_is_not_taken_for_whole(kinds: Mapping[str, Path], kind: str) -> None:
    first, second = conversation(kinds[kind], kind)[:2]
    fresh = _fresh(kinds[kind], (first, second), max_tokens=drawn(kind))
    with _worker(kinds[kind]) as worker:
        for texts in (first, second, first, second):
            worker.start(chat(1, *texts, max_tokens=drawn(kind)))
            worker.until(lambda: worker.reply(1).accepted is not None)
            worker.cancel(1)
            assert worker.ask(chat(2, *texts, max_tokens=drawn(kind))).text == fresh[texts]


def test_the_kinds_that_cannot_be_cut_are_these(kinds: Mapping[str, Path]) -> None:
    for kind, path in kinds.items():
        model = weights.load(m.Load("tiny", str(path)), lambda _: True)
        assert (model.recurrent, model.window > 0) == (kind in STATEFUL, kind in WINDOWED)
        assert (model.recurrent or model.window > 0) == (kind in UNCUTTABLE)
        model.free()
