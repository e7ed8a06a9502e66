"""The life of a worker process: its channel, its parent, what it may import, and that it never stays behind."""

import importlib.util
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.framing import encode, from_worker_decoder
from hypnos_engine.workers.__main__ import EXIT_USAGE
from hypnos_engine.workers.beside import Beside
from hypnos_engine.workers.channel import EXIT_CHANNEL_BROKEN
from hypnos_engine.workers.process import EXIT_ORPHANED, yield_to_others
from tests.workers.driver import ROOT, WITHIN_S, WORKER, Worker, chat, environment

KINDS = {"fake": "fake", "llama": "ggml_llama", "ggml_llama": "ggml_llama"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_message_is_a_greeting(kind: str) -> None:
    with Worker(kind) as worker:
        hello = worker.next_of(m.Hello)
        assert worker.journal == [hello]
        assert hello == m.Hello(m.PROTOCOL_VERSION, KINDS[kind], worker.process.pid)


@pytest.mark.parametrize("pipes", [False, True], ids=["socket", "pipes"])
def test_both_kinds_of_channel_work(pipes: bool) -> None:
    with Worker("fake", pipes=pipes) as worker:
        worker.load()
        assert worker.ask(chat(1, "Hello")).text
        worker.send(m.Ping(7))
        assert worker.next_of(m.Pong).nonce == 7


@pytest.mark.parametrize("pipes", [False, True], ids=["socket", "pipes"])
def test_the_end_of_the_channel_is_the_end_of_the_worker(pipes: bool) -> None:
    with Worker("fake", pipes=pipes) as worker:
        worker.next_of(m.Hello)
        worker.hang_up()
        assert worker.exit_status() == EXIT_ORPHANED


@pytest.mark.parametrize("garbage", [b"\xff" * 64, struct.pack("<I", 3) + b"abc"], ids=["length", "content"])
def test_bytes_that_are_no_message_end_the_worker(garbage: bytes) -> None:
    with Worker("fake") as worker:
        worker.next_of(m.Hello)
        worker.send_bytes(garbage)
        worker.until_end()
        assert worker.exit_status() == EXIT_CHANNEL_BROKEN
        assert "channel from the supervisor is broken" in worker.stderr


def test_shutdown_is_an_orderly_end() -> None:
    with Worker("fake") as worker:
        worker.load(step_delay_ms=10_000.0)
        worker.send(chat(1, "Hello"), m.Shutdown())
        worker.until_end()
        assert worker.exit_status() == 0
        failed = worker.reply(1).failed
        assert failed is not None
        assert failed.code == "cancelled"


@pytest.mark.parametrize("kind", ["fake", "llama"])
def test_shutdown_ends_a_worker_that_loaded_nothing(kind: str) -> None:
    with Worker(kind) as worker:
        worker.send(m.Shutdown())
        worker.until_end()
        assert worker.exit_status() == 0


def test_an_interrupt_from_the_terminal_is_left_to_the_supervisor() -> None:
    with Worker("fake") as worker:
        worker.next_of(m.Hello)
        worker.process.send_signal(signal.SIGINT)
        worker.load()
        assert worker.ask(chat(1, "Hello")).text


def test_what_libraries_print_never_reaches_the_channel() -> None:
    code = textwrap.dedent("""
        import ctypes, os, sys
        from hypnos_engine.ipc import messages as m
        from hypnos_engine.workers import process
        from hypnos_engine.workers.channel import Channel
        read_fd, write_fd = process.take_over_channel()
        print("printed by python"); sys.stdout.flush()
        libc = ctypes.CDLL(None); libc.puts(b"printed by C"); libc.fflush(None)
        assert sys.stdin.read() == "" and os.read(0, 1) == b""
        Channel(read_fd, write_fd).send(m.Pong(1))
    """)
    with Worker("fake", argv=(sys.executable, "-P", "-c", code)) as worker:
        worker.until_end()
        assert worker.journal == [m.Pong(1)]
        worker.exit_status()
        assert "printed by python" in worker.stderr
        assert "printed by C" in worker.stderr


def test_a_worker_whose_parent_is_gone_already_ends_at_once() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        argv = [*WORKER, "--kind", "fake", "--parent", "1"]
        done = subprocess.run(
            argv, stdin=theirs.fileno(), stdout=theirs.fileno(), env=environment(), timeout=WITHIN_S, check=False
        )
    assert done.returncode == EXIT_ORPHANED


def test_a_killed_supervisor_takes_its_workers_along() -> None:
    """The channel stays open in this process: only the parent-death signal can tell the worker."""
    ours, theirs = socket.socketpair()
    ours.settimeout(WITHIN_S)
    supervisor = textwrap.dedent(f"""
        import os, subprocess, sys
        channel = int(sys.argv[1])
        argv = {[*WORKER, "--kind", "fake", "--parent"]!r} + [str(os.getpid())]
        worker = subprocess.Popen(argv, stdin=channel, stdout=channel)
        worker.wait()
    """)
    descriptor = theirs.fileno()
    argv = [sys.executable, "-c", supervisor, str(descriptor)]
    with ours, subprocess.Popen(argv, pass_fds=[descriptor], env=environment()) as process:
        theirs.close()
        assert isinstance(from_worker_decoder().feed(ours.recv(65536))[0], m.Hello)
        process.kill()
        assert ours.recv(65536) == b""  # every copy of the other end is closed: the worker is gone


@pytest.mark.starter
def test_the_end_of_the_channel_ends_a_native_call(starter: Path) -> None:
    with Worker("llama") as worker:
        worker.load(starter, context_len=8192, slots=1)
        worker.send(chat(1, "word " * 7000))
        worker.until(lambda: worker.reply(1).accepted is not None)
        worker.hang_up()
        # Computing the prompt takes tens of seconds; the loop itself never leaves with this status.
        assert worker.exit_status() == EXIT_ORPHANED


def test_a_probe_prints_one_report() -> None:
    done = subprocess.run(
        [*WORKER, "--probe"], stdin=subprocess.DEVNULL, capture_output=True, env=environment(), timeout=60, check=True
    )
    decoder = from_worker_decoder()
    (report,) = decoder.feed(done.stdout)
    assert decoder.pending_bytes == 0
    assert isinstance(report, m.ProbeReport)
    assert report.library == "llama-cpp-python"
    assert report.version == "0.3.36"
    assert report.gpu_offload == any(device.kind in {"gpu", "igpu"} for device in report.devices)
    assert [device.kind for device in report.devices].count("cpu") == 1
    assert all(0 < device.free_bytes <= device.total_bytes for device in report.devices if device.kind == "cpu")


def test_an_unknown_engine_is_refused() -> None:
    argv = [*WORKER, "--kind", "parrot"]
    done = subprocess.run(argv, capture_output=True, env=environment(), timeout=WITHIN_S, check=False)
    assert done.returncode == 2
    assert b"no engine 'parrot'" in done.stderr
    assert done.stdout == b""


# --- alone with ipc and domain --------------------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder that holds `workers`, `ipc` and `domain` and nothing else of the project."""
    package = tmp_path / "hypnos_engine"
    package.mkdir()
    shutil.copy(ROOT / "hypnos_engine" / "__init__.py", package)
    for room in ("workers", "ipc", "domain"):
        shutil.copytree(ROOT / "hypnos_engine" / room, package / room, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def _bare_python(bare: Path, *packages: str) -> list[str]:
    """An interpreter that sees the standard library, the folder and the named packages; then runs a module."""
    libraries = bare / "libraries"
    libraries.mkdir(exist_ok=True)
    for package in packages:
        found = importlib.util.find_spec(package)
        assert found is not None
        assert found.origin is not None
        origin = Path(found.origin)
        for source in [
            origin.parent if origin.name == "__init__.py" else origin,
            *origin.parents[1].glob(f"{package}.libs"),
        ]:
            if not (libraries / source.name).exists():
                (libraries / source.name).symlink_to(source)
    code = f"import sys, runpy; sys.path[:0] = {[str(bare), str(libraries)]!r}; sys.argv = sys.argv[1:]"
    run = "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    return [sys.executable, "-S", "-I", "-c", f"{code}; {run}"]


@pytest.mark.parametrize("room", ["engines", "config", "gguf", "scheduler", "daemon"])
def test_the_bare_environment_has_no_other_room(bare: Path, room: str) -> None:
    argv = [*_bare_python(bare, "msgspec"), f"hypnos_engine.{room}"]
    done = subprocess.run(argv, capture_output=True, timeout=WITHIN_S, check=False, cwd=bare)
    assert b"No module named hypnos_engine." + room.encode() in done.stderr


def test_the_fake_engine_needs_only_ipc_and_domain(bare: Path) -> None:
    argv = [*_bare_python(bare, "msgspec"), "hypnos_engine.workers"]
    with Worker("fake", argv=argv, cwd=bare) as worker:
        worker.load()
        assert worker.ask(chat(1, "Hello")).text


def test_the_text_engine_needs_only_ipc_domain_and_its_library(bare: Path, tiny: Mapping[str, Path]) -> None:
    packages = ("msgspec", "llama_cpp", "numpy", "jinja2", "markupsafe", "diskcache", "typing_extensions")
    argv = [*_bare_python(bare, *packages), "hypnos_engine.workers"]
    with Worker("llama", argv=argv, cwd=bare) as worker:
        worker.load(tiny["llama"], context_len=256)
        assert worker.ask(chat(1, "Hello", max_tokens=4)).end.prompt_tokens > 0


def test_a_missing_library_is_a_typed_failure(bare: Path) -> None:
    argv = [*_bare_python(bare, "msgspec"), "hypnos_engine.workers"]
    with Worker("llama", argv=argv, cwd=bare) as worker:
        worker.send(m.Load("tiny", "/nowhere.gguf"))
        failed = worker.next_of(m.LoadFailed)
        assert failed.code == "load_failed"
        assert "run the set-up" in failed.message


def test_an_early_request_is_answered() -> None:
    for kind in ("fake", "llama"):
        with Worker(kind) as worker:
            worker.send_bytes(encode(chat(1, "Hello")))
            failed = worker.ask(chat(2, "Hello")).failed
            assert failed is not None
            assert failed.code == "engine_failed"


def test_no_process_keeps_a_descriptor_of_the_channel(tmp_path: Path) -> None:
    with Worker("fake") as worker:
        worker.next_of(m.Hello)
        descriptors = Path(f"/proc/{worker.process.pid}/fd")
        targets = {entry.name: str(entry.readlink()) for entry in descriptors.iterdir()} if descriptors.exists() else {}
        assert targets.get("0", os.devnull) == os.devnull
        assert targets.get("1") == targets.get("2")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives threads priorities of their own")
def test_only_the_thread_that_asks_leaves_the_processor_to_others() -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def asks() -> int:
        yield_to_others()
        return priority()

    before = priority()
    assert Beside(asks, "asks").result() > before
    assert priority() == before


def test_a_command_line_that_makes_no_sense_is_explained() -> None:
    for arguments in ((), ("--kind",), ("--kind", "parrot"), ("--probe", "--kind", "fake"), ("--parent", "x"), ("-k",)):
        done = subprocess.run([*WORKER, *arguments], capture_output=True, text=True, env=environment(), check=False)
        assert done.returncode == EXIT_USAGE
        assert done.stderr.startswith("usage: hypnos-worker")
        assert done.stderr.endswith(".\n")
