"""Reads `models.catalog.toml` into a catalog that contradicts itself nowhere; looks at no model's file.

Whatever the file holds or is, the answer is a catalog or ConfigurationInvalid that names the entry and what is wrong.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from hypnos_engine.catalog.entries import (
    CATALOG_VERSION,
    Catalog,
    CatalogFile,
    Entry,
    PlannerNumbers,
    Platform,
    Role,
    Variant,
)
from hypnos_engine.catalog.schema import CatalogTable, EntryRow, FileRow, VariantRow
from hypnos_engine.config.names import has_parent_step
from hypnos_engine.config.problems import Origin, Problems, shown_path, shown_text
from hypnos_engine.domain.errors import ConfigurationInvalid
from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.domain.model import ImageDefaults, ModelId

LARGEST_BYTES = 8 * 1024 * 1024
"""More than any catalog; a larger file is something else."""

_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `(?P<where>\$[^`]*)`)?$", re.DOTALL)
_ENTRY = re.compile(r"^\$\.models\[(?P<at>\d+)\]")


def read_catalog(path: Path) -> Catalog | None:
    """Return the catalog of a file; None when there is no such file.

    Raises ConfigurationInvalid for one that is no catalog, is written for another version, or contradicts itself.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "its name is no file name"
        raise ConfigurationInvalid(f"The catalog {shown_path(path)} cannot be read ({reason}).") from error
    if len(content) > LARGEST_BYTES:
        raise ConfigurationInvalid(f"{shown_path(path)} is larger than {LARGEST_BYTES} bytes; this is no catalog.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationInvalid(f"The catalog {shown_path(path)} is not UTF-8. Save it as UTF-8.") from error
    return parse_catalog(text, shown_path(path))


def parse_catalog(text: str, source: str) -> Catalog:
    """Return the catalog of a text; `source` names it in problems. Raises ConfigurationInvalid."""
    values = _parse(text, source)
    version = values.get("catalog_version")
    if version != CATALOG_VERSION or isinstance(version, bool):
        found = "has no catalog_version" if version is None else f"has catalog_version = {str(version)[:20]}"
        raise ConfigurationInvalid(f"The catalog {source} {found}; this program reads version {CATALOG_VERSION}.")
    try:
        table = msgspec.convert(values, CatalogTable)
    except msgspec.ValidationError as error:
        raise ConfigurationInvalid(f"The catalog {source} is wrong: {_worded(str(error), values)}.") from error
    catalog = Catalog(tuple(map(_entry, table.models)), table.tested_architectures)
    problems = Problems()
    for name, message in _contradictions(catalog):
        problems.add(Origin(source), name, message)
    if problems:
        raise problems.error("The catalog", "it is not used")
    return catalog


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationInvalid(f"The catalog {source} is not TOML: {error}.") from error
    except (RecursionError, ValueError) as error:
        raise ConfigurationInvalid(f"The catalog {source} is not TOML that can be read.") from error


def _worded(message: str, values: dict[str, Any]) -> str:
    """Name the entry by its id instead of its place."""
    place = _PLACE.match(message)
    where = (place["where"] if place else "") or ""
    what = place["what"] if place else message
    entry = _ENTRY.match(where)
    if entry is None:
        return f"{what} (at {where.removeprefix('$.')})" if where else what
    row = values["models"][int(entry["at"])]
    name = row.get("id") if isinstance(row, dict) else None
    subject = f"entry {shown_text(name)}" if isinstance(name, str) else f"entry {int(entry['at']) + 1}"
    rest = where[entry.end() :].removeprefix(".")
    return f"{subject}: {what} (at {rest})" if rest else f"{subject}: {what}"


# --- rows to values -------------------------------------------------------------------------------------------------


def _entry(row: EntryRow) -> Entry:
    values = {name: getattr(row, name) for name in _SAME_NAMES}
    return Entry(
        **values,
        id=ModelId(row.id),
        stand_in=None if row.stand_in is None else ModelId(row.stand_in),
        image=None if row.image is None else ImageDefaults(**msgspec.structs.asdict(row.image)),
        planner=PlannerNumbers(**msgspec.structs.asdict(row.planner)),
        variants=tuple(map(_variant, row.variants)),
    )


_SAME_NAMES = (
    *("name", "publisher", "license", "license_terms", "summary", "architecture", "modality", "additional_modalities"),
    *("engine", "capabilities", "lineup", "verified", "oldest_build", "slots", "sources"),
)


def _variant(row: VariantRow) -> Variant:
    return Variant(row.quant, tuple(map(_file, row.files)), row.default, row.engine)


def _file(row: FileRow) -> CatalogFile:
    values = msgspec.structs.asdict(row)
    values["local"] = row.local or PurePosixPath(row.remote).name
    return CatalogFile(**values)


# --- what must agree ------------------------------------------------------------------------------------------------


def _contradictions(catalog: Catalog) -> Iterator[tuple[str, str]]:
    """Yield the id of each entry that something is wrong with, and what."""
    ids: set[str] = set()
    unverified = False
    for entry in catalog.entries:
        if entry.id in ids:
            yield entry.id, "the id stands twice"
        ids.add(entry.id)
        if unverified and entry.verified:
            yield entry.id, "verified entries stand before those that are not"
        unverified = unverified or not entry.verified
        yield from ((entry.id, message) for message in _wrong_in(entry))
        if entry.engine is EngineKind.LLAMA and entry.architecture not in catalog.tested_architectures:
            yield entry.id, f"tested_architectures lacks {shown_text(entry.architecture)}"
    for entry in catalog.entries:
        if entry.stand_in is not None and entry.stand_in not in ids:
            yield entry.id, f"its stand_in {shown_text(entry.stand_in)} is no entry"
    yield from _clashes(catalog)


def _wrong_in(entry: Entry) -> Iterator[str]:
    quants = [variant.quant.lower() for variant in entry.variants]
    if len(set(quants)) < len(quants):
        yield "two variants have the same quant"
    if sum(variant.default for variant in entry.variants) != 1:
        yield "exactly one variant is the default"
    elif entry.verified and not any(entry.default_variant.is_exact(platform) for platform in Platform):
        yield "it is verified, but a size of its default variant is not known"
    if entry.modality in entry.additional_modalities or len(set(entry.modalities)) < len(entry.modalities):
        yield "a modality stands twice"
    for variant in entry.variants:
        for file in variant.files:
            if message := _wrong_with(file, verified=entry.verified):
                yield f"{variant.quant}, {shown_text(file.remote)}: {message}"
        if not any(file.role is Role.WEIGHTS for file in variant.files):
            yield f"{variant.quant}: it has no weights"


def _wrong_with(file: CatalogFile, *, verified: bool) -> str:
    if file.is_folder != file.local.endswith("/"):
        return "`remote` and `local` both end in / for a folder, or neither does"
    if has_parent_step(file.remote):
        return "`remote` has a `..` step"
    if has_parent_step(file.local) or any(part in ("", ".") for part in file.local.rstrip("/").split("/")):
        return "`local` is no path below the models folder"
    if file.is_folder and (file.sha256 or file.size_bytes):
        return "a folder has neither a size nor a digest of its own"
    if file.entry is not None and not file.is_folder:
        return "`entry` belongs to a folder"
    if file.is_pattern and (verified or file.is_folder or file.sha256):
        return "a pattern stands for a file of which nothing is known"
    if file.revision is not None and file.repo.startswith("https://"):
        return "an address has no revision"
    if file.size_bytes is not None and file.about_bytes is not None:
        return "a size is exact or rounded, not both"
    return ""


def _clashes(catalog: Catalog) -> Iterator[tuple[str, str]]:
    """Yield files that would overwrite each other: one name on disk is one file, wherever it is needed."""
    known: dict[str, tuple[str, str, str | None]] = {}
    for entry, _, file in catalog.files():
        origin = (file.repo, file.remote, file.revision)
        if known.setdefault(file.local.casefold(), origin) != origin:
            yield entry.id, f"another file is called {shown_text(file.local)} too"
