"""Decides which engine serves a kind of model, and says what is missing when none can. Starts nothing."""

from collections.abc import Callable

from hypnos_engine.domain.errors import ModelNotAvailable
from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.engines.base import Engine
from hypnos_engine.engines.runtimes import WorkerRuntime, default_runtime
from hypnos_engine.engines.worker_engine import WorkerEngine

EngineMaker = Callable[[str, EngineKind], Engine]
"""Makes an unloaded engine for a model id; cheap, starts no process. Raises ModelNotAvailable."""


class EngineRegistry:
    """The worker runtimes at hand; the first one that can run a kind runs it."""

    def __init__(self, runtimes: tuple[WorkerRuntime, ...] = ()) -> None:
        """With no runtimes given, the one that belongs to this program."""
        self._runtimes = runtimes or (default_runtime(),)

    @property
    def kinds(self) -> frozenset[EngineKind]:
        """Engine kinds that can be made."""
        return frozenset[EngineKind]().union(*(runtime.kinds for runtime in self._runtimes))

    def make(self, model: str, kind: EngineKind) -> Engine:
        """An unloaded engine; see EngineMaker."""
        for runtime in self._runtimes:
            if kind in runtime.kinds:
                return WorkerEngine(model, kind, runtime)
        available = ", ".join(sorted(self.kinds))
        raise ModelNotAvailable(
            f"The model '{model}' needs the engine '{kind.value}', and no worker program for it is installed. "
            f"Engines of this installation: {available}."
        )
