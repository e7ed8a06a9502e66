"""What each event of `/v1/memory/events` does to a snapshot; the server's answers and the desktop app agree through it.

Pure. Never guesses: an event that arrives before any snapshot leaves nothing known.
"""

from typing import TypeVar

import msgspec

from hypnos_engine.api.schemas.memory import LoadStep, MemoryStatus, ModelStatus
from hypnos_engine.api.schemas.memory_events import LoadEvent, MemoryEvent, ModelEvent, SnapshotEvent, TotalsEvent

S = TypeVar("S", bound=msgspec.Struct)

MOVING_FIELDS = frozenset({"idle_seconds", "requests_per_minute", "estimated_wait_ms"})
"""Fields of a model that change by the passing of time alone: an event carries them as of its moment, and none is sent
for their sake. `parked_secs_ago` in `kv_park` and everything in `latency` are of that kind, too."""


def fold(status: MemoryStatus | None, event: MemoryEvent) -> MemoryStatus | None:
    """The snapshot after `event`; None while there was no snapshot yet."""
    if isinstance(event, SnapshotEvent):
        return as_struct(event, MemoryStatus)
    if status is None:
        return None
    match event:
        case ModelEvent():
            return _with_model(status, as_struct(event, ModelStatus))
        case TotalsEvent():
            known = {model.id: model for model in status.models}
            models = tuple(known[name] for name in event.model_ids if name in known)
            return as_struct(event, MemoryStatus, models=models)
        case LoadEvent():
            step = LoadStep(event.phase, event.progress)
            models = tuple(
                msgspec.structs.replace(model, load=step) if model.id == event.model else model
                for model in status.models
            )
            return msgspec.structs.replace(status, models=models)
        case _:
            return status  # decisions explain changes, they are none


def as_struct(source: msgspec.Struct, wanted: type[S], **others: object) -> S:
    """The fields of `wanted` taken from `source`, which has all of them but `others`."""
    fields = {name: getattr(source, name) for name in wanted.__struct_fields__ if name not in others}
    return wanted(**fields, **others)


def _with_model(status: MemoryStatus, changed: ModelStatus) -> MemoryStatus:
    models = tuple(changed if model.id == changed.id else model for model in status.models)
    if changed not in models:
        models = (*models, changed)
    return msgspec.structs.replace(status, models=models)
