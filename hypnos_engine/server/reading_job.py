"""What the server and a reading process say to each other about one body: a job there, an answer back.

Pure bytes; opens nothing. The body itself travels as an open file beside the job.
"""

import struct
from typing import Final

import msgspec

from hypnos_engine.server.options import ServerOptions

JOB_MAX_BYTES: Final = 1024 * 1024
REST_MAX_BYTES: Final = 64 * 1024 * 1024
"""Largest answer beside the conversation."""

JOB_HEAD: Final = struct.Struct("<I")
ANSWER_HEAD: Final = struct.Struct("<?IQ")
"""Whether it is a refusal, bytes of the rest, bytes of the conversation."""


class Job(msgspec.Struct, frozen=True):
    """Read the body of `size_bytes` bytes as `reading` does (a name of `readings.READINGS`)."""

    reading: str
    size_bytes: int
    options: ServerOptions


class Refusal(msgspec.Struct, frozen=True):
    """An error of `domain.errors`, as its code and its words."""

    code: str
    message: str


def encode_job(job: Job) -> bytes:
    """The job with its length before it."""
    content = msgspec.msgpack.encode(job)
    return JOB_HEAD.pack(len(content)) + content


def decode_job(content: bytes) -> Job:
    """Raises msgspec.MsgspecError for anything else."""
    return msgspec.msgpack.decode(content, type=Job)
