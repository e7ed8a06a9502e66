"""Runs Hypnos and llama.cpp's server on the same model with the same settings, pinned and seen from outside.

Must never leave a process behind, and never give one of the two a setting that the other one does not get.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.text.build_llama_server import LlamaServer

SPIN_COUNT = "300"
"""What Hypnos sets for its workers: how long a thread of libgomp spins before it sleeps."""
BATCH = 512
MODEL_NAME = "measured"
_START_S = 60.0
_END_S = 30.0
_POLL_S = 0.002


@dataclass(frozen=True)
class Settings:
    """What both servers get."""

    model: Path
    threads: int = 1
    slots: int = 4
    context_len: int = 8192
    """Cells of the cache, all slots together."""
    cores: frozenset[int] = frozenset()
    """Cores that the server and its children may use; empty = all."""
    spares: int | None = None
    """Workers that Hypnos keeps started ahead; None = as it does by default."""


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    name: str
    port: int
    process: psutil.Process
    started_s: float
    """Seconds from the start of its process until it served the model."""

    def processes(self) -> list[psutil.Process]:
        """The server's process and all its descendants."""
        return [self.process, *self.process.children(recursive=True)]

    def unique_bytes(self) -> int:
        """Memory that only these processes hold, file pages included (what ending them would give back)."""
        return sum(int(process.memory_full_info().uss) for process in self.processes())

    def proportional_bytes(self) -> int:
        """Memory of these processes, shared pages divided among those who share them."""
        return sum(int(process.memory_full_info().pss) for process in self.processes())

    def post(self, path: str, body: object) -> tuple[int, Any]:
        """Status and decoded JSON of a POST."""
        return _exchange(self.port, "POST", path, json.dumps(body))

    def get(self, path: str) -> tuple[int, Any]:
        """Status and decoded JSON of a GET."""
        return _exchange(self.port, "GET", path, None)


def free_port() -> int:
    """A port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def hypnos(home: Path, settings: Settings, *, warm: bool = True) -> Iterator[Running]:
    """Run `hypnos serve` with nothing but the one model, its every file below `home`; `warm` loads it before."""
    port = free_port()
    configuration = home / "hypnos.toml"
    home.mkdir(parents=True, exist_ok=True)
    configuration.write_text(_configuration(settings, warm=warm), encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HYPNOS_", "XDG_"))}
    folders = {f"XDG_{name}_HOME": str(home / name.lower()) for name in ("CONFIG", "DATA", "STATE", "CACHE")}
    command = [
        sys.executable,
        "-P",
        "-m",
        "hypnos_engine",
        "serve",
        "--config",
        str(configuration),
        "--port",
        str(port),
    ]
    environment = {**kept, **folders, "HOME": str(home)}
    with started("hypnos", command, environment, port, "/ready", settings) as running:
        yield running


@contextlib.contextmanager
def llama_server(server: LlamaServer, settings: Settings, *arguments: str) -> Iterator[Running]:
    """Run llama-server; `arguments` are further ones."""
    port = free_port()
    threads = str(settings.threads)
    command = [
        *(str(server.program), "-m", str(settings.model), "--host", "127.0.0.1", "--port", str(port)),
        *("-a", MODEL_NAME, "-t", threads, "-tb", threads, "-c", str(settings.context_len)),
        *("-np", str(settings.slots), "--kv-unified", "-b", str(BATCH), "-ub", str(BATCH), "-fa", "auto"),
        *("-ctk", "f16", "-ctv", "f16", "--jinja", "--no-ui", *arguments),
    ]
    environment = {**server.environment(), "GOMP_SPINCOUNT": SPIN_COUNT, "OMP_NUM_THREADS": threads}
    with started("llama-server", command, environment, port, "/health", settings) as running:
        yield running


def _configuration(settings: Settings, *, warm: bool) -> str:
    return f"""\
config_version = 1
models_dirs = [{json.dumps(str(settings.model.parent))}]

[limits]
max_queue_per_model = 64

[hardware]
threads = {settings.threads}
{"" if settings.spares is None else f"spare_workers = {settings.spares}"}

[[models]]
id = "{MODEL_NAME}"
modality = "text_generation"
engine = "ggml_llama"
weights_path = {json.dumps(settings.model.name)}
context_len = {settings.context_len}
slots = {settings.slots}
kv_type = "f16"
initial_tier = "{"tier1_gpu_vram" if warm else "tier3_nvme_ssd"}"
"""


@contextlib.contextmanager
def started(
    name: str, command: Sequence[str], environment: dict[str, str], port: int, path: str, settings: Settings
) -> Iterator[Running]:
    """Run a server for the block, on the cores of `settings`; it serves when `path` answers with status 200."""
    before = os.sched_getaffinity(0)
    if settings.cores:
        os.sched_setaffinity(0, settings.cores)  # inherited by the child; taken back at once
    begun_s = time.perf_counter()
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    finally:
        os.sched_setaffinity(0, before)
    left: list[psutil.Process] = []
    try:
        _wait_for(name, port, path, process)
        yield Running(name, port, psutil.Process(process.pid), time.perf_counter() - begun_s)
    finally:
        if process.poll() is None:
            left = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_END_S)
        process.kill()
        process.wait()
        for child in left:
            with contextlib.suppress(psutil.Error):
                child.kill()


def _wait_for(name: str, port: int, path: str, process: "subprocess.Popen[bytes]") -> None:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            status, answer = _exchange(port, "GET", path, None)
            if status == 200 and answer.get("ready", True):
                return
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with {process.returncode} while it started")
        time.sleep(_POLL_S)
    raise RuntimeError(f"{name} did not serve within {_START_S:g} s")


def _exchange(port: int, method: str, path: str, body: str | None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_START_S)
    try:
        connection.request(method, path, body, {"content-type": "application/json"} if body is not None else {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()
