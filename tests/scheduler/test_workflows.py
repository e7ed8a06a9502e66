"""Tasks of several steps: when one is over, how long it took, and what it usually asks for next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.domain.errors import LoadFailed
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.workflows import IDLE_S, MOST_HABITS, MOST_RUNS, SEEN, SURE, Workflows
from tests.scheduler.world import GIB, World

A, B, C = ModelId("a"), ModelId("b"), ModelId("c")
STEP, LAST = ev.Workflow("voice", "1"), ev.Workflow("voice", "1", ends=True)


def world() -> World:
    return World({"a": GIB, "b": GIB}, budget_bytes=8 * GIB)


# --- in the scheduler -----------------------------------------------------------------------------------------------


def test_a_task_lasts_from_its_first_request_to_the_last_byte_of_its_declared_end() -> None:
    on = world()
    on.serve("a", takes_s=2.0, workflow=STEP)
    on.pass_time(5.0)
    on.serve("b", takes_s=3.0, workflow=LAST)
    assert on.workflows == [fx.WorkflowEnded("voice", pytest.approx(10.0))]  # type: ignore[arg-type]  # close enough


def test_the_declared_end_waits_for_steps_that_still_run() -> None:
    on = world()
    long = on.arrive("a", workflow=STEP)
    on.finish_load("a")
    on.serve("a", takes_s=1.0, workflow=LAST)
    assert not on.workflows
    on.pass_time(4.0)
    on.end(long)
    assert on.workflows == [fx.WorkflowEnded("voice", 5.0)]


def test_a_task_that_falls_silent_ends_after_thirty_seconds_and_lasted_to_its_last_byte() -> None:
    on = world()
    on.serve("a", takes_s=7.0, workflow=STEP)
    on.pass_time(IDLE_S - 0.1)
    assert not on.workflows
    on.pass_time(0.1)
    assert on.workflows == [fx.WorkflowEnded("voice", 7.0)]


def test_a_step_that_still_runs_or_waits_keeps_the_task_open() -> None:
    on = world()
    on.arrive("a", workflow=STEP)
    on.pass_time(100.0)
    on.finish_load("a")
    on.pass_time(100.0)
    on.end(next(iter(on.leases)))
    assert not on.workflows
    on.pass_time(IDLE_S)
    assert on.workflows == [fx.WorkflowEnded("voice", 200.0)]


def test_two_runs_of_a_task_are_two() -> None:
    on = world()
    for run in ("1", "2"):
        on.serve("a", takes_s=1.0, workflow=ev.Workflow("voice", run, ends=True))
    assert on.workflows == [fx.WorkflowEnded("voice", 1.0)] * 2


def test_a_step_that_is_cancelled_or_refused_ends_too() -> None:
    on = world()
    on.serve("a", takes_s=4.0, workflow=STEP)
    on.cancel(on.arrive("b", workflow=STEP))
    on.finish_load("b")
    on.pass_time(2.0)
    on.die("a")
    on.arrive("a", workflow=LAST)
    on.pass_time(1.0)
    on.fail_load("a", LoadFailed("damaged"))
    assert on.workflows == [fx.WorkflowEnded("voice", 7.0)]


def test_a_step_whose_deadline_passes_ends_too() -> None:
    on = world()
    on.arrive("a", workflow=LAST, deadline_s=5.0)
    on.pass_time(5.0)
    assert on.workflows == [fx.WorkflowEnded("voice", 5.0)]


def test_a_step_that_never_entered_the_queue_belongs_to_no_task() -> None:
    on = world()
    on.arrive("nobody", workflow=STEP)
    on.pass_time(100.0)
    assert not on.workflows


# --- alone ----------------------------------------------------------------------------------------------------------


def test_more_tasks_than_are_timed_are_served_all_the_same() -> None:
    tasks = Workflows()
    for run in range(MOST_RUNS):
        tasks.arrived(ev.Workflow("w", str(run)), 0.0)
    one_too_many = ev.Workflow("w", "more", ends=True)
    tasks.arrived(one_too_many, 0.0)
    assert tasks.left(one_too_many, 1.0) is None
    assert tasks.wake_at() is None


def test_requests_outside_of_tasks_are_nothing_to_it() -> None:
    tasks = Workflows()
    tasks.arrived(None, 0.0)
    assert tasks.left(None, 1.0) is None
    assert tasks.close_idle(1e9) == []
    assert tasks.wake_at() is None


def test_a_habit_that_changed_is_replaced_by_the_new_one() -> None:
    """However long the old one lasted, the new one is foretold after some dozens of steps."""
    tasks = Workflows()
    for _ in range(1000):
        tasks.step("key:k", A)
        tasks.step("key:k", B)
    assert tasks.step("key:k", A) == B
    foretold = []
    for _ in range(60):
        tasks.step("key:k", C)
        foretold.append(tasks.step("key:k", A))
    assert foretold[-1] == C


def test_what_happened_once_long_ago_is_forgotten() -> None:
    """A habit of one in two stays below what is foretold; the rare steps between fade away, and then it counts."""
    tasks = Workflows()
    for stranger in range(10):
        tasks.step("key:k", A)
        tasks.step("key:k", ModelId(f"once {stranger}"))
    for _ in range(14):
        tasks.step("key:k", A)
        tasks.step("key:k", B)
    assert tasks.step("key:k", A) is None
    for _ in range(18):
        tasks.step("key:k", B)
        tasks.step("key:k", A)
    assert tasks.step("key:k", A) == B


def test_a_step_to_the_same_model_is_foretold_by_nothing() -> None:
    tasks = Workflows()
    assert {tasks.step("key:k", A) for _ in range(10)} == {None}


def test_runs_of_one_task_share_its_habits() -> None:
    tasks = Workflows()
    for run in range(SEEN):
        tasks.step(f"task:w/{run}", A)
        tasks.step(f"task:w/{run}", B)
    assert tasks.step("task:w/new", A) == B
    assert tasks.step("task:x/new", A) is None


def test_what_is_remembered_is_bounded() -> None:
    tasks = Workflows()
    for caller in range(MOST_RUNS + 10):
        tasks.step(f"key:{caller}", A)
    assert tasks.step("key:0", B) is None, "the oldest caller is forgotten, so nothing is learnt from it"
    for _ in range(SEEN):
        tasks.step("key:old", A)
        tasks.step("key:old", B)
    assert tasks.step("key:old", A) == B
    for model in range(MOST_HABITS + 1):
        tasks.step("key:new", ModelId(f"m{model}"))
    assert tasks.step("key:old", A) is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([A, B, C])), max_size=200))
def test_only_what_followed_often_enough_is_foretold(steps: list[tuple[str, ModelId]]) -> None:
    """Against a plain count, as long as nothing has faded (up to 31 times)."""
    tasks = Workflows()
    counts: dict[tuple[str, ModelId], dict[ModelId, int]] = {}
    last: dict[str, ModelId] = {}
    for key, model in steps:
        if key in last:
            followed = counts.setdefault((key, last[key]), {})
            followed[model] = followed.get(model, 0) + 1
            if followed[model] >= 31:
                return
        last[key] = model
        foretold = tasks.step(f"key:{key}", model)
        followed = counts.get((key, model), {})
        total = sum(followed.values())
        sure = {then for then, often in followed.items() if then != model and total >= SEEN and often >= SURE * total}
        assert {foretold} - {None} == sure


@given(
    st.lists(
        st.tuples(st.sampled_from("12"), st.sampled_from(["arrive", "end", "last"]), st.floats(0.0, 40.0)), max_size=60
    )
)
def test_every_task_ends_once_and_lasts_no_longer_than_it_was_open(story: list[tuple[str, str, float]]) -> None:
    tasks = Workflows()
    now, ended, begun = 0.0, 0, 0
    running: dict[str, int] = {}
    """Steps under way, by open task."""
    last: dict[str, float] = {}
    for run, what, wait in story:
        now += wait
        closed = tasks.close_idle(now)
        silent = [name for name, count in running.items() if not count and now - last[name] >= IDLE_S]
        assert len(closed) == len(silent)
        assert all(name == "w" and 0.0 <= seconds <= now for name, seconds in closed)
        ended += len(closed)
        running = {name: count for name, count in running.items() if name not in silent}
        if what != "end":
            begun += run not in running
            running[run] = running.get(run, 0) + 1
            last[run] = now
            tasks.arrived(ev.Workflow("w", run, ends=what == "last"), now)
        elif running.get(run):
            last[run] = now
            running[run] -= 1
            seconds_open = tasks.left(ev.Workflow("w", run), now)
            if seconds_open is not None:
                assert 0.0 <= seconds_open <= now
                assert not running.pop(run)
                ended += 1
    for run, count in running.items():
        ended += sum(tasks.left(ev.Workflow("w", run), now) is not None for _ in range(count))
    ended += len(tasks.close_idle(now + IDLE_S + 1.0))
    assert ended == begun
    assert tasks.wake_at() is None
