"""Collects the licence of everything that was packaged; refuses a program that holds a file of unknown origin.

Decides from the list of files that went in, not from a list of names: what is added later is found too.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import Distribution
from pathlib import Path

from installers.refusal import BuildRefused

COMMON_TEXTS = Path("/usr/share/common-licenses")
"""Where Debian keeps texts that packages only name."""
_TEXT_NAME = re.compile(r"licen[cs]e|copying|notice|authors|copyright", re.IGNORECASE)
_NAMED_TEXTS = {"LGPL-3.0-only": ("LGPL-3", "GPL-3")}
_GGML_COPYRIGHT = "Copyright (c) 2023-2026 The ggml authors"

README = """\
Hypnos is licensed under the Apache License 2.0 (LICENSE, NOTICE). It is packaged with the components below this
folder, each under its own licence: `python` for the packages, `system` for libraries of the system that it was made on.

Qt and PySide6 (Qt for Python) are used under the GNU Lesser General Public License, version 3. They are separate
libraries in {qt}: you may replace them with your own build of the same version, and Hypnos then
runs with that. Their source is offered by The Qt Company and is the same for everyone; Qt's own third-party parts are
listed in Qt's documentation under "Licenses Used in Qt".
"""


@dataclass
class Owners:
    """Where packaged files came from: package names, or paths where no package is known."""

    distributions: set[str] = field(default_factory=set)
    system: set[str] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)


def owners_of(files: Iterable[str], root: Path) -> Owners:
    """Sort absolute paths by owner; what is Hypnos's own below `root`, or Python's, has none."""
    installed = _files_of_distributions()
    owners = Owners()
    python = _places_of_python()
    for file in files:
        path = Path(file)
        owner = installed.get(file)
        if owner is not None:
            owners.distributions.add(owner)
        elif path.is_relative_to(root) and ".venv" not in path.relative_to(root).parts:
            continue
        elif package := _system_package(path):
            owners.system.add(package)
        elif not any(path.is_relative_to(place) for place in python):
            owners.unknown.append(file)
    return owners


def _files_of_distributions() -> dict[str, str]:
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        base = os.path.realpath(str(distribution.locate_file("")))  # once: asking for every file takes seconds
        name = distribution.metadata["Name"]
        found |= dict.fromkeys((os.path.normpath(f"{base}/{file}") for file in distribution.files or ()), name)
    return found


def _places_of_python() -> set[Path]:
    """Folders that hold Python and nothing else; a system's Python shares its prefix with everything."""
    places = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    prefixes = {Path(sys.base_prefix).resolve(), Path(sys.base_exec_prefix).resolve()}
    return places | (prefixes - {Path("/usr"), Path("/usr/local")})


def _system_package(path: Path) -> str | None:
    """Debian's package that a file of the system came with; None elsewhere."""
    if not str(path).startswith(("/usr/", "/lib/")) or shutil.which("dpkg") is None:
        return None
    # Packages from before the merge of /lib and /usr/lib know their files by the old name.
    for name in (str(path), str(path).removeprefix("/usr")):
        found = subprocess.run(["dpkg", "-S", name], check=False, capture_output=True, text=True)  # noqa: S607
        if found.returncode == 0:
            return found.stdout.split(":", 1)[0].split(",", 1)[0]
    return None


def write(owners: Owners, extra: Mapping[str, Distribution], folder: Path, common: Path = COMMON_TEXTS) -> None:
    """Write all licence texts below `folder`. `extra` are distributions whose files went in without their code.

    Raises BuildRefused when a text is missing, with the names of all that lack one.
    """
    missing = [f"{file} (of no known package)" for file in owners.unknown]
    distributions = {name: importlib.metadata.distribution(name) for name in owners.distributions} | dict(extra)
    for name, distribution in sorted(distributions.items()):
        texts = texts_of(distribution, common)
        if not texts:
            missing.append(name)
        for file, text in texts.items():
            _put(folder / "python" / f"{name}-{distribution.version}" / file, text)
    for package in sorted(owners.system):
        copyright_file = Path("/usr/share/doc") / package / "copyright"
        if copyright_file.is_file():
            _put(folder / "system" / package / "copyright", copyright_file.read_text(encoding="utf-8"))
        else:
            missing.append(f"{package} (of the system)")
    _put(folder / "python" / "CPython" / "LICENSE.txt", _licence_of_python(owners.system, missing))
    if missing:
        raise BuildRefused(f"No licence text was found for what is packaged: {', '.join(missing)}.")


def texts_of(distribution: Distribution, common: Path) -> dict[str, str]:
    """Licence texts of an installed distribution by file name; empty when none can be found."""
    texts: dict[str, str] = {}
    for file in distribution.files or ():
        inside = Path(*file.parts[1:]) if len(file.parts) > 1 else Path(file)
        if ".dist-info" in file.parts[0] and _TEXT_NAME.search(inside.name):
            texts["/".join(part for part in inside.parts if part != "licenses")] = file.read_text(encoding="utf-8")
    if distribution.metadata["Name"].replace("-", "_").lower() == "llama_cpp_python":
        texts |= _of_ggml(texts)
    return texts or _named(distribution, common) or _from_source(distribution)


def _of_ggml(texts: Mapping[str, str]) -> dict[str, str]:
    """The binding's wheel carries llama.cpp without its licence, which is the binding's own with another name in it."""
    for text in texts.values():
        if re.search(r"^Copyright \(c\) .*$", text, re.MULTILINE):
            return {"llama.cpp.txt": re.sub(r"(?m)^Copyright \(c\) .*$", _GGML_COPYRIGHT, text, count=1)}
    return {}


def _named(distribution: Distribution, common: Path) -> dict[str, str]:
    metadata = distribution.metadata
    said = " ".join(metadata[field] for field in ("License-Expression", "License") if field in metadata)
    for name, files in _NAMED_TEXTS.items():
        if name in said:
            try:
                texts = {f"{file}.txt": (common / file).read_text(encoding="utf-8") for file in files}
            except OSError as error:
                raise BuildRefused(
                    f"The text of {name} is not in {common} ({error.strerror}): see --common-licences."
                ) from error
            return {"README.txt": f"{distribution.metadata['Name']}: {said}\n", **texts}
    return {}


def _from_source(distribution: Distribution) -> dict[str, str]:
    """The comment at the head of a module, where that is the licence."""
    for file in distribution.files or ():
        if file.suffix == ".py" and len(file.parts) == 1:
            head = []
            for line in file.read_text(encoding="utf-8").splitlines():
                if not line.startswith("#") and line.strip():
                    break
                head.append(line.strip("# \t"))
            text = "\n".join(head).strip()
            if "copyright" in text.lower():
                return {f"{file.stem}.txt": f"{text}\n"}
    return {}


def _licence_of_python(system: Iterable[str], missing: list[str]) -> str:
    base = Path(sys.base_prefix)
    library = base / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    debian = Path("/usr/share/doc") / library.name / "copyright"
    for file in (library / "LICENSE.txt", base / "LICENSE.txt", base / "LICENSE", debian):
        if file.is_file():
            return file.read_text(encoding="utf-8")
    missing.append("Python")
    return ""


def _put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
