"""When a stream sends its status, what keeps it alive, and that nothing is held once its client is gone."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from hypnos_engine.domain.errors import EngineFailed, InsufficientMemory, InvalidRequest, ModelBusy, WorkerDied
from hypnos_engine.server.options import StreamTimes
from tests.loops import LoopFactory
from tests.server.fake_runtime import WARM, FakeRuntime, Gate, Script
from tests.server.raw_http import read_chunk, read_chunked, read_head
from tests.server.running import Running, chat_body, chat_bytes, running

SOON = StreamTimes(hold_s=0.02, waiting_comment_s=0.02, silent_comment_s=0.02)

WAITING: dict[str, Callable[[Gate], Script]] = {
    "for the lease": lambda gate: Script(before_grant=gate),
    "for the prompt": lambda gate: Script(before_accept=gate),
    "for the next piece": lambda gate: Script(gates={1: gate}),
}


async def events_of(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    """The data of each event, comments skipped."""
    async for line in response.content:
        if line.startswith(b"data: "):
            yield line.decode().removeprefix("data: ").strip()


async def test_the_status_waits_for_the_accepted_prompt(loop_factory: LoopFactory) -> None:
    accept = Gate()
    async with running(FakeRuntime(fake=Script(before_accept=accept))) as server:
        asking = asyncio.ensure_future(server.http.post("/v1/chat/completions", json=chat_body(stream=True)))
        await accept.reached.wait()
        assert not asking.done()
        accept.opened.set()
        async with await asking as response:
            assert response.status == 200
            assert (await response.content.readline()).startswith(b"data: ")


@pytest.mark.parametrize(
    ("script", "status", "wire_type"),
    [
        (Script(refuse=ModelBusy("full")), 429, "model_busy"),
        (Script(refuse=InsufficientMemory("no room")), 507, "insufficient_vram_or_ram"),
        (Script(reject=InvalidRequest("9000 tokens do not fit 8192")), 400, "invalid_request_error"),
        (Script(reject=WorkerDied("killed")), 500, "server_error"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_before_the_prompt_is_accepted_has_its_own_status(
    script: Script, status: int, wire_type: str, stream: bool
) -> None:
    async with running(FakeRuntime(fake=script)) as server:
        answered, body = await server.chat(stream=stream)
    assert (answered, body["error"]["type"]) == (status, wire_type)


async def test_a_long_wait_sends_the_status_and_comments_first(loop_factory: LoopFactory) -> None:
    """wire.md: after `stream_hold_secs` the 200 goes out with comments; failures then are chunks."""
    grant = Gate()
    runtime = FakeRuntime(fake=Script(before_grant=grant, reject=EngineFailed("weights refused")))
    runtime.estimate_ms = 1234.4
    async with running(runtime, stream=SOON) as server, server.raw(chat_bytes(stream=True)) as (reader, _):
        status, headers = await read_head(reader)
        assert [await read_chunk(reader), await read_chunk(reader)] == [b": waiting\n\n"] * 2
        grant.opened.set()
        events = [event for event in (await read_chunked(reader)).split(b"\n\n") if event and event[:1] != b":"]
    assert status == 200
    assert headers["x-hypnos-estimated-wait-ms"] == "1234"
    chunk = json.loads(events[0].removeprefix(b"data: "))
    assert chunk["choices"][0]["finish_reason"] == "error"
    assert chunk["error"] == {"message": "weights refused", "type": "server_error"}
    assert events[1:] == [b"data: [DONE]"]


async def test_a_long_wait_that_ends_well_is_an_ordinary_stream(loop_factory: LoopFactory) -> None:
    grant = Gate()
    async with (
        running(FakeRuntime(fake=Script(before_grant=grant)), stream=SOON) as server,
        server.http.post("/v1/chat/completions", json=chat_body(stream=True)) as response,
    ):
        assert await response.content.readline() == b": waiting\n"
        grant.opened.set()
        chunks = [data async for data in events_of(response)]
    assert json.loads(chunks[0])["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1] == "[DONE]"


async def test_a_silent_model_is_bridged_by_comments(loop_factory: LoopFactory) -> None:
    """§7.4-08."""
    piece = Gate()
    times = StreamTimes(silent_comment_s=0.02)
    async with (
        running(FakeRuntime(fake=Script(gates={1: piece})), stream=times) as server,
        server.raw(chat_bytes(stream=True)) as (reader, _),
    ):
        await read_head(reader)
        await piece.reached.wait()
        seen = b""
        while seen.count(b": keep-alive\n\n") < 3:
            seen += await read_chunk(reader)
        piece.opened.set()
        rest = await read_chunked(reader)
    assert rest.endswith(b"data: [DONE]\n\n")


async def leave(server: Running, gate: Gate, *, stream: bool) -> None:
    """Send a request and close the connection once the script waits at the gate."""
    async with server.raw(chat_bytes(stream=stream)):
        await gate.reached.wait()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("where", WAITING)
async def test_a_client_that_leaves_ends_its_request(loop_factory: LoopFactory, where: str, stream: bool) -> None:
    """§7.4-25, §7.4-26: wherever the request was, waiting or generating, streamed or not."""
    gate = Gate()
    async with running(FakeRuntime(fake=WAITING[where](gate))) as server:
        await leave(server, gate, stream=stream)
        await server.runtime.until(lambda: server.runtime.idle)  # the gate stays shut: only the leaving can end it


async def test_random_disconnects_leave_nothing(loop_factory: LoopFactory) -> None:
    """48 clients over 4 slots, each leaving at a random byte or reading to the end."""
    chance = random.Random(7)
    runtime = FakeRuntime(fake=Script(pieces=("x" * 40,) * 20, max_queue=100))
    async with running(runtime) as server:

        async def client(leave_after_bytes: int | None) -> bytes:
            async with server.raw(chat_bytes(stream=True, headers="Connection: close\r\n")) as (reader, _):
                if leave_after_bytes is None:
                    return await reader.read()
                return await reader.readexactly(leave_after_bytes)

        plans = [None if chance.random() < 0.3 else chance.randrange(0, 3000) for _ in range(48)]
        answers = await asyncio.gather(*map(client, plans))
        await runtime.until(lambda: runtime.idle)
    complete = [answer for answer, plan in zip(answers, plans, strict=True) if plan is None]
    assert complete
    assert all(b"data: [DONE]\n\n" in answer for answer in complete)


async def test_32_streams_each_get_their_own_answer(loop_factory: LoopFactory) -> None:
    """§7.3: four slots, everyone else waits."""
    runtime = FakeRuntime(fake=Script(slots=4, max_queue=32))
    async with running(runtime) as server:

        async def ask() -> list[Any]:
            async with server.http.post("/v1/chat/completions", json=chat_body(stream=True)) as response:
                return [json.loads(data) async for data in events_of(response) if data != "[DONE]"]

        answers = await asyncio.gather(*(ask() for _ in range(32)))
    assert len({answer[0]["id"] for answer in answers}) == 32
    for answer in answers:
        assert {chunk["id"] for chunk in answer} == {answer[0]["id"]}
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in answer) == "Hello, world"


async def count_until_broken(reader: asyncio.StreamReader) -> int:
    received = 0
    with suppress(ConnectionError):
        while piece := await reader.read(65536):
            received += len(piece)
    return received


async def test_a_reader_that_stops_reading_stops_the_generation_and_is_dropped(loop_factory: LoopFactory) -> None:
    """Back-pressure reaches the model, and after `stall_s` without a byte taken the lease comes back."""
    runtime = FakeRuntime(fake=Script(pieces=("x" * 65536,) * 4000))
    async with (
        running(runtime, stall_s=0.3) as server,
        server.raw(chat_bytes(stream=True)) as (reader, _),
    ):
        await runtime.until(lambda: runtime.leases == 1)
        await runtime.until(lambda: runtime.idle)
        received = await count_until_broken(reader)
    assert received < 4000 * 65536 / 2, "the model was not held back"


async def test_stream_and_object_carry_the_same_answer() -> None:
    runtime = FakeRuntime(fake=Script(thoughts=("Well. ",), cached_tokens=3))
    async with running(runtime) as server:
        _, whole = await server.chat(think=True)
        async with server.http.post("/v1/chat/completions", json=chat_body(stream=True, think=True)) as response:
            chunks = [json.loads(data) async for data in events_of(response) if data != "[DONE]"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    message = whole["choices"][0]["message"]
    assert message["content"] == "".join(delta.get("content", "") for delta in deltas) == "Hello, world"
    assert message["reasoning_content"] == "".join(delta.get("reasoning_content", "") for delta in deltas) == "Well. "
    assert whole["usage"] == chunks[-1]["usage"]
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert whole["hypnos_telemetry"]["engine"] == chunks[-1]["hypnos_telemetry"]["engine"]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_ends_without_a_word_is_a_failure(stream: bool) -> None:
    async with (
        running(FakeRuntime(fake=Script(ends_silently=True))) as server,
        server.http.post("/v1/chat/completions", json=chat_body(stream=stream)) as response,
    ):
        text = await response.text()
    assert response.status == (200 if stream else 500)
    assert '"type":"server_error"' in text


@pytest.mark.parametrize("stream", [True, False])
async def test_a_bug_in_the_engine_is_told_without_its_details(stream: bool, expected_log: list[str]) -> None:
    expected_log.append("req-")
    async with (
        running(FakeRuntime(fake=Script(fail=RuntimeError("secret detail")))) as server,
        server.http.post("/v1/chat/completions", json=chat_body(stream=stream)) as response,
    ):
        text = await response.text()
    assert "secret detail" not in text
    assert response.headers["x-request-id"] in text
    assert '"type":"server_error"' in text


async def test_the_estimate_of_an_admitted_request_is_a_header() -> None:
    """§1.2-18..20."""
    known = Script(switch=WARM)
    runtime = FakeRuntime(fake=known)
    async with running(runtime) as server:
        async with server.http.post("/v1/chat/completions", json=chat_body()) as response:
            assert "x-hypnos-estimated-wait-ms" not in response.headers
        known.switch = type(WARM)(WARM.previous_tier, 0.0, None, (), 0.0, 41.7)
        for stream in (True, False):
            async with server.http.post("/v1/chat/completions", json=chat_body(stream=stream)) as response:
                assert response.headers["x-hypnos-estimated-wait-ms"] == "42"
                await response.read()
