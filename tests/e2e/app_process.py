"""The real desktop program in a process, home and display of its own, for tests that look at it from outside."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.e2e.engine_process import END_S, START_S, RunningEngine, private_environment

DISPLAY_PROGRAMS = ("Xvfb", "trayer", "xdotool")
"""What a test of real windows needs; on Debian and Ubuntu the packages xvfb, trayer and xdotool."""

PAUSE_S = 0.02
"""Between two looks at something outside that cannot be waited for."""


def missing_display_programs() -> list[str]:
    """Of those, what is not installed here."""
    return [name for name in DISPLAY_PROGRAMS if shutil.which(name) is None]


@dataclass(frozen=True)
class Display:
    """An X server without a screen."""

    name: str
    server: "subprocess.Popen[bytes]"

    @property
    def environment(self) -> dict[str, str]:
        return {"DISPLAY": self.name, "QT_QPA_PLATFORM": "xcb"}

    def do(self, *arguments: str) -> str:
        """Run xdotool on it; what it printed."""
        answer = subprocess.run(
            ["xdotool", *arguments],
            env={**os.environ, "DISPLAY": self.name},
            capture_output=True,
            text=True,
            check=False,
        )
        return answer.stdout

    def windows(self, title: str) -> list[str]:
        """Visible windows whose title begins like that."""
        # A search by name looks at the old kind of title only, which windows inside a tray do not have.
        found = self.do("search", "--onlyvisible", "--name", "").split()
        return [window for window in found if not title or self.do("getwindowname", window).startswith(title)]

    def size(self, window: str) -> tuple[int, int]:
        return self._pair(window, "Geometry:", "x")

    def position(self, window: str) -> tuple[int, int]:
        return self._pair(window, "Position:", ",")

    def _pair(self, window: str, label: str, separator: str) -> tuple[int, int]:
        for line in self.do("getwindowgeometry", window).splitlines():
            if line.strip().startswith(label):
                first, _, second = line.split()[1].partition(separator)
                return int(first), int(second)
        return 0, 0


@contextlib.contextmanager
def display(*, tray: bool) -> Iterator[Display]:
    """An X server for the length of the block, with or without a tray."""
    read, write = os.pipe()
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(write), "-screen", "0", "1280x900x24", "-nolisten", "tcp", "-noreset"],
        pass_fds=(write,),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(write)
    host = None
    try:
        with os.fdopen(read) as told:
            shown = Display(f":{told.readline().strip()}", server)
        host = _tray(shown) if tray else None
        yield shown
    finally:
        for process in (host, server):
            if process is not None:
                process.terminate()
                process.wait(timeout=END_S)


def _tray(shown: Display) -> "subprocess.Popen[bytes]":
    command = ["trayer", "--edge", "top", "--align", "right", "--widthtype", "request", "--height", "24"]
    with tempfile.TemporaryFile() as said:
        host = subprocess.Popen(command, env={**os.environ, "DISPLAY": shown.name}, stdout=said, stderr=said)
        try:
            until(lambda: bool(shown.windows("panel")), "the tray")
        except AssertionError:
            host.kill()
            said.seek(0)
            raise AssertionError(f"no tray; it ended with {host.wait()} and said {said.read()!r}") from None
        return host


def until(condition: Callable[[], bool], what: str, longest_s: float = START_S) -> None:
    """Ask again until it holds; fails with `what` after a time that is long for any machine."""
    deadline = time.monotonic() + longest_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come")
        threading.Event().wait(PAUSE_S)


@dataclass
class RunningApp(RunningEngine):
    """The desktop program with its engine."""

    def processes(self) -> list[psutil.Process]:
        """It and everything that it started."""
        whole = psutil.Process(self.process.pid)
        return [whole, *whole.children(recursive=True)]


@contextlib.contextmanager
def running_app(
    home: Path, port: int, *arguments: str, screen: Display | None = None, own: bool = True
) -> Iterator[RunningApp]:
    """Start the program and wait until its engine is ready; no process is left behind.

    `own` says that it runs its engine itself, whose log then has its words, too.
    """
    with started_app(home, port, *arguments, screen=screen) as app:
        assert app.process.stdout is not None
        for line in app.process.stdout:
            if "http://127.0.0.1:" in line:
                break
        else:
            _, complaints = app.process.communicate(timeout=END_S)
            raise AssertionError(f"it did not start: {complaints}")
        until(lambda: bool(app.get("/ready")["ready"]), "the startup models")
        if own:
            until(lambda: f"{app.address} is ready" in app.log, "the ready window")
        yield app


@contextlib.contextmanager
def started_app(home: Path, port: int, *arguments: str, screen: Display | None = None) -> Iterator[RunningApp]:
    """Start the program, whatever comes of it."""
    home.mkdir(parents=True, exist_ok=True)
    shown = screen.environment if screen is not None else {"QT_QPA_PLATFORM": "offscreen"}
    environment = {**private_environment(home), **shown, "DBUS_SESSION_BUS_ADDRESS": "disabled:"}
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "--port", str(port), *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    app = RunningApp(process, port, home)
    try:
        yield app
    finally:
        left = app.processes() if process.poll() is None else []
        process.kill()
        process.communicate(timeout=END_S)
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.wait(timeout=END_S)
