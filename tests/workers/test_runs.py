"""Texts of endless runs: a client must not be able to crash a worker with thirty thousand equal letters."""

import re
import threading
from pathlib import Path

import pytest

from hypnos_engine.ipc import messages as m
from hypnos_engine.testing import tiny_gguf
from hypnos_engine.workers.llama.runs import LONGEST_RUN, parts, start_reading_thread
from tests.workers.driver import Worker, chat

CONTROL = re.compile(re.escape("<|im_end|>"))


@pytest.mark.parametrize(
    "text",
    ["", "short", "word " * 100_000, "x" * LONGEST_RUN + " " + "y" * LONGEST_RUN, "\n" * LONGEST_RUN + "x"],
    ids=["empty", "short", "words", "two runs", "blanks"],
)
def test_texts_without_an_endless_run_are_left_whole(text: str) -> None:
    assert list(parts(text, CONTROL)) == [text]


@pytest.mark.parametrize("character", ["x", "中", "!", " ", "\n", "🌙", "1"])
def test_endless_runs_are_cut(character: str) -> None:
    text = "before " + character * (3 * LONGEST_RUN) + " after"
    found = list(parts(text, CONTROL))
    assert "".join(found) == text
    assert all(found)
    assert 3 <= len(found) <= 4
    assert max(len(run) for part in found for run in re.findall(r"\S+|\s+", part)) <= LONGEST_RUN + 1


@pytest.mark.parametrize("ahead", range(12))
def test_no_cut_goes_through_a_control_token(ahead: int) -> None:
    text = "x" * (LONGEST_RUN - ahead) + "<|im_end|>" + "y" * LONGEST_RUN
    found = list(parts(text, CONTROL))
    assert "".join(found) == text
    assert sum(part.count("<|im_end|>") for part in found) == 1


def test_the_beginning_of_a_growing_text_is_cut_alike() -> None:
    """Else a longer conversation could not use what is cached of a shorter one."""
    text = "x" * (5 * LONGEST_RUN)
    assert list(parts(text, None))[:3] == list(parts(text[: 4 * LONGEST_RUN], None))[:3]


def test_other_threads_keep_their_stack() -> None:
    usual = threading.stack_size()
    done = threading.Event()
    start_reading_thread(done.set, "deep")
    assert done.wait(10.0)
    assert threading.stack_size() == usual


@pytest.mark.parametrize(
    "run", ["a" * 400_000, "中" * 150_000, "a" * 30_000 + "\n" * 200_000], ids=["a", "cjk", "lines"]
)
def test_a_worker_survives_an_endless_run(tmp_path: Path, run: str) -> None:
    path = tmp_path / "regex.gguf"
    tiny_gguf.write_llama(path, tiny_gguf.Geometry(context=1_000_000))
    content = path.read_bytes()
    assert content.count(b"\x05\0\0\0\0\0\0\0gpt-2") == 1
    path.write_bytes(content.replace(b"\x05\0\0\0\0\0\0\0gpt-2", b"\x05\0\0\0\0\0\0\0bloom"))  # splits by std::regex
    with Worker("llama") as worker:
        worker.load(path, context_len=256)
        worker.start(chat(1, run, max_tokens=4))
        worker.next_of(m.ContextWanted)
        worker.send(m.DenyContext())
        worker.until_over(1)
        failed = worker.reply(1).failed
        assert failed is not None
        assert failed.code == "invalid_request"
        assert worker.ask(chat(2, "Hello", max_tokens=4)).end
