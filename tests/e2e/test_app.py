"""The desktop program without a screen: how it starts, shares its user's engine, ends, and leaves nothing behind."""

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.app_process import RunningApp, running_app, started_app, until
from tests.e2e.engine_process import END_S, free_port, private_environment, serving

OFFSCREEN = "This plugin does not support"
"""What Qt's platform without a screen says of windows."""


def chat(app: RunningApp, model: str = "demo", max_tokens: int = 8) -> str:
    """One answer through the port."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": max_tokens}
    request = urllib.request.Request(
        f"{app.address}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        message: Any = json.load(answer)
    return str(message["choices"][0]["message"]["content"])


def gone(processes: list[psutil.Process]) -> bool:
    return not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_serves_and_ends_when_told_with_nothing_left(tmp_path: Path, number: signal.Signals) -> None:
    with running_app(tmp_path / "home mit Ümläut 🌙", free_port(), "--demo") as app:
        assert chat(app)
        processes = app.processes()
        assert len(processes) > 1
        assert app.end(number) == 0
        until(lambda: gone(processes), "the end of every process", END_S)
        _, complaints = app.process.communicate(timeout=END_S)
        assert [line for line in complaints.splitlines() if OFFSCREEN not in line] == []
        assert "a mistake" not in app.log


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_a_crash_leaves_no_worker(tmp_path: Path, number: signal.Signals) -> None:
    with running_app(tmp_path, free_port(), "--demo") as app:
        processes = app.processes()
        assert app.end(number) == -number
        until(lambda: gone(processes[1:]), "the end of every worker", END_S)


def test_a_second_start_raises_the_first_and_ends(tmp_path: Path) -> None:
    with running_app(tmp_path, free_port(), "--demo", "--at-login") as app:
        second = subprocess.run(
            [sys.executable, "-m", "app", "--demo"],
            env={**private_environment(tmp_path), "QT_QPA_PLATFORM": "offscreen"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (second.returncode, second.stderr) == (0, "")
        assert "runs already" in second.stdout
        assert chat(app)


def test_it_becomes_the_window_of_an_engine_that_serves_already_and_leaves_it_alone(tmp_path: Path) -> None:
    with serving(tmp_path, "--demo") as engine:
        with running_app(tmp_path, engine.port, own=False) as app:
            assert [one for one in app.processes()[1:] if "--kind" in one.cmdline()] == []
            assert app.end(signal.SIGTERM) == 0
        assert engine.get("/health")["status"] == "ok"
        assert len(engine.workers()) == 1


def test_an_engine_that_ends_is_told_and_the_window_lives_on(tmp_path: Path) -> None:
    with serving(tmp_path, "--demo") as engine, running_app(tmp_path, engine.port, own=False) as app:
        assert engine.end() == 0
        assert app.process.poll() is None
        # The next engine of this user is the one to show.
        with serving(tmp_path, "--demo") as other:
            assert app.process.stdout is not None
            line = next(line for line in app.process.stdout if "http://" in line)
            assert other.address in line
            assert app.end(signal.SIGTERM) == 0


def test_a_dead_worker_is_told_once_and_comes_back_with_the_next_request(tmp_path: Path) -> None:
    with running_app(tmp_path, free_port(), "--demo") as app:
        (worker,) = app.workers()
        worker.send_signal(signal.SIGKILL)
        until(lambda: "told: demo had to be restarted" in app.log, "the notice")
        assert chat(app)
        assert app.log.count("told: demo had to be restarted") == 1
        assert app.end(signal.SIGTERM) == 0


def test_running_answers_may_finish_before_it_ends(tmp_path: Path) -> None:
    with running_app(tmp_path, free_port(), "--demo") as app:
        body = json.dumps(
            {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 60, "stream": True}
        )
        request = urllib.request.Request(
            f"{app.address}/v1/chat/completions", body.encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.readline()
            app.process.send_signal(signal.SIGTERM)
            lines = answer.read().decode().split("\n\n")
        assert "data: [DONE]" in lines
        assert '"finish_reason":"error"' not in "".join(lines)
        assert app.process.wait(timeout=END_S) == 0


def test_a_folder_that_cannot_be_used_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a folder is needed")
    with started_app(tmp_path, free_port(), "--demo") as app:
        assert app.process.stderr is not None
        complaint = app.process.stderr.readline()
        assert str(tmp_path / "state") in complaint
        assert app.process.poll() is None  # a window says it, and waits to be read
        assert app.end(signal.SIGTERM) != 0


@pytest.mark.starter
def test_the_starter_model_answers(tmp_path: Path) -> None:
    with running_app(tmp_path, free_port()) as app:
        assert chat(app, "smollm2:135m", 16)
        processes = app.processes()
        assert app.end(signal.SIGTERM) == 0
        until(lambda: gone(processes), "the end of every process", END_S)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no X11")
def test_without_a_display_it_says_so_in_one_sentence(tmp_path: Path) -> None:
    environment = {
        k: v for k, v in private_environment(tmp_path).items() if k not in ("WAYLAND_DISPLAY", "QT_QPA_PLATFORM")
    }
    answer = subprocess.run(
        [sys.executable, "-m", "app"],
        env={**environment, "DISPLAY": ":23456"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (answer.returncode, answer.stdout) == (1, "")
    assert len(answer.stderr.splitlines()) == 1
    assert ":23456" in answer.stderr


def test_without_qt_it_says_what_to_install(tmp_path: Path) -> None:
    hidden = tmp_path / "PySide6"
    hidden.mkdir()
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'PySide6'\", name='PySide6')")
    answer = subprocess.run(
        [sys.executable, "-m", "app"],
        env={**private_environment(tmp_path), "PYTHONPATH": str(tmp_path), "QT_QPA_PLATFORM": "offscreen"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 1
    assert "./run.sh setup desktop" in answer.stderr
    assert "Traceback" not in answer.stderr
