"""Several requests for vectors at one worker: turns, cancellation, and the end of the process."""

from collections.abc import Mapping
from pathlib import Path

from hypnos_engine.ipc import messages as m
from hypnos_engine.testing import tiny_embedders
from hypnos_engine.testing.tiny_gguf import Geometry
from tests.workers.driver import Worker
from tests.workers.embedding_client import CLOSE, COMPANY, distance, embed, replies


def test_requests_take_turns_and_share_batches(encoder: Worker) -> None:
    many = tuple(f"a longer text with the number {number} in it" for number in range(400))
    encoder.send(m.Embed(70, many), m.Embed(71, ("short",)), m.Embed(72, ("another", "short")))
    long, short, other = replies(encoder, 70, 71, 72)
    ends = [message.id for message in encoder.all_of(m.Embedded) if message.id in (70, 71, 72)]
    assert ends[-1] == 70
    assert (short.end.timing.concurrent_slots or 0) >= 2
    assert len(long.rows) == 400
    assert distance(short.rows[0], other.rows[1]) < CLOSE


def test_one_requests_refusal_leaves_the_others_alone(encoder: Worker) -> None:
    encoder.send(m.Embed(80, ("one", "two")), m.Embed(81, ("! " * 600,)), m.Embed(82, ("one",)))
    first, refused, last = replies(encoder, 80, 81, 82)
    assert refused.failed is not None
    assert distance(first.rows[0], last.rows[0]) < CLOSE


def test_a_cancelled_request_ends_at_its_next_batch(encoder: Worker) -> None:
    texts = tuple(f"text {number} " * 20 for number in range(2000))
    encoder.send(m.Embed(90, texts))
    encoder.until(lambda: any(message.id == 90 for message in encoder.all_of(m.Vectors)))
    encoder.send(m.Cancel(90), m.Cancel(12345))
    cancelled = replies(encoder, 90)[0]
    assert cancelled.failed is not None
    assert cancelled.failed.code == "cancelled"
    assert len(cancelled.rows) < 2000
    assert len(embed(encoder, 91, "after").rows) == 1
    assert not [message for message in encoder.all_of(m.Vectors) if message.id == 90][len(cancelled.rows) :]


def test_a_cancelled_request_that_is_still_being_read_never_starts(encoder: Worker) -> None:
    encoder.send(m.Embed(95, ("words " * 50_000,) * 20, truncate=True), m.Cancel(95))
    cancelled = replies(encoder, 95)[0]
    assert cancelled.failed is not None
    assert (cancelled.failed.code, cancelled.rows) == ("cancelled", [])
    assert len(embed(encoder, 96, "after").rows) == 1


def test_a_text_in_parts_lets_others_pass_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "decoder.gguf"
    tiny_embedders.write_embedding_decoder(path, Geometry(context=8192))
    long = "".join(f"line {number} of a long text. " for number in range(250))
    with Worker("llama") as worker:
        loaded = worker.load(path, embeddings=True, context_len=8192, threads=1)
        assert loaded.context_len == 8192
        alone = embed(worker, 1, long, "and a short one")
        worker.send(m.Embed(2, (long, "and a short one")), *(m.Embed(3 + n, ("a", "b", "c")) for n in range(40)))
        mixed, *short = replies(worker, *range(2, 43))
        ends = [message.id for message in worker.all_of(m.Embedded)]
        assert alone.end.prompt_tokens[0] > 4 * 256
        assert ends[-1] == 2
        for one, other in zip(alone.rows, mixed.rows, strict=True):
            assert distance(one, other) < COMPANY
        assert all(len(reply.rows) == 3 for reply in short)
        worker.send(m.Embed(50, (long,) * 3), m.Ping(7))
        worker.next_of(m.Pong)
        worker.send(m.Cancel(50))
        assert replies(worker, 50)[0].failed is not None
        assert distance(embed(worker, 51, long).rows[0], alone.rows[0]) < COMPANY


def test_long_texts_of_several_requests_all_come_through(embedders: Mapping[str, Path]) -> None:
    long = "!" * 1500
    with Worker("llama") as worker:
        worker.load(embedders["decoder"], embeddings=True, context_len=2048, threads=1)
        worker.send(*(m.Embed(number, (long, "x", long)) for number in range(1, 5)))
        for reply in replies(worker, 1, 2, 3, 4):
            assert len(reply.rows) == 3
            assert distance(reply.rows[0], reply.rows[2]) < COMPANY


def test_settings_may_come_at_any_time(encoder: Worker) -> None:
    encoder.send(m.SetThreads(2), m.DenyContext(), m.ResizeContext(100_000), m.Ping(77))
    encoder.until(lambda: any(pong.nonce == 77 for pong in encoder.all_of(m.Pong)))
    assert encoder.all_of(m.ContextResized)[-1].context_len == 512
    assert len(embed(encoder, 110, "after").rows) == 1


def test_a_shutdown_fails_what_runs_and_ends_in_order(embedders: Mapping[str, Path]) -> None:
    with Worker("llama") as worker:
        worker.load(embedders["encoder"], embeddings=True, context_len=512)
        worker.send(m.Embed(1, tuple(f"text {n} " * 30 for n in range(1500))))
        worker.until(lambda: bool(worker.all_of(m.Vectors)))
        worker.send(m.Shutdown())
        worker.until_end()
        assert [failed.code for failed in worker.all_of(m.Failed)] == ["cancelled"]
        assert worker.exit_status() == 0


def test_a_supervisor_that_is_gone_ends_the_worker_in_the_middle(embedders: Mapping[str, Path]) -> None:
    with Worker("llama") as worker:
        worker.load(embedders["encoder"], embeddings=True, context_len=512)
        worker.send(m.Embed(1, tuple(f"text {n} " * 30 for n in range(1500))))
        worker.until(lambda: bool(worker.all_of(m.Vectors)))
        worker.hang_up()
        assert worker.exit_status() != 0
