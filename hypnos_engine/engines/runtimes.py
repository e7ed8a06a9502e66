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

USES_GPU = frozenset({EngineKind.LLAMA, EngineKind.WHISPER, EngineKind.DIFFUSION, EngineKind.DIFFUSERS, EngineKind.MLX})
"""Kinds whose workers may open an accelerator; every other kind cannot see one."""

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

    def command(self, kind: EngineKind, parent_pid: int) -> list[str]:
        """The whole argument list of a worker of `kind` that must not outlive process `parent_pid`."""
        return [*self.argv, "--kind", kind.value, "--parent", str(parent_pid)]


IN_THIS_BUILD = frozenset({EngineKind.LLAMA, EngineKind.FAKE})
"""Engine kinds whose worker is part of the program."""


def interpreter_runtime(executable: str) -> WorkerRuntime:
    """Workers run by a Python interpreter that has this package; `-P` keeps the current folder out of its path."""
    return WorkerRuntime("python", (executable, "-P", "-m", "hypnos_engine.workers"), IN_THIS_BUILD)


def bundle_runtime(folder: Path) -> WorkerRuntime:
    """Workers run by the second executable of a packaged program, which lies in `folder` beside the first."""
    program = folder / ("hypnos-worker.exe" if sys.platform == "win32" else "hypnos-worker")
    # The packaged parent's own settings must not be taken over by its sibling.
    return WorkerRuntime("bundle", (str(program),), IN_THIS_BUILD, (("PYINSTALLER_RESET_ENVIRONMENT", "1"),))


def default_runtime() -> WorkerRuntime:
    """The runtime that belongs to the running program."""
    if getattr(sys, "frozen", False):
        return bundle_runtime(Path(sys.executable).parent)
    return interpreter_runtime(sys.executable)


def worker_environment(environ: Mapping[str, str], kind: EngineKind, threads: int) -> dict[str, str]:
    """Return the environment of a worker of `kind` that may use `threads` threads, made from the parent's `environ`."""
    kept = {name: value for name, value in environ.items() if not _is_withheld(name.upper(), value)}
    kept.update(_FIXED)
    kept.update(dict.fromkeys(_THREAD_CAPS, str(max(1, threads))))
    if kind not in USES_GPU:
        kept.update(_NO_GPU)
    return kept


def environment_of(runtime: WorkerRuntime, kind: EngineKind, threads: int) -> dict[str, str]:
    """The environment of a worker of this runtime, made from this process's own."""
    return {**worker_environment(os.environ, kind, threads), **dict(runtime.environment)}


def _is_withheld(name: str, value: str) -> bool:
    return name in _HARMFUL or bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))
