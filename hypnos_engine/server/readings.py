"""The kinds of JSON body that the server reads, each as one pure step from bytes to checked values.

Runs in the server's process for small bodies and in a process of its own for large ones, so it must not import aiohttp.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

import msgspec

from hypnos_engine.api.decoding import decode_json
from hypnos_engine.api.schemas import chat
from hypnos_engine.api.schemas.downloads import DownloadRequest, ResumeRequest
from hypnos_engine.api.schemas.memory import KvParkRequest
from hypnos_engine.api.schemas.placing import FreeRequest, OffloadRequest, TierRequest
from hypnos_engine.api.schemas.pool import AddRequest, ReplaceRequest
from hypnos_engine.api.schemas.request_log import LogLevelRequest
from hypnos_engine.ipc import messages as m
from hypnos_engine.server.chat_request import ChatCall, read_chat
from hypnos_engine.server.download_requests import DownloadWish, ResumeWish, read_download, read_resume
from hypnos_engine.server.options import ServerOptions
from hypnos_engine.server.placing_requests import (
    Hold,
    Move,
    Offload,
    Park,
    read_hold,
    read_move,
    read_offload,
    read_park,
)
from hypnos_engine.server.pool_requests import PoolWish, read_add, read_replace
from hypnos_engine.server.redacting import NewLevel, Redacted, RedactionRequest, read_level, redact

R = TypeVar("R")

PACKED_ABOVE_BYTES: Final = 64 * 1024
"""A conversation with more text is handed on without being looked into."""


@dataclass(frozen=True, slots=True)
class Reading(Generic[R]):
    """How one kind of body is read. A conversation travels apart from the rest between processes: it can be long."""

    name: str
    schema: type[Any]
    result: type[R]
    check: Callable[[Any, ServerOptions], R]

    def read(self, body: bytes | memoryview, options: ServerOptions) -> R:
        """Decode and check. Raises InvalidRequest."""
        return self.check(decode_json(body, self.schema), options)

    def take_apart(self, value: R) -> tuple[bytes, bytes]:
        """The msgpack of everything but the conversation, and that of the conversation; empty when there is none."""
        if not isinstance(value, ChatCall):
            return msgspec.msgpack.encode(value), b""
        return msgspec.msgpack.encode(replace(value, messages=())), msgspec.msgpack.encode(value.messages)

    def put_together(self, rest: bytes, messages: tuple[bytes, ...]) -> R:
        """The value again; a long conversation stays packed (`ipc.messages.packed`)."""
        value = msgspec.msgpack.decode(rest, type=self.result)
        if not isinstance(value, ChatCall):
            return value
        conversation = m.packed(messages)
        if sum(map(len, messages)) <= PACKED_ABOVE_BYTES:
            conversation = m.unpacked(conversation)
        return replace(value, messages=conversation)


CHAT: Final = Reading("chat", chat.ChatRequest, ChatCall, read_chat)
MOVE: Final = Reading("move", TierRequest, Move, read_move)
OFFLOAD: Final = Reading("offload", OffloadRequest, Offload, read_offload)
FREE: Final = Reading("free", FreeRequest, Hold, read_hold)
PARK: Final = Reading("park", KvParkRequest, Park, read_park)
DOWNLOAD: Final = Reading("download", DownloadRequest, DownloadWish, read_download)
RESUME: Final = Reading("resume", ResumeRequest, ResumeWish, read_resume)
LEVEL: Final = Reading("level", LogLevelRequest, NewLevel, read_level)
REDACTION: Final = Reading("redaction", RedactionRequest, Redacted, redact)
ADD: Final = Reading("add", AddRequest, PoolWish, read_add)
REPLACE: Final = Reading("replace", ReplaceRequest, PoolWish, read_replace)
READINGS: Final[dict[str, Reading[Any]]] = {
    reading.name: reading
    for reading in (CHAT, MOVE, OFFLOAD, FREE, PARK, DOWNLOAD, RESUME, LEVEL, REDACTION, ADD, REPLACE)
}
