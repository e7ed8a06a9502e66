"""Events survive any cut of the stream (§17-17)."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.api import sse


def read_all(*pieces: bytes) -> list[sse.Event]:
    reader = sse.EventReader()
    return [event for piece in pieces for event in reader.feed(piece)]


def test_what_is_written_is_read() -> None:
    stream = sse.comment("hi") + sse.event(b'{"a":1}') + sse.event("é🦊".encode()) + sse.DONE
    assert [event.data for event in read_all(stream)] == ['{"a":1}', "é🦊", "[DONE]"]


LINES = st.sampled_from(
    [b"data: one", b"data:two", b"data", b": comment", b"id: 7", b"event: x", b"odd: y", b"", "data: é🦊".encode()]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(LINES, ENDS), max_size=20), st.lists(st.integers(0, 200), max_size=10))
def test_the_cut_of_the_pieces_does_not_matter(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    # A comment at the end: a lone \r as the very last byte could be half a line end.
    stream = b"".join(line + end for line, end in lines) + b":\n"
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[start:end] for start, end in itertools.pairwise(places)]
    assert read_all(*pieces) == read_all(stream) == read_all(*(stream[i : i + 1] for i in range(len(stream))))


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\ndata: b\n\n", [sse.Event("a\nb")]),
        (b"event: x\nid: 3\ndata: a\n\ndata: b\n\n", [sse.Event("a", "x", "3"), sse.Event("b", "", "3")]),
        (b"\xef\xbb\xbfdata: a\n\n", [sse.Event("a")]),
        (b"data:  a\n\n", [sse.Event(" a")]),
        (b"id: 1\0\ndata: a\n\n", [sse.Event("a")]),
        (b"data: never finished\n", []),
        (b"event: empty\n\n", []),
        (b"data: \xff\n\n", [sse.Event("�")]),
    ],
)
def test_the_standard_is_followed(stream: bytes, events: list[sse.Event]) -> None:
    assert read_all(stream) == events


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 65536, b"data: " + b"x" * 65536 + b"\n"])
def test_an_endless_event_is_refused(piece: bytes) -> None:
    pieces = itertools.repeat(piece, sse.EVENT_MAX_BYTES // len(piece) + 2)
    with pytest.raises(ValueError, match="larger than"):
        read_all(*pieces)
