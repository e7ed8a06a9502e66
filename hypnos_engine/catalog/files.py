"""Finds out what of the catalog is on disk: present, outdated, installed, or another model than the entry says.

Blocks for a few small reads; changes nothing. An absent disk is a state, never an exception.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hypnos_engine.catalog.entries import Catalog, CatalogFile, Entry, Platform, Role, Variant
from hypnos_engine.catalog.roots import Absence, Missing, locate
from hypnos_engine.domain.errors import HypnosError
from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.gguf import read_header


@dataclass(frozen=True, slots=True)
class FileState:
    """One file of the catalog on this machine."""

    file: CatalogFile
    present: bool
    """There, and for a folder: not empty."""
    outdated: bool = False
    """Present with another size than the listed one."""
    path: Path | None = None
    absence: Absence | None = None
    """Why it is not there."""


@dataclass(frozen=True, slots=True)
class VariantState:
    variant: Variant
    files: tuple[FileState, ...]
    """Those that this machine needs."""
    problem: str | None = None
    """Set when the weights that are there name another architecture than the entry."""

    @property
    def installed(self) -> bool:
        """True when every file is present; never for a variant that does not run here."""
        return bool(self.files) and all(state.present for state in self.files)

    @property
    def outdated(self) -> bool:
        return any(state.outdated for state in self.files)


@dataclass(frozen=True, slots=True)
class EntryState:
    entry: Entry
    variants: tuple[VariantState, ...]


_Identity = tuple[str, int, int, int]


@dataclass(slots=True)
class Architectures:
    """What weights files say they are; a file that did not change is not read again."""

    _known: dict[_Identity, str | None] = field(default_factory=dict)

    def of(self, path: Path) -> str | None:
        """`general.architecture`; None for a file that is no GGUF or cannot be read."""
        try:
            state = path.stat()
        except OSError:
            return None
        identity = (str(path), state.st_ino, state.st_size, state.st_mtime_ns)
        if identity not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[identity] = _architecture(path)
        return self._known[identity]


_MOST_KNOWN = 1000


def look(
    catalog: Catalog, roots: Sequence[Path], platform: Platform, architectures: Architectures | None = None
) -> tuple[EntryState, ...]:
    """Look at every file of the catalog, in its order."""
    architectures = architectures or Architectures()
    return tuple(
        EntryState(
            entry,
            tuple(look_at_variant(entry, variant, roots, platform, architectures) for variant in entry.variants),
        )
        for entry in catalog.entries
    )


def look_at_variant(
    entry: Entry, variant: Variant, roots: Sequence[Path], platform: Platform, architectures: Architectures
) -> VariantState:
    states = tuple(look_at_file(file, roots) for file in variant.files_for(platform))
    weights = next((state for state in states if state.file.role is Role.WEIGHTS), None)
    problem = None
    if entry.engine_of(variant) is EngineKind.LLAMA and weights is not None and weights.path is not None:
        found = architectures.of(weights.path)
        if found is not None and found != entry.architecture:
            problem = (
                f"{weights.file.local} says that its architecture is '{found}', not '{entry.architecture}': "
                "this is another model. Move it away and download it again."
            )
    return VariantState(variant, states, problem)


def look_at_file(file: CatalogFile, roots: Sequence[Path]) -> FileState:
    """Look for one file in the models folders. Never raises."""
    found = locate(file.local.rstrip("/"), roots)
    if isinstance(found, Missing):
        return FileState(file, present=False, absence=found.because)
    try:
        if found.is_folder != file.is_folder:
            return FileState(file, present=False, absence=Absence.NOT_FOUND)
        if found.is_folder:
            filled = next(found.path.iterdir(), None) is not None
            return FileState(file, filled, path=found.path, absence=None if filled else Absence.NOT_FOUND)
        size_bytes = found.path.stat().st_size
    except OSError:
        return FileState(file, present=False, absence=Absence.UNREADABLE)
    outdated = file.size_bytes is not None and size_bytes != file.size_bytes
    return FileState(file, True, outdated, found.path)


def _architecture(path: Path) -> str | None:
    try:
        named = read_header(path).metadata.get("general.architecture")
    except HypnosError:
        return None
    return named if isinstance(named, str) else None
