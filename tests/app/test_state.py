"""The view of an engine after each kind of news."""

from msgspec import structs

from app.state import DECISIONS_KEPT, Ended, Hold, Lost, Phase, Readiness, Snapshot, Told, View, fold
from hypnos_engine.api.memory_fold import as_struct
from hypnos_engine.api.schemas.memory import LoadStep
from hypnos_engine.api.schemas.memory_events import DecisionEvent, LoadEvent, ModelEvent, SnapshotEvent, TotalsEvent
from hypnos_engine.domain.kinds import Residency, Tier
from tests.app.examples import ADDRESS, GIB, STARTING, entry, household, idle_model, ready, status


def decision(number: int, kind: str = "load") -> Told:
    return Told(
        DecisionEvent(
            id=number,
            unix_ms=number,
            kind=kind,
            model="a",
            chosen="",
            because=f"Decision {number}.",
            numbers={},
            alternatives=(),
        )
    )


def test_before_anything_is_known_an_engine_is_starting() -> None:
    assert STARTING.phase is Phase.STARTING
    assert STARTING.memory is None
    assert STARTING.models == ()


def test_a_snapshot_brings_all_models_and_memory() -> None:
    view = ready(*household())
    assert [model.id for model in view.models] == [model.id for model in household()]
    assert view.memory is not None
    assert view.memory.tier1_used_bytes == sum(model.device_bytes for model in household())
    assert not view.memory.one_pool


def test_the_stream_s_first_snapshot_is_the_same_as_a_polled_one() -> None:
    polled = status(*household())
    told = fold(STARTING, Told(as_struct(polled, SnapshotEvent)))
    assert told == fold(STARTING, Snapshot(polled))


def test_a_changed_entry_changes_one_model_only() -> None:
    view = ready(*household())
    changed = as_struct(structs.replace(household()[0], active_leases=7), ModelEvent)
    after = fold(view, Told(changed))
    assert after.models[0].leases == 7
    assert after.models[1:] == view.models[1:]


def test_a_model_that_the_totals_no_longer_name_is_gone() -> None:
    both = status(idle_model("a"), idle_model("b"))
    view = fold(STARTING, Snapshot(both))
    totals = as_struct(both, TotalsEvent, model_ids=("b",))
    assert [model.id for model in fold(view, Told(totals)).models] == ["b"]


def test_a_load_s_progress_is_part_of_its_model() -> None:
    view = ready(entry("a", residency=Residency.LOADING), idle_model("b"))
    after = fold(view, Told(LoadEvent("a", "weights", 0.4)))
    assert after.models[0].progress == 0.4
    assert after.models[1].progress is None


def test_progress_outside_its_range_is_held_to_it() -> None:
    assert ready(entry("a", load=LoadStep("weights", 1.7))).models[0].progress == 1.0


def test_a_model_s_ram_counts_its_worker_its_pages_and_its_parked_conversations() -> None:
    view = ready(entry("a", host_bytes=1 * GIB, held_bytes=2 * GIB, parked_bytes=4 * GIB))
    assert view.models[0].host_bytes == 7 * GIB


def test_an_event_before_any_snapshot_leaves_nothing_known() -> None:
    assert fold(STARTING, Told(LoadEvent("a", "weights", 0.4))) == STARTING


def test_decisions_are_kept_newest_first_and_not_for_ever() -> None:
    view = ready(idle_model())
    for number in range(DECISIONS_KEPT + 10):
        view = fold(view, decision(number))
    assert len(view.decisions) == DECISIONS_KEPT
    assert view.decisions[0].id == DECISIONS_KEPT + 9


def test_readiness_says_what_it_waits_for_until_it_is_ready() -> None:
    waiting = fold(STARTING, Readiness(ready=False, reason="startup tier initialization in progress"))
    assert waiting.phase is Phase.STARTING
    assert "initialization" in waiting.reason
    done = fold(waiting, Readiness(ready=True))
    assert (done.phase, done.reason) == (Phase.READY, "")


def test_a_lost_engine_keeps_what_was_known_and_comes_back_with_its_next_word() -> None:
    view = ready(idle_model())
    lost = fold(view, Lost("It does not answer."))
    assert lost.phase is Phase.UNREACHABLE
    assert lost.models == view.models
    back = fold(lost, Snapshot(status(idle_model())))
    assert (back.phase, back.reason) == (Phase.READY, "")


def test_an_engine_that_ends_is_not_lost_when_it_goes_away() -> None:
    view = fold(ready(idle_model()), Ended("Ending."))
    assert fold(view, Lost("gone")).phase is Phase.ENDING
    assert fold(view, Readiness(ready=False, reason="shutting down")).phase is Phase.ENDING


def test_a_hold_is_seen_and_its_end_too() -> None:
    held = ready(idle_model(), held=True)
    assert held.hold == Hold(None)
    assert fold(held, Snapshot(status(idle_model()))).hold is None


def test_a_model_is_found_by_its_name() -> None:
    view = ready(idle_model("a"), idle_model("b", current_tier=Tier.DISK))
    assert view.model("b") == view.models[1]
    assert view.model("c") is None
    assert View(ADDRESS, own=False).model("a") is None
