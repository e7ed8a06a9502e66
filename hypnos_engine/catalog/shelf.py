"""The catalog of a running engine beside its models folders: read when first asked for, and again when it changed.

Its methods block for small reads and may be called from any thread; call them off the loop.
"""

import threading
from collections.abc import Sequence
from pathlib import Path

from hypnos_engine.catalog.entries import Catalog, Platform
from hypnos_engine.catalog.files import Architectures, EntryState, look
from hypnos_engine.catalog.finding import CATALOG_NAME, resource
from hypnos_engine.catalog.platforms import this_platform
from hypnos_engine.catalog.reading import read_catalog
from hypnos_engine.domain.errors import ConfigurationInvalid, NotFound

_NONE = "This server has no model catalog (models.catalog.toml)."


class Shelf:
    """Implements nothing; wired by the daemon, read by the server and by the inspection of files."""

    def __init__(self, roots: Sequence[Path], path: Path | None = None, platform: Platform | None = None) -> None:
        """`path` is the catalog's file (None: the shipped one), `roots` the models folders, the first written to."""
        self.roots = tuple(roots)
        self.path = path or resource(CATALOG_NAME)
        self.platform = platform or this_platform()
        self._lock = threading.Lock()
        self._architectures = Architectures()
        self._identity: tuple[int, int, int] | None = None
        self._catalog: Catalog | None = None
        self._problem = _NONE

    def catalog(self) -> Catalog:
        """Raises NotFound when there is no catalog, or none that can be used; the message says why."""
        with self._lock:
            identity = self._look()
            if identity is None or identity != self._identity:
                self._read(identity)
            if self._catalog is None:
                raise NotFound(self._problem)
            return self._catalog

    def tested_architectures(self) -> frozenset[str] | None:
        """What weights files may say they are; None without a catalog: then nothing is known to be untested."""
        try:
            return frozenset(self.catalog().tested_architectures)
        except NotFound:
            return None

    def states(self) -> tuple[EntryState, ...]:
        """What of every entry is on disk. Raises NotFound as `catalog`."""
        return look(self.catalog(), self.roots, self.platform, self._architectures)

    def _look(self) -> tuple[int, int, int] | None:
        try:
            state = self.path.stat()
        except (OSError, ValueError):
            return None
        return state.st_ino, state.st_size, state.st_mtime_ns

    def _read(self, identity: tuple[int, int, int] | None) -> None:
        self._identity, self._catalog, self._problem = identity, None, _NONE
        try:
            self._catalog = read_catalog(self.path)
        except ConfigurationInvalid as error:
            self._problem = error.message
