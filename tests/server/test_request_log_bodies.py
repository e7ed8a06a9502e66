"""What the request log sees of bodies however they come, and that it sees nothing of them below its levels."""

import gzip
from io import BytesIO

import msgspec

from hypnos_engine.config.choices import LogLevel
from hypnos_engine.server.app import make_app
from hypnos_engine.server.options import LogTerms
from hypnos_engine.server.request_log import REQUEST_LOG
from tests.loops import LoopFactory
from tests.server.fake_runtime import FakeRuntime
from tests.server.running import OPTIONS, chat_body, running

CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}
TRACE = LogTerms(level=LogLevel.TRACE)


async def test_a_packed_body_is_shown_unpacked(loop_factory: LoopFactory) -> None:
    body = gzip.compress(msgspec.json.encode(chat_body()))
    async with running(request_log=TRACE) as server:
        async with server.http.post(CHAT, data=body, headers={**JSON, "Content-Encoding": "gzip"}) as response:
            assert response.status == 200
        async with server.http.get("/v1/logs") as response:
            (record,) = (await response.json())["records"]
    assert msgspec.json.decode(record["request_payload"]) == chat_body()


async def test_a_conversation_in_a_file_is_named_by_its_size(loop_factory: LoopFactory) -> None:
    body = BytesIO(msgspec.json.encode(chat_body(messages=[{"role": "user", "content": "x" * 900_000}] * 2)))
    async with running(request_log=TRACE, max_prompt_chars=10**7) as server:
        async with server.http.post(CHAT, data=body, headers=JSON) as response:
            assert response.status == 200
        async with server.http.get("/v1/logs") as response:
            (record,) = (await response.json())["records"]
    assert record["input"].endswith("bytes of conversation)")
    assert record["request_payload"].startswith('{"model":"fake"')
    assert record["truncated"]


async def test_a_body_that_is_no_json_is_shown_and_a_refused_size_leaves_a_record() -> None:
    async with running(request_log=TRACE, max_body_bytes=2000) as server:
        for data, status in ((b'{"model": \xff', 400), (b"x" * 3000, 413)):
            async with server.http.post(CHAT, data=data, headers=JSON) as response:
                assert response.status == status
        async with server.http.get("/v1/logs") as response:
            large, broken = (await response.json())["records"]
    assert broken["request_payload"] == '{"model": \ufffd'
    assert (broken["model"], broken["error_type"]) == (None, "invalid_request_error")
    assert (large["status"], large["error_type"], large["request_payload"]) == (413, "payload_too_large", "")


async def test_below_debug_no_text_is_kept_even_while_a_call_runs() -> None:
    app = make_app(runtime := FakeRuntime(), OPTIONS)
    async with running(runtime, app=app) as server:
        for number in range(20):
            await server.chat(messages=[{"role": "user", "content": f"text {number}"}])
            assert app[REQUEST_LOG].captured_bytes == 0
        async with server.http.get("/v1/logs") as response:
            assert "text 1" not in await response.text()
