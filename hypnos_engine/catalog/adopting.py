"""Finds files of a variant that another program keeps here; decides by size and digest, never by name alone.

Reads whatever has the right size to its end; changes nothing.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hypnos_engine.catalog.entries import CatalogFile

MOST_FILES = 200_000
"""Files that are looked at in one folder; the rest is left alone."""
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Match:
    """A file of the catalog and where it was found."""

    file: CatalogFile
    path: Path
    by_digest: bool
    """True when its bytes are the listed ones; False when only the name and the size agree."""


def find_copies(wanted: Iterable[CatalogFile], folder: Path) -> tuple[Match, ...]:
    """Look through a folder and everything below it for files of the catalog; at most one match for each.

    1. A file whose digest is listed matches by size and digest, whatever its name (digests are computed once a size
       fits). 2. One without a listed digest matches by name and exact size. 3. Of what has neither, nothing is known.
    Folders and files that cannot be read are passed over.
    """
    missing = [file for file in wanted if not file.is_folder and file.size_bytes is not None]
    found: list[Match] = []
    digests: dict[Path, str | None] = {}
    for path, size_bytes in _files(folder):
        if not missing:
            break
        for file in [file for file in missing if file.size_bytes == size_bytes]:
            if file.sha256 is not None:
                if path not in digests:
                    digests[path] = _sha256(path)
                matches = digests[path] == file.sha256
            else:
                matches = path.name == file.remote.rpartition("/")[2]
            if matches:
                found.append(Match(file, path, by_digest=file.sha256 is not None))
                missing.remove(file)
    return tuple(found)


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield regular files with their sizes; links to files are followed, links to folders are not."""
    left = MOST_FILES
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            left -= 1
            if left < 0:
                return
            path = Path(place, name)
            try:
                state = path.stat()
            except OSError:
                continue
            if stat.S_ISREG(state.st_mode):
                yield path, state.st_size


def _sha256(path: Path) -> str | None:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
    except OSError:
        return None
    return digest.hexdigest()
