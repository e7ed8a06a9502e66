"""What a chat body means (contract §7.1 and the decoding rules of wire.md), without a server."""

import json
from typing import Any

import pytest

from hypnos_engine.api.decoding import decode_json
from hypnos_engine.api.schemas.chat import REASONING_EFFORTS, ChatRequest
from hypnos_engine.domain.errors import InvalidRequest
from hypnos_engine.domain.kinds import Modality
from hypnos_engine.ipc import messages as m
from hypnos_engine.server.chat_request import ChatCall, read_chat
from hypnos_engine.server.options import ServerOptions

OPTIONS = ServerOptions(version="0", max_tokens_cap=1000, max_prompt_chars=60)
USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}


def read(options: ServerOptions = OPTIONS, /, **fields: Any) -> ChatCall:
    body = {"model": "fake", "messages": [USER], **fields}
    return read_chat(decode_json(json.dumps(body).encode(), ChatRequest), options)


def test_the_defaults() -> None:
    """§7.1-12..18."""
    call = read()
    assert (call.max_tokens, call.num_ctx, call.stop, call.thinking, call.stream) == (512, None, (), False, False)
    assert call.sampling == m.Sampling()


def test_null_is_absent_for_every_optional_field() -> None:
    """A-06."""
    optional = set(ChatRequest.__struct_fields__) - {"model", "messages"}
    assert read(**dict.fromkeys(optional)) == read()


def test_unknown_fields_and_those_of_openai_are_ignored() -> None:
    """§1.1-20, §7.1-40..43."""
    ignored = {"n": 7, "logprobs": "x", "response_format": 3, "user": [], "functions": {}, "function_call": 1,
               "parallel_tool_calls": "?", "presence_penalty": "a", "frequency_penalty": [], "logit_bias": 1,
               "stream_options": {"include_usage": True}, "never_heard_of": None}  # fmt: skip
    assert read(**ignored) == read()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({"max_tokens": 256.0}, 256), ({"max_tokens": 5000}, 1000), ({"max_completion_tokens": 20}, 20),
     ({"max_tokens": 10, "max_completion_tokens": 20}, 10), ({"max_tokens": 10**18}, 1000),
     ({"max_tokens": 1e300}, 1000)],
)  # fmt: skip
def test_max_tokens_and_its_synonym_are_clamped(fields: dict[str, Any], expected: int) -> None:
    """§7.1-13, §1.4-15, A-02."""
    assert read(**fields).max_tokens == expected


def test_sampling_is_passed_on() -> None:
    call = read(temperature=1, top_p=0.5, top_k=40.0, seed=2**40, num_ctx=8192)
    assert call.sampling == m.Sampling(temperature=1.0, top_p=0.5, top_k=40, seed=2**40)
    assert call.num_ctx == 8192


@pytest.mark.parametrize(
    ("stop", "expected"), [("END", ("END",)), (["a", "b"], ("a", "b")), ([], ()), ("", ()), (["", "a"], ("a",))]
)
def test_stop_is_a_string_or_up_to_four(stop: Any, expected: tuple[str, ...]) -> None:
    """A-04."""
    assert read(stop=stop).stop == expected


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [({"think": True}, True), ({"think": True, "reasoning_effort": "none"}, False),
     *(({"think": False, "reasoning_effort": effort}, True) for effort in REASONING_EFFORTS if effort != "none")],
)  # fmt: skip
def test_reasoning_effort_wins_over_think(fields: dict[str, Any], thinking: bool) -> None:
    """§7.1-27..33, A-05, A-66."""
    assert read(**fields).thinking is thinking


def test_roles_and_parts_become_messages() -> None:
    """§7.1-08..11, A-03: developer is system, parts keep their order, a tool's answer keeps its call's id."""
    call = read(
        ServerOptions(version="0"),
        messages=[
            {"role": "developer", "content": "Be terse."},
            {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "18 C"},
            {"role": "assistant", "content": "It is 18 C.", "refusal": None, "reasoning_content": "ignored"},
        ],
    )
    assert call.messages == (
        m.ChatMessage("system", (m.TextPart("Be terse."),)),
        m.ChatMessage("user", (m.TextPart("a"), m.TextPart("b")), name="Ann"),
        m.ChatMessage("assistant", (m.TextPart('weather({"city":"Paris"})'),)),
        m.ChatMessage("tool", (m.TextPart("18 C"),), tool_call_id="call_1"),
        m.ChatMessage("assistant", (m.TextPart("It is 18 C."),)),
    )


def test_media_parts_say_what_they_need() -> None:
    """§7.1-04, §7.1-05."""
    parts = [
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": {"url": "https://x", "detail": "auto"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA"}},
    ]
    media = read(messages=[{"role": "user", "content": parts}]).media
    assert [(part.path, part.needs) for part in media] == [
        ("messages[0].content[1]", Modality.VISION),
        ("messages[0].content[2]", Modality.SPEECH_TO_TEXT),
    ]


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [({"tools": []}, False), ({"tools": [TOOL]}, True), ({"tools": [TOOL], "tool_choice": "none"}, False),
     ({"tool_choice": "auto"}, False), ({"tool_choice": "none"}, False),
     ({"tools": [TOOL], "tool_choice": "required"}, True),
     ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}}, True)],
)  # fmt: skip
def test_when_the_model_is_to_see_tools(fields: dict[str, Any], wanted: bool) -> None:
    """§7.5-39, A-26, A-27."""
    assert read(**fields).wants_tools is wanted


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no messages": ({"messages": []}, "messages: expected array of length >= 1."),
    "messages of the wrong type": ({"messages": "Hi"}, "messages: expected array, got string."),
    "model null": ({"model": None}, "model: expected string, got null."),
    "unknown role": ({"messages": [USER, {"role": "robot", "content": "x"}]}, "messages[1].role: unknown role 'robot'"),
    "legacy role": ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role: unknown role 'function'"),
    "no role": ({"messages": [{"content": "x"}]}, "messages[0].role: this field is required."),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0].content: must be a string"),
    "null content without calls": (
        {"messages": [{"role": "assistant", "content": None, "tool_calls": []}]},
        "messages[0].content: must be a string",
    ),
    "calls of a user": (
        {"messages": [{"role": "user", "content": None, "tool_calls": [CALL]}]},
        "messages[0].content: must be a string",
    ),
    "unknown part": (
        {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
        "messages[0].content[0].type: unknown value 'video'.",
    ),
    "part without text": (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text: this field is required.",
    ),
    "content a number": (
        {"messages": [{"role": "user", "content": 5}]},
        "messages[0].content: expected string or array",
    ),
    "too much text": ({"messages": [{"role": "user", "content": "é" * 60}]}, "messages: 61 characters, one for"),
    "too much in all": ({"messages": [{"role": "user", "content": "é" * 30}] * 2}, "messages: 62 characters, one for"),
    "empty messages": ({"messages": [{"role": "user", "content": ""}] * 61}, "messages: 61 characters, one for"),
    "empty parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 60}]},
        "messages: 61 characters, one for",
    ),
    "pictures as parts": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": ""}}] * 60}]},
        "messages: 61 characters, one for",
    ),
    "long name": ({"messages": [{**USER, "name": "n" * 58}]}, "messages: 61 characters, one for"),
    "long call id": ({"messages": [{**USER, "tool_call_id": "n" * 58}]}, "messages: 61 characters, one for"),
    "max_tokens 0": ({"max_tokens": 0}, "max_tokens: must be at least 1."),
    "max_tokens negative": ({"max_completion_tokens": -1}, "max_completion_tokens: must be at least 1."),
    "max_tokens fraction": ({"max_tokens": 2.5}, "max_tokens: expected an integer, got 2.5."),
    "max_tokens text": ({"max_tokens": "10"}, "max_tokens: expected number, got string."),
    "max_tokens true": ({"max_tokens": True}, "max_tokens: expected number, got boolean."),
    "num_ctx 0": ({"num_ctx": 0}, "num_ctx: must be at least 1."),
    "temperature negative": ({"temperature": -0.1}, "temperature: expected number >= 0.0."),
    "top_p above one": ({"top_p": 1.1}, "top_p: expected number <= 1.0."),
    "top_k fraction": ({"top_k": 1.5}, "top_k: expected an integer"),
    "seed fraction": ({"seed": 0.5}, "seed: expected an integer"),
    "seed too large": ({"seed": 2**64}, "seed: must be at most"),
    "five stops": ({"stop": ["a"] * 5}, "stop: expected array of length <= 4."),
    "stop a number": ({"stop": 1}, "stop: expected string or array, got integer."),
    "stream a string": ({"stream": "true"}, "stream: expected boolean, got string."),
    "unknown effort": ({"reasoning_effort": "huge"}, "reasoning_effort: unknown value 'huge'"),
    "unknown choice": ({"tool_choice": "maybe"}, "tool_choice: unknown value 'maybe'"),
    "required without tools": ({"tool_choice": "required"}, "tool_choice: 'required' needs tools"),
    "choice not among tools": (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
        "tool_choice: 'x' is not among tools.",
    ),
    "tool of another type": ({"tools": [{**TOOL, "type": "web"}]}, "tools[0].type: unknown value 'web'."),
    "tool without a name": ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name: this field"),
}


MANY = 10_001
TOO_MANY: dict[str, tuple[dict[str, Any], str]] = {
    "messages": ({"messages": [{"role": "user", "content": ""}] * MANY}, "messages: 10001 messages"),
    "parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 5001}] * 2},
        "messages: 10002 parts in all",
    ),
    "calls": (
        {"messages": [{"role": "assistant", "tool_calls": [CALL] * MANY}]},
        "messages: 10001 tool_calls in all",
    ),
    "calls of a user": (
        {"messages": [{**USER, "tool_calls": [CALL] * MANY}]},
        "messages: 10001 tool_calls in all",
    ),
    "tools": ({"tools": [TOOL] * MANY, "tool_choice": "none"}, "tools: 10001 tools"),
}


@pytest.mark.parametrize("name", TOO_MANY)
def test_too_many_entries_are_refused_with_their_number(name: str) -> None:
    """Entries without text cost the model's process time that no other limit bounds."""
    fields, beginning = TOO_MANY[name]
    with pytest.raises(InvalidRequest) as refusal:
        read(ServerOptions(version="0", max_prompt_chars=10**9), **fields)
    assert refusal.value.message == f"{beginning}; a request may have 10000."


def test_the_most_that_is_allowed_passes() -> None:
    roomy = ServerOptions(version="0", max_prompt_chars=20_000)
    parts = [{"type": "text", "text": ""}] * 10_000
    assert len(read(roomy, messages=[{"role": "user", "content": ""}] * 10_000).messages) == 10_000
    assert len(read(roomy, messages=[{"role": "user", "content": parts}]).messages[0].content) == 10_000
    assert read(messages=[{"role": "user", "content": "é" * 59}]).messages[0].text() == "é" * 59


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_named_by_its_path(name: str) -> None:
    """§4-06, §4-07, §7.1-07, §7.5-20, A-26, A-63."""
    fields, beginning = REFUSED[name]
    with pytest.raises(InvalidRequest) as refusal:
        read(**fields)
    assert refusal.value.message.startswith(beginning), refusal.value.message
