"""Engine tests run on every loop, with worker programs that behave badly on purpose."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.engines.runtimes import WorkerRuntime
from tests.loops import loop_factory

__all__ = ["bad_runtime", "loop_factory"]

BAD_WORKER = Path(__file__).with_name("bad_worker.py")


@pytest.fixture
def bad_runtime() -> Callable[[str], WorkerRuntime]:
    """Makes a runtime whose worker misbehaves in the way that is named."""

    def make(mode: str) -> WorkerRuntime:
        return WorkerRuntime("bad", (sys.executable, "-P", str(BAD_WORKER), mode), frozenset({EngineKind.FAKE}))

    return make
