"""The events of `/v1/memory/events`, told apart by `object`. What each does to a snapshot: `api.memory_fold`."""

import msgspec

from hypnos_engine.api.schemas.decisions import Decision
from hypnos_engine.api.schemas.downloads import Download
from hypnos_engine.api.schemas.memory import MemoryStatus, MemoryTotals, ModelStatus


class SnapshotEvent(MemoryStatus, frozen=True, kw_only=True, tag_field="object", tag="memory.snapshot"):
    """The whole status; what was known before counts no more."""


class ModelEvent(ModelStatus, frozen=True, kw_only=True, tag_field="object", tag="memory.model"):
    """An entry of `models` that is new or has changed."""


class TotalsEvent(MemoryTotals, frozen=True, kw_only=True, tag_field="object", tag="memory.totals"):
    """Everything but the models, because some of it has changed. Models that `model_ids` does not name are gone."""

    model_ids: tuple[str, ...]
    """All configured models, in their order."""


class LoadEvent(msgspec.Struct, frozen=True, tag_field="object", tag="memory.load"):
    """How far a load is; at most ten a second for each model."""

    model: str
    phase: str
    progress: float


class DecisionEvent(Decision, frozen=True, kw_only=True, tag_field="object", tag="memory.decision"):
    """A decision of the scheduler."""


class DownloadEvent(Download, frozen=True, kw_only=True, tag_field="object", tag="memory.download"):
    """A download that began or has changed. No part of the snapshot: `GET /v1/downloads` lists them."""


MemoryEvent = SnapshotEvent | ModelEvent | TotalsEvent | LoadEvent | DecisionEvent | DownloadEvent
EVENTS: tuple[type[MemoryEvent], ...] = (
    SnapshotEvent,
    ModelEvent,
    TotalsEvent,
    LoadEvent,
    DecisionEvent,
    DownloadEvent,
)
