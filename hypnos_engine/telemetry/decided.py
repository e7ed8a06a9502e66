"""What the scheduler decided, counted: by kind, by model, by why somebody waited. Decides nothing itself."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

PLAN_ERROR: Final = "plan_error"


class Decided:
    """Counts since the start of the program. Used on one loop."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        """By reason."""
        self.refused = 0
        """Requests that were refused; one decision can refuse many."""
        self.loads: Counter[str] = Counter()
        """Loads that ended well, by model, like all that follow."""
        self.load_failures: Counter[str] = Counter()
        self.evictions: Counter[str] = Counter()
        self.deaths: Counter[str] = Counter()
        self.restarts: Counter[str] = Counter()
        """Loads after a worker had died or was ended because it had grown."""
        self.plan_errors: dict[str, float] = {}
        """By how much the last plan was wrong, as a fraction of what was measured; positive when it was too small."""
        self._to_restart: set[str] = set()

    def record(self, kind: str, model: str, numbers: Iterable[tuple[str, float]], reason: str = "") -> None:
        """Count one decision. The models are those of the configuration."""
        self.kinds[kind] += 1
        match kind:
            case "loaded":
                self._loaded(model, numbers)
            case "load_failed":
                self.load_failures[model] += 1
            case "evict":
                self.evictions[model] += 1
            case "wait":
                self.waits[reason or "other"] += 1
            case "refuse":
                self.refused += int(dict(numbers).get("requests", 1))
            case "worker_died":
                self.deaths[model] += 1
                self._to_restart.add(model)
            case "grown":
                self._to_restart.add(model)

    def _loaded(self, model: str, numbers: Iterable[tuple[str, float]]) -> None:
        self.loads[model] += 1
        for name, value in numbers:
            if name == PLAN_ERROR:
                self.plan_errors[model] = value
        if model in self._to_restart:
            self._to_restart.discard(model)
            self.restarts[model] += 1
