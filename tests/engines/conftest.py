"""The loops that the program runs on, and worker programs that behave badly on purpose."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.engines.runtimes import WorkerRuntime

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

BAD_WORKER = Path(__file__).with_name("bad_worker.py")


@pytest.fixture(params=["asyncio", "uvloop", "qasync"])
def loop_factory(request: pytest.FixtureRequest) -> Iterator[LoopFactory]:
    """Each kind of loop in turn; a coroutine test that asks for it runs there."""
    if request.param == "asyncio":
        yield asyncio.new_event_loop
    elif request.param == "uvloop":
        yield uvloop.new_event_loop
    else:
        yield from _qt_loop()


def _qt_loop() -> Iterator[LoopFactory]:
    import qasync
    from PySide6.QtCore import QCoreApplication

    existing = QCoreApplication.instance()
    application = existing or QCoreApplication([])
    yield lambda: qasync.QEventLoop(application)
    if existing is None:
        application.shutdown()


@pytest.fixture
def bad_runtime() -> Callable[[str], WorkerRuntime]:
    """Makes a runtime whose worker misbehaves in the way that is named."""

    def make(mode: str) -> WorkerRuntime:
        return WorkerRuntime("bad", (sys.executable, "-P", str(BAD_WORKER), mode), frozenset({EngineKind.FAKE}))

    return make
