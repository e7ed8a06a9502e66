"""Shared memory without a name: made by the supervisor, handed to a worker, outliving the worker but not the program.

A block has no path that could be left behind: memfd on Linux, `shm_open` unlinked at once on macOS, an unnamed section
on Windows (`windows_section`). On POSIX its handle travels over a stream socket of its own, one beside each 16-byte
header; on Windows it is duplicated into the worker. Either way the supervisor calls `BlockSender.hand_over`, names the
number and the size in an ordinary message, and the worker calls `BlockReceiver.take`. Decides nothing about what a
block holds.
"""

import array
import contextlib
import itertools
import mmap
import os
import secrets
import socket
import stat
import struct
import sys
from types import TracebackType

if sys.platform == "win32":
    from hypnos_engine.ipc.windows_section import Mapping, close_handle, create_handle, duplicate_into
else:
    import _posixshmem  # type: ignore[import-not-found]  # the standard library's own, without a stub
    import fcntl

_HEADER = struct.Struct("<QQ")
"""Number of the block, its size in bytes."""
_SIZE_STEP_BYTES = mmap.PAGESIZE if sys.platform == "darwin" else 1
"""macOS rounds the size that it tells up to whole pages."""
_MAX_HANDLES = 16
"""Handles accepted with one header, so that those beyond the one expected can be closed."""


class BlockError(Exception):
    """A block could not be made, sent or received; the message says why."""


class Block:
    """A writable stretch of shared memory; a context manager that unmaps it and gives its handle up.

    Pages are taken from the machine when they are first written. On Linux nobody who holds the handle can change the
    size, so touching a mapped block never ends in SIGBUS.
    """

    def __init__(self, handle: int, size_bytes: int) -> None:
        """Take over `handle` (a file descriptor, on Windows a section handle), which is closed if this fails."""
        self.size_bytes = size_bytes
        self._handle: int | None = handle
        try:
            self._mapping = Mapping(handle, size_bytes)
        except (OSError, ValueError, OverflowError) as error:
            close_handle(handle)
            raise BlockError(f"a block of {size_bytes} bytes cannot be mapped: {error}") from error

    @classmethod
    def create(cls, size_bytes: int) -> "Block":
        """A new block, zeroed. Raises BlockError when the system refuses it, ValueError for a size below 1."""
        if size_bytes < 1:
            raise ValueError("a block holds at least one byte")
        try:
            handle = create_handle(size_bytes)
        except (OSError, OverflowError) as error:
            raise BlockError(f"a block of {size_bytes} bytes cannot be made: {error}") from error
        return cls(handle, size_bytes)

    @property
    def handle(self) -> int:
        """The file descriptor or section handle, which stays the block's. Raises BlockError once closed."""
        if self._handle is None:
            raise BlockError("the block is closed")
        return self._handle

    @property
    def view(self) -> memoryview:
        """All bytes, writable. Release it before the block is closed. Raises BlockError once closed."""
        if self._handle is None:
            raise BlockError("the block is closed")
        return self._mapping.view()

    def close(self) -> None:
        """Unmap and give the handle up; idempotent. The memory is free again once every process has done so.

        Raises BufferError while a view is still in use (POSIX); the block then stays open.
        """
        if self._handle is None:
            return
        self._mapping.close()
        handle, self._handle = self._handle, None
        close_handle(handle)

    def __enter__(self) -> "Block":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


if sys.platform != "win32":

    class Mapping:
        """A block's bytes in this process."""

        def __init__(self, handle: int, size_bytes: int) -> None:
            self._map = mmap.mmap(handle, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            if sys.platform == "linux":  # what people said must not be in an image of a process that crashed
                self._map.madvise(mmap.MADV_DONTDUMP)

        def view(self) -> memoryview:
            """All bytes."""
            return memoryview(self._map)

        def close(self) -> None:
            """Unmap; raises BufferError while a view is in use."""
            self._map.close()

    close_handle = os.close

    def create_unlinked(size_bytes: int) -> int:
        """A POSIX shared memory object whose name is gone before anyone could open it; returns its descriptor."""
        name = f"/hypnos-{secrets.token_hex(8)}"
        handle: int = _posixshmem.shm_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _posixshmem.shm_unlink(name)
            os.ftruncate(handle, size_bytes)
        except BaseException:
            os.close(handle)
            raise
        return handle

    if sys.platform == "linux":

        def create_handle(size_bytes: int) -> int:
            """A memfd whose size is sealed; returns its descriptor."""
            handle = os.memfd_create("hypnos", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.ftruncate(handle, size_bytes)
                fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
            except BaseException:
                os.close(handle)
                raise
            return handle

    else:
        create_handle = create_unlinked

    class BlockSender:
        """The supervisor's end of a block socket."""

        def __init__(self, end: socket.socket) -> None:
            """Take over one end of a connected stream socket pair."""
            self._end = end
            self._numbers = itertools.count(1)
            end.setblocking(False)

        def hand_over(self, block: Block) -> int:
            """Give the worker a handle of its own; returns the number that its `take` wants. Errors as of `send`."""
            number = next(self._numbers)
            self.send(number, block)
            return number

        def send(self, number: int, block: Block) -> None:
            """Hand `block` over as `number`; the sender's own handle stays open. Never blocks.

            Raises BlockError when the worker is gone, has not taken earlier blocks, or the system has no room.
            """
            header = _HEADER.pack(number, block.size_bytes)
            rights = array.array("i", [block.handle])
            try:
                sent = self._end.sendmsg([header], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            except OSError as error:
                raise BlockError(f"block {number} cannot be handed to the worker: {error}") from error
            if sent != len(header):
                self.close()
                raise BlockError(f"block {number} cannot be handed to the worker: its header was cut")

        def close(self) -> None:
            """Give the socket up. Idempotent."""
            self._end.close()

    class BlockReceiver:
        """The worker's end of a block socket."""

        def __init__(self, end: socket.socket) -> None:
            """Take over one end of a connected stream socket pair."""
            self._end = end
            end.setblocking(True)
            end.set_inheritable(False)

        def take(self, number: int, size_bytes: int) -> Block:
            """The block that was handed over as `number`; waits for it. Earlier ones that nobody took are given up.

            Raises BlockError when the stream ends or carries anything else; it is not to be read any further then.
            """
            while (received := self.receive()) is not None:
                came, block = received
                if came == number and block.size_bytes == size_bytes:
                    return block
                block.close()
                if came >= number:
                    raise BlockError(f"block {came} came instead of block {number} of {size_bytes} bytes")
            raise BlockError(f"block {number} was not handed over")

        def receive(self) -> tuple[int, Block] | None:
            """Wait for the next block and map it; None at the end of the stream.

            Raises BlockError for anything but a whole header with exactly one handle of the announced size. Nothing
            that came with it stays open, and the stream is not to be read any further.
            """
            header, handles = self._receive()
            try:
                if not header and not handles:
                    return None
                if len(header) != _HEADER.size:
                    raise BlockError(f"a block's header was cut after {len(header)} bytes")
                if len(handles) != 1:
                    raise BlockError(f"{len(handles)} handles came with one block")
                number, size_bytes = _HEADER.unpack(header)
                status = os.fstat(handles[0])
                if not (stat.S_ISREG(status.st_mode) or sys.platform == "darwin"):
                    raise BlockError(f"the handle of block {number} is no memory")
                if size_bytes < 1 or not size_bytes <= status.st_size < size_bytes + _SIZE_STEP_BYTES:
                    raise BlockError(f"block {number} has {status.st_size} bytes instead of {size_bytes}")
                return number, Block(handles.pop(), size_bytes)
            finally:
                for handle in handles:
                    os.close(handle)

        def close(self) -> None:
            """Give the socket up. Idempotent."""
            self._end.close()

        def _receive(self) -> tuple[bytes, list[int]]:
            """One header, as much of it as came, and every handle that came with it."""
            room = socket.CMSG_SPACE(_MAX_HANDLES * array.array("i").itemsize)
            flags = 0
            if sys.platform == "linux":
                flags = socket.MSG_CMSG_CLOEXEC
            header = b""
            handles: list[int] = []
            while len(header) < _HEADER.size:
                try:
                    chunk, control, _, _ = self._end.recvmsg(_HEADER.size - len(header), room, flags)
                except OSError:
                    break  # the other end is gone
                for level, kind, content in control:
                    if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                        handles.extend(_descriptors(content))
                if not chunk:
                    break
                header += chunk
            return header, handles

    def _descriptors(content: bytes) -> list[int]:
        descriptors = array.array("i")
        descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                os.set_inheritable(descriptor, False)
        return descriptors.tolist()


else:

    class BlockSender:
        """The supervisor's way to hand blocks to one worker."""

        def __init__(self, pid: int) -> None:
            self._pid = pid

        def hand_over(self, block: Block) -> int:
            """Give the worker a handle of its own; returns the number that its `take` wants. Raises BlockError."""
            try:
                return duplicate_into(block.handle, self._pid)
            except OSError as error:
                raise BlockError(f"a block cannot be handed to the worker: {error}") from error

        def close(self) -> None:
            """Nothing to give up."""

    class BlockReceiver:
        """The worker's way to take blocks."""

        def take(self, number: int, size_bytes: int) -> Block:
            """The block that was handed over as `number`. Raises BlockError."""
            return Block(number, size_bytes)

        def close(self) -> None:
            """Nothing to give up."""
