"""A real `hypnos serve` in a process and home of its own, for tests that look at it from outside."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hypnos_engine.engines.spares import LEAST_TOTAL_BYTES

START_S = 60.0
END_S = 30.0


def free_port() -> int:
    """A port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def private_environment(home: Path) -> dict[str, str]:
    """An environment whose every folder of the program lies in `home`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HYPNOS_", "XDG_"))}
    return {
        **kept,
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_DATA_HOME": str(home / "data"),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "PYTHONWARNINGS": "error",
    }


@dataclass
class RunningEngine:
    """A serving process."""

    process: subprocess.Popen[str]
    port: int
    home: Path

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.home / "state" / "hypnos" / "log" / "hypnos.log").read_text(encoding="utf-8")

    def get(self, path: str) -> Any:
        """The decoded JSON of a GET, whatever its status."""
        try:
            with urllib.request.urlopen(self.address + path, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return json.load(error)

    def workers(self) -> list[psutil.Process]:
        """Workers that have a model, or are about to get one."""
        return [worker for worker in self.worker_processes() if not is_spare(worker)]

    def worker_processes(self) -> list[psutil.Process]:
        """Processes that this engine started, those of a moment excluded."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        found = {child.pid: child for child in children if "--kind" in _arguments(child)}
        # A worker that starts a process of its own is two of the same name for a moment.
        return [child for child in found.values() if _parent(child) not in found]

    def wait_ready(self) -> None:
        """Return when the startup models are in place; long-polls nothing, asks again at once."""
        deadline = time.monotonic() + START_S
        while not self.get("/ready")["ready"]:
            if time.monotonic() > deadline:
                raise AssertionError(f"not ready in time; log:\n{self.log}")

    def wait_spare(self) -> None:
        """Return when a worker is kept ready, on a machine that keeps one: until then there is one process less."""
        deadline = time.monotonic() + START_S
        while psutil.virtual_memory().total >= LEAST_TOTAL_BYTES:
            if any(is_spare(worker) and _has_children(worker) for worker in self.worker_processes()):
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"no worker is kept ready; log:\n{self.log}")

    def end(self, with_signal: int = signal.SIGTERM) -> int:
        """Ask it to end; the exit status."""
        self.process.send_signal(with_signal)
        return self.process.wait(timeout=END_S)


def is_spare(worker: psutil.Process) -> bool:
    """Whether a worker was started ahead and has not been given a model yet."""
    with contextlib.suppress(psutil.Error):
        return "--spare" in _arguments(worker) and not any(".gguf" in file.path for file in worker.memory_maps())
    return False


def _has_children(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.children())
    return False


def _parent(process: psutil.Process) -> int | None:
    try:
        return int(process.ppid())
    except psutil.NoSuchProcess:
        return None


def _arguments(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


@contextlib.contextmanager
def serving(home: Path, *arguments: str, ready: bool = True) -> Iterator[RunningEngine]:
    """Run `hypnos serve` for the length of the block; no process is left behind."""
    port = free_port()
    home.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "hypnos_engine", "serve", "--port", str(port), *arguments],
        env=private_environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    engine = RunningEngine(process, port, home)
    try:
        _wait_for_address(process)
        if ready:
            engine.wait_ready()
        yield engine
    finally:
        left = engine.worker_processes() if process.poll() is None else []
        process.kill()
        process.communicate(timeout=END_S)
        for worker in left:
            worker.wait(timeout=END_S)


def _wait_for_address(process: subprocess.Popen[str]) -> None:
    """The program prints its address once the port is open."""
    assert process.stdout is not None
    for line in process.stdout:
        if "http://127.0.0.1:" in line:
            return
    _, complaints = process.communicate(timeout=END_S)
    raise AssertionError(f"it did not start: {complaints}")
