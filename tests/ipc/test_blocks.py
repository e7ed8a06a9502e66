"""Blocks: real processes share them, they outlive whoever filled them, and nothing of them is left behind."""

import array
import itertools
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypnos_engine.ipc.blocks import Block, BlockError, BlockReceiver, BlockSender, create_unlinked

CHILD = """
import os, socket, sys
from hypnos_engine.ipc.blocks import BlockReceiver
receiver = BlockReceiver(socket.socket(fileno=int(sys.argv[1])))
for _ in range(int(sys.argv[2])):
    number, block = receiver.receive()
    with block.view as view:
        view[:] = bytes([number]) * block.size_bytes
    try:
        os.ftruncate(block.handle, 0)
        print("shrunk", flush=True)
    except OSError:
        print("written", number, flush=True)
sys.stdin.read()
"""


def listing(folder: str) -> set[str]:
    return {entry.name for entry in Path(folder).iterdir()}


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """No test leaves a descriptor or a named object behind."""
    before, named = listing("/proc/self/fd"), listing("/dev/shm")
    yield
    assert listing("/proc/self/fd") == before
    assert {name for name in listing("/dev/shm") if "hypnos" in name} <= named


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def hand_over(end: socket.socket, header: bytes, handles: list[int]) -> None:
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", handles))] if handles else []
    end.sendmsg([header], control)


def send_for_ever(sender: BlockSender, block: Block) -> None:
    for number in itertools.count():
        sender.send(number, block)


def header_of(number: int, size_bytes: int) -> bytes:
    return struct.pack("<QQ", number, size_bytes)


def test_a_killed_childs_bytes_are_still_there(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    sizes = {1: 1, 2: mmap.PAGESIZE, 3: 1_000_001}
    command = [sys.executable, "-c", CHILD, str(theirs.fileno()), str(len(sizes))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[theirs.fileno()]) as child:
        assert child.stdout is not None
        theirs.close()
        sender = BlockSender(ours)
        blocks = {number: Block.create(size) for number, size in sizes.items()}
        for number, block in blocks.items():
            sender.send(number, block)
        assert [child.stdout.readline().split() for _ in sizes] == [[b"written", b"%d" % number] for number in sizes]
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    for number, block in blocks.items():
        with block, block.view as view:
            assert bytes(view) == bytes([number]) * sizes[number]


def test_a_block_is_zeroed_and_has_no_name() -> None:
    with Block.create(10_000) as block:
        with block.view as view:
            assert bytes(view) == bytes(10_000)
            assert not view.readonly
        assert "(deleted)" in str(Path(f"/proc/self/fd/{block.handle}").readlink())


def test_nobody_can_change_a_blocks_size() -> None:
    with Block.create(10_000) as block:
        for size in (0, 20_000):
            with pytest.raises(PermissionError):
                os.ftruncate(block.handle, size)


def test_the_way_of_systems_without_memfd_leaves_no_name_either() -> None:
    names = listing("/dev/shm")
    with Block(create_unlinked(5000), 5000) as block:
        assert listing("/dev/shm") == names
        with block.view as view:
            view[:3] = b"abc"
        with Block(os.dup(block.handle), 5000) as again, again.view as view:
            assert bytes(view[:3]) == b"abc"


def test_a_closed_block_is_closed() -> None:
    block = Block.create(1)
    block.close()
    block.close()
    with pytest.raises(BlockError):
        _ = block.view
    with pytest.raises(BlockError):
        _ = block.handle


def test_a_block_in_use_stays_open() -> None:
    block = Block.create(100)
    view = block.view
    with pytest.raises(BufferError):
        block.close()
    view[0] = 1
    view.release()
    block.close()


@pytest.mark.parametrize("size", [0, -1])
def test_a_block_holds_at_least_a_byte(size: int) -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        Block.create(size)


@pytest.mark.parametrize("size", [2**62, 2**70])
def test_a_size_that_the_system_refuses_is_an_error_that_leaves_nothing(size: int) -> None:
    with pytest.raises(BlockError, match=str(size)):
        Block.create(size)


def test_a_handle_that_cannot_be_mapped_is_closed() -> None:
    reading, writing = os.pipe()
    with pytest.raises(BlockError):
        Block(reading, 10)
    os.close(writing)


def test_the_end_of_the_stream_is_none(pair: tuple[socket.socket, socket.socket]) -> None:
    BlockSender(pair[0]).close()
    assert BlockReceiver(pair[1]).receive() is None


def test_a_header_in_two_pieces_is_put_together(pair: tuple[socket.socket, socket.socket]) -> None:
    with Block.create(100) as block:
        header = header_of(7, 100)
        hand_over(pair[0], header[:5], [block.handle])
        pair[0].sendall(header[5:])
        received = BlockReceiver(pair[1]).receive()
        assert received is not None
        number, theirs = received
        with theirs:
            assert (number, theirs.size_bytes) == (7, 100)
            assert not os.get_inheritable(theirs.handle)


@pytest.mark.parametrize("count", [0, 2, 5, 16, 40])
def test_a_header_with_any_other_number_of_handles_is_refused(
    count: int, pair: tuple[socket.socket, socket.socket]
) -> None:
    with Block.create(100) as block:
        hand_over(pair[0], header_of(1, 100), [block.handle] * count)
        with pytest.raises(BlockError, match="handles"):
            BlockReceiver(pair[1]).receive()


@pytest.mark.parametrize("length", [1, 15])
def test_a_cut_header_is_refused(length: int, pair: tuple[socket.socket, socket.socket]) -> None:
    with Block.create(100) as block:
        hand_over(pair[0], header_of(1, 100)[:length], [block.handle])
        pair[0].close()
        with pytest.raises(BlockError, match=f"cut after {length} bytes"):
            BlockReceiver(pair[1]).receive()


@pytest.mark.parametrize("size", [0, 99, 101, 10_000, 2**63])
def test_a_size_that_is_not_the_blocks_is_refused(size: int, pair: tuple[socket.socket, socket.socket]) -> None:
    with Block.create(100) as block:
        hand_over(pair[0], header_of(1, size), [block.handle])
        with pytest.raises(BlockError):
            BlockReceiver(pair[1]).receive()


def test_a_handle_that_is_no_memory_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    with Path("/dev/null").open("rb") as null:
        hand_over(pair[0], header_of(1, 100), [null.fileno()])
        with pytest.raises(BlockError, match="no memory"):
            BlockReceiver(pair[1]).receive()


def test_a_worker_that_is_gone_or_takes_nothing_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    sender = BlockSender(pair[0])
    with Block.create(100) as block:
        with pytest.raises(BlockError, match="cannot be handed"):
            send_for_ever(sender, block)
        pair[1].close()
        with pytest.raises(BlockError, match="cannot be handed"):
            sender.send(1, block)


def test_a_block_is_taken_by_the_number_under_which_it_was_handed_over(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sender, receiver = BlockSender(pair[0]), BlockReceiver(pair[1])
    with Block.create(100) as forgotten, Block.create(200) as wanted:
        sender.hand_over(forgotten)
        number = sender.hand_over(wanted)
        with receiver.take(number, 200) as theirs, theirs.view as view:
            view[0] = 7
        with wanted.view as view:
            assert view[0] == 7


@pytest.mark.parametrize(("later", "size"), [(0, 101), (-1, 100)])
def test_another_block_than_the_one_that_is_taken_is_refused(
    later: int, size: int, pair: tuple[socket.socket, socket.socket]
) -> None:
    sender, receiver = BlockSender(pair[0]), BlockReceiver(pair[1])
    with Block.create(100) as block:
        number = sender.hand_over(block)
        with pytest.raises(BlockError, match="instead of block"):
            receiver.take(number + later, size)


def test_a_block_that_never_comes_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].close()
    with pytest.raises(BlockError, match="was not handed over"):
        BlockReceiver(pair[1]).take(1, 100)
