"""The vocabulary of the catalog: entries, their variants and the files of these; plain values that read nothing."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from hypnos_engine.domain.kinds import EngineKind, Modality
from hypnos_engine.domain.model import ImageDefaults, ModelId

CATALOG_VERSION = 1
"""The `catalog_version` that this program reads."""


class Role(StrEnum):
    """Which key of the configuration a file fills; `data` fills none."""

    WEIGHTS = "weights"
    AUX = "aux"
    TEXT_ENCODER = "text_encoder"
    TOKENIZER = "tokenizer"
    VOICES = "voices"
    DATA = "data"


PLANNED_ROLES = frozenset({Role.WEIGHTS, Role.AUX, Role.TEXT_ENCODER})
"""Files whose sizes decide what fits; the others are small."""


class Platform(StrEnum):
    """On which machines a file is needed."""

    ALL = "all"
    MACOS_ARM64 = "macos-arm64"
    OTHER = "other"


class Capability(StrEnum):
    """What a model can do beyond its modalities."""

    THINKING = "thinking"
    """It honours `reasoning_effort`."""
    TOOLS = "tools"


@dataclass(frozen=True, slots=True)
class CatalogFile:
    """One file, or one folder, that a variant needs."""

    role: Role
    repo: str
    """A repository of the hub (`owner/name`), or an `https://` address that `remote` is appended to."""
    remote: str
    """Path in the repository. One that ends in `/` is a folder (`/` alone the whole repository); one with a `*` is a
    pattern for the one file that it fits, where the name itself is not known."""
    local: str
    """Path below the models folder; ends in `/` for a folder."""
    revision: str | None = None
    """Commit that the size and the digest belong to; None = the newest."""
    size_bytes: int | None = None
    """Exact size; None = not known."""
    about_bytes: int | None = None
    """A rounded size from a public page, where no exact one is known."""
    sha256: str | None = None
    platform: Platform = Platform.ALL
    gated: bool = False
    entry: str | None = None
    """In a folder: the contained file that the configuration names."""

    @property
    def is_folder(self) -> bool:
        return self.remote.endswith("/")

    @property
    def is_pattern(self) -> bool:
        return "*" in self.remote

    @property
    def likely_bytes(self) -> int:
        """The exact size, else the rounded one, else 0."""
        return self.size_bytes or self.about_bytes or 0

    @property
    def configured_path(self) -> str:
        """What the configuration names."""
        folder = self.local.rstrip("/")
        return f"{folder}/{self.entry}" if self.entry else folder

    def fits(self, platform: Platform) -> bool:
        """Whether a machine needs the file."""
        return self.platform in (Platform.ALL, platform)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to have a model: a quantization, and the files of it."""

    quant: str
    files: tuple[CatalogFile, ...]
    default: bool = False
    engine: EngineKind | None = None
    """What runs it where that is not the entry's engine."""

    def files_for(self, platform: Platform) -> tuple[CatalogFile, ...]:
        """What a machine needs of it; nothing where it does not run."""
        return tuple(file for file in self.files if file.fits(platform))

    def size_bytes(self, platform: Platform) -> int:
        """Sum for a machine, rounded sizes included."""
        return sum(file.likely_bytes for file in self.files_for(platform))

    def is_sized(self, platform: Platform) -> bool:
        """Whether at least a rounded size of all that has to fit into memory is known."""
        return all(file.likely_bytes for file in self.files_for(platform) if file.role in PLANNED_ROLES)

    def is_exact(self, platform: Platform) -> bool:
        """Whether the size of everything that has to fit into memory is known to the byte."""
        planned = [file for file in self.files_for(platform) if file.role in PLANNED_ROLES]
        return bool(planned) and all(file.size_bytes is not None for file in planned)

    def named_file(self, role: Role, platform: Platform) -> str | None:
        """What the configuration's key for a role names; several files of one role are named by their folder."""
        found = [file for file in self.files_for(platform) if file.role is role]
        if len(found) > 1:
            return found[0].local.rpartition("/")[0]
        return found[0].configured_path if found else None


@dataclass(frozen=True, slots=True)
class PlannerNumbers:
    """What a plan needs before the file is there; None = not known."""

    parameters: int | None = None
    active_parameters: int | None = None
    """Those that one token passes through, in a Mixture-of-Experts model."""
    num_layers: int | None = None
    embedding_length: int | None = None
    context_train: int | None = None
    kv_bytes_per_token: int | None = None
    """KV cache of one token in half precision, all layers together; windows not deducted."""
    expert_count: int | None = None
    expert_used_count: int | None = None

    @property
    def expert_share(self) -> float:
        """Part of the weights that belongs to experts; 0 for a dense model or where it cannot be told."""
        if not (self.parameters and self.active_parameters and self.expert_count and self.expert_used_count):
            return 0.0
        idle = 1.0 - self.expert_used_count / self.expert_count
        return min(1.0, (1.0 - self.active_parameters / self.parameters) / idle) if idle > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the catalog."""

    id: ModelId
    name: str
    publisher: str
    license: str
    summary: str
    architecture: str
    modality: Modality
    engine: EngineKind
    variants: tuple[Variant, ...]
    license_terms: str | None = None
    """What the licence forbids, where it restricts use."""
    additional_modalities: tuple[Modality, ...] = ()
    capabilities: tuple[Capability, ...] = ()
    lineup: bool = False
    verified: bool = True
    """False where a fact is missing: then the entry stands at the end and is never recommended."""
    stand_in: ModelId | None = None
    """Entry to use instead where the engine at hand is too old for this one."""
    oldest_build: int | None = None
    """Oldest build of the engine's library (llama.cpp `b…`, stable-diffusion.cpp `master-…`) that loads it."""
    slots: int | None = None
    image: ImageDefaults | None = None
    planner: PlannerNumbers = field(default_factory=PlannerNumbers)
    sources: tuple[str, ...] = ()

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """All modalities, the primary one first."""
        return (self.modality, *self.additional_modalities)

    @property
    def default_variant(self) -> Variant:
        return next(variant for variant in self.variants if variant.default)

    def variant(self, quant: str) -> Variant | None:
        """The variant of that name, however its letters are cased."""
        return next((variant for variant in self.variants if variant.quant.lower() == quant.lower()), None)

    def engine_of(self, variant: Variant) -> EngineKind:
        return variant.engine or self.engine

    def is_recommendable(self, variant: Variant, platform: Platform) -> bool:
        """Whether a lineup may be proposed with it: everything that decides what fits is known."""
        return self.verified and variant.is_exact(platform)


@dataclass(frozen=True, slots=True)
class Catalog:
    """The whole catalog, entries in its order."""

    entries: tuple[Entry, ...]
    tested_architectures: tuple[str, ...]
    """What `general.architecture` of a weights file may say."""

    def entry(self, name: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.id == name), None)

    def lineup(self) -> tuple[Entry, ...]:
        """The members of the default lineup."""
        return tuple(entry for entry in self.entries if entry.lineup)

    def files(self) -> Iterator[tuple[Entry, Variant, CatalogFile]]:
        """Every file with what it belongs to."""
        for entry in self.entries:
            for variant in entry.variants:
                for file in variant.files:
                    yield entry, variant, file
