"""What the desktop program costs: start to tray, processor time when idle, memory, and what windows cost a stream.

Run: python -m benchmarks.desktop.run. Needs Xvfb, trayer and xdotool, and a quiet machine; takes about five minutes.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.desktop.streams import gaps_s
from benchmarks.server.processes import Served
from tests.e2e.app_process import Display, display, missing_display_programs, running_app, started_app
from tests.e2e.engine_process import free_port
from tests.e2e.tray import ICON_PX, came, close_menu, dialogs, icon, open_menu

MIB = 2**20
SETTLE_S = 10.0

START_BAR_S = 2.0
IDLE_BAR_PERCENT = 0.5
MEMORY_BAR_MIB = 220
ADDED_BAR_MS = 5.0


@dataclass(frozen=True)
class Use:
    """The desktop program with its engine, and no model."""

    rss_bytes: int
    pss_bytes: int


def main() -> int:
    """Measure everything; returns 1 when a bar was missed."""
    options = _parser().parse_args()
    if missing := missing_display_programs():
        sys.stderr.write(f"Not installed: {', '.join(missing)} (sudo apt install xvfb trayer xdotool).\n")
        return 2
    print(f"load before: {psutil.getloadavg()[0]:.2f} over {psutil.cpu_count()} cores\n")
    with tempfile.TemporaryDirectory() as folder, display(tray=True) as screen:
        home = Path(folder)
        started_s = [start_to_tray(home / "home", screen) for _ in range(options.starts + 1)][1:]
        used = memory(home / "memory", screen)
        idle = idle_percents(home / "idle", screen, options.idle_s)
        quiet, busy = stream_gaps(home / "stream", screen, options.rounds, options.tokens)
    print(f"load after: {psutil.getloadavg()[0]:.2f}\n")
    added_ms = [(b - q) * 1e3 for q, b in zip(map(p99, quiet), map(p99, busy), strict=True)]
    kept = [
        _tell("start to tray, warm", started_s, "s", START_BAR_S),
        _tell("processor time when idle, in the tray", idle["tray"], "%", IDLE_BAR_PERCENT),
        _tell("processor time when idle, window open", idle["window"], "%", IDLE_BAR_PERCENT),
        _tell("memory of app and engine, PSS", [use.pss_bytes / MIB for use in used], "MiB", MEMORY_BAR_MIB),
        _tell("memory of app and engine, RSS", [use.rss_bytes / MIB for use in used], "MiB", MEMORY_BAR_MIB),
        _tell("p99 between tokens, no windows", [p99(gaps) * 1e3 for gaps in quiet], "ms", None),
        _tell("p99 between tokens, windows busy", [p99(gaps) * 1e3 for gaps in busy], "ms", None),
        _tell("p99 added by windows", added_ms, "ms", ADDED_BAR_MS),
    ]
    return 0 if all(kept) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=7, help="starts that are timed, after one that is not")
    parser.add_argument("--idle-s", type=float, default=60.0, help="how long the idle program is watched, twice")
    parser.add_argument("--rounds", type=int, default=5, help="streams with and without windows, in turn")
    parser.add_argument("--tokens", type=int, default=3000, help="tokens of each stream, 5 ms apart")
    return parser


def _tell(what: str, values: list[float], unit: str, bar: float | None) -> bool:
    median = statistics.median(values)
    kept = bar is None or median < bar
    aim = "" if bar is None else f"   bar {bar:g} {unit}{'' if kept else '  MISSED'}"
    print(f"{what:40} {median:8.2f} {unit:3} ({min(values):.2f} to {max(values):.2f}){aim}")
    return kept


def p99(gaps: list[float]) -> float:
    return sorted(gaps)[int(len(gaps) * 0.99)]


# --- start, idle, memory --------------------------------------------------------------------------------------------


def start_to_tray(home: Path, screen: Display) -> float:
    """Seconds from before the program was executed until its icon is in the tray."""
    began_s = time.perf_counter()
    with started_app(home, free_port(), "--demo", "--at-login", screen=screen):
        icon(screen)
        return time.perf_counter() - began_s


def memory(home: Path, screen: Display) -> list[Use]:
    """The program after it has settled, its window open and no model configured."""
    home.mkdir()
    config = home / "hypnos.toml"
    config.write_text("config_version = 1\n", encoding="utf-8")
    found = []
    for _ in range(3):
        with running_app(home, free_port(), "--config", str(config), screen=screen) as app:
            time.sleep(SETTLE_S)
            full = [one.memory_full_info() for one in app.processes()]
            found.append(Use(sum(one.rss for one in full), sum(getattr(one, "pss", 0) for one in full)))
    return found


def idle_percents(home: Path, screen: Display, seconds: float) -> dict[str, list[float]]:
    """Per cent of one core that app and engine use while nothing is asked and the demonstration model is loaded."""
    found = {}
    for name, arguments in (("tray", ["--at-login"]), ("window", [])):
        with running_app(home, free_port(), "--demo", *arguments, screen=screen) as app:
            time.sleep(SETTLE_S)
            served = Served("app", app.address, app.process.pid)
            before_s, since_s = served.used_s(), time.perf_counter()
            time.sleep(seconds)
            found[name] = [100 * (served.used_s() - before_s) / (time.perf_counter() - since_s)]
    return found


# --- streams while windows open, resize and repaint -----------------------------------------------------------------


def stream_gaps(home: Path, screen: Display, rounds: int, tokens: int) -> tuple[list[list[float]], list[list[float]]]:
    """Seconds between tokens of streams without windows and with busy ones; the two of a round belong together."""
    quiet, busy = [], []
    for number in range(rounds):
        with running_app(home / str(number), free_port(), "--demo", "--at-login", screen=screen) as app:
            gaps_s(app.address, 200)
            quiet.append(gaps_s(app.address, tokens))
            with restless_windows(screen) as acts:
                busy.append(gaps_s(app.address, tokens))
            print(f"windows did {json.dumps(acts)} during {tokens} tokens")
            if not acts["resized"]:
                raise RuntimeError("no window opened: the round says nothing")
    return quiet, busy


@contextlib.contextmanager
def restless_windows(screen: Display) -> Iterator[dict[str, int]]:
    """Open, resize, repaint and close windows and the menu for the length of the block, as fast as a person cannot."""
    acts = {"opened": 0, "resized": 0, "menus": 0}
    stop = threading.Event()

    def act() -> None:
        while not stop.is_set():
            opened = _open_window(screen)
            acts["opened"] += len(opened)
            for window in opened:
                for step in range(10):
                    screen.do("windowsize", window, str(700 + 20 * step), str(560 + 10 * step))
                    acts["resized"] += 1
                screen.do("key", "--window", window, "ctrl+w")
            open_menu(screen)
            close_menu(screen)
            acts["menus"] += 1

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield acts
    finally:
        stop.set()
        thread.join()


def _open_window(screen: Display) -> list[str]:
    """The status window after a click on the icon; none when the click was lost."""
    x, y = screen.position(icon(screen))
    screen.do("mousemove", str(x + ICON_PX // 2), str(y + ICON_PX // 2), "click", "1")
    came(lambda: bool(dialogs(screen)), 1.0)
    return dialogs(screen)[:1]


if __name__ == "__main__":
    sys.exit(main())
