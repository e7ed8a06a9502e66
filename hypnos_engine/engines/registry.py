"""Decides which engine serves a kind of model, and says what is missing when none can. Starts nothing."""

from collections.abc import Callable, Collection

from hypnos_engine.domain.errors import ModelNotAvailable
from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.engines.base import Engine
from hypnos_engine.engines.runtimes import WorkerRuntime, default_runtime
from hypnos_engine.engines.spares import Spares, automatic_count, likeliest, system_memory
from hypnos_engine.engines.worker_engine import WorkerEngine

EngineMaker = Callable[[str, EngineKind], Engine]
"""Makes an unloaded engine for a model id; cheap, starts no process. Raises ModelNotAvailable."""


class EngineRegistry:
    """The worker runtimes at hand; the first one that can run a kind runs it."""

    def __init__(self, runtimes: tuple[WorkerRuntime, ...] = ()) -> None:
        """With no runtimes given, the one that belongs to this program."""
        self._runtimes = runtimes or (default_runtime(),)
        self._spares: Spares | None = None

    def keep_spares(
        self, configured: Collection[EngineKind], count: int | None, cap_bytes: int | None = None
    ) -> Spares | None:
        """The pool that engines made from now on are started from; None when there is nothing to keep.

        `configured` has the engine kind of each model, `count` how many spares there are in all (None = as the machine
        allows, or `cap_bytes` for the whole program). The pool does nothing before its `begin`.
        """
        kind = likeliest(configured, self.kinds)
        total_bytes = system_memory().total_bytes
        wanted = automatic_count(min(total_bytes, cap_bytes or total_bytes)) if count is None else count
        runtime = next((runtime for runtime in self._runtimes if kind in runtime.kinds), None)
        if kind is not None and runtime is not None and wanted > 0:
            self._spares = Spares(runtime, kind, wanted)
        return self._spares

    @property
    def kinds(self) -> frozenset[EngineKind]:
        """Engine kinds that can be made."""
        return frozenset[EngineKind]().union(*(runtime.kinds for runtime in self._runtimes))

    def make(self, model: str, kind: EngineKind) -> Engine:
        """An unloaded engine; see EngineMaker."""
        for runtime in self._runtimes:
            if kind in runtime.kinds:
                return WorkerEngine(model, kind, runtime, spares=self._spares)
        available = ", ".join(sorted(self.kinds))
        raise ModelNotAvailable(
            f"The model '{model}' needs the engine '{kind.value}', and no worker program for it is installed. "
            f"Engines of this installation: {available}."
        )
