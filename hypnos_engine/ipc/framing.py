"""Turns messages into length-prefixed frames and back; pure bytes, no input or output of its own.

A frame is a little-endian unsigned 32-bit length and that many bytes of msgpack. A frame that announces more than
`MAX_FRAME_BYTES`, or whose bytes are no message of the expected union, ends the conversation: the stream cannot be
trusted after it.
"""

import secrets
import struct
from typing import Any, Generic, TypeVar

import msgspec

from hypnos_engine.ipc.messages import FromWorker, Generate, Message, PackedMessages, ToWorker

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Above any message that a request within the default limits makes; larger content travels in blocks."""

_LENGTH = struct.Struct("<I")
_ENCODER = msgspec.msgpack.Encoder()

M = TypeVar("M")


class FrameError(Exception):
    """The other side sent bytes that are no frame or no known message."""


def encode(message: Message) -> bytes:
    """Return the frame of one message. Raises FrameError if it is larger than MAX_FRAME_BYTES."""
    buffer = bytearray(_LENGTH.size)
    _ENCODER.encode_into(message, buffer, _LENGTH.size)
    size = len(buffer) - _LENGTH.size
    _check_size(message, size)
    _LENGTH.pack_into(buffer, 0, size)
    return bytes(buffer)


def encode_in_pieces(message: Message) -> list[bytes]:
    """Return the frame of one message as pieces to be sent one after another, as `encode` otherwise.

    The text of a conversation that is packed already is not touched: the time does not grow with it.
    """
    if not isinstance(message, Generate) or not isinstance(message.messages, PackedMessages):
        return [encode(message)]
    pieces = message.messages.pieces
    place = secrets.token_bytes(16)
    around = _ENCODER.encode(msgspec.structs.replace(message, messages=msgspec.Raw(place)))
    before, after = around.split(place)
    size = len(before) + sum(map(len, pieces)) + len(after)
    _check_size(message, size)
    return [_LENGTH.pack(size) + before, *pieces, after]


def _check_size(message: Message, size: int) -> None:
    if size > MAX_FRAME_BYTES:
        raise FrameError(f"a {type(message).__name__} message of {size} bytes exceeds the frame limit")


class FrameDecoder(Generic[M]):
    """Collects bytes as they arrive and returns the messages that are complete."""

    def __init__(self, union: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(union)
        self._pending = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of an incomplete frame; not 0 at the end of a stream means that the last frame was cut."""
        return len(self._pending)

    def feed(self, chunk: bytes | bytearray | memoryview) -> list[M]:
        """Add bytes; return every message that they completed, oldest first. Raises FrameError."""
        pending = self._pending
        pending += chunk
        messages: list[M] = []
        start = 0
        while len(pending) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(pending, start)
            if size > MAX_FRAME_BYTES:
                raise FrameError(f"a frame announces {size} bytes; the limit is {MAX_FRAME_BYTES}")
            end = start + _LENGTH.size + size
            if len(pending) < end:
                break
            try:
                messages.append(self._decoder.decode(memoryview(pending)[start + _LENGTH.size : end]))
            except msgspec.MsgspecError as error:
                raise FrameError(f"a frame holds no known message: {error}") from error
            start = end
        if start:
            del pending[:start]
        return messages


def to_worker_decoder() -> FrameDecoder[ToWorker]:
    """Decoder for the worker's side of the channel."""
    return FrameDecoder(ToWorker)


def from_worker_decoder() -> FrameDecoder[FromWorker]:
    """Decoder for the supervisor's side of the channel."""
    return FrameDecoder(FromWorker)
