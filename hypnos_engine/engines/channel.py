"""The supervisor's end of a worker's channel: messages out, messages in, and the news that it closed.

Two implementations behave alike: a socket pair driven by the loop (POSIX), and two pipes driven by threads (Windows,
whose loops cannot wait for the pipes that a child inherits). Decides nothing about a worker's fate: it only reports.
"""

import asyncio
import collections
import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.framing import FrameDecoder, FrameError, encode_in_pieces, from_worker_decoder

MAX_PENDING_BYTES = 8 * 1024 * 1024
"""Bytes that may wait for a worker which does not read; one message may exceed it."""

_CHUNK_BYTES = 32 * 1024
"""Bytes decoded at once: a worker that floods with the smallest messages then holds the loop for a few milliseconds."""
_MAX_CHUNKS = 4
"""Chunks that a pipe's reading thread may be ahead of the loop; beyond that the worker waits in its write."""

MessageSink = Callable[[m.FromWorker], None]
"""Called on the loop, in order, once per message; must not raise."""

M = TypeVar("M")


class ChannelFull(Exception):
    """The worker has not read what it was sent before."""


class Channel(Protocol):
    """One worker's messages. All methods are called on the loop that opened it."""

    closed: asyncio.Future[FrameError | None]
    """Set once no further message will come: None after the end of the stream, else why the bytes were refused."""

    @property
    def pending_bytes(self) -> int:
        """Bytes sent and not yet taken by the operating system."""
        ...

    def send(self, message: m.Message, *, urgent: bool = False) -> None:
        """Queue a message; never blocks, and a closed channel drops it.

        Raises ChannelFull while more than MAX_PENDING_BYTES wait, unless `urgent` (messages that are small, few and
        must arrive: cancellations, settings, the end), and FrameError for a message that no frame can hold.
        """
        ...

    def close(self) -> None:
        """Give the channel up; what still waits to be sent is dropped. Idempotent; `closed` follows."""
        ...


class _SocketProtocol(asyncio.BufferedProtocol):
    def __init__(
        self, on_message: Callable[[M], None], closed: asyncio.Future[FrameError | None], decoder: FrameDecoder[M]
    ) -> None:
        self._on_message = on_message
        self._closed = closed
        self._decoder = decoder
        self._buffer = bytearray(_CHUNK_BYTES)
        self._error: FrameError | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one without deriving from it

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._error is not None:
            return
        try:
            messages = self._decoder.feed(memoryview(self._buffer)[:nbytes])
        except FrameError as error:
            self._error = error
            self._abort()
            return
        for message in messages:
            self._on_message(message)

    def eof_received(self) -> None:
        self._abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(self._error)

    def _abort(self) -> None:
        assert self._transport is not None
        self._transport.abort()


class SocketChannel:
    """A channel over one connected stream socket; implements Channel."""

    def __init__(self, transport: asyncio.WriteTransport, closed: asyncio.Future[FrameError | None]) -> None:
        self.closed = closed
        self._transport = transport

    @classmethod
    async def open(
        cls, end: socket.socket, on_message: Callable[[M], None], decoder: FrameDecoder[M] | None = None
    ) -> "SocketChannel":
        """Take over `end`, which is closed with the channel, also when opening fails or is cancelled.

        `decoder` is for programs that say other things than workers.
        """
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[FrameError | None] = loop.create_future()
        chosen = decoder or cast("FrameDecoder[M]", from_worker_decoder())
        try:
            end.setblocking(False)
            transport, _ = await loop.create_unix_connection(
                lambda: _SocketProtocol(on_message, closed, chosen), sock=end
            )
        except BaseException:
            end.close()
            raise
        return cls(transport, closed)

    @property
    def pending_bytes(self) -> int:
        """As Channel.pending_bytes."""
        return 0 if self._transport.is_closing() else self._transport.get_write_buffer_size()

    def send(self, message: m.Message, *, urgent: bool = False) -> None:
        """As Channel.send."""
        pieces = encode_in_pieces(message)
        if self._transport.is_closing():
            return
        if not urgent and self.pending_bytes > MAX_PENDING_BYTES:
            raise ChannelFull
        for piece in pieces:
            self._transport.write(piece)

    def close(self) -> None:
        """As Channel.close."""
        self._transport.abort()


class PipeChannel:
    """A channel over two file descriptors and two threads; implements Channel.

    Both descriptors belong to the channel and are closed by their threads: the reading one at the end of the stream,
    the writing one after `close` or when the worker is gone. A worker that keeps its ends open while it neither reads
    nor writes holds the threads until it is killed.
    """

    def __init__(
        self, read_fd: int, write_fd: int, on_message: Callable[[M], None], decoder: FrameDecoder[M] | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[FrameError | None] = self._loop.create_future()
        self._on_message: Callable[[Any], None] = on_message
        self._decoder: FrameDecoder[Any] = decoder or from_worker_decoder()
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._open = True
        self._arrived: collections.deque[list[Any]] = collections.deque()
        self._room = threading.Semaphore(_MAX_CHUNKS)
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._pending_bytes = 0
        self._lock = threading.Lock()
        for target in (self._read, self._write):
            threading.Thread(target=target, name=f"hypnos-pipe-{target.__name__}", daemon=True).start()

    @property
    def pending_bytes(self) -> int:
        """As Channel.pending_bytes."""
        return self._pending_bytes if self._open else 0

    def send(self, message: m.Message, *, urgent: bool = False) -> None:
        """As Channel.send."""
        pieces = encode_in_pieces(message)
        if not self._open:
            return
        if not urgent and self._pending_bytes > MAX_PENDING_BYTES:
            raise ChannelFull
        with self._lock:
            self._pending_bytes += sum(map(len, pieces))
        for piece in pieces:
            self._outgoing.put(piece)

    def close(self) -> None:
        """As Channel.close."""
        self._shut(None)

    def _read(self) -> None:
        error: FrameError | None = None
        try:
            while self._open and (chunk := os.read(self._read_fd, _CHUNK_BYTES)):
                messages = self._decoder.feed(chunk)
                self._room.acquire()
                self._arrived.append(messages)
                self._call_on_loop(self._deliver)
        except FrameError as caught:
            error = caught
        except OSError:
            pass  # a broken pipe is an end like any other
        os.close(self._read_fd)
        self._call_on_loop(self._at_end, error)

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            while self._open and (frame := self._outgoing.get()) is not None:
                rest = memoryview(frame)
                while rest and self._open:
                    rest = rest[os.write(self._write_fd, rest) :]
                with self._lock:
                    self._pending_bytes -= len(frame)
        os.close(self._write_fd)

    def _call_on_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        # Under the lock, so that no call is under way once `close` has returned: the loop may be gone then, and a Qt
        # loop that is called from a thread while it is taken apart crashes the process.
        with self._lock, contextlib.suppress(RuntimeError):
            if self._open:
                self._loop.call_soon_threadsafe(callback, *arguments)

    def _deliver(self) -> None:
        if self._arrived and self._open:
            messages = self._arrived.popleft()
            self._room.release()
            for message in messages:
                self._on_message(message)

    def _at_end(self, error: FrameError | None) -> None:
        while self._arrived and self._open:
            self._deliver()
        self._shut(error)

    def _shut(self, error: FrameError | None) -> None:
        with self._lock:
            if not self._open:
                return
            self._open = False
        self._room.release(_MAX_CHUNKS)
        self._outgoing.put(None)
        if not self.closed.done():
            self.closed.set_result(error)
