"""Any bytes end in a value or in one short sentence."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.api.decoding import MESSAGE_MAX_CHARS, decode_json, quoted, whole
from hypnos_engine.api.schemas.chat import ChatRequest
from hypnos_engine.domain.errors import InvalidRequest

BROKEN = {
    "empty": b"",
    "cut off": b'{"model":',
    "not utf-8": b'{"model":"\xff"}',
    "lone surrogate": b'{"model":"\\ud800","messages":[]}',
    "nan": b'{"model":"a","messages":[],"top_p":NaN}',
    "two values": b"{}{}",
    "an array": b"[]",
    "deep": b'{"a":' + b"[" * 100_000,
    "a long unknown value": b'{"model":"a","messages":[{"role":"user","content":[{"type":"' + b"x" * 9000 + b'"}]}]}',
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_bodies_are_refused_in_one_short_sentence(name: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        decode_json(BROKEN[name], ChatRequest)
    assert 0 < len(refusal.value.message) <= MESSAGE_MAX_CHARS


@given(st.binary(max_size=200))
def test_no_bytes_escape_as_another_error(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_json(body, ChatRequest)


class Nested(msgspec.Struct):
    count: int
    names: list[str]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"5", "The body: expected object, got integer."),
        (b'{"names":[]}', "count: this field is required."),
        (b'{"count":"1","names":[]}', "count: expected integer, got string."),
        (b'{"count":1,"names":["a",2]}', "names[1]: expected string, got integer."),
    ],
)
def test_the_sentence_names_the_path_and_json_types(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        decode_json(body, Nested)
    assert refusal.value.message == message


@pytest.mark.parametrize(("value", "expected"), [(None, None), (3, 3), (3.0, 3), (-0.0, 0), (10**30, 10**30)])
def test_integral_floats_are_integers(value: float | None, expected: int | None) -> None:
    assert whole(value, "n", least=0) == expected


@pytest.mark.parametrize("value", [0.5, -1, 11])
def test_fractions_and_values_out_of_bounds_are_refused(value: float) -> None:
    with pytest.raises(InvalidRequest, match=r"^n: "):
        whole(value, "n", least=0, most=10)


def test_quoted_values_stay_short() -> None:
    assert quoted("a") == "'a'"
    assert len(quoted("a" * 10_000)) <= 120
