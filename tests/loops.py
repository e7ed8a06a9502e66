"""The loops that the program has to run on: a test that takes the fixture `loop_factory` runs once on each."""

import asyncio
import gc
import importlib.util
import os
from collections.abc import Callable, Iterator

import pytest

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")


def _uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _qasync() -> asyncio.AbstractEventLoop:
    import qasync
    from PySide6.QtWidgets import QApplication

    # One that can show widgets: a process has one application, and tests of widgets may run in this one, too.
    loop: asyncio.AbstractEventLoop = qasync.QEventLoop(QApplication.instance() or QApplication([]))
    return loop


FACTORIES: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop, "uvloop": _uvloop, "qasync": _qasync}
# A headless installation has no Qt, and Windows has no uvloop: there is nothing to test there.
INSTALLED = [name for name in FACTORIES if name == "asyncio" or importlib.util.find_spec(name)]


@pytest.fixture(params=INSTALLED)
def loop_factory(request: pytest.FixtureRequest) -> Iterator[LoopFactory]:
    """Each kind of loop in turn."""
    if request.param != "qasync":
        yield FACTORIES[request.param]
        return
    # A loop's Qt objects have to be freed on this thread, not on whichever one a collection happens to start.
    gc.disable()
    try:
        yield FACTORIES[request.param]
    finally:
        gc.collect()
        gc.enable()
