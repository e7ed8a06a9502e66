"""Nothing that a client sends holds the server's loop for more than 10 ms while it streams tokens to another."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import aiohttp
import pytest

from tests.server.probing import MIB, Figures, ProbedEngine, large_bodies, probed

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="the probe reads what Linux and macOS tell of a process"
)

T = TypeVar("T")

STALL_MS = 10.0
ATTEMPTS = 3
"""What the machine does meanwhile is in the figures, too: what holds the loop does so each time."""
ANY_LENGTH = "[limits]\nmax_prompt_chars = 100000000\n"


@asynccontextmanager
async def streaming(engine: ProbedEngine, model: str, request: str) -> AsyncIterator[aiohttp.ClientSession]:
    """A client, while another one reads a stream without an end from the engine."""
    async with aiohttp.ClientSession(engine.address) as http:
        while True:
            async with http.get("/ready") as response:
                if response.status == 200:
                    break
        flowing = asyncio.Event()
        reading = asyncio.create_task(_read_without_end(http, model, request, flowing))
        flowed = asyncio.create_task(flowing.wait())
        try:
            await asyncio.wait((reading, flowed), return_when=asyncio.FIRST_COMPLETED)
            yield http
            assert not reading.done(), "the stream went on"
        finally:
            reading.cancel()
            flowed.cancel()
            await asyncio.wait((reading, flowed))


async def _read_without_end(http: aiohttp.ClientSession, model: str, request: str, flowing: asyncio.Event) -> None:
    body = {"model": model, "stream": True, "max_tokens": 8000, "messages": [{"role": "user", "content": request}]}
    while True:
        async with http.post("/v1/chat/completions", json=body) as stream:
            assert stream.status == 200
            async for _ in stream.content.iter_any():
                flowing.set()


async def _post(http: aiohttp.ClientSession, body: bytes) -> tuple[int, bytes]:
    headers = {"Content-Type": "application/json"}
    async with http.post("/v1/chat/completions", data=BytesIO(body), headers=headers) as response:
        return response.status, await response.read()


async def _calmest(engine: ProbedEngine, attempt: Callable[[], Awaitable[T]]) -> tuple[T, Figures]:
    """Try until nothing held the loop, or often enough; the last answer and what was seen with it."""
    left = ATTEMPTS
    while True:
        answer, figures, left = await attempt(), engine.figures(), left - 1
        if figures.stall_ms < STALL_MS or not left:
            return answer, figures


async def _post_all(engine: ProbedEngine, http: aiohttp.ClientSession, model: str, size_bytes: int) -> dict[str, int]:
    """Statuses by the kind of body; fails for any that held the loop."""
    engine.figures()
    held: set[str] = set()
    statuses = {}
    for name, body in large_bodies(model, size_bytes).items():
        (statuses[name], answer), figures = await _calmest(engine, lambda body=body: _post(http, body))  # type: ignore[misc]
        if statuses[name] != 200:
            assert len(json.loads(answer)["error"]["message"]) < 1000
        if figures.stall_ms >= STALL_MS:
            held.add(f"{name}: {figures.worst_ms}")
        print(f"{size_bytes >> 20:3} MiB {name:18} {statuses[name]} {figures.worst_ms} lag {figures.lag_ms:.1f} ms")
    assert not held
    _wait_for_no_file(engine)
    return statuses


def _wait_for_no_file(engine: ProbedEngine) -> None:
    """Return when no body lies in a file; a large file takes a moment to be given up."""
    while engine.figures().spooled:
        pass


@pytest.mark.parametrize("size", [1, pytest.param(5, marks=pytest.mark.slow), 20])
async def test_no_body_holds_the_loop(tmp_path: Path, size: int) -> None:
    with probed(tmp_path, demo=True, config=ANY_LENGTH) as engine:
        async with streaming(engine, "demo", "Say 50000 words") as http:
            statuses = await _post_all(engine, http, "demo", size * MIB)
    assert statuses.pop("unknown field") == 200
    assert statuses.pop("wide text") == 200
    assert set(statuses.values()) == {400}


@pytest.mark.slow
async def test_the_largest_body_does_not_hold_the_loop(tmp_path: Path) -> None:
    """`limits.max_body_bytes` of them, at its default; the server's own memory stays far below."""
    picture = b'[{"type":"image_url","image_url":{"url":"data:image/png;base64,%b"}}]' % (b"QUJD" * (255 * MIB // 4))
    body = b'{"model":"demo","messages":[{"role":"user","content":%b}]}' % picture
    with probed(tmp_path, demo=True) as engine:
        async with streaming(engine, "demo", "Say 50000 words") as http:
            before = engine.figures()
            (status, answer), after = await _calmest(engine, lambda: _post(http, body))
            _wait_for_no_file(engine)
    assert status == 400
    assert b"does not serve vision" in answer
    assert after.stall_ms < STALL_MS, after
    assert after.peak_bytes - before.peak_bytes < 32 * MIB


@pytest.mark.slow
async def test_five_bodies_that_come_together_do_not_hold_the_loop(tmp_path: Path) -> None:
    with probed(tmp_path, demo=True) as engine:
        async with streaming(engine, "demo", "Say 50000 words") as http:
            engine.figures()
            kinds = ("text", "wide text", "picture", "small values", "unknown field")
            bodies = large_bodies("demo", 5 * MIB)
            answers, figures = await _calmest(
                engine, lambda: asyncio.gather(*(_post(http, bodies[kind]) for kind in kinds))
            )
            _wait_for_no_file(engine)
    assert {status for status, _ in answers} == {200, 400}
    assert figures.stall_ms < STALL_MS, figures


@pytest.mark.slow
@pytest.mark.starter
async def test_no_body_holds_a_real_models_stream(tmp_path: Path) -> None:
    with probed(tmp_path, demo=False) as engine:
        model, story = "smollm2:135m", "Tell me a very long story about the sea, with many details."
        for size in (1, 20):
            async with streaming(engine, model, story) as http:
                await _post_all(engine, http, model, size * MIB)
