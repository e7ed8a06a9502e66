"""Whether the program starts when its user logs in: one entry per system, written only when asked for.

The entry itself is the state: what the user removes by hand is off. Nothing else is remembered.
"""

import os
import plistlib
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from hypnos_engine.domain.errors import FolderUnusable

NAME = "hypnos"
MAC_LABEL = "org.hypnos.app"
_RUN_KEY = r"Software\Microsoft\Windows\CurrentVersion\Run"


class LoginEntry(Protocol):
    """One system's way to start a program at login."""

    def is_on(self) -> bool:
        """Whether the entry is there now; a file that cannot be read counts as none."""
        ...

    def switch(self, *, wanted: bool) -> None:
        """Write or remove it; doing so twice is no error. Raises FolderUnusable."""
        ...


class _FileEntry:
    """An entry that is a file of its own."""

    def __init__(self, file: Path, content: bytes) -> None:
        self._file = file
        self._content = content

    def is_on(self) -> bool:
        return self._file.is_file()

    def switch(self, *, wanted: bool) -> None:
        try:
            if not wanted:
                self._file.unlink(missing_ok=True)
                return
            self._file.parent.mkdir(parents=True, exist_ok=True)
            draft = self._file.with_name(f".{self._file.name}.{os.getpid()}")
            draft.write_bytes(self._content)
            draft.replace(self._file)
        except OSError as error:
            raise FolderUnusable(
                f"{self._file} cannot be {'written' if wanted else 'removed'} ({error.strerror}). "
                "Change the folder's owner or mode."
            ) from error


def xdg_entry(config_home: Path, command: Sequence[str]) -> LoginEntry:
    """A desktop entry in the autostart folder (Linux and others that follow freedesktop.org)."""
    text = (
        "[Desktop Entry]\n"
        "Type=Application\n"
        "Name=Hypnos\n"
        "Comment=AI models behind one local address\n"
        f"Exec={_desktop_command(command)}\n"
        "Icon=hypnos\n"
        "Terminal=false\n"
        "X-GNOME-Autostart-enabled=true\n"
    )
    return _FileEntry(config_home / "autostart" / f"{NAME}.desktop", text.encode())


def _desktop_command(command: Sequence[str]) -> str:
    r"""Arguments in double quotes, with ``"``, `` ` ``, ``$`` and ``\`` escaped twice over, and % doubled."""
    quoted = []
    for argument in command:
        inside = "".join(f"\\{character}" if character in '\\"`$' else character for character in argument)
        quoted.append(f'"{inside}"'.replace("\\", "\\\\").replace("%", "%%"))
    return " ".join(quoted)


def launch_agent(home: Path, command: Sequence[str]) -> LoginEntry:
    """A launch agent (macOS)."""
    content = {"Label": MAC_LABEL, "ProgramArguments": list(command), "RunAtLoad": True, "ProcessType": "Interactive"}
    return _FileEntry(home / "Library" / "LaunchAgents" / f"{MAC_LABEL}.plist", plistlib.dumps(content))


class RunKey:
    """A value of the user's Run key (Windows)."""

    def __init__(self, command: Sequence[str]) -> None:
        self._line = subprocess.list2cmdline(command)

    def is_on(self) -> bool:
        if sys.platform != "win32":
            return False
        import winreg

        try:
            with winreg.OpenKey(winreg.HKEY_CURRENT_USER, _RUN_KEY) as key:
                winreg.QueryValueEx(key, "Hypnos")
        except OSError:
            return False
        return True

    def switch(self, *, wanted: bool) -> None:
        if sys.platform != "win32":
            return
        import winreg

        try:
            with winreg.CreateKey(winreg.HKEY_CURRENT_USER, _RUN_KEY) as key:
                if wanted:
                    winreg.SetValueEx(key, "Hypnos", 0, winreg.REG_SZ, self._line)
                elif self.is_on():
                    winreg.DeleteValue(key, "Hypnos")
        except OSError as error:
            raise FolderUnusable(f"The Run key of this user cannot be changed ({error.strerror}).") from error


def login_entry(environment: Mapping[str, str], home: Path) -> LoginEntry:
    """This system's entry for this installation."""
    command = [*own_command(), "--at-login"]
    if sys.platform == "win32":
        return RunKey(command)
    if sys.platform == "darwin":
        return launch_agent(home, command)
    config_home = environment.get("XDG_CONFIG_HOME", "")
    return xdg_entry(Path(config_home) if Path(config_home).is_absolute() else home / ".config", command)


def own_command() -> list[str]:
    """How this very installation is started, as a list of arguments."""
    if getattr(sys, "frozen", False):
        return [sys.executable]
    # -P: a file in the folder where the session starts must not stand in for a module.
    return [_windowless(sys.executable), "-P", "-m", "app"]


def _windowless(python: str) -> str:
    """On Windows the interpreter that opens no console."""
    beside = Path(python).with_name("pythonw.exe")
    return str(beside) if os.name == "nt" and beside.is_file() else python


def shown_command() -> str:
    """The same for a person to paste."""
    return shlex.join(own_command())
