"""Frames: every message survives the way there, however the bytes are cut, and nothing else is taken for one."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.framing import MAX_FRAME_BYTES, FrameError, encode, from_worker_decoder, to_worker_decoder

TEXT = st.text(max_size=50)
NUMBER = st.integers(min_value=0, max_value=2**53)
MESSAGE = st.one_of(
    st.builds(m.Pong, NUMBER),
    st.builds(m.Failed, NUMBER, TEXT, TEXT),
    st.builds(m.Accepted, NUMBER, NUMBER, NUMBER),
    st.builds(m.LoadProgress, TEXT, st.floats(0, 1)),
    st.builds(m.Step, st.lists(st.builds(m.Delta, NUMBER, TEXT, st.booleans()), max_size=5).map(tuple)),
)


@given(st.lists(MESSAGE, max_size=10), st.lists(st.integers(1, 40), min_size=1))
def test_messages_come_out_as_they_went_in(messages: list[m.FromWorker], cuts: list[int]) -> None:
    stream = b"".join(encode(message) for message in messages)
    decoder, received = from_worker_decoder(), list[m.FromWorker]()
    at = turn = 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        received += decoder.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert received == messages
    assert decoder.pending_bytes == 0


@given(st.binary(max_size=200))
def test_no_bytes_make_the_decoder_fail_otherwise(content: bytes) -> None:
    with contextlib.suppress(FrameError):
        to_worker_decoder().feed(content)


def test_a_cut_frame_stays_pending() -> None:
    decoder = from_worker_decoder()
    frame = encode(m.Pong(1))
    assert decoder.feed(frame[:-1]) == []
    assert decoder.pending_bytes == len(frame) - 1
    assert decoder.feed(frame[-1:]) == [m.Pong(1)]


@pytest.mark.parametrize("size", [MAX_FRAME_BYTES + 1, 0xFFFFFFFF])
def test_a_frame_above_the_limit_is_refused_from_its_header(size: int) -> None:
    with pytest.raises(FrameError, match=str(size)):
        from_worker_decoder().feed(struct.pack("<I", size))


def test_a_message_of_the_other_direction_is_refused() -> None:
    with pytest.raises(FrameError):
        from_worker_decoder().feed(encode(m.Ping(1)))
    with pytest.raises(FrameError):
        to_worker_decoder().feed(encode(m.Pong(1)))


def test_a_message_above_the_limit_is_refused_when_it_is_made() -> None:
    with pytest.raises(FrameError, match="Failed"):
        encode(m.Failed(1, "x", "y" * MAX_FRAME_BYTES))
