"""What the desktop around the program offers: login entries, one running copy, and news of sleep."""

import os
import plistlib
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.desktop.autostart import launch_agent, login_entry, own_command, shown_command, xdg_entry
from app.desktop.display import why_no_windows
from app.desktop.single_instance import LONGEST_PATH_BYTES, first_instance, raise_first, socket_name
from hypnos_engine.domain.errors import FolderUnusable

COMMAND = ['/home/ada/my programs/Hypnös "$HOME" 100%/python', "-P", "-m", "app", "--at-login"]


# --- start at login -------------------------------------------------------------------------------------------------


def test_a_login_entry_is_off_until_asked_and_the_file_is_the_state(tmp_path: Path) -> None:
    entry = xdg_entry(tmp_path / "config", COMMAND)
    assert not entry.is_on()
    entry.switch(wanted=True)
    entry.switch(wanted=True)
    assert entry.is_on()
    (tmp_path / "config" / "autostart" / "hypnos.desktop").unlink()
    assert not entry.is_on()
    entry.switch(wanted=False)


def test_a_desktop_entry_s_command_survives_its_quoting(tmp_path: Path) -> None:
    xdg_entry(tmp_path, COMMAND).switch(wanted=True)
    lines = (tmp_path / "autostart" / "hypnos.desktop").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "[Desktop Entry]"
    (command,) = [line.removeprefix("Exec=") for line in lines if line.startswith("Exec=")]
    # As a desktop reads it: the string's own escapes first, then the field codes, then quotes as a shell has them.
    unescaped = command.replace("\\\\", "\\").replace("%%", "%")
    read = subprocess.run(["sh", "-c", f"printf '%s\\0' {unescaped}"], capture_output=True, check=True).stdout
    assert read.decode().split("\0")[:-1] == COMMAND


def test_a_launch_agent_has_the_command_as_it_is(tmp_path: Path) -> None:
    entry = launch_agent(tmp_path, COMMAND)
    entry.switch(wanted=True)
    (file,) = (tmp_path / "Library" / "LaunchAgents").iterdir()
    content = plistlib.loads(file.read_bytes())
    assert content["ProgramArguments"] == COMMAND
    assert content["RunAtLoad"] is True
    entry.switch(wanted=False)
    assert not file.exists()


def test_a_folder_that_cannot_hold_the_entry_is_a_refusal_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "autostart").write_text("a file where a folder is needed")
    with pytest.raises(FolderUnusable, match="autostart"):
        xdg_entry(tmp_path, COMMAND).switch(wanted=True)


@pytest.mark.skipif(sys.platform != "linux", reason="the XDG folders are Linux's")
def test_the_entry_lies_where_the_desktop_looks(tmp_path: Path) -> None:
    for environment, folder in (
        ({"XDG_CONFIG_HOME": str(tmp_path / "x")}, "x"),
        ({}, ".config"),
        ({"XDG_CONFIG_HOME": "a"}, ".config"),
    ):
        login_entry(environment, tmp_path).switch(wanted=True)
        assert (tmp_path / folder / "autostart" / "hypnos.desktop").is_file()


def test_the_entry_starts_this_very_program() -> None:
    assert own_command()[0] == sys.executable
    answer = subprocess.run([*own_command(), "--help"], capture_output=True, text=True, check=True, cwd="/", timeout=60)
    assert "--at-login" in answer.stdout
    assert shlex.split(shown_command()) == own_command()


# --- one running copy -----------------------------------------------------------------------------------------------


def test_a_second_start_raises_the_first(qtbot: QtBot, tmp_path: Path) -> None:
    raised: list[str] = []
    program = (
        "import sys; from pathlib import Path; from app.desktop.single_instance import raise_first\n"
        f"sys.exit(not raise_first(Path({str(tmp_path)!r})))"
    )
    with first_instance(tmp_path, lambda: raised.append("shown")) as first:
        assert first is not None
        assert first.can_be_raised
        second = subprocess.Popen([sys.executable, "-c", program])
        qtbot.waitUntil(lambda: raised == ["shown"], timeout=30_000)
        qtbot.waitUntil(lambda: second.poll() is not None, timeout=30_000)
        assert second.returncode == 0


def test_the_lock_keeps_a_second_one_out_and_is_free_again_afterwards(qtbot: QtBot, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from app.desktop.single_instance import first_instance\n"
        f"with first_instance(Path({str(tmp_path)!r}), lambda: None) as first: sys.exit(first is None)"
    )

    def is_kept_out() -> bool:
        second = subprocess.Popen([sys.executable, "-c", program])
        qtbot.waitUntil(lambda: second.poll() is not None, timeout=30_000)
        return second.returncode == 1

    with first_instance(tmp_path, lambda: None):
        assert is_kept_out()
    assert not is_kept_out()


def test_a_socket_that_a_killed_program_left_is_no_hindrance(qtbot: QtBot, tmp_path: Path) -> None:
    program = (
        "import os, signal; from pathlib import Path; from app.desktop.single_instance import FirstInstance\n"
        f"first = FirstInstance(Path({str(tmp_path)!r}), lambda: None); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == -9
    assert not raise_first(tmp_path)
    with first_instance(tmp_path, lambda: None) as first:
        assert first is not None
        assert first.can_be_raised


def test_a_folder_whose_path_is_too_long_for_a_socket_gets_a_short_name(tmp_path: Path) -> None:
    deep = tmp_path / ("ö" * 80)
    assert socket_name(tmp_path / "x") != socket_name(deep)
    assert len(os.fsencode(socket_name(deep))) <= LONGEST_PATH_BYTES
    assert socket_name(deep) == socket_name(deep)


def test_a_folder_that_can_have_no_lock_is_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "app.lock").mkdir()
    with pytest.raises(FolderUnusable, match=r"app\.lock"), first_instance(tmp_path, lambda: None):
        pass


# --- a display ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "platform"),
    [({}, "darwin"), ({}, "win32"), ({"QT_QPA_PLATFORM": "offscreen"}, "linux"), ({"WAYLAND_DISPLAY": "w"}, "linux")],
)
def test_where_x11_is_not_used_nothing_is_held_against_it(environment: dict[str, str], platform: str) -> None:
    assert why_no_windows(environment, platform) is None


@pytest.mark.parametrize(("display", "said"), [("", "no display"), (":23456", ":23456 does not answer")])
def test_a_display_that_is_not_there_is_said_with_a_way_out(display: str, said: str) -> None:
    problem = why_no_windows({"DISPLAY": display}, "linux")
    assert problem is not None
    assert said in problem
    assert "./run.sh serve" in problem


def test_a_missing_library_is_said_with_its_package() -> None:
    def load(name: str) -> None:
        raise OSError(name)

    problem = why_no_windows({"DISPLAY": "another.computer:0"}, "linux", load)
    assert problem is not None
    assert "apt install libxcb-cursor0" in problem


# --- sleep ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def message_bus() -> Iterator[str]:
    """The address of a bus of its own."""
    bus = subprocess.Popen(
        ["dbus-daemon", "--session", "--nofork", "--print-address=1"], stdout=subprocess.PIPE, text=True
    )
    assert bus.stdout is not None
    try:
        yield bus.stdout.readline().strip()
    finally:
        bus.terminate()
        bus.wait(timeout=30)
        bus.stdout.close()


@pytest.mark.skipif(sys.platform != "linux", reason="logind is Linux's")
def test_sleep_and_waking_are_heard_from_the_login_bus(qtbot: QtBot, message_bus: str) -> None:
    from PySide6.QtDBus import QDBusConnection, QDBusMessage

    from app.desktop.login_bus import LoginBus

    heard: list[bool] = []
    listening = LoginBus(heard.append, QDBusConnection.connectToBus(message_bus, "listener"))
    assert listening.connected
    speaker = QDBusConnection.connectToBus(message_bus, "speaker")
    # The listener hears only who owns logind's name.
    assert speaker.registerService("org.freedesktop.login1")
    for begins in (True, False):
        message = QDBusMessage.createSignal(
            "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "PrepareForSleep"
        )
        message.setArguments([begins])
        assert speaker.send(message)
    qtbot.waitUntil(lambda: heard == [True, False], timeout=30_000)
    for name in ("listener", "speaker"):
        QDBusConnection.disconnectFromBus(name)


@pytest.mark.skipif(sys.platform != "linux", reason="logind is Linux's")
def test_without_a_bus_nobody_is_told(qtbot: QtBot) -> None:
    from PySide6.QtDBus import QDBusConnection

    from app.desktop.login_bus import LoginBus

    assert not LoginBus(lambda _begins: None, QDBusConnection("there is no such bus")).connected
