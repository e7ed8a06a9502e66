"""Decides how a worker is started: by which program and with which environment; starts nothing itself.

A worker never sees a key, a token or a password of the person who started Hypnos, and its libraries stay offline.
"""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.ipc import programs
from hypnos_engine.ipc.programs import Program

USES_GPU = frozenset({EngineKind.LLAMA, EngineKind.WHISPER, EngineKind.DIFFUSION, EngineKind.DIFFUSERS, EngineKind.MLX})
"""Kinds whose workers may open an accelerator; every other kind cannot see one."""

TOLD_THREADS = frozenset({EngineKind.LLAMA, EngineKind.FAKE})
"""Kinds whose workers are told their threads while they run: their environment is the same for every model, so that one
may be started before it is known what for."""

_SECRET_NAME = re.compile(
    r"API_?KEYS?$|(^|_)(KEY|TOKEN|PAT)S?$|SECRET|PASSW|PASSPHRASE|CREDENTIAL|ACCESS_?KEY|PRIVATE_?KEY|_AUTH$|^SSH_A"
)
_SECRET_VALUE = re.compile(r"://[^/\s@]*:[^/\s@]+@|^(sk-|hf_|gh[opsu]_|github_pat_|glpat-|xox[a-z]-|AKIA)\w")
_HARMFUL = frozenset({"PYTHONINSPECT", "PYTHONSTARTUP", "PYTHONBREAKPOINT", "HF_HUB_ENABLE_HF_TRANSFER"})
"""Settings of a person's own Python that would keep a worker alive at a prompt or run code in it."""

_FIXED = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    # libgomp spins without bound by default: two workers on the same cores then run at a hundredth of their speed.
    "GOMP_SPINCOUNT": "300",
    # ggml forks a debugger for its backtrace before it aborts; the text on stderr is enough and comes at once.
    "GGML_NO_BACKTRACE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    # A packaged parent's own settings must not be taken over by the executable beside it.
    "PYINSTALLER_RESET_ENVIRONMENT": "1",
}
_THREAD_CAPS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
_ACCELERATE_CAP = "VECLIB_MAXIMUM_THREADS"
"""It also caps what llama.cpp asks of Apple's library, whatever number of threads that was told."""
_NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1", "GGML_VK_VISIBLE_DEVICES": ""}


@dataclass(frozen=True, slots=True)
class WorkerRuntime:
    """A program that speaks the worker protocol."""

    name: str
    argv: tuple[str, ...]
    """The program and its leading arguments."""
    kinds: frozenset[EngineKind]
    """Engine kinds that it can run."""
    environment: tuple[tuple[str, str], ...] = ()
    """Set on top of `worker_environment`."""

    def command(self, kind: str, parent_pid: int) -> list[str]:
        """The whole argument list of a worker of `kind`, or the holder, that must not outlive process `parent_pid`."""
        return [*self.argv, "--kind", str(kind), "--parent", str(parent_pid)]


IN_THIS_BUILD = frozenset({EngineKind.LLAMA, EngineKind.FAKE})
"""Engine kinds whose worker is part of the program."""


def interpreter_runtime(executable: str) -> WorkerRuntime:
    """Workers run by an interpreter of this installation; what it can import is what this process can."""
    return WorkerRuntime("python", tuple(programs.interpreter_command(executable, Program.WORKER)), IN_THIS_BUILD)


def bundle_runtime(folder: Path) -> WorkerRuntime:
    """Workers run by the second executable of a packaged program, which lies in `folder` beside the first."""
    return WorkerRuntime("bundle", tuple(programs.packaged_command(folder, Program.WORKER)), IN_THIS_BUILD)


def default_runtime() -> WorkerRuntime:
    """The runtime that belongs to the running program."""
    if programs.is_packaged():
        return bundle_runtime(Path(sys.executable).parent)
    return interpreter_runtime(sys.executable)


def worker_environment(environ: Mapping[str, str], kind: str, threads: int) -> dict[str, str]:
    """Return the environment of a worker of `kind` that may use `threads` threads, made from the parent's `environ`."""
    kept = {name: value for name, value in environ.items() if not _is_withheld(name.upper(), value)}
    kept.update(_FIXED)
    kept.update(dict.fromkeys(_THREAD_CAPS, "1" if kind in TOLD_THREADS else str(max(1, threads))))
    if kind in TOLD_THREADS:
        del kept[_ACCELERATE_CAP]
    if kind not in USES_GPU:
        kept.update(_NO_GPU)
    return kept


def environment_of(runtime: WorkerRuntime, kind: str, threads: int) -> dict[str, str]:
    """The environment of a worker of this runtime, made from this process's own."""
    return {**worker_environment(os.environ, kind, threads), **dict(runtime.environment)}


def _is_withheld(name: str, value: str) -> bool:
    return name in _HARMFUL or bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))
