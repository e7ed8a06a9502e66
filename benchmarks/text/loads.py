"""Measures loads and memory of both servers, one server at a time; the file is in the page cache before."""

import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.text.build_llama_server import LlamaServer
from benchmarks.text.client import ROUTE
from benchmarks.text.measures import body
from benchmarks.text.noise import OtherPrograms
from benchmarks.text.report import Figure, Goal
from benchmarks.text.servers import Running, Settings, hypnos, llama_server

WEIGHTS = Goal("ms to load the weights, warm", bar=1.05, goal=1.00)
REST = Goal("ms of a load that are not the weights, as a request waits for them", bar=120, goal=80, kind="ours")
REST_FRESH = Goal("the same without a worker that was started ahead", kind="ours")
WHOLE = Goal("ms from nothing to a loaded model (llama-server: from its start)")
FIXED = Goal("MB of its own memory with a model of next to nothing", bar=130, goal=90, kind="difference")
PER_MODEL = Goal("MB that the model adds", bar=1.02, goal=1.00)
FIXED_SHARED = Goal("the same, shared pages divided (PSS)", kind="difference")

_HELLO = ({"role": "user", "content": "Hello"},)
_TIMED = re.compile(r"^(\d+)\.(\d+)\.(\d+)\.(\d+) ")
_WEIGHTS_BEGIN, _WEIGHTS_END = "load_model: loading model", "constructing llama_context"
_MB = 1e6
_SPARE_S = 5.0
_IDLE_S = 0.3


def load(server: LlamaServer, settings: Settings, rounds: int) -> list[Figure]:
    """Load the model `rounds` times in fresh processes of both."""
    others = OtherPrograms()
    weights: list[tuple[float, float]] = []
    rest: list[tuple[float, float]] = []
    fresh: list[tuple[float, float]] = []
    whole: list[tuple[float, float]] = []
    others.start(())
    for _ in range(rounds):
        our_weights, our_whole = _our_load(settings)
        fresh_weights, fresh_whole = _our_load(replace(settings, spares=0))
        their_weights, their_whole = _their_load(server, settings)
        weights.append((our_weights, their_weights))
        rest.append((our_whole - our_weights, their_whole - their_weights))
        fresh.append((fresh_whole - fresh_weights, their_whole - their_weights))
        whole.append((our_whole, their_whole))
    foreign = others.cores()
    found = ((WEIGHTS, weights), (REST, rest), (REST_FRESH, fresh), (WHOLE, whole))
    figures = [Figure.of(goal, pairs, foreign) for goal, pairs in found]
    print("\n".join(figure.line() for figure in figures), flush=True)
    return figures


def _our_load(settings: Settings) -> tuple[float, float]:
    """Milliseconds for the weights, and that the first request waited for its model."""
    with tempfile.TemporaryDirectory() as home, hypnos(Path(home), settings, warm=False) as running:
        if settings.spares != 0:
            _await_spare(running)
        status, answer = running.post(ROUTE, {**body(_HELLO, 1), "stream": False})
        if status != 200:
            raise RuntimeError(f"Hypnos did not load the model: {answer}")
        telemetry = answer["hypnos_telemetry"]
    return float(telemetry["tier_switch_phases"]["weights_ms"]), float(telemetry["tier_switch_latency_ms"])


def _await_spare(running: Running) -> None:
    """Return when a worker has been started ahead and is idle; at once on a machine that keeps none."""
    deadline_s = time.monotonic() + _SPARE_S
    while time.monotonic() < deadline_s:
        before = _worker_seconds(running)
        time.sleep(_IDLE_S)
        if before and before == _worker_seconds(running):
            return


def _worker_seconds(running: Running) -> dict[int, float]:
    """Processor time of everything that the server has started."""
    times = {child.pid: child.cpu_times() for child in running.process.children(recursive=True)}
    return {pid: used.user + used.system for pid, used in times.items()}


def _their_load(server: LlamaServer, settings: Settings) -> tuple[float, float]:
    """Milliseconds for the weights, and from the start of the process to the first answer of its health route."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        # It would first load everything without weights, to see whether it fits.
        with llama_server(
            server, settings, "-fit", "off", "-lv", "4", "--log-timestamps", "--log-file", str(log)
        ) as it:
            whole_ms = it.started_s * 1e3
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    begin, end = (next(line for line in lines if mark in line) for mark in (_WEIGHTS_BEGIN, _WEIGHTS_END))
    return _at_ms(end) - _at_ms(begin), whole_ms


def _at_ms(line: str) -> float:
    found = _TIMED.match(line)
    if found is None:
        raise RuntimeError(f"llama-server's log has no time in this line: {line}")
    minutes, seconds, milliseconds, microseconds = map(int, found.groups())
    return minutes * 60e3 + seconds * 1e3 + milliseconds + microseconds / 1e3


def memory(server: LlamaServer, model: Path, tiny: Path, rounds: int = 2) -> list[Figure]:
    """Memory after a few answers, with a model of some kilobytes and with the real one, one server at a time."""
    fixed: list[tuple[float, float]] = []
    shared: list[tuple[float, float]] = []
    added: list[tuple[float, float]] = []
    others = OtherPrograms()
    others.start(())
    for _ in range(rounds):
        ours_tiny, theirs_tiny = (_memory_mb(it) for it in _alone(server, tiny))
        ours, theirs = (_memory_mb(it) for it in _alone(server, model))
        fixed.append((ours_tiny[0], theirs_tiny[0]))
        shared.append((ours_tiny[1], theirs_tiny[1]))
        added.append((ours[0] - ours_tiny[0], theirs[0] - theirs_tiny[0]))
    foreign = others.cores()
    figures = [
        Figure.of(goal, pairs, foreign) for goal, pairs in ((FIXED, fixed), (FIXED_SHARED, shared), (PER_MODEL, added))
    ]
    print("\n".join(figure.line() for figure in figures), flush=True)
    return figures


def _alone(server: LlamaServer, model: Path) -> Iterator[Running]:
    """Hypnos, then llama-server, each while the other one does not run."""
    settings = Settings(model, threads=2, context_len=2048)
    with tempfile.TemporaryDirectory() as home, hypnos(Path(home), settings) as running:
        yield running
    with llama_server(server, settings) as running:
        yield running


def _memory_mb(running: Running) -> tuple[float, float]:
    for number in range(3):
        question = ({"role": "user", "content": f"Say something about the number {number}."},)
        status, answer = running.post(ROUTE, {**body(question, 8), "stream": False})
        if status != 200:
            raise RuntimeError(f"{running.name} did not answer: {answer}")
    return running.unique_bytes() / _MB, running.proportional_bytes() / _MB
