"""Compiles llama.cpp once per kind of build and keeps the wheel in the user's cache, where every clone finds it.

pip's own cache of built wheels is not asked: it does not know with which flags a wheel was compiled. Each build has
a pip cache of its own instead, which is dropped when the wheel is there; until then downloads are not repeated.
"""

import contextlib
import datetime
import json
import platform
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from installers import toolchain
from installers.children import run_step
from installers.choices import Build, Machine, compile_jobs, no_compiler
from installers.locks import only_one
from installers.progress import Display
from installers.refusal import SetupRefused

_RECORD = "build.json"
_FREE_BYTES_NEEDED = 2**30
"""What the sources, the object files and the result take while compiling, doubled."""


@dataclass(frozen=True)
class Wheel:
    """A compiled binding and what is known about how it was made."""

    path: Path
    record: Mapping[str, object]


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The user's cache folder for this project (`$HYPNOS_CACHE_DIR` moves it)."""
    if environment.get("HYPNOS_CACHE_DIR"):
        return Path(environment["HYPNOS_CACHE_DIR"]).expanduser().absolute()
    if sys.platform == "win32":
        local = environment.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "hypnos" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "hypnos"
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hypnos"


def kept_wheel(folder: Path) -> Wheel | None:
    """The finished wheel in a build's folder; None when there is none or it is damaged."""
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        path = folder / str(record["wheel"])
        with zipfile.ZipFile(path) as archive:
            sound = archive.testzip() is None
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return None
    return Wheel(path, record) if sound else None


@dataclass(frozen=True)
class Wheelhouse:
    """Builds and keeps wheels below `root`; `python` is the interpreter whose pip builds them."""

    root: Path
    python: Path
    environment: Mapping[str, str]
    log: Path
    display: Display
    keep_open: tuple[int, ...] = ()

    def wheel(self, build: Build, machine: Machine, *, rebuild: bool = False) -> Wheel:
        """Return the wheel of that build, compiling it when it is not kept. Raises SetupRefused."""
        folder = self.root / build.key
        waiting = "Another set-up is compiling llama.cpp; waiting for its result ..."
        with only_one(folder / "lock", lambda: self.display.line(waiting)) as lock:
            kept = None if rebuild else kept_wheel(folder)
            if kept is not None:
                self.display.line(f"  llama.cpp: using the build of {kept.record.get('built')} from {folder}")
                return kept
            return self._compile(build, machine, folder, lock)

    def check(self, build: Build, machine: Machine, *, rebuild: bool = False) -> None:
        """Raise SetupRefused when there is no compiler but something to compile, OSError when the cache is no place."""
        (self.root / build.key).mkdir(parents=True, exist_ok=True)
        if machine.c_compiler is None and (rebuild or kept_wheel(self.root / build.key) is None):
            raise SetupRefused(no_compiler(machine.system, toolchain.os_release()))

    def _compile(self, build: Build, machine: Machine, folder: Path, lock: int) -> Wheel:
        self.check(build, machine, rebuild=True)
        for place in (folder, Path(tempfile.gettempdir())):
            if shutil.disk_usage(place).free < _FREE_BYTES_NEEDED:
                raise SetupRefused(
                    f"Compiling llama.cpp needs 1 GB free in {place}; make room, or choose another place with "
                    "TMPDIR and HYPNOS_CACHE_DIR."
                )
        self._announce(build)
        new = folder / "new"
        shutil.rmtree(new, ignore_errors=True)
        self.display.start("Compiling llama.cpp")
        run_step(
            self._pip_wheel(build, folder / "pip", new),
            environment=self._compile_environment(build, machine),
            log=self.log,
            display=self.display,
            keep_open=(*self.keep_open, lock),
            failure="llama.cpp could not be compiled. The last lines of the output:",
        )
        wheel = self._keep(build, machine, folder, new)
        self.display.finish()
        return wheel

    def _announce(self, build: Build) -> None:
        code = "for this machine's processor only" if build.native else "portable"
        self.display.line(f"  llama.cpp {build.version} for {build.backend} ({build.because}), {code} code.")
        longer = ", and longer for a GPU" if build.backend in ("cuda", "vulkan") else ""
        self.display.line(
            f"  Compiling it takes 5 to 12 minutes on two cores{longer}; the result is kept in {self.root}"
        )

    def _pip_wheel(self, build: Build, cache: Path, new: Path) -> list[str]:
        return [
            *(str(self.python), "-m", "pip", "wheel", "-v", "--no-deps", "--no-binary", "llama-cpp-python"),
            *("--cache-dir", str(cache), "--wheel-dir", str(new), f"llama-cpp-python=={build.version}"),
        ]

    def _compile_environment(self, build: Build, machine: Machine) -> dict[str, str]:
        environment = dict(self.environment)
        environment["CMAKE_ARGS"] = " ".join(_quoted(argument) for argument in build.cmake_args)
        environment.setdefault(
            "CMAKE_BUILD_PARALLEL_LEVEL", str(compile_jobs(toolchain.usable_cores(), toolchain.memory_bytes()))
        )
        if build.backend == "cuda" and machine.nvcc:
            environment.setdefault("CUDACXX", machine.nvcc)
        return environment

    def _keep(self, build: Build, machine: Machine, folder: Path, new: Path) -> Wheel:
        found = sorted(new.glob("llama_cpp_python-*.whl"))
        if not found:
            raise SetupRefused(f"pip built no wheel of llama-cpp-python; its output is in {self.log}.")
        record = {
            "llama_cpp_python": build.version,
            "backend": str(build.backend),
            "because": build.because,
            "native": build.native,
            "cmake_args": list(build.cmake_args),
            "platform": build.platform_tag,
            "compiler": toolchain.compiler_version(machine.c_compiler or ""),
            "python": platform.python_version(),
            "built": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "wheel": found[0].name,
        }
        found[0].replace(folder / found[0].name)
        # The record is written last: without it the folder counts as unfinished.
        write_whole(folder / _RECORD, json.dumps(record, indent=2) + "\n")
        for leftover in (new, folder / "pip"):
            with contextlib.suppress(OSError):
                shutil.rmtree(leftover)
        return Wheel(folder / found[0].name, record)


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step: a reader sees the old text or the new one."""
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _quoted(argument: str) -> str:
    return f'"{argument}"' if " " in argument or ";" in argument else argument
