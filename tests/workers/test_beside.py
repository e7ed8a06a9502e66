"""Work that goes on beside a native call: its result, or its error, reaches who asks."""

import threading

import pytest

from hypnos_engine.workers.beside import Beside


def test_work_begins_before_its_result_is_wanted() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        may_end.wait()
        return 42

    beside = Beside(work, "work")
    assert begun.wait(30.0)
    may_end.set()
    assert beside.result() == 42


def test_an_error_is_raised_where_the_result_is_wanted() -> None:
    def work() -> None:
        raise ValueError("no")

    beside = Beside(work, "work")
    with pytest.raises(ValueError, match="no"):
        beside.result()
