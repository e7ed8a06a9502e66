"""A home of its own for every test, and `hypnos` as a real process in it."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

Answer = subprocess.CompletedProcess[str]


@dataclass
class Hypnos:
    """Runs `python -m hypnos_engine` with nothing of the tester's own settings."""

    home: Path
    started: list[subprocess.Popen[str]]

    def environment(self, **variables: str) -> dict[str, str]:
        """What the process sees."""
        return {"HOME": str(self.home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", **variables}

    def run(self, *arguments: str, **variables: str) -> Answer:
        """Run one command to its end."""
        return subprocess.run(
            [sys.executable, "-P", "-m", "hypnos_engine", *arguments],
            check=False,
            capture_output=True,
            text=True,
            env=self.environment(**variables),
            cwd=self.home,
            timeout=60,
        )

    def launch(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start it and return at once."""
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "hypnos_engine", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(**variables),
            cwd=self.home,
        )
        self.started.append(process)
        return process

    def hanging_library(self) -> tuple[str, Path]:
        """A PYTHONPATH on which llama.cpp hangs when it is loaded, and the pipe that it opens and holds before that."""
        stand_in, asked = self.home / "lib" / "llama_cpp", self.home / "asked"
        stand_in.mkdir(parents=True)
        os.mkfifo(asked)
        stand_in.joinpath("__init__.py").touch()
        stand_in.joinpath("llama_cpp.py").write_text(
            f"import threading\npipe = open({str(asked)!r}, 'w')\npipe.write('x')\npipe.flush()\n"
            "threading.Event().wait()\n",
            encoding="utf-8",
        )
        return str(stand_in.parent), asked

    def start(self, *arguments: str, **variables: str) -> tuple[subprocess.Popen[str], str]:
        """Start `serve`; returns once it has said where it is, with everything that it said."""
        process = self.launch(*arguments, **variables)
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if line.startswith("Ctrl-C"):
                return process, said
        raise AssertionError(f"it ended with {process.wait()}: {said}{process.communicate()[1]}")


@pytest.fixture
def hypnos(tmp_path: Path) -> Iterator[Hypnos]:
    home = tmp_path / "home"
    home.mkdir()
    program = Hypnos(home, [])
    yield program
    for process in program.started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Another program's listening socket."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other


@pytest.fixture
def free_port() -> Callable[[], int]:
    def choose() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            return port

    return choose
