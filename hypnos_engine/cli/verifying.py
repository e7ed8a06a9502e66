"""Reads whole files and compares them with the digests that are listed or were found when they came."""

import asyncio
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hypnos_engine.catalog.files import look_at_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypnos_engine.catalog.entries import CatalogFile
    from hypnos_engine.catalog.shelf import Shelf


def verify_files(named: "Sequence[tuple[str, Sequence[CatalogFile]]]", shelf: "Shelf") -> bool:
    """Print a line for each file; returns whether all are there and right."""
    found = asyncio.run(_found_before())
    right = True
    for spec, files in named:
        for file in files:
            state = look_at_file(file, shelf.roots)
            if state.path is None or not state.present:
                right = _say(spec, file.local, "missing", right=False) and right
                continue
            paths = sorted(state.path.rglob("*")) if state.path.is_dir() else [state.path]
            for path in (one for one in paths if one.is_file()):
                local = file.local if path == state.path else f"{file.local}{path.relative_to(state.path).as_posix()}"
                word, fits = _compare(path, file if path == state.path else None, found.get(local))
                right = _say(spec, local, word, right=fits) and right
    return right


def _compare(path: Path, file: "CatalogFile | None", before: str | None) -> tuple[str, bool]:
    if file is not None and file.size_bytes is not None and path.stat().st_size != file.size_bytes:
        return f"has {path.stat().st_size} bytes and not the listed {file.size_bytes}", False
    listed = (file.sha256 if file else None) or before
    if listed is None:
        return "has the right size; no digest is known" if file and file.size_bytes else "no digest is known", True
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != listed:
        return "is damaged or another file; `hypnos models pull --again` fetches it", False
    return "is right", True


def _say(spec: str, local: str, word: str, *, right: bool) -> bool:
    sys.stdout.write(f"{spec}: {local} {word}\n")
    sys.stdout.flush()
    return right


async def _found_before() -> dict[str, str]:
    """SHA-256 of files that were downloaded here, by their paths below the models folder."""
    from hypnos_engine.catalog.downloads.ledger import FILE_NAME, Ledger
    from hypnos_engine.config.paths import standard_folders

    state = standard_folders().state
    if not (state / FILE_NAME).exists():
        return {}
    ledger = Ledger(state)
    try:
        jobs = await ledger.load()
    finally:
        await ledger.close()
    return {
        piece.local: digest
        for job in jobs
        for piece, digest in zip(job.pieces, job.digests, strict=False)
        if digest is not None and piece.done
    }
