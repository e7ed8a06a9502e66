"""What each event does to a snapshot."""

import msgspec
import pytest

from hypnos_engine.api.memory_fold import as_struct, fold
from hypnos_engine.api.schemas.decisions import Decision
from hypnos_engine.api.schemas.memory import LoadStep, MemoryStatus, MemoryTotals, ModelStatus
from hypnos_engine.api.schemas.memory_events import (
    DecisionEvent,
    LoadEvent,
    MemoryEvent,
    ModelEvent,
    SnapshotEvent,
    TotalsEvent,
)
from hypnos_engine.domain.kinds import Tier
from hypnos_engine.runtime.feed import Seen
from hypnos_engine.server.app import make_app
from hypnos_engine.server.memory import memory_status
from tests.server.fake_runtime import FakeRuntime, Script
from tests.server.running import OPTIONS


@pytest.fixture
def status() -> MemoryStatus:
    runtime = FakeRuntime(a=Script(), b=Script())
    return memory_status(Seen(7, runtime.memory()), make_app(runtime, OPTIONS))


def changed(status: MemoryStatus, number: int, **fields: object) -> ModelEvent:
    return as_struct(msgspec.structs.replace(status.models[number], **fields), ModelEvent)


def totals(status: MemoryStatus, *ids: str, **fields: object) -> TotalsEvent:
    source = as_struct(status, MemoryTotals, **fields)
    return as_struct(source, TotalsEvent, model_ids=ids)


def then(status: MemoryStatus, *events: MemoryEvent) -> MemoryStatus:
    known: MemoryStatus | None = status
    for event in events:
        known = fold(known, event)
    assert known is not None
    return known


def test_a_snapshot_is_all_that_counts(status: MemoryStatus) -> None:
    event = as_struct(status, SnapshotEvent)
    assert fold(None, event) == status
    assert fold(msgspec.structs.replace(status, models=()), event) == status


def test_nothing_is_known_before_a_snapshot(status: MemoryStatus) -> None:
    assert fold(None, changed(status, 0)) is None
    assert fold(None, totals(status, "a", "b")) is None
    assert fold(None, LoadEvent("a", "weights", 0.5)) is None


def test_a_model_takes_the_place_of_its_entry(status: MemoryStatus) -> None:
    after = then(status, changed(status, 0, current_tier=Tier.DISK, waiting=2))
    assert [model.id for model in after.models] == ["a", "b"]
    assert (after.models[0].current_tier, after.models[0].waiting) == (Tier.DISK, 2)
    assert after.models[1] == status.models[1]
    assert isinstance(after.models[0], ModelStatus)


def test_a_new_model_is_appended_and_put_in_its_place_by_the_totals(status: MemoryStatus) -> None:
    added = changed(status, 0, id="c")
    after = then(status, added)
    assert [model.id for model in after.models] == ["a", "b", "c"]
    assert [model.id for model in then(after, totals(status, "c", "b")).models] == ["c", "b"]


def test_totals_leave_the_models_alone(status: MemoryStatus) -> None:
    after = then(status, totals(status, "a", "b", tier1_vram_used_bytes=5, sequence=9))
    assert after == msgspec.structs.replace(status, tier1_vram_used_bytes=5, sequence=9)


def test_a_load_shows_in_the_models_entry(status: MemoryStatus) -> None:
    after = then(status, LoadEvent("b", "weights", 0.5), LoadEvent("none", "weights", 0.5))
    assert after.models[1].load == LoadStep("weights", 0.5)
    assert after.models[0] == status.models[0]


def test_a_decision_changes_nothing(status: MemoryStatus) -> None:
    decision = Decision(
        id=1, unix_ms=1, kind="load", model="a", chosen="a", because="x", numbers={}, alternatives=()
    )  # fmt: skip
    assert then(status, as_struct(decision, DecisionEvent)) == status
