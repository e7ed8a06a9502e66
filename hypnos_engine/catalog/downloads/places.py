"""Where a job's files lie until they are verified, and how they come under their names; decides nothing about content.

Everything unfinished is in one hidden folder of the models folder, on the same disk as the final names.
"""

import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hypnos_engine.catalog.downloads.orders import Piece
from hypnos_engine.config.names import has_parent_step
from hypnos_engine.config.problems import shown_text
from hypnos_engine.domain.errors import InvalidRequest

FOLDER: Final = ".hypnos-downloads"
_BUFFER_BYTES: Final = 1024 * 1024


def checked_path(relative: str) -> str:
    """A path of the far side or of the catalog that stays below its folder. Raises InvalidRequest."""
    parts = relative.replace("\\", "/").split("/")
    bad = (
        not relative
        or relative.startswith(("/", "~"))
        or has_parent_step(relative)
        or any(part in ("", ".", "..") or ":" in part for part in parts)
        or parts[0] == FOLDER
        or not relative.isprintable()
    )
    if bad:
        raise InvalidRequest(f"{shown_text(relative)} is no path for a file of a model; it is not downloaded.")
    return relative


@dataclass(frozen=True, slots=True)
class Staging:
    """The folder of one job."""

    root: Path
    job: str

    @property
    def folder(self) -> Path:
        return self.root / FOLDER / self.job

    @property
    def lock(self) -> Path:
        """Held by the child at work, so that there is one."""
        return self.folder / "lock"

    def part(self, index: int) -> Path:
        """The bytes of a piece that have come."""
        return self.folder / f"{index}.part"

    def journal(self, index: int) -> Path:
        """The digests of the blocks of a part."""
        return self.folder / f"{index}.blocks"

    def verified(self, piece: Piece) -> Path:
        """Where a piece of a folder waits for the others."""
        return self.folder / "whole" / piece.local

    def publish(self, index: int, piece: Piece) -> None:
        """Give a verified part its name, at once and for good; a piece of a folder waits for the others."""
        target = self.root / piece.local if piece.folder is None else self.verified(piece)
        _move(self.part(index), target)
        self.journal(index).unlink(missing_ok=True)

    def publish_folder(self, folder: str, pieces: Sequence[Piece]) -> None:
        """Give a folder its name once all of its pieces are verified."""
        waiting, target = self.folder / "whole" / folder, self.root / folder
        if not target.exists() and waiting.exists():
            _make_folder(target.parent)
            waiting.rename(target)
            _sync_folder(target.parent)
            return
        for piece in pieces:
            if self.verified(piece).exists():
                _move(self.verified(piece), self.root / piece.local)

    def remove(self) -> None:
        """Take away everything of the job; what cannot be taken away stays."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.parent.rmdir()


def is_there(piece: Piece, roots: Sequence[Path]) -> bool:
    """Whether a models folder holds the piece with the right size."""
    for root in roots:
        with contextlib.suppress(OSError):
            size = (root / piece.local).stat().st_size
            if (root / piece.local).is_file() and piece.size_bytes in (None, size):
                return True
    return False


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write beside `folder`, which need not exist yet."""
    for place in (folder, *folder.parents):
        if place.exists():
            return shutil.disk_usage(place).free
    return 0


def _move(part: Path, target: Path) -> None:
    _make_folder(target.parent)
    part.replace(target)
    _sync_folder(target.parent)


def _make_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the new name last; Windows does that by itself."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
