"""How `models.catalog.toml` is written: names, types and bounds of single values; judges nothing across them."""

from typing import Annotated

import msgspec

from hypnos_engine.catalog.entries import Capability, Platform, Role
from hypnos_engine.domain.kinds import EngineKind, Modality

Line = Annotated[str, msgspec.Meta(min_length=1, max_length=400, pattern=r"^[^\x00-\x1f\x7f]+$")]
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[^\s/\x00-\x1f\x7f]+$")]
Quant = Annotated[str, msgspec.Meta(min_length=1, max_length=40, pattern=r"^[A-Za-z0-9._-]+$")]
Repo = Annotated[str, msgspec.Meta(pattern=r"^(https://[^\s]+|[A-Za-z0-9._-]+/[A-Za-z0-9._-]+)$")]
Remote = Annotated[str, msgspec.Meta(min_length=1, max_length=400, pattern=r"^(/|[^/\\\x00-\x1f][^\\\x00-\x1f]*)$")]
Local = Annotated[str, msgspec.Meta(min_length=1, max_length=1000, pattern=r"^[^/\\\x00-\x1f][^\\\x00-\x1f]*$")]
Commit = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{40}$")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
Small = Annotated[int, msgspec.Meta(ge=1, le=10**6)]


class FileRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: Role
    repo: Repo
    remote: Remote
    local: Local | None = None
    """Left out: the last part of `remote`."""
    revision: Commit | None = None
    size_bytes: Count | None = None
    about_bytes: Count | None = None
    sha256: Digest | None = None
    platform: Platform = Platform.ALL
    gated: bool = False
    entry: Local | None = None


class VariantRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    quant: Quant
    default: bool = False
    engine: EngineKind | None = None
    files: Annotated[tuple[FileRow, ...], msgspec.Meta(min_length=1, max_length=200)]


class PlannerRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    parameters: Count | None = None
    active_parameters: Count | None = None
    num_layers: Small | None = None
    embedding_length: Small | None = None
    context_train: Count | None = None
    kv_bytes_per_token: Count | None = None
    expert_count: Small | None = None
    expert_used_count: Small | None = None


class ImageRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    steps: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    cfg_scale: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    edit: bool = False


class EntryRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: Id
    name: Line
    publisher: Line
    license: Line
    license_terms: Line | None = None
    summary: Line
    architecture: Line
    modality: Modality
    additional_modalities: tuple[Modality, ...] = ()
    engine: EngineKind
    capabilities: tuple[Capability, ...] = ()
    lineup: bool = False
    verified: bool = True
    stand_in: Id | None = None
    oldest_build: Count | None = None
    slots: Annotated[int, msgspec.Meta(ge=1, le=256)] | None = None
    image: ImageRow | None = None
    planner: PlannerRow = PlannerRow()
    sources: tuple[Line, ...] = ()
    variants: Annotated[tuple[VariantRow, ...], msgspec.Meta(min_length=1, max_length=50)]


class CatalogTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    catalog_version: int
    tested_architectures: tuple[Line, ...]
    models: Annotated[tuple[EntryRow, ...], msgspec.Meta(max_length=2000)] = ()
