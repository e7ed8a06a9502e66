"""Looks at a model's files before anything is loaded: where they are and what their header says.

Reads headers only, through the bounded reader; a file that cannot be used becomes a typed problem, never an exception.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hypnos_engine.catalog.roots import Missing, locate
from hypnos_engine.domain.errors import HypnosError, ModelNotAvailable
from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.domain.model import ModelShape, ModelSpec
from hypnos_engine.gguf import read_shape


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found out about one model."""

    path: Path | None
    shape: ModelShape | None
    problem: HypnosError | None
    identity: tuple[int, int, int] | None = None
    """Inode, size and time of change of the weights file: another file under the same name has another one."""


def inspect_files(spec: ModelSpec, roots: Sequence[Path], known: Inspection | None = None) -> Inspection:
    """Find the weights and read their header; `known` itself where nothing has changed since.

    Blocks for the time of a few small reads; call it off the loop.
    """
    found = _found(spec, roots, known)
    return known if known is not None and found == known and found.problem is None else found


def _found(spec: ModelSpec, roots: Sequence[Path], known: Inspection | None) -> Inspection:
    if spec.engine is EngineKind.FAKE:
        return Inspection(None, None, None)
    located = locate(spec.weights_path, roots)
    if isinstance(located, Missing):
        problem = ModelNotAvailable(f"The model '{spec.id}' cannot be served: {located.message}")
        return Inspection(None, None, problem)
    identity = _identity(located.path)
    if known is not None and known.problem is None and (known.path, known.identity) == (located.path, identity):
        return known
    if spec.engine is not EngineKind.LLAMA:
        return Inspection(located.path, None, None, identity)
    projector = None if spec.aux_path is None else locate(spec.aux_path, roots)
    if isinstance(projector, Missing):
        problem = ModelNotAvailable(f"The model '{spec.id}' cannot be served: {projector.message}")
        return Inspection(located.path, None, problem)
    try:
        shape = read_shape(located.path, projector.path if projector else None)
        return Inspection(located.path, shape, None, identity)
    except HypnosError as error:
        return Inspection(located.path, None, error)


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns
