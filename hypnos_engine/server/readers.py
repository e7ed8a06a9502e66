"""The processes that read large bodies for the server: started when one comes, ended when none has come for a while.

Decoding holds the interpreter for as long as a body is long, so it never happens in the server's process above
`spool.MEMORY_MAX_BYTES`. Never lets what a body does to its reader reach another request.
"""

import asyncio
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec

from hypnos_engine.domain.errors import EngineFailed, EngineTimeout, error_from_code
from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.engines.runtimes import worker_environment
from hypnos_engine.ipc import programs
from hypnos_engine.ipc.programs import Program
from hypnos_engine.server.options import LogTerms, ServerOptions
from hypnos_engine.server.reading_job import ANSWER_HEAD, JOB_HEAD, REST_MAX_BYTES, Job, Refusal, encode_job
from hypnos_engine.server.readings import Reading
from hypnos_engine.server.spool import to_its_end

R = TypeVar("R")

log: Final = logging.getLogger("hypnos.http")

AT_ONCE: Final = 2
"""Bodies that are read at the same time; others wait."""
IDLE_S: Final = 30.0
"""How long a process waits for another body."""
KEPT_UP_TO_BYTES: Final = 32 * 1024 * 1024
"""A process that has read a larger body ends: it may keep the memory that it took."""
_TRIES: Final = 2
_TIME_S: Final = 20.0
_BYTES_PER_S: Final = 4 * 1024 * 1024
"""A body may take `_TIME_S` and a second for so many of its bytes: twenty times what an idle machine needs."""
_PIECE_BYTES: Final = 256 * 1024

# Threads of our own: what a loop uses by default is the loop's affair, and Qt's loop makes Qt threads of it.
_THREADS: Final = ThreadPoolExecutor(max_workers=2 * AT_ONCE, thread_name_prefix="hypnos-reader")


class Transport:
    """How a reading process gets its bodies."""

    SOCKET: Final = "socket"
    """One process for many, each body an open file sent over a socket."""
    ONCE: Final = "once"
    """One process for each, the body being its stdin; where files cannot be sent."""


DEFAULT_TRANSPORT: Final = Transport.ONCE if sys.platform == "win32" else Transport.SOCKET


class _Answer(NamedTuple):
    refusal: Refusal | None
    rest: bytes
    messages: tuple[bytes, ...]


class _Gone(Exception):
    """The process ended before it had answered."""


class Readers:
    """The reading processes of one server. Used on one loop; `close` ends them."""

    def __init__(self, *, transport: str = DEFAULT_TRANSPORT, idle_s: float = IDLE_S) -> None:
        self._make: Callable[[], _Reader] = _SocketReader if transport == Transport.SOCKET else _OnceReader
        self._idle_s = idle_s
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._idle: list[_Reader] = []
        self._timers: dict[_Reader, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Future[None]] = set()

    def prepare(self) -> None:
        """A large body is on its way: have a process ready when it is there."""
        if not self._idle:
            reader = self._make()
            self._keep(reader)
            _THREADS.submit(reader.start)

    async def read(self, reading: Reading[R], body_fd: int, size_bytes: int, options: ServerOptions) -> R:
        """Decode and check a body that lies in a file. Raises InvalidRequest, EngineTimeout or EngineFailed."""
        job = Job(reading.name, size_bytes, replace(options, keys=(), request_log=LogTerms()))
        async with self._turns:
            answer = await self._answer(job, body_fd)
        if answer.refusal is not None:
            raise error_from_code(answer.refusal.code, answer.refusal.message)
        return reading.put_together(answer.rest, answer.messages)

    async def close(self) -> None:
        """End every process and wait until all are reaped."""
        for reader in tuple(self._idle):
            self._retire(reader)
        if self._ending:
            await asyncio.wait(self._ending)

    async def _answer(self, job: Job, body_fd: int) -> _Answer:
        for _ in range(_TRIES):  # one that has waited long may have been ended by somebody else
            reader = self._take()
            try:
                answer = await to_its_end(_THREADS, partial(reader.read, job, body_fd), reader.end)
            except _Gone as error:
                log.warning("a process that reads large bodies is gone: %s", error)
                self._end(reader)
            except BaseException:
                self._end(reader)
                raise
            else:
                if reader.lasts and job.size_bytes <= KEPT_UP_TO_BYTES:
                    self._keep(reader)
                else:
                    self._end(reader)
                return answer
        raise EngineFailed("The process that reads large requests ended unexpectedly. Try again, or send less.")

    def _take(self) -> "_Reader":
        if not self._idle:
            return self._make()
        reader = self._idle.pop()
        self._timers.pop(reader).cancel()
        return reader

    def _keep(self, reader: "_Reader") -> None:
        self._idle.append(reader)
        self._timers[reader] = asyncio.get_running_loop().call_later(self._idle_s, self._retire, reader)

    def _retire(self, reader: "_Reader") -> None:
        self._idle.remove(reader)
        self._timers.pop(reader).cancel()
        self._end(reader)

    def _end(self, reader: "_Reader") -> None:
        ending = asyncio.get_running_loop().run_in_executor(_THREADS, reader.reap)
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


class _Reader:
    """One process. `end` may be called from any thread, everything else from one at a time."""

    lasts = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = False
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process unless it runs. Raises OSError, and _Gone when it is to end."""
        raise NotImplementedError

    def read(self, job: Job, body_fd: int) -> _Answer:
        """Block until the body is read. Raises _Gone, EngineTimeout, or EngineFailed."""
        raise NotImplementedError

    def end(self) -> None:
        """Kill the process, whatever it does. Idempotent."""
        with self._lock:
            self._ended = True
            if self._process is not None and self._process.returncode is None:
                self._process.kill()

    def reap(self) -> None:
        """Kill the process and return when it is gone."""
        self.end()
        if self._process is not None:
            self._process.wait()

    def _spawn(self, stdin: int, stdout: int, *arguments: str) -> "subprocess.Popen[bytes]":
        """Under the lock."""
        if self._ended:
            raise _Gone("it was ended")
        return subprocess.Popen(
            programs.command(Program.READER, *arguments),
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.DEVNULL,
            env=worker_environment(os.environ, EngineKind.FAKE, 1),
            start_new_session=True,
        )


class _SocketReader(_Reader):
    def __init__(self) -> None:
        super().__init__()
        self._channel: socket.socket | None = None

    def start(self) -> None:
        with self._lock:
            if self._process is not None:
                return
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    self._process = self._spawn(theirs.fileno(), subprocess.DEVNULL)
                except BaseException:
                    ours.close()
                    raise
            self._channel = ours

    def read(self, job: Job, body_fd: int) -> _Answer:
        if sys.platform == "win32":
            raise RuntimeError("files are not sent over sockets here")
        try:
            self.start()
            channel = self._channel
            assert channel is not None
            channel.settimeout(_time_allowed_s(job))
            content = encode_job(job)
            socket.send_fds(channel, [content[: JOB_HEAD.size]], [body_fd])
            channel.sendall(content[JOB_HEAD.size :])
            return _take_answer(channel.recv)
        except TimeoutError:
            raise _too_slow() from None
        except OSError as error:
            raise _Gone(str(error)) from error

    def reap(self) -> None:
        super().reap()
        if self._channel is not None:
            self._channel.close()


class _OnceReader(_Reader):
    lasts = False

    def start(self) -> None:
        """Nothing: its body has to be there first."""

    def read(self, job: Job, body_fd: int) -> _Answer:
        timer = threading.Timer(_time_allowed_s(job), self.end)
        timer.daemon = True
        try:
            with self._lock:
                process = self._process = self._spawn(
                    body_fd, subprocess.PIPE, "--once", encode_job(job)[JOB_HEAD.size :].hex()
                )
            assert process.stdout is not None
            timer.start()
            with process.stdout as out:
                return _take_answer(lambda size: os.read(out.fileno(), size))
        except OSError as error:
            raise _Gone(str(error)) from error
        finally:
            timer.cancel()


def _take_answer(receive: Callable[[int], bytes]) -> _Answer:
    head = b"".join(_pieces(receive, ANSWER_HEAD.size))
    refused, rest_bytes, messages_bytes = ANSWER_HEAD.unpack(head)
    if rest_bytes > REST_MAX_BYTES:
        raise EngineFailed("The process that reads large requests gave an answer that is none. Try again.")
    rest = b"".join(_pieces(receive, rest_bytes))
    if refused:
        return _Answer(msgspec.msgpack.decode(rest, type=Refusal), b"", ())
    return _Answer(None, rest, tuple(_pieces(receive, messages_bytes)))


def _pieces(receive: Callable[[int], bytes], size: int) -> Iterator[bytes]:
    left = size
    while left:
        piece = receive(min(left, _PIECE_BYTES))
        if not piece:
            raise _Gone("its answer was cut")
        left -= len(piece)
        yield piece


def _time_allowed_s(job: Job) -> float:
    return _TIME_S + job.size_bytes / _BYTES_PER_S


def _too_slow() -> EngineTimeout:
    return EngineTimeout("Reading the request took too long; the machine may be overloaded. Try again, or send less.")
