"""Looks at a model's files before anything is loaded: where they are and what their header says.

Reads headers only, through the bounded reader; a file that cannot be used becomes a typed problem, never an exception.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hypnos_engine.catalog.roots import Missing, locate
from hypnos_engine.config.problems import shown_text
from hypnos_engine.domain.errors import HypnosError, ModelNotAvailable
from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.domain.model import ModelShape, ModelSpec
from hypnos_engine.gguf import model_files, read_shape


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found out about one model."""

    path: Path | None
    shape: ModelShape | None
    problem: HypnosError | None
    identity: tuple[int, int, int] | None = None
    """Inode, size and time of change of the weights file: another file under the same name has another one."""
    projector: Path | None = None
    files: tuple[Path, ...] = ()
    """Every file whose pages a load maps: the weights, all parts of a split one, and the projector."""
    weights_path: str = ""
    """As configured when the files were looked at."""


Tested = Callable[[], frozenset[str] | None]
"""Which architectures were tested; None where nobody knows, so that none is refused. May block for a small read."""


def inspect_files(
    spec: ModelSpec, roots: Sequence[Path], known: Inspection | None = None, tested: Tested = lambda: None
) -> Inspection:
    """Find the weights and read their header; `known` itself where nothing has changed since.

    Blocks for the time of a few small reads; call it off the loop.
    """
    found = _found(spec, roots, known)
    if found.shape is not None and not spec.allow_untested:
        names = tested()
        if names is not None and found.shape.architecture not in names:
            return Inspection(found.path, None, _untested(spec, found.shape.architecture))
    return known if known is not None and found == known and found.problem is None else found


def _untested(spec: ModelSpec, architecture: str) -> ModelNotAvailable:
    return ModelNotAvailable(
        f"The model '{spec.id}' cannot be served: Hypnos was not tested with its architecture, "
        f"{shown_text(architecture)}. Write `allow_untested = true` into its [[models]] block to try it all the same."
    )


def _found(spec: ModelSpec, roots: Sequence[Path], known: Inspection | None) -> Inspection:
    if spec.engine is EngineKind.FAKE:
        return Inspection(None, None, None)
    located = locate(spec.weights_path, roots)
    if isinstance(located, Missing):
        problem = ModelNotAvailable(f"The model '{spec.id}' cannot be served: {located.message}")
        return Inspection(None, None, problem)
    identity = _identity(located.path)
    path = located.path
    if spec.engine is not EngineKind.LLAMA:
        files = () if located.is_folder else (path,)
        return Inspection(path, None, None, identity, files=files, weights_path=spec.weights_path)
    aux = None if spec.aux_path is None else locate(spec.aux_path, roots)
    if isinstance(aux, Missing):
        problem = ModelNotAvailable(f"The model '{spec.id}' cannot be served: {aux.message}")
        return Inspection(path, None, problem)
    projector = None if aux is None else aux.path
    seen = (path, identity, projector, spec.weights_path)
    if known is not None and (known.path, known.identity, known.projector, known.weights_path) == seen and known.shape:
        return known
    try:
        shape = read_shape(path, projector)
        files = (*model_files(path), *(() if projector is None else (projector,)))
        return Inspection(path, shape, None, identity, projector, files, spec.weights_path)
    except HypnosError as error:
        return Inspection(path, None, error)


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns
