"""What every response has, and the answers to requests that reach no handler: broken, unknown, too large, too late."""

import asyncio
import json
import re

import pytest

from tests.loops import LoopFactory
from tests.server.fake_runtime import FakeRuntime, Gate, Script
from tests.server.raw_http import read_head, read_response
from tests.server.running import chat_body, chat_bytes, running

ID = re.compile("req-[0-9a-f]{32}")

REQUESTS = {
    "list": (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
    "list of an old client": (b"GET /v1/models HTTP/1.0\r\n\r\n", 200),
    "head": (b"HEAD /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
    "page": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
    "unknown path": (b"GET /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    "unknown path outside": (b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    "wrong method": (b"GET /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    "options": (b"OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    "unmet expectation": (b"GET /health HTTP/1.1\r\nHost: localhost\r\nExpect: the-unexpected\r\n\r\n", 417),
    "not http": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "bad header": (b"GET /health HTTP/1.1\r\nHost: localhost\r\nbad header: \x01\r\n\r\n", 400),
    "bad length": (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
    "long line": (b"GET /" + b"a" * 10000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "wrong host": (b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
    "broken chunks": (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        400,
    ),
    "broken compression": (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Encoding: gzip\r\nContent-Length: 6\r\n\r\nnotgzi",
        400,
    ),
    "unknown compression": (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Encoding: br\r\nContent-Length: 6\r\n\r\nbrotli",
        400,
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_every_response_has_a_request_id(loop_factory: LoopFactory, name: str) -> None:
    """§1.2-01, §1.2-02, §4-01."""
    request, expected = REQUESTS[name]
    async with running() as server, server.raw(request) as (reader, _):
        if request.startswith(b"HEAD"):
            status, headers = await read_head(reader)
            body = b""
        else:
            status, headers, body = await read_response(reader)
    assert status == expected, body
    assert ID.fullmatch(headers["x-request-id"])
    assert headers["server"] == "hypnos/9.8.7"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store" or name == "page"
    assert headers["vary"] == "Origin"
    if expected >= 400:
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type"}
        assert error["type"] == {403: "permission_denied", 404: "not_found"}.get(expected, "invalid_request_error")
        assert headers["content-type"].startswith("application/json")
    if expected == 405:
        assert headers["allow"] == {"wrong method": "POST", "options": "GET, HEAD, POST"}[name]


async def test_request_ids_differ() -> None:
    async with running() as server:
        ids = set()
        for _ in range(20):
            async with server.http.get("/health") as response:
                ids.add(response.headers["x-request-id"])
    assert len(ids) == 20


async def test_health_names_version_and_uptime() -> None:
    """§3-03..06."""
    async with running() as server, server.http.get("/health") as response:
        assert await response.json() == {"status": "ok", "service": "hypnos", "version": "9.8.7", "uptime_secs": 0}


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_body_above_the_limit_is_413_in_plain_text(loop_factory: LoopFactory, chunked: bool) -> None:
    """§1.4-03, §4-18."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    size = b"Transfer-Encoding: chunked\r\n\r\n7d0\r\n" if chunked else b"Content-Length: 2000\r\n\r\n"
    request = head + size + b" " * 2000 + (b"\r\n0\r\n\r\n" if chunked else b"")
    async with running(max_body_bytes=1000) as server, server.raw(request) as (reader, _):
        status, headers, body = await read_response(reader)
    assert status == 413
    assert headers["content-type"] == "text/plain; charset=utf-8"
    assert body == b"The body is larger than limits.max_body_bytes (1000 bytes)."


@pytest.mark.parametrize("stream", [True, False])
async def test_no_headers_in_time_is_408_in_plain_text_and_ends_the_work(
    loop_factory: LoopFactory, stream: bool
) -> None:
    """§1.4-19, §4-17, A-11."""
    runtime = FakeRuntime(fake=Script(before_accept=Gate()))
    async with (
        running(runtime, request_timeout_s=0.05) as server,
        server.http.post("/v1/chat/completions", json=chat_body(stream=stream)) as response,
    ):
        text = await response.text()
        await runtime.until(lambda: runtime.idle)
    assert response.status == 408
    assert response.content_type == "text/plain"
    assert "limits.request_timeout_secs" in text


async def test_the_time_limit_ends_with_the_headers(loop_factory: LoopFactory) -> None:
    """§1.4-20, §7.4-27: a stream lives longer than the limit."""
    late = Gate()
    times_up = 0.05
    async with (
        running(FakeRuntime(fake=Script(gates={1: late})), request_timeout_s=times_up) as server,
        server.http.post("/v1/chat/completions", json=chat_body(stream=True)) as response,
    ):
        passed = asyncio.Event()
        asyncio.get_running_loop().call_later(3 * times_up, passed.set)
        await passed.wait()
        late.opened.set()
        assert (await response.read()).endswith(b"data: [DONE]\n\n")


async def test_a_large_body_is_decoded_off_the_loop() -> None:
    filler = "x" * 3_000_000
    async with (
        running(max_prompt_chars=5_000_000) as server,
        server.raw(chat_bytes(messages=[{"role": "user", "content": filler}])) as (reader, _),
    ):
        status, _, _ = await read_response(reader)
    assert status == 200
    assert server.runtime.said[0].messages[0].text() == filler


async def test_a_large_broken_body_is_400() -> None:
    request = chat_bytes(messages=[{"role": "user", "content": "x" * 2_000_000}])
    async with running() as server, server.raw(request[:-1] + b"]") as (reader, _):
        status, _, _ = await read_response(reader)
    assert status == 400


async def test_a_flood_of_empty_messages_is_refused_before_a_model_sees_it() -> None:
    request = chat_bytes(messages=[{"role": "user", "content": ""}] * 300_000)
    async with running() as server, server.raw(request) as (reader, _):
        status, _, body = await read_response(reader)
    assert status == 400
    assert json.loads(body)["error"]["message"] == "messages: 300000 messages; a request may have 10000."
    assert server.runtime.asks == []


async def test_two_requests_on_one_connection() -> None:
    async with running() as server, server.raw(chat_bytes() + chat_bytes()) as (reader, _):
        answers = [await read_response(reader) for _ in range(2)]
    assert [status for status, _, _ in answers] == [200, 200]
    assert answers[0][1]["x-request-id"] != answers[1][1]["x-request-id"]


async def test_a_client_that_waits_for_100_continue_is_served() -> None:
    request = chat_bytes(headers="Expect: 100-continue\r\n")
    head, body = request.split(b"\r\n\r\n", 1)
    async with running() as server, server.raw(head + b"\r\n\r\n") as (reader, writer):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        status, _, _ = await read_response(reader)
    assert status == 200


async def test_the_access_log_names_the_request_and_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hypnos.http")
    async with running() as server:
        headers = {"Authorization": "Bearer very-secret"}
        async with server.http.post("/v1/chat/completions?token=hidden", json=chat_body(), headers=headers) as response:
            request_id = response.headers["x-request-id"]
    lines = [record.getMessage() for record in caplog.records if record.name == "hypnos.http"]
    assert len(lines) == 1
    assert re.fullmatch(rf"{request_id} POST /v1/chat/completions 200 \d+B \d+\.\d+s 127\.0\.0\.1", lines[0])
