"""Reads large bodies away from the server's loop: `python -m hypnos_engine.server.reading_process [--once]`.

Gets jobs and open files over the socket that is its stdin, and ends with it. With `--once` there is one job, on the
command line, stdin is the body and stdout takes the answer. Never keeps a body longer than its job.
"""

import contextlib
import gc
import mmap
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Final

import msgspec

from hypnos_engine.domain.errors import HypnosError, InvalidRequest
from hypnos_engine.server.reading_job import ANSWER_HEAD, JOB_HEAD, JOB_MAX_BYTES, Job, Refusal, decode_job
from hypnos_engine.server.readings import READINGS

_ROOM_BYTES: Final = 256 * 1024 * 1024
_ROOM_FACTOR: Final = 8
"""The values of a body may take so many times its size: a body of nothing but empty objects takes thirty times."""


def main(arguments: list[str]) -> int:
    """Serve jobs until the other end is closed; return the exit status."""
    with contextlib.suppress(ValueError, OSError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the server decides
    gc.disable()  # values of a body are trees: nothing to collect, and millions of them to look at
    if arguments[:1] == ["--once"]:
        job = decode_job(bytes.fromhex(arguments[1]))
        for part in _answer(job, 0):
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(1, rest) :]
        return 0
    with socket.socket(fileno=0) as end, contextlib.suppress(ConnectionError):
        while (taken := _take_job(end)) is not None:
            job, body_fd = taken
            try:
                parts = _answer(job, body_fd)
            finally:
                os.close(body_fd)
            for part in parts:
                end.sendall(part)
            del parts
    return 0


def _take_job(end: socket.socket) -> tuple[Job, int] | None:
    """The next job and its file; None once the server has closed its end."""
    if sys.platform == "win32":
        raise RuntimeError("files are not sent over sockets here; use --once")
    head, files, _, _ = socket.recv_fds(end, JOB_HEAD.size, 1)
    if len(head) < JOB_HEAD.size or len(files) != 1:
        return None
    (size,) = JOB_HEAD.unpack(head)
    content = bytearray()
    while len(content) < min(size, JOB_MAX_BYTES):
        piece = end.recv(size - len(content))
        if not piece:
            return None
        content += piece
    return decode_job(bytes(content)), files[0]


def _answer(job: Job, body_fd: int) -> tuple[bytes, ...]:
    try:
        _bound_memory(job.size_bytes)
        rest, messages = _read(job, body_fd)
    except HypnosError as error:
        refusal = msgspec.msgpack.encode(Refusal(error.code, error.message))
        return ANSWER_HEAD.pack(True, len(refusal), 0), refusal
    return ANSWER_HEAD.pack(False, len(rest), len(messages)), rest, messages


def _read(job: Job, body_fd: int) -> tuple[bytes, bytes]:
    reading = READINGS[job.reading]
    try:
        with mmap.mmap(body_fd, job.size_bytes, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as body:
            return reading.take_apart(reading.read(body, job.options))
    except MemoryError:
        raise InvalidRequest("The body holds more values than there is memory for.") from None


def _bound_memory(size_bytes: int) -> None:
    """Let the process grow by so much for one body, where the system can hold it to that."""
    if sys.platform != "linux":
        return
    import resource

    present_bytes = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * mmap.PAGESIZE
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = present_bytes + _ROOM_BYTES + _ROOM_FACTOR * size_bytes
    if hard == resource.RLIM_INFINITY or soft <= hard:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
