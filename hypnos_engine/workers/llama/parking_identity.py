"""Decides whether a saved state of the cache is one of this worker's own: everything that such a state depends on.

The library's states name neither the weights nor the settings they come from. Where a layer is computed is no part of
it: a model whose experts moved keeps its conversations.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import llama_cpp.llama_cpp as lib
import msgspec

from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.llama import binding, native
from hypnos_engine.workers.llama.context import Context
from hypnos_engine.workers.llama.experts import files_of

_HEAD_BYTES = 1024 * 1024
"""Of each file: its names, sizes and settings. What lies behind cannot change without its time or size."""


class Identity(msgspec.Struct, frozen=True):
    """What a state depends on. Two that differ in anything must not be mixed."""

    weights: str
    """Quantisation, tokeniser and chat template included: they are in the file."""
    projector: str
    template: str
    build: str
    """Versions of the binding and the library, and what the library was compiled to use."""
    kv_type: str
    flash_attention: bool
    cells: int
    slots: int

    def difference(self, other: "Identity") -> str:
        """What is not the same, as the end of a sentence; empty when all is."""
        names = (
            ("weights", "the model's file is another one"),
            ("projector", "the projector's file is another one"),
            ("template", "the chat template is another one"),
            ("build", "the engine is of another build"),
            ("kv_type", f"the cache is of the type {other.kv_type} and was of {self.kv_type}"),
            ("flash_attention", "the cache is laid out in another way"),
            ("cells", f"the context has {other.cells} tokens and had {self.cells}"),
            ("slots", f"the model has {other.slots} slots and had {self.slots}"),
        )
        return next((words for name, words in names if getattr(self, name) != getattr(other, name)), "")


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a model as they were when it was loaded."""

    paths: tuple[Path, ...]
    projector: Path | None
    seen: tuple[tuple[int, int], ...]
    """Size and time of change of each, the projector's last."""

    @classmethod
    def of(cls, request: m.Load) -> "Files":
        """Look at the files of a model; before it is loaded, so that what replaces them meanwhile is noticed."""
        paths = tuple(map(Path, files_of(request.weights_path)))
        projector = Path(request.aux_path) if request.aux_path else None
        return cls(paths, projector, _stamps(paths, projector))

    @property
    def unchanged(self) -> bool:
        """False when they were replaced, changed or removed since."""
        return bool(self.seen) and _stamps(self.paths, self.projector) == self.seen


def identify(files: Files, context: Context) -> Identity | None:
    """The identity of a loaded model and its context; None when its files are no longer those that were loaded.

    Reads the beginning of each file, a millisecond altogether where it is in the page cache.
    """
    try:
        weights = _digest(files.paths, files.seen)
        projector = _digest((files.projector,), files.seen[-1:]) if files.projector is not None else ""
    except OSError:
        return None
    if not files.unchanged:
        return None
    system = bytes(lib.llama_print_system_info()).decode("utf-8", "replace")
    return Identity(
        weights=weights,
        projector=projector,
        template=hashlib.blake2b((context.model.chat_template or "").encode(), digest_size=16).hexdigest(),
        build=f"{binding.version()} {native.version()} {system}",
        kv_type=context.shape.kv_type,
        flash_attention=context.flash_attention,
        cells=context.cells,
        slots=context.shape.slots,
    )


def _stamps(paths: tuple[Path, ...], projector: Path | None) -> tuple[tuple[int, int], ...]:
    """Size and time of change of each file; nothing when one of them is not there."""
    every = paths if projector is None else (*paths, projector)
    try:
        return tuple((state.st_size, state.st_mtime_ns) for state in (path.stat() for path in every))
    except OSError:
        return ()


def _digest(paths: tuple[Path, ...], seen: tuple[tuple[int, int], ...]) -> str:
    digest = hashlib.blake2b(repr(seen).encode(), digest_size=16)
    for path in paths:
        with path.open("rb") as file:
            digest.update(file.read(_HEAD_BYTES))
    return digest.hexdigest()
