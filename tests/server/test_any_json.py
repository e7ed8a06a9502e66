"""No JSON makes the server fail: every body ends in an answer or in a 4xx."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hypnos_engine.api.decoding import decode_json
from hypnos_engine.api.schemas.chat import ChatRequest
from hypnos_engine.domain.errors import InvalidRequest
from hypnos_engine.server.chat_request import read_chat
from hypnos_engine.server.options import ServerOptions
from tests.server.fake_runtime import FakeRuntime
from tests.server.running import serving_in_thread

OPTIONS = ServerOptions(version="0")

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
ANY_JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)
TEXT = st.text(max_size=20)
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image_url", "input_audio", "video"])},
    optional={
        "text": TEXT | ANY_JSON,
        "image_url": st.fixed_dictionaries({"url": TEXT}) | ANY_JSON,
        "input_audio": st.fixed_dictionaries({"data": TEXT}) | ANY_JSON,
    },
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "robot"])},
    optional={
        "content": TEXT | st.lists(PART, max_size=3) | ANY_JSON,
        "tool_calls": st.lists(st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": TEXT})})) | ANY_JSON,
        "name": TEXT | ANY_JSON,
    },
)
NUMBER = st.integers() | st.floats() | st.none() | SCALARS
BODY = st.fixed_dictionaries(
    {"model": st.just("fake") | ANY_JSON, "messages": st.lists(MESSAGE, min_size=1, max_size=3) | ANY_JSON},
    optional={
        **dict.fromkeys(("max_tokens", "max_completion_tokens", "num_ctx", "top_k", "seed", "top_p"), NUMBER),
        "temperature": NUMBER,
        "stop": TEXT | st.lists(TEXT, max_size=5) | ANY_JSON,
        "stream": st.booleans() | ANY_JSON,
        "reasoning_effort": st.sampled_from(["none", "low", "max"]) | ANY_JSON,
        "tools": ANY_JSON,
        "tool_choice": st.sampled_from(["auto", "none", "required"]) | ANY_JSON,
    },
)


@given(ANY_JSON | BODY)
@example({"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "seed": 2**64})
@example({"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1e308, "top_k": -1e308})
def test_any_value_is_a_call_or_an_invalid_request(value: Any) -> None:
    try:
        call = read_chat(decode_json(json.dumps(value).encode(), ChatRequest), OPTIONS)
    except InvalidRequest:
        return
    assert 1 <= call.max_tokens <= OPTIONS.max_tokens_cap
    assert call.sampling.seed is None or -(2**63) <= call.sampling.seed < 2**64
    assert call.num_ctx is None or 1 <= call.num_ctx < 2**31


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving_in_thread(FakeRuntime()) as address:
        yield address


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=BODY)
def test_any_body_over_http_is_answered_without_a_5xx(address: str, body: Any) -> None:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=10)
    try:
        payload = json.dumps(body).encode()
        connection.request("POST", "/v1/chat/completions", payload, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
    finally:
        connection.close()
    assert response.status < 500, answer
    assert b"server_error" not in answer
