"""Whose work is inside the program, for the About window. NOTICE has the same in full."""

from importlib import metadata

from app.presenters.about import Part

LICENCES = {
    "PySide6-Essentials": "LGPL-3.0-only",
    "qasync": "BSD-2-Clause",
    "aiohttp": "Apache-2.0 and MIT",
    "filelock": "MIT",
    "msgspec": "BSD-3-Clause",
    "platformdirs": "MIT",
    "psutil": "BSD-3-Clause",
    "tomlkit": "MIT",
    "Jinja2": "BSD-3-Clause",
    "NumPy": "BSD-3-Clause",
    "llama-cpp-python": "MIT",
}


def parts() -> tuple[Part, ...]:
    """The components that are installed, with their versions."""
    found = []
    for name, licence in LICENCES.items():
        try:
            found.append(Part(name, metadata.version(name), licence))
        except metadata.PackageNotFoundError:
            continue
    return tuple(found)
