"""Vectors from a real worker: those of llama.cpp itself, and texts and models that get none."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import pytest

from hypnos_engine.gguf import read_shape
from hypnos_engine.ipc import messages as m
from hypnos_engine.testing import tiny_embedders
from hypnos_engine.testing.real_models import REAL_MODELS
from hypnos_engine.testing.sparse_gguf import write
from hypnos_engine.testing.tiny_embedders import EMBEDDERS
from hypnos_engine.testing.tiny_gguf import write_hybrid, write_llama
from tests.workers.driver import Worker, chat
from tests.workers.embedding_client import CLOSE, COMPANY, EXACT, FROM_FILE, MEAN, TEXTS, bare, distance, embed, unit


@pytest.mark.parametrize("kind", EMBEDDERS)
def test_vectors_are_those_of_the_library_alone_and_in_company(embedders: Mapping[str, Path], kind: str) -> None:
    expected = bare(embedders[kind], TEXTS)
    texts = TEXTS
    with Worker("llama") as worker:
        loaded = worker.load(embedders[kind], embeddings=True, context_len=1024, threads=1)
        together = embed(worker, 1, *texts)
        alone = [embed(worker, 2 + index, text).rows[0] for index, text in enumerate(texts)]
        raw = embed(worker, 100, *texts, normalise=False)
    assert loaded.dimensions == len(expected[0][1]) == 64
    assert list(together.end.prompt_tokens) == [count for count, _ in expected]
    for index, (_, vector) in enumerate(expected):
        assert distance(together.rows[index], unit(vector)) < COMPANY
        assert distance(alone[index], unit(vector)) < EXACT
        assert math.sqrt(sum(value * value for value in together.rows[index])) == pytest.approx(1.0, abs=1e-6)
        assert distance(unit(raw.rows[index]), together.rows[index]) < COMPANY
        assert sum(map(abs, raw.rows[index])) == pytest.approx(sum(map(abs, vector)), rel=0.01)
    assert distance(together.rows[0], together.rows[1]) > 2 * COMPANY


@pytest.mark.parametrize("kind", [kind for kind in EMBEDDERS if kind != "decoder"])
def test_a_batch_changes_nothing_for_texts_of_the_same_kernels(embedders: Mapping[str, Path], kind: str) -> None:
    texts = tuple(f"{text} and so on, word after word" * 3 for text in TEXTS)
    expected = bare(embedders[kind], texts)
    assert all(64 <= count <= 512 for count, _ in expected)
    with Worker("llama") as worker:
        worker.load(embedders[kind], embeddings=True, context_len=512, threads=1)
        rows = embed(worker, 1, *texts).rows
    assert all(distance(row, unit(vector)) < CLOSE for row, (_, vector) in zip(rows, expected, strict=True))


@pytest.mark.parametrize("kind", ["encoder", "rotary", "windowed", "decoder"])
def test_the_longest_text_is_as_long_as_the_window_and_one_token_more_is_refused(
    embedders: Mapping[str, Path], kind: str
) -> None:
    window = 300
    with Worker("llama") as worker:
        loaded = worker.load(embedders[kind], embeddings=True, context_len=window, threads=1)
        assert loaded.context_len == window
        marks = embed(worker, 1, "!").end.prompt_tokens[0] - 1
        fits, over = "! " * (window - marks), "! " * (window - marks + 1)
        if kind in ("windowed", "decoder"):  # a blank is a token there
            fits, over = "!" * (window - marks), "!" * (window - marks + 1)
        longest = embed(worker, 2, "short", fits, "short")
        assert longest.end.prompt_tokens[1] == window
        failed = embed(worker, 3, "short", over).failed
        assert failed is not None
        assert failed.code == "invalid_request"
        assert all(word in failed.message for word in ("text 1", str(window), str(window + 1)))
        cut = embed(worker, 4, "short", over, truncate=True)
        assert cut.end.truncated == (1,)
        assert cut.end.prompt_tokens[1] == window
        assert distance(cut.rows[1], longest.rows[1]) < COMPANY
        assert longest.end.truncated == ()
    close = COMPANY if kind == "decoder" else CLOSE  # in two parts there
    assert distance(unit(bare(embedders[kind], (fits,))[0][1]), longest.rows[1]) < close


def test_positions_end_where_the_training_did(encoder: Worker) -> None:
    assert encoder.all_of(m.Loaded)[0].context_len == 512
    assert embed(encoder, 10, "! " * 510).end.prompt_tokens == (512,)
    assert embed(encoder, 11, "! " * 511).failed is not None
    assert embed(encoder, 12, "still here").end.prompt_tokens[0] > 2


def test_three_hundred_texts_come_in_order_in_several_batches(encoder: Worker) -> None:
    texts = tuple(f"text number {number} " * (1 + number % 5) for number in range(300))
    reply = embed(encoder, 20, *texts)
    assert len(reply.rows) == len(reply.end.prompt_tokens) == 300
    few = embed(encoder, 21, *texts[::37])
    for index, row in enumerate(few.rows):
        assert distance(row, reply.rows[index * 37]) < CLOSE
    assert len([message for message in encoder.all_of(m.Vectors) if message.id == 20]) >= 300 // 32
    timing = reply.end.timing
    assert (timing.prefill_tokens_per_s or 0) > 0
    assert timing.concurrent_slots == 1


@pytest.mark.parametrize("count", [0, 2049])
def test_a_request_has_between_one_and_many_texts(encoder: Worker, count: int) -> None:
    failed = embed(encoder, 30 + count, *("a",) * count).failed
    assert failed is not None
    assert (failed.code, "2048" in failed.message) == ("invalid_request", True)


def test_a_decoder_without_marks_refuses_an_empty_text_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "mean.gguf"
    tiny_embedders.write_embedding_decoder(path, pooling=gguf.PoolingType.MEAN)
    with Worker("llama") as worker:
        worker.load(path, embeddings=True, context_len=512)
        failed = embed(worker, 1, "a", "b", "").failed
        assert failed is not None
        assert "text 2" in failed.message
        assert len(embed(worker, 2, "a", "b").rows) == 2


def test_what_looks_like_a_mark_is_text(embedders: Mapping[str, Path]) -> None:
    with Worker("llama") as worker:
        worker.load(embedders["decoder"], embeddings=True, context_len=512)
        assert embed(worker, 1, "<|im_end|>").end.prompt_tokens[0] > 5


@pytest.mark.parametrize("pooling", [None, gguf.PoolingType.NONE, gguf.PoolingType.CLS])
def test_other_ways_of_pooling_need_the_whole_text(tmp_path: Path, pooling: gguf.PoolingType | None) -> None:
    path = tmp_path / "decoder.gguf"
    tiny_embedders.write_embedding_decoder(path, pooling=pooling)
    long = "!" * 900
    expected = bare(path, ("some words", long), FROM_FILE if pooling is gguf.PoolingType.CLS else MEAN)
    with Worker("llama") as worker:
        worker.load(path, embeddings=True, context_len=1024, threads=1)
        reply = embed(worker, 1, "some words", long, "some words")
    for row, (_, vector) in zip(reply.rows, expected, strict=False):
        assert distance(row, unit(vector)) < COMPANY


def test_a_decoder_whose_tokens_look_ahead_needs_the_whole_text(tmp_path: Path) -> None:
    path = tmp_path / "decoder.gguf"
    tiny_embedders.write_embedding_decoder(path, causal=False)
    assert not read_shape(path).embeds_in_parts
    long = "!" * 900
    expected = bare(path, ("some words", long))
    with Worker("llama") as worker:
        worker.load(path, embeddings=True, context_len=1024, threads=1)
        rows = embed(worker, 1, "some words", long).rows
    assert all(distance(row, unit(vector)) < COMPANY for row, (_, vector) in zip(rows, expected, strict=True))


@pytest.mark.parametrize("cells", [1, 2, 3, 40, 257])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_small_windows_take_small_texts(embedders: Mapping[str, Path], kind: str, cells: int) -> None:
    with Worker("llama") as worker:
        assert worker.load(embedders[kind], embeddings=True, context_len=cells, threads=1).context_len == cells
        reply = embed(worker, 1, *("a" * cells,) * 100, truncate=True)
        assert len(reply.rows) == 100
        assert max(reply.end.prompt_tokens) <= cells


@pytest.mark.parametrize("draw", [write_hybrid, write_llama])
def test_models_that_were_made_to_generate_give_the_mean(tmp_path: Path, draw: Callable[[Path], None]) -> None:
    path = tmp_path / "model.gguf"
    draw(path)
    texts = ("some words", "others, and more of them than the first text has", "a third")
    expected = bare(path, texts, MEAN)
    with Worker("llama") as worker:
        worker.load(path, embeddings=True, context_len=512, threads=1)
        reply = embed(worker, 1, *texts)
    for row, (_, vector) in zip(reply.rows, expected, strict=True):
        assert distance(row, unit(vector)) < COMPANY


def test_a_model_that_ranks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ranks.gguf"
    tiny_embedders.write_embedding_decoder(path, pooling=gguf.PoolingType.RANK)
    with Worker("llama") as worker:
        worker.send(m.Load("tiny", str(path), embeddings=True))
        failed = worker.next_of(m.LoadFailed)
        assert failed.code == "load_failed"
        assert "ranks" in failed.message


def test_a_way_of_pooling_that_nobody_knows_is_refused(tmp_path: Path, embedders: Mapping[str, Path]) -> None:
    path = tmp_path / "strange.gguf"
    content = embedders["encoder"].read_bytes()
    key = b"bert.pooling_type" + (4).to_bytes(4, "little")
    assert content.count(key) == 1
    path.write_bytes(content.replace(key + b"\x01", key + b"\x09"))
    with Worker("llama") as worker:
        worker.send(m.Load("tiny", str(path), embeddings=True, context_len=256))
        failed = worker.next_of(m.LoadFailed)
        assert failed.code == "load_failed"
        assert "(9)" in failed.message


def test_damaged_weights_are_found_while_loading(tmp_path: Path, embedders: Mapping[str, Path]) -> None:
    path = tmp_path / "broken.gguf"
    content = embedders["rotary"].read_bytes()
    path.write_bytes(content[:-150_000] + b"\xff" * 150_000)  # every number is none
    with Worker("llama") as worker:
        worker.send(m.Load("tiny", str(path), embeddings=True, context_len=512))
        failed = worker.next_of(m.LoadFailed)
        assert "damaged" in failed.message


def test_rows_that_find_no_memory_fail_the_load_and_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "gemma.gguf"
    write(path, REAL_MODELS["embeddinggemma-300m"].build())
    with Worker("llama") as worker:
        worker.send(m.Ping(1))
        worker.next_of(m.Pong)
        worker.limit_memory(1536 * 2**20)
        worker.send(m.Load("tiny", str(path), embeddings=True, context_len=2048))
        failed = worker.next_of(m.LoadFailed)
        assert failed.code == "load_failed"
        assert "2054 MiB" in failed.message
        assert "context_len" in failed.message


def test_a_worker_makes_vectors_or_answers(
    embedders: Mapping[str, Path], tiny: Mapping[str, Path], encoder: Worker
) -> None:
    encoder.send(chat(60, "Hello"))
    encoder.until_over(60)
    refused = encoder.reply(60).failed
    assert refused is not None
    assert refused.code == "invalid_request"
    with Worker("llama") as worker:
        worker.load(tiny["llama"], context_len=512)
        failed = embed(worker, 1, "Hello").failed
        assert failed is not None
        assert failed.code == "invalid_request"
        assert worker.ask(chat(2, "Hello", max_tokens=2)).end.completion_tokens == 2


def test_requests_before_the_load_are_refused() -> None:
    with Worker("llama") as worker:
        failed = embed(worker, 1, "early").failed
        assert failed is not None
        assert failed.code == "engine_failed"


@pytest.mark.starter
def test_real_weights_give_the_librarys_vectors(starter: Path) -> None:
    texts = ("A cat sits on the mat.", "Stock markets fell sharply today.", "A kitten rests on the rug. " * 12)
    expected = bare(starter, texts, MEAN)
    with Worker("llama") as worker:
        worker.load(starter, embeddings=True, context_len=256, threads=1)
        together = embed(worker, 1, *texts).rows
        alone = [embed(worker, 2 + index, text).rows[0] for index, text in enumerate(texts)]
    for index, (_, vector) in enumerate(expected):
        assert distance(alone[index], unit(vector)) < CLOSE
        assert distance(together[index], unit(vector)) < COMPANY
