"""`GET /v1/models/catalog` on the wire (contract §6.2)."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from hypnos_engine.domain.kinds import EngineKind, Modality


class CatalogFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file or folder that a variant needs, and whether it is there."""

    role: Literal["weights", "aux", "text_encoder", "tokenizer", "voices", "data"]
    repo: str
    remote: str
    local: str
    size: int
    """Bytes; rounded, or 0, where `size_exact` is false."""
    platform: Literal["all", "macos-arm64", "other"]
    present: bool
    outdated: bool
    size_exact: bool
    gated: Literal[True] | UnsetType = UNSET
    entry: str | UnsetType = UNSET
    revision: str | UnsetType = UNSET
    sha256: str | UnsetType = UNSET
    absence: Literal["not_found", "disk_absent", "unreadable"] | UnsetType = UNSET
    """Why a file is not present."""


class CatalogVariant(msgspec.Struct, frozen=True, kw_only=True):
    quant: str
    default: bool
    size_bytes: int
    """This machine's files together, as far as their sizes are known."""
    size_exact: bool
    """Whether the size of everything that has to fit into memory is known to the byte."""
    files: tuple[CatalogFile, ...]
    installed: bool
    outdated: bool
    config_block: str
    engine: EngineKind
    recommendable: bool
    """Everything that decides whether it fits is known."""
    problem: str | UnsetType = UNSET


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One model that Hypnos knows, configured here or not."""

    id: str
    name: str
    publisher: str
    license: str
    summary: str
    architecture: str
    modality: Modality
    additional_modalities: tuple[Modality, ...]
    engine: EngineKind
    capabilities: tuple[Literal["thinking", "tools"], ...]
    lineup: bool
    verified: bool
    configured: bool
    variants: tuple[CatalogVariant, ...]
    enabled: bool | UnsetType = UNSET
    """Only when `configured`."""
    configured_quant: str | UnsetType = UNSET
    license_terms: str | UnsetType = UNSET
    """What the licence restricts."""
    stand_in: str | UnsetType = UNSET
    """Entry to use where the engine is older than `oldest_build`."""
    oldest_build: int | UnsetType = UNSET


class CatalogList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    catalog_version: int
    models_dir: str
    tested_architectures: tuple[str, ...]
    data: tuple[CatalogEntry, ...]
