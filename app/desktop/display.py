"""Whether Qt can open windows here, asked before Qt is: it ends the process with a core dump where it cannot.

Knows Linux's X11 only; elsewhere, and where the person chose Qt's platform, Qt finds out by itself.
"""

import ctypes
import socket
import sys
from collections.abc import Callable, Mapping

NEEDED = {"libxcb-cursor.so.0": "libxcb-cursor0"}
"""Libraries that Qt's X11 platform loads and systems often lack, with Debian's names of their packages."""
CONNECT_S = 5.0


def why_no_windows(
    environment: Mapping[str, str], platform: str = sys.platform, load: Callable[[str], object] = ctypes.CDLL
) -> str | None:
    """One sentence that says what is missing and what to do about it; None when nothing is known to be."""
    if platform != "linux" or environment.get("QT_QPA_PLATFORM") or environment.get("WAYLAND_DISPLAY"):
        return None
    display = environment.get("DISPLAY", "")
    if not display:
        return "There is no display here. `./run.sh serve` does the same work without windows."
    if not _answers(display):
        return f"The display {display} does not answer. `./run.sh serve` does the same work without windows."
    for library, package in NEEDED.items():
        try:
            load(library)
        except OSError:
            return (
                f"Qt's windows need {library}, which is not installed here: run `sudo apt install {package}`, or "
                "install what your system calls it. `./run.sh serve` does the same work without windows."
            )
    return None


def _answers(display: str) -> bool:
    """Whether an X server of this computer accepts connections; one of another computer is taken at its word."""
    host, _, rest = display.rpartition(":")
    number = rest.partition(".")[0]
    if host not in ("", "unix") or not number.isdecimal():
        return True
    path = f"/tmp/.X11-unix/X{number}"  # noqa: S108
    return any(_connects(address) for address in (path, f"\0{path}"))


def _connects(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(CONNECT_S)
        try:
            probe.connect(address)
        except OSError:
            return False
        return True
