"""A conversation that is msgpack already travels as if it had been encoded with its request."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.framing import FrameError, encode, encode_in_pieces, to_worker_decoder

conversations = st.lists(
    st.builds(
        m.ChatMessage,
        st.sampled_from(["user", "assistant", "messages"]),
        st.lists(st.builds(m.TextPart, st.text()), max_size=3).map(tuple),
        st.none() | st.text(),
    ),
    max_size=4,
).map(tuple)


@given(conversations, st.text(), st.lists(st.text(), max_size=2).map(tuple), st.integers(1, 50))
def test_a_packed_conversation_arrives_as_the_same_message(
    messages: tuple[m.ChatMessage, ...], scope: str, stop: tuple[str, ...], pieces_of: int
) -> None:
    content = msgspec.msgpack.encode(messages)
    pieces = [content[start : start + pieces_of] for start in range(0, len(content), pieces_of)]
    plain = m.Generate(7, scope, messages, 5, stop=stop)
    sent = b"".join(encode_in_pieces(m.Generate(7, scope, m.packed(pieces), 5, stop=stop)))
    assert sent == encode(plain)
    assert to_worker_decoder().feed(sent) == [plain]
    assert m.unpacked(m.packed(pieces)) == messages


def test_other_messages_are_one_piece() -> None:
    plain = m.Generate(1, "", (m.ChatMessage("user"),), 5)
    assert m.unpacked(plain.messages) is plain.messages
    for message in (plain, m.Cancel(3)):
        assert encode_in_pieces(message) == [encode(message)]


def test_a_conversation_that_no_frame_holds_is_refused() -> None:
    with pytest.raises(FrameError, match="exceeds the frame limit"):
        encode_in_pieces(m.Generate(1, "", m.packed([b"x" * 1024 * 1024] * 64), 5))
