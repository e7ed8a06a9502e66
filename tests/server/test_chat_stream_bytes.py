"""The exact bytes and order of a stream (contract §7.4), read from a plain socket, on every loop."""

import json
import re

from hypnos_engine.domain.errors import EngineFailed
from tests.loops import LoopFactory
from tests.server.fake_runtime import FakeRuntime, Script
from tests.server.raw_http import read_chunked, read_head
from tests.server.running import chat_bytes, running


async def test_a_stream_has_the_bytes_of_the_contract(loop_factory: LoopFactory) -> None:
    """§7.4-01..20: role first, thoughts before content, the last chunk with usage and telemetry, then [DONE]."""
    runtime = FakeRuntime(fake=Script(pieces=("Hi", ' "you"\n', "…🦊"), thoughts=("Hm", "m"), cached_tokens=4))
    async with running(runtime) as server, server.raw(chat_bytes(stream=True, think=True)) as (reader, _):
        status, headers = await read_head(reader)
        body = await read_chunked(reader)

    assert status == 200
    assert headers["content-type"] == "text/event-stream"
    assert re.fullmatch("req-[0-9a-f]{32}", headers["x-request-id"])
    events = body.split(b"\n\n")
    assert events.pop() == b""
    assert events.pop() == b"data: [DONE]"
    identity = re.match(rb'data: \{"id":"(chatcmpl-[0-9a-f]{32})",.*?"created":(\d+),', events[0])
    assert identity is not None
    start = (
        b'data: {"id":"%b","object":"chat.completion.chunk","created":%b,"model":"fake","choices":[{"index":0,"delta":'
        % identity.groups()
    )
    last = events.pop()
    assert events == [
        start + delta + b',"finish_reason":null}]}'
        for delta in (
            b'{"role":"assistant","content":""}',
            b'{"reasoning_content":"Hm"}',
            b'{"reasoning_content":"m"}',
            b'{"content":"Hi"}',
            rb'{"content":" \"you\"\n"}',
            '{"content":"…🦊"}'.encode(),
        )
    ]
    assert last.startswith(
        start + b'{},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,'
        b'"prompt_tokens_details":{"cached_tokens":4}},"hypnos_telemetry":{"previous_tier":"tier1_gpu_vram","placement":{'
    )
    telemetry = json.loads(last.removeprefix(b"data: "))["hypnos_telemetry"]
    assert telemetry["engine"] == {"prefill_ms": 1.5, "decode_ms": 2.25, "cached_tokens": 0, "concurrent_slots": 1}
    assert "error" not in json.loads(last.removeprefix(b"data: "))


async def test_a_failure_midway_is_the_last_chunk(loop_factory: LoopFactory) -> None:
    """§7.4-21..24."""
    runtime = FakeRuntime(fake=Script(pieces=("Hi",), fail=EngineFailed("the worker was killed")))
    async with running(runtime) as server, server.raw(chat_bytes(stream=True)) as (reader, _):
        status, _ = await read_head(reader)
        events = (await read_chunked(reader)).split(b"\n\n")

    assert status == 200
    assert events[-2:] == [b"data: [DONE]", b""]
    chunk = json.loads(events[-3].removeprefix(b"data: "))
    assert chunk["choices"] == [{"index": 0, "delta": {}, "finish_reason": "error"}]
    assert chunk["error"] == {"message": "the worker was killed", "type": "server_error"}
    assert "usage" not in chunk
