"""Turns defaults, file, overlay, environment and flags, in this order, into Settings; writes nothing, starts nothing.

Either every value is good and the settings are complete, or ConfigurationInvalid names every problem at once.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

from hypnos_engine.config import contradictions
from hypnos_engine.config.documents import Document, parse_document, read_document
from hypnos_engine.config.kinds import Many, Refused
from hypnos_engine.config.model_settings import MODELS
from hypnos_engine.config.names import MODEL_ID
from hypnos_engine.config.paths import Folders, overlay_path, readable_by_others, standard_folders
from hypnos_engine.config.problems import Origin, Problem, Problems, closest, shown_name, shown_path
from hypnos_engine.config.sections import Reading, anchored, read_table
from hypnos_engine.config.setting import Setting, Table
from hypnos_engine.config.settings import ROOT, Settings
from hypnos_engine.domain.model import ModelId, ModelSpec

OVERLAY = Table(
    path="",
    help="Changes of the pool that were made while the server ran.",
    build=dict[str, Any],
    settings=(
        ROOT.settings[0],
        Setting(
            name="removed_models",
            kind=Many(MODEL_ID),
            default=(),
            help="Ids of the file's models that were taken out of the pool.",
            effective=True,
        ),
    ),
    tables=(MODELS,),
)
"""What `<config name>.models.toml` may hold. A block with an id of the file takes the place of the file's block."""


def load(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    *,
    folders: Folders | None = None,
) -> Settings:
    """Return the settings that hold.

    `path` is the file (None: HYPNOS_CONFIG, else `hypnos.toml` in the user's configuration folder, which may be
    missing); `environ` the environment (None: none); `flags` values by dotted name, None meaning not given; `folders`
    where defaults lie (None: the user's). Raises ConfigurationInvalid with every problem.
    """
    environ, flags = environ or {}, flags or {}
    folders = folders or standard_folders()
    problems = Problems()
    named = path or _named_by(environ)
    source = named or folders.config_file
    document = read_document(source, problems)
    if document is None and named is not None and not problems:
        origin = Origin(shown_path(source))
        problems.add(origin, "", "there is no such file", "leave the path out to use the standard one")
    overlay = read_document(overlay_path(source), problems)
    read = _read(document, overlay, problems)
    _apply_environment(read.root, environ, problems)
    _apply_flags(read.root, flags, problems)
    if not read.foreign:
        _judge(read, problems)
    if problems:
        raise problems.error()
    return _settled(read, source if document else None, overlay_path(source), folders)


def models_from_text(text: str, source: str, named: ModelId | None = None) -> tuple[ModelSpec, ...]:
    """Return the `[[models]]` blocks of a text that holds nothing else. Raises ConfigurationInvalid.

    With `named` given the blocks have that id, whatever they say.
    """
    problems = Problems()
    table = replace(OVERLAY, settings=())
    document = parse_document(text, source, Path(), problems)
    blocks: list[Reading] = []
    if document is not None:
        if named is not None:
            _rename(document, named)
        blocks = read_table(table, document, problems).children("models")
        contradictions.check_models(blocks, problems)
    if problems:
        raise problems.error("The model's block", "nothing was changed")
    return tuple(block.build() for block in blocks)


def _rename(document: Document, name: ModelId) -> None:
    match document.values.get("models"):
        case [dict(block)]:  # of several none is meant
            block["id"] = name


def pool_changes(document: Document, problems: Problems) -> tuple[tuple[ModelId, ...], tuple[ModelSpec, ...]] | None:
    """Return what an overlay takes out of the pool and what it puts in; None when a problem was added."""
    reading = _read_one(OVERLAY, document, problems)
    if not problems:
        contradictions.check_models(reading.children("models"), problems)
    if problems:
        return None
    return reading.value("removed_models"), tuple(block.build() for block in reading.children("models"))


def _named_by(environ: Mapping[str, str]) -> Path | None:
    text = environ.get("HYPNOS_CONFIG", "").strip()
    if not text:
        return None
    with contextlib.suppress(RuntimeError):  # no such user: the path is taken as it is
        return Path(text).expanduser()
    return Path(text)


@dataclass(slots=True)
class _Read:
    root: Reading
    overlay: Reading
    foreign: bool = False
    """True when a file is written for another version."""


def _read(document: Document | None, overlay: Document | None, problems: Problems) -> _Read:
    read = _Read(_read_one(ROOT, document, problems), _read_one(OVERLAY, overlay, problems))
    read.foreign = "config_version" in read.root.refused or "config_version" in read.overlay.refused
    contradictions.check_folders(read.root, problems)
    return read


def _read_one(table: Table, document: Document | None, problems: Problems) -> Reading:
    """Read a document; of one that is written for another version nothing but that is reported."""
    if document is None:
        return Reading(table, Origin("default"))
    version = table.settings[0]
    first = Problems()
    only = {name: value for name, value in document.values.items() if name == version.name}
    head = read_table(replace(table, settings=(version,), tables=()), replace(document, values=only), first)
    if first or not contradictions.check_version(head, first):
        problems.extend(first)
        head.refused.add(version.name)
        return replace(head, table=table, values={})
    return read_table(table, document, problems)


def _apply_environment(root: Reading, environ: Mapping[str, str], problems: Problems) -> None:
    for reading, setting in _single_settings(root):
        text = environ.get(setting.environment, "") if setting.environment else ""
        if text.strip():
            _put(reading, setting, text, Origin(f"environment variable {setting.environment}"), problems)


def _apply_flags(root: Reading, flags: Mapping[str, object], problems: Problems) -> None:
    known = {reading.table.dotted(setting.name): (reading, setting) for reading, setting in _single_settings(root)}
    for name, value in flags.items():
        if value is None:
            continue
        if name not in known:
            near = closest(name, known)
            suggestion = f"did you mean `{near}`?" if near else ""
            problems.add(Origin("flags"), shown_name(name), "there is no such setting", suggestion)
            continue
        reading, setting = known[name]
        _put(reading, setting, value, Origin(f"flag {setting.flag or name}"), problems)


def _single_settings(root: Reading) -> list[tuple[Reading, Setting]]:
    """Return every setting that stands at one place only, with the reading that takes its value."""
    pairs = [(root, setting) for setting in root.table.settings]
    for table in root.table.tables:
        if not table.repeated:
            reading = root.tables.setdefault(table.name, [root.child(table.name)])[0]
            pairs.extend((reading, setting) for setting in reading.table.settings)
    return pairs


def _put(reading: Reading, setting: Setting, value: object, origin: Origin, problems: Problems) -> None:
    """Set a value from outside the files; keys are added to those of the file, anything else replaces."""
    try:
        text = str(value) if isinstance(value, PurePath) else value
        typed = setting.kind.read_text(text) if isinstance(text, str) else setting.kind.read(text)
    except Refused as refused:
        reading.refused.add(setting.name)
        problems.add(origin, reading.table.dotted(setting.name), refused.message, refused.suggestion)
        return
    if setting.name == "api_keys":
        typed = tuple(dict.fromkeys((*reading.value("api_keys"), *typed)))  # type: ignore[misc]
    if setting.name == "models_dirs":
        reading.values.pop("models_dir", None)
    reading.put(setting.name, anchored(typed, Path()), origin)


def _judge(read: _Read, problems: Problems) -> None:
    contradictions.check_server(read.root.child("server"), problems)
    contradictions.check_limits(read.root, problems)
    contradictions.check_machine(read.root.child("hardware"), problems)
    contradictions.check_models(read.root.children("models"), problems)
    contradictions.check_models(read.overlay.children("models"), problems)


def _settled(read: _Read, source: Path | None, overlay: Path, folders: Folders) -> Settings:
    """Return the settings of readings that are free of problems."""
    built = read.root.build()
    models = _pool(built["models"], read.overlay)
    ids = frozenset(model.id for model in models)
    warnings: list[Problem] = list(contradictions.warnings_about(read.root, ids, datetime.now(UTC)))
    if (
        source is not None
        and _holds_a_key(read.root.child("server"), shown_path(source))
        and readable_by_others(source)
    ):
        origin = Origin(shown_path(source), 1)
        warnings.append(
            Problem(origin, "", "other users of this computer can read the keys in it", "chmod 600 the file")
        )
    return Settings(
        server=built["server"],
        limits=built["limits"],
        hardware=built["hardware"],
        downloads=built["downloads"],
        models=models,
        models_dirs=_models_dirs(read.root, folders),
        source=source.absolute() if source else None,
        overlay=overlay.absolute(),
        warnings=tuple(warnings),
        without_effect=tuple(contradictions.without_effect((read.root, read.overlay))),
    )


def _pool(models: tuple[ModelSpec, ...], overlay: Reading) -> tuple[ModelSpec, ...]:
    pool: dict[ModelId, ModelSpec] = {model.id: model for model in models}
    for removed in overlay.value("removed_models"):
        pool.pop(removed, None)
    for block in overlay.children("models"):
        model: ModelSpec = block.build()
        pool[model.id] = model
    return tuple(pool.values())


def _models_dirs(root: Reading, folders: Folders) -> tuple[Path, ...]:
    """Return the folders; a single one from the environment or a flag takes the place of the first of the file."""
    several: tuple[Path, ...] = root.values.get("models_dirs") or (folders.models,)
    first: Path | None = root.values.get("models_dir")
    return several if first is None else tuple(dict.fromkeys((first, *several[1:])))


def _holds_a_key(server: Reading, source: str) -> bool:
    """Whether a key itself, not its digest, is written in the file."""
    written = [server.origins.get("api_keys"), *(key.origins.get("key") for key in server.children("keys"))]
    return any(origin is not None and origin.source == source for origin in written)
