"""`GET /v1/models/catalog`: every model of the catalog with what of it is on disk (contract §6.2).

Looks at files off the loop, once for all who ask meanwhile; decides nothing about the pool.
"""

import asyncio
from typing import Final, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET

from hypnos_engine.api.decoding import quoted
from hypnos_engine.api.schemas import catalog as wire
from hypnos_engine.catalog.blocks import config_block
from hypnos_engine.catalog.entries import CATALOG_VERSION, Entry, Platform, Role, Variant
from hypnos_engine.catalog.files import EntryState, FileState, VariantState
from hypnos_engine.catalog.roots import Absence
from hypnos_engine.catalog.shelf import Shelf
from hypnos_engine.domain.errors import InvalidRequest, NotFound
from hypnos_engine.domain.kinds import Modality
from hypnos_engine.domain.model import ModelSpec
from hypnos_engine.runtime.snapshot import ModelView
from hypnos_engine.server.answers import JSON
from hypnos_engine.server.exchange import RUNTIME

_encode = msgspec.json.Encoder().encode


class CatalogDesk:
    """One server's way to its catalog: looks for at most one answer at a time."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._looking: asyncio.Future[tuple[EntryState, ...]] | None = None

    @property
    def shelf(self) -> Shelf:
        return self._shelf

    async def states(self) -> tuple[EntryState, ...]:
        """What is on disk. A disk that does not answer holds one thread, however many ask. Raises NotFound."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().run_in_executor(None, self._shelf.states)
            self._looking.add_done_callback(_observed)
        return await asyncio.shield(self._looking)


def _observed(looking: asyncio.Future[tuple[EntryState, ...]]) -> None:
    """An answer for which nobody waits any more is dropped, also when it is an error."""
    if not looking.cancelled():
        looking.exception()


CATALOG: Final = web.AppKey("catalog", CatalogDesk)


async def show_catalog(request: web.Request) -> web.Response:
    """All entries, or those that serve `?modality=`. Raises NotFound without a catalog."""
    wanted = _modality(request)
    desk = request.app.get(CATALOG)
    if desk is None:
        raise NotFound("This server has no model catalog (models.catalog.toml).")
    states = await desk.states()
    configured = {view.spec.id: view for view in request.app[RUNTIME].models()}
    chosen = [(state, configured.get(state.entry.id)) for state in states if _serves(state.entry, wanted)]
    body = await asyncio.get_running_loop().run_in_executor(None, _written, desk.shelf, chosen)
    return web.Response(body=body, content_type=JSON)


def _written(shelf: Shelf, chosen: list[tuple[EntryState, ModelView | None]]) -> bytes:
    platform = shelf.platform
    return _encode(
        wire.CatalogList(
            catalog_version=CATALOG_VERSION,
            models_dir=str(shelf.roots[0]) if shelf.roots else "",
            tested_architectures=shelf.catalog().tested_architectures,
            data=tuple(entry_of(state, view, platform) for state, view in chosen),
        )
    )


def _modality(request: web.Request) -> Modality | None:
    text = request.query.get("modality")
    if text is None:
        return None
    try:
        return Modality(text)
    except ValueError:
        known = ", ".join(Modality)
        raise InvalidRequest(f"modality: expected one of {known}, got {quoted(text)}.") from None


def _serves(entry: Entry, wanted: Modality | None) -> bool:
    return wanted is None or wanted in entry.modalities


def entry_of(state: EntryState, view: ModelView | None, platform: Platform) -> wire.CatalogEntry:
    """An entry as the wire spells it; `view` is the pool's model of the same id."""
    entry = state.entry
    quant = None if view is None else configured_quant(entry, view.spec, platform)
    return wire.CatalogEntry(
        id=entry.id,
        name=entry.name,
        publisher=entry.publisher,
        license=entry.license,
        summary=entry.summary,
        architecture=entry.architecture,
        modality=entry.modality,
        additional_modalities=entry.additional_modalities,
        engine=entry.engine,
        capabilities=tuple(capability.value for capability in entry.capabilities),
        lineup=entry.lineup,
        verified=entry.verified,
        configured=view is not None,
        variants=tuple(_variant(entry, variant, platform) for variant in state.variants),
        enabled=UNSET if view is None else view.enabled,
        configured_quant=quant or UNSET,
        license_terms=entry.license_terms or UNSET,
        stand_in=entry.stand_in or UNSET,
        oldest_build=entry.oldest_build or UNSET,
    )


def configured_quant(entry: Entry, spec: ModelSpec, platform: Platform) -> str | None:
    """The variant whose weights file a model of the pool runs; None when it runs a file of no variant."""
    return next(
        (
            variant.quant
            for variant in entry.variants
            if variant.named_file(Role.WEIGHTS, platform) == spec.weights_path.rstrip("/")
        ),
        None,
    )


def _variant(entry: Entry, state: VariantState, platform: Platform) -> wire.CatalogVariant:
    variant: Variant = state.variant
    return wire.CatalogVariant(
        quant=variant.quant,
        default=variant.default,
        size_bytes=variant.size_bytes(platform),
        size_exact=variant.is_exact(platform),
        files=_files(state),
        installed=state.installed,
        outdated=state.outdated,
        config_block=config_block(entry, variant, platform),
        engine=entry.engine_of(variant),
        recommendable=entry.is_recommendable(variant, platform),
        problem=state.problem or UNSET,
    )


def _files(state: VariantState) -> tuple[wire.CatalogFile, ...]:
    """Every file of the variant, those that another platform needs included."""
    seen = {looked.file: looked for looked in state.files}
    return tuple(_file(seen.get(file) or FileState(file, present=False)) for file in state.variant.files)


def _file(state: FileState) -> wire.CatalogFile:
    file = state.file
    return wire.CatalogFile(
        role=file.role.value,
        repo=file.repo,
        remote=file.remote,
        local=file.local,
        size=file.likely_bytes,
        platform=file.platform.value,
        present=state.present,
        outdated=state.outdated,
        size_exact=file.size_bytes is not None,
        gated=True if file.gated else UNSET,
        entry=file.entry or UNSET,
        revision=file.revision or UNSET,
        sha256=file.sha256 or UNSET,
        absence=_ABSENCES.get(state.absence, UNSET) if state.absence else UNSET,
    )


_ABSENCES: Final[dict[Absence, Literal["not_found", "disk_absent", "unreadable"]]] = {
    Absence.NOT_FOUND: "not_found",
    Absence.REFUSED: "not_found",
    Absence.DISK_ABSENT: "disk_absent",
    Absence.UNREADABLE: "unreadable",
}
