"""Makes the packaged program with PyInstaller and completes it: licences, a record of the build, links for copies.

Decides the order of these steps; what goes in is decided in `contents`. Never changes the environment it packages.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distribution, distributions, version
from pathlib import Path

from installers import starter
from installers.bundle import contents, icons, licences
from installers.children import run_step
from installers.environment import BUILD_RECORD
from installers.progress import Display
from installers.refusal import BuildRefused

EARLIEST_TIME = 315_532_800
"""1980-01-01, before which no zip file can have a date."""


@dataclass(frozen=True)
class Bundling:
    """Where the program is made from and to. `environment` is what child processes get."""

    root: Path
    out: Path
    environment: Mapping[str, str]
    display: Display
    common_licences: Path = licences.COMMON_TEXTS

    @property
    def work(self) -> Path:
        return self.root / ".cache" / "bundle" / "work"

    @property
    def log(self) -> Path:
        return self.root / ".cache" / "bundle" / "build.log"

    @property
    def program(self) -> Path:
        """The finished folder; on macOS the application."""
        return self.out / (f"{contents.FOLDER}.app" if sys.platform == "darwin" else contents.FOLDER)


@dataclass(frozen=True)
class Packaged:
    """A finished program."""

    folder: Path
    icons: Mapping[int, Path]
    """PNG files by edge length in pixels."""
    version: str


def source_time(root: Path, environment: Mapping[str, str]) -> int:
    """The time that all files of the program get, as seconds since 1970: of the newest commit, or as told."""
    told = environment.get("SOURCE_DATE_EPOCH", "")
    if told.isdecimal():
        return max(EARLIEST_TIME, int(told))
    if shutil.which("git"):
        command = ["git", "-C", str(root), "log", "-1", "--format=%ct"]
        asked = subprocess.run(command, check=False, capture_output=True, text=True)
        if asked.returncode == 0 and asked.stdout.strip().isdecimal():
            return max(EARLIEST_TIME, int(asked.stdout))
    return EARLIEST_TIME


def made_before(bundling: Bundling) -> Packaged | None:
    """The program that an earlier call made in `bundling.out`; None when there is none of this version."""
    pictures = {size: bundling.work / "icons" / f"{size}.png" for size in icons.SIZES}
    try:
        record = json.loads((_where_texts_go(bundling.program) / "build.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if record.get("hypnos") != version("hypnos") or not all(file.is_file() for file in pictures.values()):
        return None
    return Packaged(bundling.program, pictures, version("hypnos"))


def freeze(bundling: Bundling) -> Packaged:
    """Make the program in `bundling.out`, replacing an earlier one. Raises BuildRefused."""
    llama = _llama_build()
    tools = _tools(bundling)
    models = _models(bundling.root)
    shutil.rmtree(bundling.work, ignore_errors=True)
    bundling.work.mkdir(parents=True)
    drawing = bundling.root / "resources" / "icons" / "hypnos.svg"
    pictures = icons.draw(Path(sys.executable), drawing, bundling.work / "icons", bundling.environment)
    collected = _run_packer(bundling, tools, models, _icon(pictures, bundling.work))
    folder = _where_texts_go(bundling.program)
    owners = licences.owners_of(collected, bundling.root)
    others = {entry.package: distribution(entry.package) for entry in _starters(bundling.root)}
    # The executables begin with its loader.
    others |= {found.metadata["Name"]: found for found in distributions(name="pyinstaller", path=[str(tools)])}
    licences.write(owners, others, folder / "licences", bundling.common_licences)
    qt = "_internal/PySide6/Qt/lib" if sys.platform == "linux" else "PySide6"
    (folder / "licences" / "README.txt").write_text(licences.README.format(qt=qt), encoding="utf-8")
    for name in ("LICENSE", "NOTICE"):
        shutil.copyfile(bundling.root / name, folder / name)
    _record(folder, llama)
    link_equal_files(bundling.program)
    settle_times(bundling.program, source_time(bundling.root, bundling.environment))
    return Packaged(bundling.program, pictures, version("hypnos"))


def _llama_build() -> Mapping[str, object]:
    try:
        record: dict[str, object] = json.loads((Path(sys.prefix) / BUILD_RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise BuildRefused("How llama.cpp was compiled is not recorded here: run ./run.sh setup desktop.") from None
    if record.get("native"):
        raise BuildRefused(
            "llama.cpp was compiled for this machine's processor only: run ./run.sh setup --portable desktop."
        )
    if record.get("backend") == "cuda":
        raise BuildRefused(
            "CUDA's libraries are larger than the whole program may be: run ./run.sh setup --backend vulkan desktop, "
            "or --backend cpu."
        )
    return record


def _tools(bundling: Bundling) -> Path:
    """The folder of the packer, installed once per list of tools and Python."""
    listed = bundling.root / "installers" / "bundle" / "tools.txt"
    key = hashlib.sha256(listed.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = bundling.root / ".cache" / "bundle" / f"tools-{key}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        bundling.display.start("Installing PyInstaller beside the environment")
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(folder), "-r", str(listed)]
        _step(bundling, command, bundling.environment, "PyInstaller could not be installed:")
        (folder / "complete").touch()
        bundling.display.finish()
    return folder


def _starters(root: Path) -> tuple[starter.Starter, ...]:
    return starter.read_lock((root / "installers" / "starter.lock.toml").read_text(encoding="utf-8"))


def _models(root: Path) -> list[tuple[str, str]]:
    """Weights that are packaged, checked against their lock, each with its folder inside the program."""
    found = []
    for entry in _starters(root):
        packages = Path(str(distribution(entry.package).locate_file("")))
        starter.verify(entry, packages)
        found.append((str(packages / entry.file), str(Path(entry.file).parent)))
    return found


def _icon(pictures: Mapping[int, Path], work: Path) -> str | None:
    content = {size: file.read_bytes() for size, file in pictures.items()}
    if sys.platform == "win32":
        (work / "hypnos.ico").write_bytes(icons.ico(content))
        return str(work / "hypnos.ico")
    if sys.platform == "darwin":
        (work / "hypnos.icns").write_bytes(icons.icns(content))
        return str(work / "hypnos.icns")
    return None


def _run_packer(bundling: Bundling, tools: Path, models: list[tuple[str, str]], icon: str | None) -> list[str]:
    collected = bundling.work / "collected.txt"
    settings = {"models": models, "icon": icon, "collected": str(collected)}
    environment = {
        **bundling.environment,
        "HYPNOS_BUNDLE": json.dumps(settings),
        "PYTHONPATH": str(tools),
        "PYTHONHASHSEED": "1",
        "SOURCE_DATE_EPOCH": str(source_time(bundling.root, bundling.environment)),
        "PYINSTALLER_CONFIG_DIR": str(bundling.work / "config"),
    }
    # The program may be running from a folder of that name: it is replaced, not written into.
    shutil.rmtree(bundling.program, ignore_errors=True)
    specification = bundling.root / "installers" / "bundle" / "hypnos.spec"
    places = ["--distpath", str(bundling.out), "--workpath", str(bundling.work / "packer")]
    bundling.display.start("Collecting the program")
    command = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level", "WARN", *places, str(specification)]
    _step(bundling, command, environment, "PyInstaller could not collect the program:")
    bundling.display.finish()
    return collected.read_text(encoding="utf-8").splitlines()


def _step(bundling: Bundling, command: list[str], environment: Mapping[str, str], failure: str) -> None:
    run_step(command, environment=environment, log=bundling.log, display=bundling.display, failure=failure)


def _where_texts_go(program: Path) -> Path:
    return program / "Contents" / "Resources" if program.suffix == ".app" else program


def _record(folder: Path, llama: Mapping[str, object]) -> None:
    """What the program was made with; `hypnos doctor` reads llama.cpp's part of it."""
    record = {
        "hypnos": version("hypnos"),
        "python": ".".join(map(str, sys.version_info[:3])),
        "pyside6": version("PySide6-Essentials"),
        "llama_cpp_python": llama["llama_cpp_python"],
        "llama_cpp_backend": llama["backend"],
        "platform": llama["platform"],
    }
    (folder / "build.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    inner = folder / "_internal" if (folder / "_internal").is_dir() else folder.parent / "Frameworks"
    kept = {name: value for name, value in llama.items() if name != "installed"}
    (inner / BUILD_RECORD).write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def link_equal_files(program: Path) -> None:
    """Turn copies of a library within its folder into links: wheels cannot hold links and carry each three times."""
    if os.name == "nt":
        return
    first: dict[tuple[Path, bytes], Path] = {}
    for file in sorted(program.rglob("lib*"), key=lambda path: (len(path.name), str(path))):
        if file.is_symlink() or not file.is_file():
            continue
        with file.open("rb") as opened:
            key = (file.parent, hashlib.file_digest(opened, "sha256").digest())
        original = first.setdefault(key, file)
        if original is not file:
            file.unlink()
            file.symlink_to(original.name)


def settle_times(folder: Path, seconds: int) -> None:
    """Give everything below a folder, and the folder, one time of change."""
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (seconds, seconds), follow_symlinks=os.utime not in os.supports_follow_symlinks)
