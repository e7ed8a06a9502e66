"""The vectors of the demonstration: of the usual length, and closer for texts that share words."""

from array import array
from collections.abc import Iterable

from hypnos_engine.ipc import messages as m
from tests.workers.driver import Worker, chat


def _dot(one: Iterable[float], other: Iterable[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_texts_that_share_words_are_close() -> None:
    with Worker("fake") as worker:
        loaded = worker.load(context_len=100, embeddings=True)
        assert (loaded.dimensions, loaded.has_chat_template) == (768, False)
        worker.send(m.Embed(1, ("the cat sat on the mat", "The cat sat", "stocks fell", "")))
        ended = worker.next_of(m.Embedded)
        packed = b"".join(message.packed for message in worker.all_of(m.Vectors))
        cat, same, stocks, empty = (array("f", packed[start : start + 3072]) for start in range(0, 4 * 3072, 3072))
        assert ended.prompt_tokens == (8, 5, 4, 2)
        assert _dot(cat, same) > 0.6 > 0.4 > _dot(cat, stocks)
        assert _dot(empty, empty) > 0.99


def test_requests_take_turns() -> None:
    with Worker("fake") as worker:
        worker.load(context_len=100, embeddings=True)
        worker.send(m.Embed(1, ("a b",) * 500), m.Embed(2, ("c",) * 3), m.Embed(3, ("d",)))
        worker.until(lambda: len(worker.all_of(m.Embedded)) == 3)
        assert worker.all_of(m.Embedded)[-1].id == 1
        firsts = [message.first for message in worker.all_of(m.Vectors) if message.id == 1]
        assert firsts == sorted(firsts)
        assert len(firsts) > 500 // 32


def test_a_demonstration_makes_vectors_or_answers() -> None:
    with Worker("fake") as worker:
        worker.load(context_len=100)
        worker.send(m.Embed(1, ("a",)))
        assert worker.next_of(m.Failed).code == "invalid_request"
        assert worker.ask(chat(2, "Hello", max_tokens=2)).end.completion_tokens == 2
