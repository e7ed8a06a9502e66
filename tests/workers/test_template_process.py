"""A hostile chat template is stopped in time and kept small, and its worker goes on serving."""

import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from hypnos_engine.domain.errors import InvalidRequest
from hypnos_engine.ipc import programs
from hypnos_engine.ipc.programs import Program
from hypnos_engine.testing import tiny_gguf
from hypnos_engine.workers.llama.template_process import LONGEST_SOURCE_BYTES, TemplateProcess
from hypnos_engine.workers.llama.template_program import Answer, read_frame, write_frame
from tests.workers.driver import ROOT, WITHIN_S, Worker, chat, environment
from tests.workers.hostile_templates import HOSTILE

USER = ({"role": "user", "content": "Hello"},)
ENDLESS = HOSTILE["silent loops"]
GREEDY = HOSTILE["text that doubles"]


@pytest.fixture
def plain() -> Iterator[TemplateProcess]:
    with closing(TemplateProcess("{{ bos_token }}{{ messages[0].content }}", bos="<s>", eos="")) as process:
        yield process


def children() -> list[psutil.Process]:
    return psutil.Process().children()


def test_a_conversation_is_rendered_as_in_the_process_itself() -> None:
    template = tiny_gguf.CHATML + "{{ enable_thinking }}{{ eos_token }}"
    with closing(TemplateProcess(template, bos="", eos="</s>")) as process:
        text = process.render([{"role": "user", "content": "Grüße 🌙\0"}], thinking=True)
    assert text == "<|im_start|>user\nGrüße 🌙\0<|im_end|>\n<|im_start|>assistant\nTrue</s>"


def test_one_process_renders_again_and_again(plain: TemplateProcess) -> None:
    plain.start()
    (child,) = children()
    for number in range(20):
        assert plain.render([{"role": "user", "content": "x" * number}], thinking=False) == "<s>" + "x" * number
    assert children() == [child]


def test_a_long_conversation_gets_the_memory_that_it_needs(plain: TemplateProcess) -> None:
    content = "wörter " * 2_000_000
    assert plain.render([{"role": "user", "content": content}], thinking=False) == "<s>" + content


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_template_gets_a_typed_answer_in_time(source: str) -> None:
    with closing(TemplateProcess(source, bos="", eos="", limit_s=0.3)) as process:
        process.start()
        with pytest.raises(InvalidRequest, match=r"^The model's chat template .*\.$"):
            process.render(USER, thinking=False)


def test_hostile_templates_stay_small() -> None:
    """Measured by the operating system, in a process whose only children they are."""
    code = textwrap.dedent("""
        import contextlib, resource
        from hypnos_engine.domain.errors import InvalidRequest
        from hypnos_engine.workers.llama.template_process import TemplateProcess
        from tests.workers.hostile_templates import HOSTILE

        def largest(source):
            process = TemplateProcess(source, bos="", eos="", limit_s=0.3)
            with contextlib.suppress(InvalidRequest):
                process.render([{"role": "user", "content": "Hello"}], thinking=False)
            process.close()
            return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss

        idle, own = largest("x"), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        children = max(map(largest, HOSTILE.values()))
        print((children - idle) // 1024, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - own) // 1024)
    """)
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=ROOT, env=environment(), capture_output=True, timeout=100, check=True)
    child_mib, own_mib = map(int, done.stdout.split())
    assert child_mib < 80
    assert own_mib < 20


@pytest.mark.parametrize(
    ("source", "limit_s", "words"),
    [(ENDLESS, 1.0, r"needs more than 1 s"), (GREEDY, WITHIN_S, r"needs more than 64 MiB of memory")],
    ids=["endless", "greedy"],
)
def test_a_limit_is_named_and_the_next_conversation_gets_a_new_process(source: str, limit_s: float, words: str) -> None:
    source = "{% if messages[0].content == 'go' %}" + source + "{% endif %}fine"
    with closing(TemplateProcess(source, bos="", eos="", limit_s=limit_s)) as process:
        for _ in range(2):
            with pytest.raises(InvalidRequest, match=words):
                process.render([{"role": "user", "content": "go"}], thinking=False)
            assert process.render(USER, thinking=False) == "fine"
        assert len(children()) == 1


def test_a_process_that_is_killed_is_replaced(plain: TemplateProcess) -> None:
    plain.render(USER, thinking=False)
    (child,) = children()
    child.kill()
    child.wait()
    assert plain.render(USER, thinking=False) == "<s>Hello"


def test_a_process_that_dies_at_work_is_said_to_have_died() -> None:
    with closing(TemplateProcess(ENDLESS, bos="", eos="", limit_s=WITHIN_S)) as process:
        process.start()
        (child,) = children()
        killer = subprocess.Popen(
            [sys.executable, "-c", _KILL_WHEN_BUSY, str(child.pid)], stdin=subprocess.DEVNULL, cwd=ROOT
        )
        with pytest.raises(InvalidRequest, match=r"ended the process that renders it \(signal SIGSEGV\)"):
            process.render(USER, thinking=False)
        killer.wait()


_KILL_WHEN_BUSY = """
import psutil, sys
child = psutil.Process(int(sys.argv[1]))
while child.cpu_times().user < 0.5:
    pass
child.send_signal(11)
"""


def test_a_source_beyond_reason_is_refused_unread() -> None:
    process = TemplateProcess("x" * (LONGEST_SOURCE_BYTES + 1), bos="", eos="")
    with pytest.raises(InvalidRequest, match="no template in earnest"):
        process.render(USER, thinking=False)
    assert not children()


def test_what_is_no_text_is_refused() -> None:
    with (
        closing(TemplateProcess("{{ '\\ud800' }}", bos="", eos="")) as process,
        pytest.raises(InvalidRequest, match="makes what is no text"),
    ):
        process.render(USER, thinking=False)


def test_nothing_is_left_of_a_template_that_is_forgotten() -> None:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    process = TemplateProcess("{{ messages[0].content }}", bos="", eos="")
    process.render(USER, thinking=False)
    del process
    gc.collect()
    assert not children()
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_a_frame_that_is_too_long_or_cut_is_none(tmp_path: Path) -> None:
    path = tmp_path / "frames"
    with path.open("wb") as file:
        write_frame(file, b"ab", b"c")
    with path.open("rb") as file:
        assert read_frame(file) == b"abc"
        assert read_frame(file) is None
    with path.open("rb") as file:
        assert read_frame(file, 2) is None
    path.write_bytes(path.read_bytes()[:-1])
    with path.open("rb") as file:
        assert read_frame(file) is None


# --- in a worker ----------------------------------------------------------------------------------------------------


@pytest.fixture
def hostile_model(tmp_path: Path) -> Path:
    """A model whose template turns hostile at a word of the conversation."""
    cases = "".join(
        "{% " + ("if" if not number else "elif") + f" messages[-1].content == '{name}' %}}" + source
        for number, (name, source) in enumerate((("compared nests", HOSTILE["compared nests"]), ("greedy", GREEDY)))
    )
    path = tmp_path / "hostile.gguf"
    tiny_gguf.write_llama(path, chat_template=cases + "{% endif %}" + tiny_gguf.CHATML)
    return path


def test_a_worker_goes_on_serving_through_hostile_renderings(hostile_model: Path) -> None:
    with Worker("llama") as worker:
        worker.load(hostile_model, context_len=256)
        assert worker.ask(chat(1, "Hello", max_tokens=4)).end
        before_bytes = _anonymous_bytes(worker)
        for number, name in enumerate(("greedy", "compared nests", "greedy"), 2):
            started_s = time.monotonic()
            failed = worker.ask(chat(number, name)).failed
            assert failed is not None
            assert failed.code == "invalid_request"
            assert "chat template needs more than" in failed.message
            assert time.monotonic() - started_s < WITHIN_S / 2
            assert worker.ask(chat(number, "Hello", max_tokens=4)).end
        assert _anonymous_bytes(worker) - before_bytes < 20 * 2**20
        (child,) = psutil.Process(worker.process.pid).children()
    psutil.wait_procs([child], timeout=WITHIN_S)
    assert not child.is_running()


@pytest.mark.parametrize("name", ["Hello", "compared nests"], ids=["idle", "busy"])
def test_a_killed_worker_takes_its_template_along(hostile_model: Path, name: str) -> None:
    with Worker("llama") as worker:
        worker.load(hostile_model, context_len=256)
        worker.ask(chat(1, "Hello", max_tokens=4))
        (child,) = psutil.Process(worker.process.pid).children()
        worker.send(chat(2, name, max_tokens=4))
        worker.process.send_signal(signal.SIGKILL)
        child.wait(WITHIN_S)


def _anonymous_bytes(worker: Worker) -> int:
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:"))


def test_the_program_ends_with_its_input() -> None:
    argv = programs.command(Program.RENDERER, str(os.getpid()))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert read_frame(process.stdout) == bytes((Answer.READY,))
        write_frame(process.stdin, json.dumps({"source": "{{ messages[0].content }}", "bos": "", "eos": ""}).encode())
        for word in ("one", "two"):
            messages = [{"role": "user", "content": word}]
            write_frame(process.stdin, json.dumps({"messages": messages, "thinking": False}).encode())
            assert read_frame(process.stdout) == bytes((Answer.TEXT,)) + word.encode()
        process.stdin.close()
        assert process.wait(WITHIN_S) == 0
