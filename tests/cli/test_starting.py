"""`hypnos serve` as a real process: what it says when it starts, and one exit code for each way it cannot."""

import json
import signal
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Answer, Hypnos

FreePort = Callable[[], int]


def refused(answer: "Answer", code: int, *says: str) -> None:
    assert answer.returncode == code, answer.stderr
    assert answer.stdout == ""
    assert answer.stderr.startswith("hypnos: ")
    assert "Traceback" not in answer.stderr
    for part in says:
        assert part in answer.stderr


def test_a_start_says_where_it_is_and_sigterm_ends_it(hypnos: "Hypnos", free_port: FreePort) -> None:
    port = free_port()
    process, said = hypnos.start("--demo", "--port", str(port))
    assert said.startswith(f"Hypnos serves 1 model at http://127.0.0.1:{port}/v1\n")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
        assert json.load(answer)["service"] == "hypnos"
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert errors == ""


def test_a_first_start_writes_a_configuration_and_ctrl_c_ends_it(hypnos: "Hypnos", free_port: FreePort) -> None:
    process, said = hypnos.start("--port", str(free_port()))
    written = hypnos.home / ".config" / "hypnos" / "hypnos.toml"
    assert written.is_file()
    assert written.stat().st_mode & 0o777 == 0o600
    assert f"configuration  {written}" in said
    assert "A first configuration was written" in said
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_a_broken_configuration_names_file_line_and_setting(hypnos: "Hypnos") -> None:
    path = hypnos.home / "mine.toml"
    path.write_text('config_version = 1\n[server]\nprot = 1\nport = "x"\n', encoding="utf-8")
    refused(hypnos.run("serve", "--config", str(path)), 41, f"{path}:3", "did you mean `port`?", f"{path}:4")


def test_a_missing_configuration_is_said_and_v_shows_where(hypnos: "Hypnos") -> None:
    # A file in the current folder must not stand in for a module of the same name.
    Path(hypnos.home, "asyncio.py").write_text("raise SystemExit('wrong module')", encoding="utf-8")
    answer = hypnos.run("serve", "-v", "--config", "nowhere.toml")
    assert answer.returncode == 41
    assert "Traceback" in answer.stderr
    assert "no such file" in answer.stderr.splitlines()[-1]


def test_a_busy_port_is_named(hypnos: "Hypnos", listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    refused(hypnos.run("--demo", "--port", str(port)), 42, str(port))


def test_a_second_engine_of_the_same_user_learns_where_the_first_is(hypnos: "Hypnos", free_port: FreePort) -> None:
    port = free_port()
    first, _ = hypnos.start("--demo", "--port", str(port))
    answer = hypnos.run("--demo", "--port", str(free_port()))
    refused(answer, 43, f"http://127.0.0.1:{port}", str(first.pid))


def test_an_open_address_without_a_key_is_refused(hypnos: "Hypnos") -> None:
    refused(hypnos.run("serve", "--demo", "--host", "0.0.0.0"), 44, "API key", "--insecure-no-auth")


def test_a_folder_that_cannot_be_made_is_named(hypnos: "Hypnos", free_port: FreePort) -> None:
    wall, path = hypnos.home / "wall", hypnos.home / "mine.toml"
    wall.touch()
    path.touch()
    answer = hypnos.run("--config", str(path), "--port", str(free_port()), XDG_STATE_HOME=str(wall))
    refused(answer, 45, str(wall))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_does_not_wait_for_running_requests(
    hypnos: "Hypnos", free_port: FreePort, number: signal.Signals
) -> None:
    port = free_port()
    process, _ = hypnos.start("--demo", "--port", str(port))
    published = hypnos.home / ".local" / "state" / "hypnos" / "run" / "engine.json"
    assert published.is_file()
    assert process.stdout is not None
    process.stdout.close()  # the terminal that it was started from is gone
    process.stdout = None
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with (
        socket.create_connection(("127.0.0.1", port)) as idle,
        socket.create_connection(("127.0.0.1", port)) as busy,
    ):
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(4096).startswith(b"HTTP/1.1 200")
        busy.sendall(head + b"Content-Length: 100\r\nExpect: 100-continue\r\n\r\n")
        assert busy.recv(4096).startswith(b"HTTP/1.1 100"), "the request runs and waits for its body"
        process.send_signal(number)
        while idle.recv(4096):
            pass  # the server closes what is idle once it drains
        process.send_signal(number)
        process.communicate(timeout=10)
    assert process.returncode == 128 + number
    assert not published.exists()


def test_the_folder_of_the_flag_is_where_models_are_looked_for(hypnos: "Hypnos", free_port: FreePort) -> None:
    folder = hypnos.home / "my models"
    process, said = hypnos.start("--port", str(free_port()), "--models-dir", str(folder))
    assert f"models         {folder}\n" in said
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    _, said = hypnos.start("--demo", "--port", str(free_port()), "--models-dir", "my models", HYPNOS_MODELS_DIR="/no")
    assert f"models         {folder}\n" in said


def test_another_login_of_the_same_user_finds_the_engine(hypnos: "Hypnos", free_port: FreePort) -> None:
    for name in ("first", "second"):
        (hypnos.home / name).mkdir(mode=0o700)
    port = free_port()
    hypnos.start("--demo", "--port", str(port), XDG_RUNTIME_DIR=str(hypnos.home / "first"))
    answer = hypnos.run("--demo", "--port", str(free_port()), XDG_RUNTIME_DIR=str(hypnos.home / "second"))
    refused(answer, 43, f"http://127.0.0.1:{port}")


def test_a_broken_link_in_place_of_the_configuration_is_told_and_left(hypnos: "Hypnos", free_port: FreePort) -> None:
    path = hypnos.home / ".config" / "hypnos" / "hypnos.toml"
    path.parent.mkdir(parents=True)
    path.symlink_to(hypnos.home / "disk" / "hypnos.toml")
    refused(hypnos.run("--port", str(free_port())), 41, str(path), "a link to a file that is not there")
    assert path.is_symlink()


def test_a_folder_in_place_of_the_address_file_is_told(hypnos: "Hypnos", free_port: FreePort) -> None:
    path = hypnos.home / ".local" / "state" / "hypnos" / "run" / "engine.json"
    path.mkdir(parents=True)
    refused(hypnos.run("--demo", "--port", str(free_port())), 45, str(path), "Remove it")


def test_a_name_that_only_looks_like_a_loopback_address_opens_nothing(hypnos: "Hypnos", free_port: FreePort) -> None:
    refused(hypnos.run("--demo", "--host", "127.nowhere.invalid", "--port", str(free_port())), 40, "server.host")


def test_a_library_that_hangs_does_not_hold_up_the_end(hypnos: "Hypnos", free_port: FreePort) -> None:
    library, pipe = hypnos.hanging_library()
    config = hypnos.home / "mine.toml"
    config.write_text(
        '[[models]]\nid = "a"\nmodality = "text_generation"\nengine = "ggml_llama"\nweights_path = "a.gguf"\n',
        encoding="utf-8",
    )
    process = hypnos.launch("--config", str(config), "--port", str(free_port()), PYTHONPATH=library)
    with pipe.open() as asked:
        assert asked.read(1) == "x", "the library is being loaded"
        process.send_signal(signal.SIGTERM)
        before = time.monotonic()
        _, errors = process.communicate(timeout=30)
        assert time.monotonic() - before < 2
        assert asked.read() == "", "the child is gone too"
    assert (process.returncode, errors) == (0, "")


def test_ctrl_c_ends_the_doctor_and_the_child_it_waits_for(hypnos: "Hypnos") -> None:
    library, pipe = hypnos.hanging_library()
    process = hypnos.launch("doctor", PYTHONPATH=library)
    with pipe.open() as asked:
        assert asked.read(1) == "x", "the library is being loaded"
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=10)
        assert asked.read() == "", "the child is gone too"
    assert (process.returncode, said) == (130, ("", ""))
