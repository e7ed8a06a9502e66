"""The desktop program on a real display with a real tray: what a person sees, clicks and types."""

import signal
import socket
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from app.presenters import intents
from app.presenters.menu import Desk, Entry, Menu, menu
from app.state import Readiness, Snapshot, View, fold
from benchmarks.desktop.streams import gaps_s
from hypnos_engine.api.schemas.memory import MemoryStatus
from hypnos_engine.domain.kinds import Tier
from tests.e2e.app_process import (
    Display,
    RunningApp,
    display,
    missing_display_programs,
    running_app,
    started_app,
    until,
)
from tests.e2e.engine_process import END_S, free_port
from tests.e2e.test_app import chat, gone
from tests.e2e.tray import A_MOMENT_S, came, close_menu, dialogs, icon, open_menu

MISSING = missing_display_programs()
pytestmark = [
    pytest.mark.display,
    pytest.mark.skipif(
        bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (sudo apt install xvfb trayer xdotool)"
    ),
]


@pytest.fixture
def screen() -> Iterator[Display]:
    with display(tray=True) as shown:
        yield shown


@pytest.fixture
def screen_without_tray() -> Iterator[Display]:
    with display(tray=False) as shown:
        yield shown


# --- what a person does ---------------------------------------------------------------------------------------------


def choose(screen: Display, app: RunningApp, wanted: intents.Intent, effect: Callable[[], bool]) -> None:
    """Pick the line of the tray's menu that means `wanted`, by keyboard; again when it was too early."""

    def pick() -> bool:
        open_menu(screen)
        keys = path(lines(app), wanted)
        assert keys is not None, f"the menu has no line for {wanted}"
        screen.do("key", "--delay", "60", *keys)
        if came(effect, A_MOMENT_S):
            return True
        close_menu(screen)
        return effect()

    until(pick, f"what {wanted} does")


def quit_by_menu(screen: Display, app: RunningApp) -> None:
    def pick() -> bool:
        open_menu(screen)
        screen.do("key", "--delay", "60", "Up", "Return")  # Quit is the last line, whatever stands above it
        return came(lambda: app.process.poll() is not None, A_MOMENT_S)

    until(pick, "the end")


def lines(app: RunningApp) -> Menu:
    """The menu as the program has it now."""
    with urllib.request.urlopen(f"{app.address}/v1/memory/status", timeout=30) as answer:
        status = msgspec.json.decode(answer.read(), type=MemoryStatus)
    view = fold(fold(View(app.address, own=True), Snapshot(status)), Readiness(ready=True))
    return menu(view, Desk(starts_at_login=False))


def path(shown: Menu, wanted: intents.Intent, *, opened: bool = False) -> list[str] | None:
    """The keys that lead to a line; a submenu opens with its first line chosen."""
    steps = 0
    for line in shown:
        if not isinstance(line, Entry) or not line.enabled:
            continue
        steps += 1
        down = ["Down"] * (steps - opened)
        if line.intent == wanted:
            return [*down, "Return"]
        if line.children and (inner := path(line.children, wanted, opened=True)) is not None:
            return [*down, "Right", *inner]
    return None


def tier(app: RunningApp, model: str) -> str:
    return str(next(entry["current_tier"] for entry in app.get("/v1/memory/status")["models"] if entry["id"] == model))


# --- with a tray ----------------------------------------------------------------------------------------------------


def test_from_the_first_icon_to_quit(tmp_path: Path, screen: Display) -> None:
    """Start, chat through the port, move by the menu, lose the worker, quit: with nothing left behind."""
    with running_app(tmp_path, free_port(), "--demo", "--at-login", screen=screen) as app:
        icon(screen)
        assert chat(app)
        choose(screen, app, intents.Move("demo", Tier.DISK), lambda: tier(app, "demo") == Tier.DISK)
        choose(screen, app, intents.Move("demo", Tier.GPU), lambda: tier(app, "demo") == Tier.GPU)
        (worker,) = app.workers()
        worker.send_signal(signal.SIGKILL)
        until(lambda: "told: demo had to be restarted" in app.log, "the notice")
        assert chat(app)
        processes = app.processes()
        quit_by_menu(screen, app)
        assert app.process.returncode == 0
        until(lambda: gone(processes), "the end of every process", END_S)


@pytest.mark.starter
def test_the_starter_model_is_moved_by_the_menu(tmp_path: Path, screen: Display) -> None:
    with running_app(tmp_path, free_port(), "--at-login", screen=screen) as app:
        assert chat(app, "smollm2:135m", 16)
        name = "smollm2:135m"
        choose(screen, app, intents.Move(name, Tier.DISK), lambda: tier(app, name) == Tier.DISK)
        assert chat(app, "smollm2:135m", 16)
        assert tier(app, "smollm2:135m") == Tier.GPU
        assert app.end(signal.SIGTERM) == 0


def test_a_login_start_shows_the_icon_alone_and_a_second_start_the_window(tmp_path: Path, screen: Display) -> None:
    with running_app(tmp_path, free_port(), "--demo", "--at-login", screen=screen) as app:
        only = icon(screen)
        assert screen.windows("Hypnos") == [only]
        with started_app(tmp_path, app.port, screen=screen) as second:
            assert second.process.wait(timeout=END_S) == 0
        until(lambda: len(screen.windows("Hypnos")) == 2, "the window")


def test_start_at_login_is_switched_by_the_menu(tmp_path: Path, screen: Display) -> None:
    entry = tmp_path / "config" / "autostart" / "hypnos.desktop"
    with running_app(tmp_path, free_port(), "--demo", "--at-login", screen=screen) as app:
        assert not entry.exists()
        choose(screen, app, intents.StartAtLogin(wanted=True), entry.is_file)
        assert "--at-login" in entry.read_text(encoding="utf-8")


def test_a_stream_goes_on_while_windows_open_and_change_their_size(tmp_path: Path, screen: Display) -> None:
    with (
        running_app(tmp_path, free_port(), "--demo", "--at-login", screen=screen) as app,
        ThreadPoolExecutor(1) as pool,
    ):
        streaming = pool.submit(gaps_s, app.address, 600)
        with started_app(tmp_path, app.port, screen=screen) as second:
            assert second.process.wait(timeout=END_S) == 0
        until(lambda: bool(dialogs(screen)), "the window")
        (window,) = dialogs(screen)
        for step in range(10):
            screen.do("windowsize", window, str(700 + 20 * step), str(600 + 10 * step))
        until(lambda: screen.size(window) == (880, 690), "the new size")
        assert len(streaming.result(timeout=END_S)) > 100  # a stream that breaks raises
        assert "a mistake" not in app.log


def test_a_display_that_goes_away_takes_the_program_and_its_workers_with_it(tmp_path: Path, screen: Display) -> None:
    with running_app(tmp_path, free_port(), "--demo", screen=screen) as app:
        processes = app.processes()
        screen.server.kill()
        app.process.wait(timeout=END_S)
        until(lambda: gone(processes), "the end of every process", END_S)


# --- without a tray -------------------------------------------------------------------------------------------------


def test_without_a_tray_there_is_a_window_with_the_same_menu_and_closing_it_quits(
    tmp_path: Path, screen_without_tray: Display
) -> None:
    screen = screen_without_tray
    with running_app(tmp_path, free_port(), "--demo", screen=screen) as app:
        until(lambda: bool(screen.windows("Hypnos")), "the window")
        processes = app.processes()
        (window,) = screen.windows("Hypnos")
        screen.do("windowfocus", "--sync", window)
        screen.do("key", "--window", window, "ctrl+w")
        assert app.process.wait(timeout=END_S) == 0
        until(lambda: gone(processes), "the end of every process", END_S)


# --- where it cannot start ------------------------------------------------------------------------------------------


def test_a_taken_port_is_said_in_a_window_that_offers_the_next_one(tmp_path: Path, screen: Display) -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        taken = int(foreign.getsockname()[1])
        with started_app(tmp_path, taken, "--demo", "--at-login", screen=screen) as app:
            press_in_window(screen, "Return")
            assert app.process.stdout is not None
            line = app.process.stdout.readline()
            port = int(line.rpartition(":")[2].partition("/")[0])
            assert taken < port <= taken + 100
            app.port = port
            app.wait_ready()
            assert chat(app)


def test_a_broken_configuration_is_said_in_a_window_and_mended(tmp_path: Path, screen: Display) -> None:
    file = tmp_path / "hypnos.toml"
    file.write_text("config_version = 1\n[server]\nprot = 1\n", encoding="utf-8")
    port = free_port()
    with started_app(tmp_path / "home", port, "--config", str(file), "--at-login", screen=screen) as app:
        until(lambda: bool(dialogs(screen)), "the window")
        file.write_text("config_version = 1\n", encoding="utf-8")
        press_in_window(screen, "Return")
        assert app.process.stdout is not None
        assert str(port) in app.process.stdout.readline()


def test_a_configuration_folder_that_cannot_be_written_to_is_said_in_a_window(tmp_path: Path, screen: Display) -> None:
    (tmp_path / "config").write_text("a file where a folder is needed")
    with started_app(tmp_path, free_port(), "--at-login", screen=screen) as app:
        press_in_window(screen, "Escape")
        assert app.process.wait(timeout=END_S) == 0
        assert app.process.stderr is not None
        assert "Traceback" not in app.process.stderr.read()


def press_in_window(screen: Display, key: str) -> None:
    until(lambda: bool(dialogs(screen)), "the window")
    (window,) = dialogs(screen)
    screen.do("windowfocus", "--sync", window)
    screen.do("key", "--window", window, key)


def test_paths_lead_to_what_they_name() -> None:
    """The tests' own way through a menu."""
    inner = (
        Entry("a", intents.ShowAbout(), enabled=False),
        Entry("b", intents.ShowStatus()),
        Entry("c", intents.Quit()),
    )
    shown: Menu = (Entry("state", enabled=False), Entry("page", intents.OpenPage()), Entry("model", children=inner))
    assert path(shown, intents.OpenPage()) == ["Down", "Return"]
    assert path(shown, intents.ShowStatus()) == ["Down", "Down", "Right", "Return"]
    assert path(shown, intents.Quit()) == ["Down", "Down", "Right", "Down", "Return"]
    assert path(shown, intents.ShowAbout()) is None
