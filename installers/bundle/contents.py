"""Decides what goes into the packaged program and what stays out; looks at names only, never at a file.

On Linux the libraries of the desktop come from the system that the program runs on: a copy of them would hide the
system's own from the drivers and themes that are loaded beside it, and would miss its security updates.
"""

import re
from pathlib import PurePosixPath

PROGRAM = "hypnos"
WORKER = "hypnos-worker"
CONSOLE = "hypnos-console"
"""Windows only: there a program is either of the desktop or of the console."""
FOLDER = "Hypnos"
LARGEST_BYTES = 400 * 10**6

QT_MODULES = ("QtCore", "QtGui", "QtWidgets", "QtNetwork", "QtDBus", "QtSvg")
"""What the app imports of PySide6. The last two are used by trays and icons through plugins as well."""

EXTRAS = ("text", "desktop")
"""Optional parts of the distribution that are packaged."""

UNUSED = (
    *("tkinter", "_tkinter", "turtle", "turtledemo", "idlelib", "lib2to3", "test", "ensurepip", "pydoc_data"),
    *("curses", "_curses", "readline", "distutils", "setuptools", "pip", "PyInstaller"),
    *("numpy.testing", "numpy.f2py", "numpy.distutils", "numpy.conftest", "numpy._pyinstaller"),
    *("llama_cpp.llama", "llama_cpp.server", "llama_cpp.mtmd_cpp", "llama_cpp.llava_cpp"),
    *("hypnos_engine.testing", "uvloop.loop.tests"),
)
"""Modules that are installed but needed by nothing here; other installed packages are left out by the closure."""

_PLUGINS = {
    "platforms": ("xcb", "wayland", "offscreen", "windows", "cocoa"),
    "platformthemes": ("xdgdesktopportal", "gtk3"),
    "platforminputcontexts": ("compose", "ibus"),
    "wayland-shell-integration": ("xdg-shell",),
    "wayland-graphics-integration-client": ("wayland-egl",),
    "wayland-decoration-client": ("adwaita", "bradient"),
    "xcbglintegrations": ("egl-integration", "glx-integration"),
    "imageformats": ("svg", "ico", "icns"),
    "iconengines": ("svgicon",),
    "styles": ("windows", "mac"),
}
"""Qt's plugins by folder; a file stays when its name contains one of the words."""

OPTIONAL_LIBRARIES = re.compile(
    r"/plugins/(platformthemes/libqgtk3|platforms/libqwayland|wayland-)|/libQt6(Wayland|Wl)"
)
"""Libraries of Qt that it does without where the system lacks what they need."""

_PLUGIN = re.compile(r"(?:^|/)plugins/(?P<folder>[^/]+)/(?P<name>[^/]+)$")
_UNUSED_FILE = re.compile(
    r"PySide6/(Qt/)?(translations|qml|resources|libexec|metatypes)/"
    r"|(^|/)libmtmd\.|(^|/)mtmd\.dll"
    r"|Qt6?(EglFS|EglFs|VirtualKeyboard|Qml|Quick|Pdf)[A-Za-z0-9]*[.\w]*$"
    r"|(^|/)opengl32sw\.dll$"
)
_KEPT_SYSTEM_LIBRARY = re.compile(r"lib(python3|gomp|bz2|mpdec|sqlite3)[.\-\w]*\.so")
"""Libraries of the build machine that are packaged: few desktops have them, or each has another version."""


def keeps(destination: str, source: str) -> bool:
    """Whether a file that was found for the program belongs into it.

    `destination` is its path inside the program, `source` where it is now, empty for a link.
    """
    inside, origin = destination.replace("\\", "/"), source.replace("\\", "/")
    plugin = _PLUGIN.search(inside)
    if plugin is not None and "PySide6" in inside:
        return any(word in plugin["name"] for word in _PLUGINS.get(plugin["folder"], ()))
    return _UNUSED_FILE.search(inside) is None and not _is_left_to_system(origin)


def _is_left_to_system(origin: str) -> bool:
    path = PurePosixPath(origin)
    of_system = origin.startswith(("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/"))
    is_library = re.search(r"\.so(\.|$)", path.name) is not None and path.name.startswith("lib")
    return of_system and is_library and _KEPT_SYSTEM_LIBRARY.match(path.name) is None


def qt_module_imports() -> list[str]:
    """The modules of PySide6 that are packaged, as they are imported."""
    return [f"PySide6.{module}" for module in QT_MODULES]
