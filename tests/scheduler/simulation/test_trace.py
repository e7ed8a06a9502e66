"""Traces as text: what is written is read back, and everything wrong is told with its line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.domain.errors import ConfigurationInvalid
from hypnos_engine.domain.kinds import Modality, Priority
from hypnos_engine.scheduler.simulation.machine import models_of
from hypnos_engine.scheduler.simulation.trace import (
    MOST_SHOWN,
    Trace,
    TraceModel,
    TraceRequest,
    check_requests,
    read_trace,
    write_trace,
)

HEAD = '{"trace_version": 1}'


def problems(*lines: str | bytes) -> list[str]:
    with pytest.raises(ConfigurationInvalid) as caught:
        read_trace(lines, "day.jsonl")
    return caught.value.message.splitlines()


def test_a_trace_is_read_with_its_models_and_its_defaults() -> None:
    trace = read_trace([
        '{"trace_version": 1, "models": [{"id": "ear", "weight_bytes": 5, "modality": "speech_to_text"}]}\n',
        "\n",
        '{"id": "r1", "model": "ear", "service_s": 2}\n',
        b'{"id": "r2", "model": "ear", "prompt_tokens": 9, "after": ["r1"], "after_s": 1.5, "deadline_ms": 800}\n',
    ])  # fmt: skip
    assert trace.models == (TraceModel(id="ear", weight_bytes=5, modality=Modality.SPEECH_TO_TEXT),)
    assert trace.requests == (
        TraceRequest(id="r1", model="ear", service_s=2.0),
        TraceRequest(id="r2", model="ear", prompt_tokens=9, after=("r1",), after_s=1.5, deadline_ms=800.0),
    )


@given(
    st.lists(
        st.builds(
            TraceRequest,
            id=st.uuids().map(str),
            model=st.sampled_from(["a", "ü b"]),
            at_s=st.floats(0, 1e9),
            prompt_tokens=st.integers(1, 10**9),
            output_tokens=st.integers(0, 10**9),
            key=st.text(max_size=5),
            deadline_ms=st.none() | st.floats(0, 1e9),
        ),
        max_size=5,
    )
)
def test_what_is_written_is_read_back(requests: list[TraceRequest]) -> None:
    trace = Trace(tuple(requests), (TraceModel(id="a", weight_bytes=1, priority=Priority.HIGH),))
    assert read_trace(write_trace(trace)) == trace


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "truncated"),
        ("[]", "Expected `object`"),
        ('{"id": "r"}', "missing required field `model`"),
        ('{"id": "r", "model": "a", "service_s": 1, "tempo": 3}', "unknown field `tempo`"),
        ('{"id": "r", "model": "a", "service_s": "1"}', "Expected `float | null`, got `str`"),
        ('{"id": "r", "model": "a", "service_s": 1e999}', "out of range"),
        ('{"id": "r", "model": "a", "service_s": NaN}', "malformed"),
        ('{"id": "r", "model": "a"}', "neither tokens nor service_s"),
        ('{"id": "", "model": "a", "service_s": 1}', "it has no id"),
        ('{"id": "r", "model": "", "service_s": 1}', "it names no model"),
        ('{"id": "r", "model": "a", "service_s": -1}', "service_s is -1, not between 0 and 1e+09"),
        ('{"id": "r", "model": "a", "service_s": 1, "at_s": -0.5}', "at_s is -0.5"),
        ('{"id": "r", "model": "a", "service_s": 1, "weight": 0}', "weight is 0"),
        ('{"id": "r", "model": "a", "prompt_tokens": -4, "output_tokens": 5}', "prompt_tokens is -4"),
        ('{"id": "r", "model": "a", "service_s": 1, "run": "7"}', "but no workflow"),
        ('{"id": "r", "model": "a", "service_s": 1, "after": ["r"]}', "after 'r', which does not stand above it"),
        ('{"id": "r", "model": "a", "service_s": 1, "after_s": 2}', "comes after nothing"),
    ],
)
def test_each_mistake_in_a_request_is_told_with_its_line(line: str, said: str) -> None:
    (told,) = problems(HEAD, "", line)
    assert told.startswith("day.jsonl:3: ")
    assert said in told


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": "r", "model": "a", "service_s": 1}', 'the first line is {"trace_version": 1}'),
        ('{"trace_version": 2}', "trace_version 2 is not one that this Hypnos reads; it reads 1"),
        ('{"trace_version": 1, "models": [{"id": "a", "weight_bytes": 1, "layers": 0}]}', "layers of model 'a' is 0"),
        ('{"trace_version": 1, "models": [{"id": "a", "weight_bytes": 1, "expert_bytes": 2}]}', "expert_bytes of"),
        ('{"trace_version": 1, "models": [{"id": "a", "weight_bytes": 1, "modality": "x"}]}', "Invalid enum value"),
        ('{"trace_version": 1, "models": [{"id": "a", "weight_bytes": 1}, {"id": "a", "weight_bytes": 1}]}', "are two"),
        (b"\xff\xfe{", "the first line is"),
    ],
)  # fmt: skip
def test_each_mistake_in_the_first_line_is_told(line: str | bytes, said: str) -> None:
    told = problems(line)
    assert told[0].startswith("day.jsonl:1: ")
    assert said in told[0]


def test_an_empty_trace_says_how_one_begins() -> None:
    assert problems() == ['day.jsonl:1: it is empty; its first line is {"trace_version": 1}']


def test_all_mistakes_are_told_together_up_to_a_number() -> None:
    told = problems(HEAD, *("{" for _ in range(MOST_SHOWN + 7)))
    assert len(told) == MOST_SHOWN + 1
    assert told[-1] == "... and 7 more"


def test_the_same_id_twice_is_refused() -> None:
    line = json.dumps({"id": "r", "model": "a", "service_s": 1})
    assert problems(HEAD, line, line) == ["day.jsonl:3: there is a request 'r' already"]


def test_requests_for_models_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigurationInvalid, match="request 1: request 'r' asks for 'a', which is no model here"):
        check_requests([TraceRequest(id="r", model="a", service_s=1.0)], ["b"])


def test_a_made_up_model_has_the_bytes_that_the_table_says() -> None:
    table = TraceModel(id="a", weight_bytes=1_000_003, layers=7, kv_bytes_per_cell=7 * 4 * 10, expert_bytes=500_001)
    (model,) = models_of([table])
    assert model.shape is not None
    layers = sum(layer.weight_bytes + layer.expert_bytes for layer in model.shape.layers)
    assert layers + model.shape.non_layer_bytes == model.shape.tensor_bytes == 1_000_003
    cell = sum(layer.k_elements_per_cell + layer.v_elements_per_cell for layer in model.shape.layers) * 2
    assert cell == table.kv_bytes_per_cell
