"""Both channels keep the same promises, on every loop: order, bounds, and one clear end."""

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from hypnos_engine.engines.channel import MAX_PENDING_BYTES, Channel, ChannelFull, PipeChannel, SocketChannel
from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.framing import FrameError, encode, to_worker_decoder

Sink = Callable[[m.FromWorker], None]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class Peer:
    """The worker's end: blocking reads and writes, to be called off the loop."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd

    def write(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(self._write_fd, rest) :]

    def read_messages(self, count: int) -> list[m.ToWorker]:
        decoder, messages = to_worker_decoder(), list[m.ToWorker]()
        while len(messages) < count and (chunk := os.read(self._read_fd, 65536)):
            messages += decoder.feed(chunk)
        return messages

    def close(self) -> None:
        for fd in {self._read_fd, self._write_fd}:
            os.close(fd)
        self._read_fd = self._write_fd = -1


class Inbox:
    """Collects messages and lets a test wait for a number of them."""

    def __init__(self) -> None:
        self.messages: list[m.FromWorker] = []
        self._news = asyncio.Event()

    def put(self, message: m.FromWorker) -> None:
        self.messages.append(message)
        self._news.set()

    async def wait_for(self, count: int) -> None:
        while len(self.messages) < count:
            self._news.clear()
            await self._news.wait()


class ChannelTests:
    """Inherit as a `Test…` class and say how to connect a channel with a peer."""

    async def connect(self, sink: Sink) -> tuple[Channel, Peer]:
        raise NotImplementedError

    async def test_messages_arrive_in_order_both_ways(self, loop_factory: LoopFactory) -> None:
        inbox = Inbox()
        channel, peer = await self.connect(inbox.put)
        for nonce in range(500):
            channel.send(m.Ping(nonce))
        assert await asyncio.to_thread(peer.read_messages, 500) == [m.Ping(nonce) for nonce in range(500)]
        await asyncio.to_thread(peer.write, b"".join(encode(m.Pong(nonce)) for nonce in range(500)))
        await inbox.wait_for(500)
        assert inbox.messages == [m.Pong(nonce) for nonce in range(500)]
        channel.close()
        assert await channel.closed is None
        peer.close()

    async def test_frames_may_be_cut_anywhere(self, loop_factory: LoopFactory) -> None:
        inbox = Inbox()
        channel, peer = await self.connect(inbox.put)
        for byte in encode(m.Failed(1, "cancelled", "Grüße")) + encode(m.Pong(2)):
            await asyncio.to_thread(peer.write, bytes([byte]))
        await inbox.wait_for(2)
        assert inbox.messages == [m.Failed(1, "cancelled", "Grüße"), m.Pong(2)]
        channel.close()
        peer.close()

    async def test_large_messages_pass_both_ways(self, loop_factory: LoopFactory) -> None:
        inbox = Inbox()
        channel, peer = await self.connect(inbox.put)
        text = "x" * 5_000_000
        question = m.Generate(1, "local", (m.ChatMessage("user", (m.TextPart(text),)),), 1)
        channel.send(question)
        assert await asyncio.to_thread(peer.read_messages, 1) == [question]
        for _ in range(10_000):  # a writing thread counts a frame as sent a moment after its last byte was taken
            if not channel.pending_bytes:
                break
            await asyncio.sleep(0)
        assert channel.pending_bytes == 0
        await asyncio.to_thread(peer.write, encode(m.Step((m.Delta(1, text),))))
        await inbox.wait_for(1)
        assert inbox.messages == [m.Step((m.Delta(1, text),))]
        channel.close()
        peer.close()

    async def test_what_was_sent_before_the_end_still_arrives(self, loop_factory: LoopFactory) -> None:
        inbox = Inbox()
        channel, peer = await self.connect(inbox.put)
        await asyncio.to_thread(peer.write, encode(m.Pong(1)) + encode(m.Pong(2)) + encode(m.Pong(3))[:-1])
        peer.close()
        assert await channel.closed is None
        assert inbox.messages == [m.Pong(1), m.Pong(2)]
        channel.send(m.Ping(1))
        assert channel.pending_bytes == 0
        channel.close()

    @pytest.mark.parametrize("content", [struct.pack("<I", 3) + b"\xc1\xc1\xc1", b"Traceback (most recent call"])
    async def test_bytes_that_are_no_message_end_it(self, content: bytes, loop_factory: LoopFactory) -> None:
        inbox = Inbox()
        channel, peer = await self.connect(inbox.put)
        await asyncio.to_thread(peer.write, encode(m.Pong(1)))
        await inbox.wait_for(1)
        await asyncio.to_thread(peer.write, content)
        assert isinstance(await channel.closed, FrameError)
        assert inbox.messages == [m.Pong(1)]
        channel.close()
        peer.close()

    async def test_a_peer_that_does_not_read_is_refused_more(self, loop_factory: LoopFactory) -> None:
        channel, peer = await self.connect(Inbox().put)
        question = m.Generate(1, "local", (m.ChatMessage("user", (m.TextPart("x" * 1_000_000),)),), 1)
        sent = 0
        while channel.pending_bytes <= MAX_PENDING_BYTES:
            channel.send(question)
            sent += 1
        with pytest.raises(ChannelFull):
            channel.send(question)
        assert MAX_PENDING_BYTES < channel.pending_bytes < MAX_PENDING_BYTES + 2_000_000
        channel.send(m.Cancel(1), urgent=True)
        received = await asyncio.to_thread(peer.read_messages, sent + 1)
        assert received == [question] * sent + [m.Cancel(1)]
        channel.send(question)
        assert await asyncio.to_thread(peer.read_messages, 1) == [question]
        channel.close()
        peer.close()

    async def test_a_message_that_fits_no_frame_is_refused_and_changes_nothing(self) -> None:
        channel, peer = await self.connect(Inbox().put)
        text = "x" * (65 * 1024 * 1024)
        with pytest.raises(FrameError):
            channel.send(m.Generate(1, "local", (m.ChatMessage("user", (m.TextPart(text),)),), 1))
        channel.send(m.Ping(1))
        assert await asyncio.to_thread(peer.read_messages, 1) == [m.Ping(1)]
        channel.close()
        peer.close()

    async def test_a_peer_that_is_gone_is_an_end_and_no_error(self, loop_factory: LoopFactory) -> None:
        channel, peer = await self.connect(Inbox().put)
        channel.send(m.Ping(1))
        peer.close()
        channel.send(m.Ping(2))
        assert await channel.closed is None
        channel.send(m.Ping(3))

    async def test_closing_twice_is_once_and_nothing_arrives_after(self, loop_factory: LoopFactory) -> None:
        inbox = Inbox()
        channel, peer = await self.connect(inbox.put)
        await asyncio.to_thread(peer.write, encode(m.Pong(1)))
        await inbox.wait_for(1)
        channel.close()
        channel.close()
        assert await channel.closed is None
        peer.close()
        assert inbox.messages == [m.Pong(1)]


class TestSocketChannel(ChannelTests):
    async def connect(self, sink: Sink) -> tuple[Channel, Peer]:
        ours, theirs = socket.socketpair()
        descriptor = theirs.detach()
        return await SocketChannel.open(ours, sink), Peer(descriptor, descriptor)


class TestPipeChannel(ChannelTests):
    async def connect(self, sink: Sink) -> tuple[Channel, Peer]:
        from_worker, to_us = os.pipe()
        from_us, to_worker = os.pipe()
        return PipeChannel(from_worker, to_worker, sink), Peer(from_us, to_us)

    async def test_a_loop_that_is_busy_makes_the_writer_wait(self) -> None:
        """The reading thread stays a few chunks ahead of the loop, however much there is to read."""
        inbox = Inbox()
        channel, peer = await self.connect(inbox.put)
        frame = encode(m.Step((m.Delta(1, "x" * 100_000),)))
        count = 100
        written = threading.Event()

        def write() -> None:
            peer.write(frame * count)
            written.set()

        writer = threading.Thread(target=write)
        writer.start()
        assert not written.wait(0.2)  # the loop does nothing meanwhile
        await inbox.wait_for(count)
        writer.join()
        channel.close()
        peer.close()
        assert await channel.closed is None


async def test_a_cancelled_opening_closes_the_socket() -> None:
    ours, theirs = socket.socketpair()
    opening: Coroutine[Any, Any, SocketChannel] = SocketChannel.open(ours, Inbox().put)
    task = asyncio.create_task(opening)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ours.fileno() == -1
    assert await asyncio.to_thread(theirs.recv, 1) == b""
    theirs.close()
