"""Patterns that take for ever, and more texts than are looked through at once: no text passes, and nothing waits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psutil

from hypnos_engine.config.choices import LogLevel
from hypnos_engine.server.options import LogTerms
from hypnos_engine.server.redacting import BLANK
from hypnos_engine.server.request_log import REDACTED_AT_ONCE, Ended, RequestLog
from hypnos_engine.telemetry.calls import Call
from tests.loops import LoopFactory

ENDLESS = r"(a+)+$"
TEXT = "a" * 60 + "b"


@asynccontextmanager
async def log_with(pattern: str, within_s: float) -> AsyncIterator[RequestLog]:
    before = {child.pid for child in psutil.Process().children()}
    log = RequestLog(LogTerms(level=LogLevel.DEBUG, patterns=(pattern,)), redact_within_s=within_s)
    try:
        yield log
    finally:
        await log.stop()
    assert {child.pid for child in psutil.Process().children()} <= before


def leave(log: RequestLog, number: int, text: str) -> None:
    call = Call()
    log.open(call)
    assert call.input is not None
    call.input.add(text.encode())
    log.close(call, Ended(f"req-{number}", "/v1/x", "POST", 200, "local", 0.1, None, None, quotes=False, secret=""))


def records(log: RequestLog) -> list[Any]:
    page = log.ring.page(lambda _: True, most=1000, most_bytes=10**9)
    return [msgspec.json.decode(one) for one in page.records]


async def all_settled(log: RequestLog) -> None:
    async with asyncio.timeout(100):
        while log.unsettled:
            await log.settled()


async def test_a_pattern_that_takes_for_ever_blanks_the_text_and_holds_nothing(loop_factory: LoopFactory) -> None:
    async with log_with(ENDLESS, within_s=0.5) as log:
        leave(log, 1, TEXT)
        await all_settled(log)
        assert [record["input"] for record in records(log)] == [BLANK]


async def test_the_end_does_not_wait_for_a_pattern(loop_factory: LoopFactory) -> None:
    async with log_with(ENDLESS, within_s=600.0) as log:
        leave(log, 1, TEXT)
    assert [record["input"] for record in records(log)] == [BLANK]


async def test_texts_beyond_those_that_are_looked_through_at_once_are_blanked() -> None:
    async with log_with("zzz", within_s=60.0) as log:
        for number in range(REDACTED_AT_ONCE + 3):
            leave(log, number, f"text {number}")
        assert {record["input"] for record in records(log)} == {BLANK}
        await all_settled(log)
        texts = [f"text {number}" for number in range(REDACTED_AT_ONCE)]
        assert [record["input"] for record in records(log)] == [*[BLANK] * 3, *texts[::-1]]
        assert log.captured_bytes == 0
