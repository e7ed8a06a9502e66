"""What the server costs before anybody asks anything: time to the first answer, memory, and processor time when idle.

Run: python -m benchmarks.server.start. `--imports` lists what importing the program takes instead.
"""

import argparse
import contextlib
import http.client
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from benchmarks.server.processes import ROOT, Served, hypnos

ANSWER_WITHIN_S = 60.0
MIB = 1024 * 1024


@dataclass(frozen=True)
class Start:
    """One start of the server."""

    health_s: float
    """From before the program was executed until /health had answered."""
    used_s: float
    """Processor time until then."""
    rss_bytes: int
    pss_bytes: int
    """As RSS, each page that several processes share counted in part; 0 where the system does not tell."""
    idle_share: float
    """Share of one core while nothing is asked."""


def measure(folder: Path, idle_s: float) -> Start:
    """Start the server once, in a home where it has been before or not, and look at it."""
    started_s = time.perf_counter()
    with hypnos("--demo", home=folder) as served:
        _wait_for_health(served)
        health_s, used_s = time.perf_counter() - started_s, served.used_s()
        _wait_for(served, "/ready")
        before_s, since_s = served.used_s(), time.perf_counter()
        time.sleep(idle_s)
        idle_share = (served.used_s() - before_s) / (time.perf_counter() - since_s)
        process = psutil.Process(served.pid)
        full = process.memory_full_info()
        return Start(health_s, used_s, full.rss, getattr(full, "pss", 0), idle_share)


def _wait_for_health(served: Served) -> None:
    _wait_for(served, "/health")


def _wait_for(served: Served, path: str) -> None:
    address = urlsplit(served.address)
    deadline_s = time.perf_counter() + ANSWER_WITHIN_S
    while time.perf_counter() < deadline_s:
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=5)
        with contextlib.suppress(OSError):
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return
        connection.close()
        time.sleep(0.005)
    raise RuntimeError(f"{path} did not answer within {ANSWER_WITHIN_S:g} s")


def show(name: str, values: list[float], unit: str, bar: float, goal: float) -> None:
    """Print a figure's median and spread beside what it may be and what it should be."""
    print(
        f"{name:24} {statistics.median(values):7.2f} {unit:3} ({min(values):.2f} to {max(values):.2f})   "
        f"bar {bar:g} {unit}, goal {goal:g} {unit}"
    )


def show_imports() -> None:
    """What the interpreter says about each import of the program, the slowest first."""
    command = [sys.executable, "-X", "importtime", "-c", "import hypnos_engine.daemon, hypnos_engine.cli.serve, uvloop"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stderr
    lines = [line.removeprefix("import time:").split("|") for line in said.splitlines() if "|" in line]
    rows = [(int(own), int(whole), name.rstrip()) for own, whole, name in lines if own.strip().isdigit()]
    print(f"{sum(own for own, _, _ in rows) / 1e3:.1f} ms in all\n\n    whole      own  module (ms)")
    for own, whole, name in sorted(rows, key=lambda row: -row[1])[:40]:
        print(f"{whole / 1e3:9.1f} {own / 1e3:8.1f}  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--idle-s", type=float, default=5.0)
    parser.add_argument("--imports", action="store_true")
    options = parser.parse_args()
    if options.imports:
        show_imports()
        return
    with tempfile.TemporaryDirectory() as folder:
        starts = [measure(Path(folder), options.idle_s) for _ in range(options.starts)]
    show("exec to /health", [start.health_s for start in starts], "s", 1.0, 0.5)
    show("of that, processor time", [start.used_s for start in starts], "s", 1.0, 0.5)
    show("memory, RSS", [start.rss_bytes / MIB for start in starts], "MiB", 150, 100)
    show("memory, PSS", [start.pss_bytes / MIB for start in starts], "MiB", 150, 100)
    show("idle", [start.idle_share * 100 for start in starts], "%", 1.0, 0.5)


if __name__ == "__main__":
    main()
