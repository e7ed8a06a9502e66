"""Which multi-step tasks are under way and what they ask for next; a guess from here is a hint, never an order."""

from collections import OrderedDict
from dataclasses import dataclass, field

from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler.events import Workflow

IDLE_S = 30.0
"""A task without a request for this long is over (contract §1.2)."""
MOST_RUNS = 4096
"""Tasks that are timed at once; more are served all the same."""
MOST_HABITS = 1024
SURE = 0.6
"""A step is foretold when it followed this often."""
SEEN = 3
"""... out of at least so many times."""
_FADE = 32
"""Habits are halved at this count, so that new ones can win."""


@dataclass(slots=True)
class _Run:
    started_at: float
    last_at: float
    """When its last request arrived or ended."""
    under_way: int = 0
    ends: bool = False


@dataclass(slots=True)
class Workflows:
    """Open tasks and the steps that usually follow each other."""

    _runs: "OrderedDict[tuple[str, str], _Run]" = field(default_factory=OrderedDict)
    _last: "OrderedDict[str, ModelId]" = field(default_factory=OrderedDict)
    """The model that each caller (a task, or else a key) used last."""
    _habits: "OrderedDict[tuple[str, ModelId], dict[ModelId, int]]" = field(default_factory=OrderedDict)

    @property
    def any_open(self) -> bool:
        """True while a task is under way."""
        return bool(self._runs)

    def arrived(self, workflow: Workflow | None, now: float) -> None:
        """Count a request into its task; the first one opens it."""
        if workflow is None:
            return
        name = (workflow.name, workflow.run)
        run = self._runs.get(name)
        if run is None:
            if len(self._runs) >= MOST_RUNS:
                return
            run = self._runs[name] = _Run(now, now)
        run.last_at = now
        run.under_way += 1
        run.ends = run.ends or workflow.ends

    def left(self, workflow: Workflow | None, now: float) -> float | None:
        """Take a request out of its task; returns the task's seconds if that was its declared end."""
        run = None if workflow is None else self._runs.get((workflow.name, workflow.run))
        if workflow is None or run is None:
            return None
        run.under_way -= 1
        run.last_at = now
        if not run.ends or run.under_way > 0:
            return None
        del self._runs[workflow.name, workflow.run]
        return now - run.started_at

    def close_idle(self, now: float) -> list[tuple[str, float]]:
        """End the tasks that have fallen silent; returns their names and seconds up to their last byte."""
        if not self._runs:
            return []
        silent = [name for name, run in self._runs.items() if not run.under_way and now - run.last_at >= IDLE_S]
        return [(name[0], run.last_at - run.started_at) for name in silent for run in (self._runs.pop(name),)]

    def wake_at(self) -> float | None:
        """When `close_idle` has something to do at the earliest."""
        if not self._runs:
            return None
        return min((run.last_at + IDLE_S for run in self._runs.values() if not run.under_way), default=None)

    def step(self, caller: str, model: ModelId) -> ModelId | None:
        """Learn that a caller uses a model now; returns the one that it will probably use next, if it is another."""
        before = self._last.get(caller)
        self._last[caller] = model
        self._last.move_to_end(caller)
        if len(self._last) > MOST_RUNS:
            self._last.popitem(last=False)
        habit = caller.split("/", 1)[0]
        if before is not None:
            self._learn((habit, before), model)
        return self._foretold((habit, model))

    def _learn(self, step: tuple[str, ModelId], then: ModelId) -> None:
        followed = self._habits.setdefault(step, {})
        self._habits.move_to_end(step)
        followed[then] = followed.get(then, 0) + 1
        if followed[then] >= _FADE:
            for other in list(followed):
                followed[other] //= 2
                if not followed[other]:
                    del followed[other]
        if len(self._habits) > MOST_HABITS:
            self._habits.popitem(last=False)

    def _foretold(self, step: tuple[str, ModelId]) -> ModelId | None:
        followed = self._habits.get(step)
        if not followed:
            return None
        likely = max(followed, key=lambda model: (followed[model], model))
        total = sum(followed.values())
        sure = followed[likely] >= SURE * total and total >= SEEN
        return likely if sure and likely != step[1] else None
