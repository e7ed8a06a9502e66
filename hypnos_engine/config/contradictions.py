"""Judges what settings say together; adds problems and warnings, changes nothing."""

from collections.abc import Iterable
from datetime import UTC, datetime

from hypnos_engine.config.choices import Overload, Profile
from hypnos_engine.config.kinds import size_text
from hypnos_engine.config.problems import Problem, Problems, listed, shown_text
from hypnos_engine.config.sections import Reading
from hypnos_engine.config.settings import CONFIG_VERSION
from hypnos_engine.domain.kinds import EngineKind, Modality, Topology

_SERVES: dict[EngineKind, frozenset[Modality]] = {
    EngineKind.LLAMA: frozenset(Modality) - {Modality.IMAGES, Modality.DOCUMENTS, Modality.ENTITIES},
    EngineKind.WHISPER: frozenset({Modality.SPEECH_TO_TEXT}),
    EngineKind.DIFFUSION: frozenset({Modality.IMAGES}),
    EngineKind.DIFFUSERS: frozenset({Modality.IMAGES}),
    EngineKind.DOCLING: frozenset({Modality.DOCUMENTS}),
    EngineKind.GLINER: frozenset({Modality.ENTITIES}),
}
"""What an engine can do at most; an engine that is not listed may do anything."""


def check_version(root: Reading, problems: Problems) -> bool:
    """Whether the file is written for this program; if not, nothing else in it is worth judging."""
    version = root.value("config_version")
    if version == CONFIG_VERSION:
        return True
    problems.add(
        root.where("config_version"),
        "config_version",
        f"the file is written for version {version}; this program reads version {CONFIG_VERSION}",
        "update Hypnos, or write a new file"
        if version > CONFIG_VERSION
        else f"write config_version = {CONFIG_VERSION}",
    )
    return False


def check_folders(root: Reading, problems: Problems) -> None:
    """One folder or several, not both; called before the environment is applied."""
    if "models_dir" in root.values and "models_dirs" in root.values:
        message = "`models_dir` and `models_dirs` cannot both be written"
        problems.add(root.where("models_dir"), "models_dir", message, "put the folder first in `models_dirs`")


def check_server(server: Reading, problems: Problems) -> None:
    """Judge `[server]`, its keys included."""
    profile, objective = server.value("profile"), server.value("objective_ms")
    if objective is not None and profile is None and "profile" not in server.refused:
        problems.add(server.where("objective_ms"), "server.objective_ms", "an objective needs a `profile`")
    if objective is not None and profile is Profile.BATCH:
        message = "the profile `batch` aims at throughput and has no time to meet"
        problems.add(server.where("objective_ms"), "server.objective_ms", message, "leave it out")
    plain = server.value("api_keys")
    labels: dict[str, Reading] = {}
    digests: dict[str, Reading] = {}
    for key in server.children("keys"):
        _check_key(key, plain, labels, digests, problems)


def _check_key(
    key: Reading, plain: Iterable[str], labels: dict[str, Reading], digests: dict[str, Reading], problems: Problems
) -> None:
    written = [name for name in ("key", "key_sha256") if name in key.values]
    if len(written) == 2:
        problems.add(
            key.where("key_sha256"), "server.keys", "`key` and `key_sha256` cannot both be written", "keep one"
        )
        return
    if not written:
        if not key.refused & {"key", "key_sha256"}:
            problems.add(key.origin, "server.keys", "a key is missing", "write `key` or `key_sha256`")
        return
    digest = key.values[written[0]]
    if digest in digests:
        message = f"the same key stands in line {digests[digest].origin.line}"
        problems.add(key.where(written[0]), "server.keys", message, "keep one of the two")
    elif digest in plain:
        message = "the same key stands in `server.api_keys` or HYPNOS_API_KEYS, where it is an admin key without limits"
        problems.add(key.where(written[0]), "server.keys", message, "keep one of the two")
    digests.setdefault(digest, key)
    label = key.value("label")
    if label and label in labels:
        message = f"the label {shown_text(label)} stands in line {labels[label].where('label').line} already"
        problems.add(key.where("label"), "server.keys.label", message, "give every key a label of its own")
    labels.setdefault(label, key)


def check_limits(root: Reading, problems: Problems) -> None:
    """Judge `[limits]`, together with the profile."""
    server, limits = root.child("server"), root.child("limits")
    if limits.value("overload") is Overload.SHED and "profile" not in server.refused:
        where, profile = limits.where("overload"), server.value("profile")
        if profile is None:
            problems.add(where, "limits.overload", '"shed" needs an objective to shed by', "set server.profile")
        elif profile is Profile.BATCH:
            message = '"shed" needs an objective in time, and the profile `batch` has none'
            problems.add(where, "limits.overload", message, "choose another profile, or leave `overload` out")
    largest, together = limits.value("max_body_bytes"), limits.value("max_body_bytes_in_flight")
    if largest > together:
        name = "max_body_bytes" if "max_body_bytes" in limits.values else "max_body_bytes_in_flight"
        message = f"one body may have {size_text(largest)}, but all bodies together only {size_text(together)}"
        problems.add(limits.where(name), f"limits.{name}", message, "raise max_body_bytes_in_flight")


def check_machine(hardware: Reading, problems: Problems) -> None:
    """Judge `[hardware.simulate]`."""
    if not hardware.tables.get("simulate"):
        return
    machine = hardware.child("simulate")
    devices = machine.children("devices")
    discrete = machine.value("topology") is Topology.DISCRETE
    if discrete and not devices and "topology" not in machine.refused and "devices" not in machine.refused:
        message = f'the topology "{Topology.DISCRETE}" needs a device'
        problems.add(machine.origin, "hardware.simulate", message, "write [[hardware.simulate.devices]]")
    for other in machine.children("others"):
        if other.value("device") >= max(1, len(devices)):
            message = f"there is no device {other.value('device')}"
            problems.add(other.where("device"), "hardware.simulate.others.device", message, "devices count from 0")


def check_models(models: Iterable[Reading], problems: Problems) -> None:
    """Judge the `[[models]]` tables of one file."""
    ids: dict[str, Reading] = {}
    for model in models:
        name = model.values.get("id")
        if name in ids:
            message = f"the id {shown_text(name)} stands in line {ids[name].where('id').line} already"
            problems.add(model.where("id"), "models.id", message, "give every model an id of its own")
        elif name is not None:
            ids[name] = model
        _check_model(model, problems)


def _check_model(model: Reading, problems: Problems) -> None:
    engine = model.values.get("engine")
    modalities = [m for m in (model.values.get("modality"), *model.value("additional_modalities")) if m is not None]
    if engine in _SERVES:
        wrong = [f"`{modality}`" for modality in dict.fromkeys(modalities) if modality not in _SERVES[engine]]
        if wrong:
            able = [f"`{modality}`" for modality in Modality if modality in _SERVES[engine]]
            message = f"the engine `{engine}` cannot serve {listed(wrong)}"
            problems.add(model.where("engine"), "models.engine", message, f"it serves {listed(able, 'and')}")
    known = {*model.values, *model.refused}
    if engine is not EngineKind.FAKE and "engine" not in model.refused and "weights_path" not in known:
        problems.add(model.origin, "models.weights_path", "is missing; [[models]] needs it")
    context_len = model.value("context_len")
    if context_len is not None and context_len < model.value("slots"):
        message = f"{context_len} tokens cannot be shared by {model.value('slots')} slots"
        problems.add(model.where("context_len"), "models.context_len", message, "raise it, or lower `slots`")
    if model.tables.get("image") and modalities and Modality.IMAGES not in modalities and not model.refused:
        message = f"the model makes no pictures: `{Modality.IMAGES}` is not among its modalities"
        problems.add(model.child("image").origin, "models.image", message, "remove the table")


def warnings_about(root: Reading, model_ids: frozenset[str], now: datetime) -> Iterable[Problem]:
    """Yield what is allowed and still worth saying."""
    server = root.child("server")
    for key in server.children("keys"):
        expires = key.value("expires")
        if expires is not None and expires <= now:
            moment = expires.astimezone(UTC).isoformat(timespec="seconds")
            yield Problem(key.where("expires"), "server.keys.expires", f"the key expired at {moment}")
        for name in key.value("models"):
            if name not in model_ids:
                yield Problem(key.where("models"), "server.keys.models", f"no model has the id {shown_text(name)}")
    if server.value("metrics_require_auth") and not server.value("api_keys") and not server.children("keys"):
        message = "no key is set, so that nothing can be presented and `/metrics` stays open"
        yield Problem(server.where("metrics_require_auth"), "server.metrics_require_auth", message)


def without_effect(readings: Iterable[Reading]) -> Iterable[Problem]:
    """Yield each written value that this version reads, checks and does not act on."""
    for top in readings:
        for reading in top.everything():
            for name, value in reading.values.items():
                setting = reading.table.setting(name)
                if setting is not None and not setting.acts_on(value):
                    message = "is read and checked, but this version does not act on it"
                    if setting.effective:
                        message = f"{shown_text(str(value))} {message}"
                    yield Problem(reading.where(name), reading.table.dotted(name), message)
