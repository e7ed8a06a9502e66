"""Quantities, places and conditions in the words that people see; the same everywhere."""

from app.state import Model, Phase, View
from hypnos_engine.domain.kinds import EngineKind, Modality, Residency, Tier

NEEDS = {
    Modality.TEXT: "chat",
    Modality.VISION: "vision",
    Modality.SPEECH_TO_TEXT: "speech in",
    Modality.TEXT_TO_SPEECH: "speech out",
    Modality.EMBEDDINGS: "embeddings",
    Modality.IMAGES: "images",
    Modality.DOCUMENTS: "documents",
    Modality.ENTITIES: "entities",
}


def size(count_bytes: int) -> str:
    """`3.4 GiB`, `512 MiB`, `none`."""
    if count_bytes <= 0:
        return "none"
    for unit, step in (("TiB", 2**40), ("GiB", 2**30)):
        if count_bytes >= step:
            return f"{count_bytes / step:.1f} {unit}"
    return f"{max(1, round(count_bytes / 2**20))} MiB"


def need(model: Model) -> str:
    """What a model is for."""
    return ", ".join(NEEDS[modality] for modality in model.modalities)


def place(tier: Tier, *, one_pool: bool) -> str:
    """A tier as a person names it."""
    match tier:
        case Tier.GPU:
            return "loaded" if one_pool else "GPU"
        case Tier.RAM:
            return "kept warm" if one_pool else "RAM"
        case Tier.DISK:
            return "disk"


def move_to(tier: Tier, *, one_pool: bool) -> str:
    """The action that brings a model to a tier."""
    match tier:
        case Tier.GPU:
            return "Load into memory" if one_pool else "Move to GPU"
        case Tier.RAM:
            return "Keep warm in memory" if one_pool else "Move to RAM"
        case Tier.DISK:
            return "Unload to disk" if one_pool else "Move to disk"


def whereabouts(model: Model, *, one_pool: bool) -> str:
    """Where a model is, or what is happening to it."""
    if not model.enabled:
        return "switched off"
    if model.is_loading:
        return "loading" if model.progress is None else f"loading, {percent(model.progress)}"
    if model.residency is Residency.UNLOADING:
        return "unloading"
    return place(model.tier, one_pool=one_pool)


def held_bytes(model: Model) -> int:
    """Bytes of GPU memory and RAM that a model takes."""
    return model.device_bytes + model.host_bytes


def bytes_of(model: Model) -> str:
    """What a model takes now, or would take: its weights."""
    held = held_bytes(model)
    if held:
        return size(held)
    if model.weight_bytes:
        return f"{size(model.weight_bytes)} on disk"
    return "no weights" if model.engine is EngineKind.FAKE else "unknown"


def percent(part: float) -> str:
    return f"{round(part * 100)} %"


def per_minute(rate: float) -> str:
    if rate <= 0.05:
        return "0"
    return f"{rate:.1f}" if rate < 10 else f"{rate:.0f}"


def duration(time_ms: float | None) -> str:
    """`820 ms`, `3.4 s`, `2 min`; a dash while nothing was measured."""
    if time_ms is None:
        return "–"
    if time_ms < 1000:
        return f"{time_ms:.0f} ms"
    seconds = time_ms / 1000
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def api_address(view: View) -> str:
    """What OpenAI clients are given; empty while no engine runs."""
    return f"{view.address.rstrip('/')}/v1" if view.address else ""


def condition(view: View) -> str:
    """The engine's state in one short sentence."""
    match view.phase:
        case Phase.STARTING:
            return "Starting: the first models are on their way." if view.memory is not None else "Starting."
        case Phase.UNREACHABLE:
            return "The engine does not answer." if view.address else "The engine does not run."
        case Phase.ENDING:
            return view.reason or "Ending."
        case Phase.READY:
            return _activity(view)


def _activity(view: View) -> str:
    loading = [model for model in view.models if model.is_loading]
    if loading:
        return f"Loading {loading[0].id}." if len(loading) == 1 else f"Loading {len(loading)} models."
    running = sum(model.leases for model in view.models)
    waiting = sum(model.waiting for model in view.models)
    if running or waiting:
        parts = [f"{running} {'request' if running == 1 else 'requests'} running"] if running else []
        parts += [f"{waiting} waiting"] if waiting else []
        return f"{', '.join(parts)}."
    if view.hold is not None:
        one_pool = view.memory is not None and view.memory.one_pool
        return f"The {'memory' if one_pool else 'GPU'} is left to other programs."
    if not any(model.enabled for model in view.models):
        return "Ready, but no model is in service."
    return "Ready; nothing is running."
