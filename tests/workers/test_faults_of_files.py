"""What becomes of a worker whose file is damaged under it, or was nonsense from the start."""

import random
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from hypnos_engine.ipc import messages as m
from hypnos_engine.testing import tiny_gguf
from tests.workers.damage import NOT_A_NUMBER, TENSORS_BYTES, cut, overwrite_tensors, write_aborting
from tests.workers.driver import Worker, chat


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    tiny_gguf.write_llama(path)
    return path


@pytest.mark.parametrize(
    "content",
    [NOT_A_NUMBER, b"\x00\x7c" * (TENSORS_BYTES // 2), random.Random(0).randbytes(TENSORS_BYTES)],
    ids=["nan", "infinite", "random"],
)
def test_weights_that_compute_no_numbers_are_refused_after_the_load(model: Path, content: bytes) -> None:
    overwrite_tensors(model, content)
    with Worker("llama") as worker:
        worker.send(m.Load("tiny", str(model), context_len=256))
        failed = worker.next_of(m.LoadFailed)
        assert failed.code == "load_failed"
        assert f"'{model}' are damaged: what the model computes are no numbers" in failed.message
        assert worker.exit_status() == 0


def test_weights_that_spoil_under_a_worker_fail_requests_and_then_the_worker(model: Path) -> None:
    """The file is mapped: what is written into it is computed with at once."""
    with Worker("llama") as worker:
        worker.load(model, context_len=256, load_mode="mmap")
        assert worker.ask(chat(1, "Hello", max_tokens=4)).end
        overwrite_tensors(model, NOT_A_NUMBER)
        for number in range(2, 5):
            failed = worker.ask(chat(number, "Hello", max_tokens=4)).failed
            assert failed is not None
            assert failed.code == "engine_failed"
            assert "computes what are no numbers" in failed.message
        worker.until_end()
        assert worker.exit_status() == 1
        assert "computes what are no numbers" in worker.stderr


def test_weights_that_recover_keep_their_worker(model: Path) -> None:
    content = model.read_bytes()[-TENSORS_BYTES:]
    with Worker("llama") as worker:
        worker.load(model, context_len=256, load_mode="mmap")
        before = worker.ask(chat(1, "Hello", max_tokens=4, sampling=m.Sampling(temperature=0.0, seed=1)))
        for _ in range(2):
            overwrite_tensors(model, NOT_A_NUMBER)
            failed = [reply.failed for reply in worker.ask_all(chat(2, "Hello"), chat(3, "Good day"))]
            assert all(failure is not None and failure.code == "engine_failed" for failure in failed)
            overwrite_tensors(model, content)
            after = worker.ask(chat(4, "Hello", max_tokens=4, sampling=m.Sampling(temperature=0.0, seed=1)))
            assert after.text == before.text


def test_a_header_that_makes_the_library_abort(tmp_path: Path) -> None:
    write_aborting(tmp_path / "bad.gguf")
    with Worker("llama") as worker:
        worker.send(m.Load("tiny", str(tmp_path / "bad.gguf"), context_len=256))
        worker.until_end()
        assert worker.exit_status() == -signal.SIGABRT
        assert "GGML_ASSERT(n_embd_head == n_rot) failed" in worker.stderr


def test_a_file_cut_short_under_a_worker_ends_it(tiny: Mapping[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny["llama"].read_bytes())
    with Worker("llama") as worker:
        worker.load(path, context_len=256, load_mode="mmap")
        cut(path, 4096)
        worker.send(chat(1, "Hello", max_tokens=4))
        worker.until_end()
        assert worker.exit_status() == -signal.SIGBUS


def test_a_file_that_was_read_may_be_cut_short(tiny: Mapping[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny["llama"].read_bytes())
    with Worker("llama") as worker:
        worker.load(path, context_len=256, load_mode="read")
        cut(path, 4096)
        assert worker.ask(chat(1, "Hello", max_tokens=4)).end
