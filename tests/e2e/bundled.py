"""What is shipped, built once for all tests that ask for it, and the processes that come from it."""

import contextlib
import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.app_process import Display, until
from tests.e2e.engine_process import END_S, RunningEngine, free_port, private_environment

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / ".cache" / "bundle" / "tested"
MODEL = "smollm2:135m"
LARGEST_ICON_PX = 32
A_MOMENT_S = 5.0
"""How long something that was clicked may take before it is clicked again."""


@dataclass(frozen=True)
class Shipped:
    """Results of a whole build."""

    program: Path
    deb: Path
    run: Path


@cache
def shipped() -> Shipped:
    """Everything that is made for this system, built anew by the first test that asks."""
    shutil.rmtree(OUT, ignore_errors=True)
    build = [sys.executable, str(ROOT / "installers" / "build.py"), "--out", str(OUT)]
    done = subprocess.run(build, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (deb,), (run,) = OUT.glob("*.deb"), OUT.glob("*.run")
    return Shipped(OUT / "Hypnos", deb, run)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Living processes whose program lies below a folder."""
    return [process for process in psutil.process_iter() if _program_of(process).startswith(f"{folder}/")]


def _program_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return str(process.exe())
    return ""


def left_of(folder: Path) -> list[psutil.Process]:
    """Processes of a program that has ended; those that are ending just now are given the time for it."""
    _, alive = psutil.wait_procs(processes_of(folder), timeout=END_S)
    return list(alive)


@contextlib.contextmanager
def started(
    command: Sequence[str | Path], home: Path, folder: Path, environment: Mapping[str, str]
) -> Iterator[RunningEngine]:
    """Run a packaged program, installed in `folder`, on a port of its own; nothing of it is left behind.

    `environment` is set on top of one whose folders lie in `home`.
    """
    port = free_port()
    home.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [*map(str, command), "--port", str(port)],
        env={**private_environment(home), "DBUS_SESSION_BUS_ADDRESS": "disabled:", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield _announced(process, port, home)
    finally:
        process.kill()
        for child in processes_of(folder):
            child.kill()
        process.communicate(timeout=END_S)
        left_of(folder)


def _announced(process: "subprocess.Popen[str]", port: int, home: Path) -> RunningEngine:
    engine = RunningEngine(process, port, home)
    said = []
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if engine.address in line:
            break
    else:
        raise AssertionError(f"it did not start: {''.join(said)}")
    engine.wait_ready()
    return engine


def ask(engine: RunningEngine, **more: object) -> HTTPResponse:
    """One short question; the answer's status and head are there, its body may still be coming."""
    question = {"role": "user", "content": "What is gravity? Answer in one sentence."}
    body = {"model": MODEL, "messages": [question], "max_tokens": 12, "temperature": 0, **more}
    request = urllib.request.Request(
        f"{engine.address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    answer: HTTPResponse = urllib.request.urlopen(request, timeout=60)
    return answer


def chat(engine: RunningEngine, **more: object) -> Any:
    """The decoded answer to one short question."""
    with ask(engine, **more) as answer:
        return json.load(answer)


def icon_in_tray(screen: Display) -> tuple[int, int]:
    """Where the middle of the program's icon is, once it is in the panel."""
    found: list[tuple[int, int]] = []

    def look() -> bool:
        for window in screen.windows("Hypnos"):
            (width, height), (x, y) = screen.size(window), screen.position(window)
            if 0 < width <= LARGEST_ICON_PX and 0 < height <= LARGEST_ICON_PX and 0 <= y < LARGEST_ICON_PX:
                found.append((x + width // 2, y + height // 2))
        return bool(found)

    until(look, "the icon in the tray")
    return found[0]


def quit_from_tray(screen: Display, engine: RunningEngine) -> int:
    """Choose the last line of the icon's menu by keyboard, again when that was too early; the exit status."""
    x, y = icon_in_tray(screen)
    before = set(screen.windows(""))

    def choose() -> bool:
        screen.do("mousemove", str(x), str(y), "click", "3")
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            until(lambda: bool(set(screen.windows("")) - before), "the menu", A_MOMENT_S)
            screen.do("key", "--delay", "60", "Up", "Return")
            engine.process.wait(timeout=A_MOMENT_S)
        if engine.process.poll() is None:
            screen.do("key", "--delay", "60", "Escape", "Escape")
        return engine.process.poll() is not None

    until(choose, "the end")
    return engine.process.wait(timeout=END_S)
