"""How this suite runs: coroutine tests get a loop of their own, and an unexpected warning in the log fails a test."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import cast

import pytest

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test on a fresh loop; a fixture named `loop_factory` chooses another kind of loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    factory = cast("LoopFactory", pyfuncitem.funcargs.get("loop_factory", asyncio.new_event_loop))
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def expected_log() -> list[str]:
    """Append the beginning of each warning that a test provokes on purpose; anything else fails the test."""
    return []


@pytest.fixture(autouse=True)
def quiet_log(expected_log: list[str]) -> Iterator[None]:
    """Fail a test that logs a warning or an error which it did not announce in `expected_log`."""
    collector = _Collector()
    root = logging.getLogger()
    root.addHandler(collector)
    try:
        yield
    finally:
        root.removeHandler(collector)
    unexpected = [
        f"{record.name}: {record.getMessage()}"
        for record in collector.records
        if not any(record.getMessage().startswith(beginning) for beginning in expected_log)
    ]
    assert not unexpected, "unexpected log records:\n" + "\n".join(unexpected)
