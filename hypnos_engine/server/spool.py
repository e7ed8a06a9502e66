"""One body on its way in: its share of the bytes that all bodies may hold, and where its bytes lie.

Small ones stay in memory, larger ones go to a file without a name (0600, gone with the process). Reads no meaning.
"""

import asyncio
import os
import tempfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Final, TypeVar

from hypnos_engine.domain.errors import ModelNotAvailable

T = TypeVar("T")

MEMORY_MAX_BYTES: Final = 1024 * 1024
"""A larger body lies in a file."""
_WRITE_BYTES: Final = 256 * 1024

# One thread does all that files are asked: what was asked first is done first, closing included.
_FILES: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hypnos-spool")


async def to_its_end(
    executor: ThreadPoolExecutor, work: Callable[[], T], abandon: Callable[[], None] | None = None
) -> T:
    """Do `work` on a thread and wait for it through every cancellation, which then goes on.

    `abandon` is called when a cancellation arrives, and may make the work end sooner.
    """
    future = asyncio.get_running_loop().run_in_executor(executor, work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as error:
            cancelled = error
            if abandon is not None:
                abandon()
    if cancelled is not None:
        future.exception()
        raise cancelled
    return future.result()


class BodyBudget:
    """The bytes that bodies may hold together. Used on one loop."""

    def __init__(self, limit_bytes: int, wait_s: float) -> None:
        self._limit_bytes = limit_bytes
        self._wait_s = wait_s
        self._held_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def held_bytes(self) -> int:
        """Bytes held at this moment."""
        return self._held_bytes

    async def take(self, size_bytes: int) -> None:
        """Take bytes, in the order of asking. Raises ModelNotAvailable when none became free in time."""
        if not self._waiting and self._fits(size_bytes):
            self._held_bytes += size_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size_bytes, turn)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.give_back(size_bytes)
            else:
                self._waiting.remove(entry)
                self._grant()
            if isinstance(error, TimeoutError):
                raise ModelNotAvailable(
                    f"The server holds as many bytes of requests as it may ({self._limit_bytes}, "
                    "limits.max_body_bytes_in_flight). Try again shortly.",
                    retry_after_s=max(1.0, self._wait_s),
                ) from None
            raise

    def give_back(self, size_bytes: int) -> None:
        """Let go of bytes that were taken."""
        self._held_bytes -= size_bytes
        self._grant()

    def _fits(self, size_bytes: int) -> bool:
        return self._held_bytes == 0 or self._held_bytes + size_bytes <= self._limit_bytes

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size_bytes, turn = self._waiting.popleft()
            if not turn.done():
                self._held_bytes += size_bytes
                turn.set_result(None)


class Spool:
    """The bytes of one body. `close` lets go of everything, also while it is still coming."""

    def __init__(self, budget: BodyBudget, folder: str | None) -> None:
        self.size_bytes = 0
        self._budget = budget
        self._folder = folder
        self._taken_bytes = 0
        self._pieces: list[bytes] = []
        """In memory: the whole body, or what the file does not have yet."""
        self._pieces_bytes = 0
        self._file: IO[bytes] | None = None

    @property
    def in_memory(self) -> bool:
        """True while the body is small enough for that."""
        return self._file is None

    async def expect(self, size_bytes: int) -> None:
        """Take the bytes that are going to come. Raises ModelNotAvailable."""
        if size_bytes > self._taken_bytes:
            await self._budget.take(size_bytes - self._taken_bytes)
            self._taken_bytes = size_bytes

    async def add(self, piece: bytes) -> None:
        """Append to the body. Raises ModelNotAvailable when there is no room for it."""
        await self.expect(self.size_bytes + len(piece))
        self.size_bytes += len(piece)
        self._pieces.append(piece)
        self._pieces_bytes += len(piece)
        if self._pieces_bytes >= (MEMORY_MAX_BYTES if self.in_memory else _WRITE_BYTES):
            await self._write()

    def joined(self) -> bytes:
        """The body, while it is in memory."""
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)

    async def file(self) -> int:
        """A descriptor of the complete body; the spool's own. Raises ModelNotAvailable when the disk is full."""
        if self._pieces or self._file is None:
            await self._write()
        assert self._file is not None
        return self._file.fileno()

    def close(self) -> None:
        """Let go of the file and of the bytes taken. Idempotent."""
        self._pieces.clear()
        if self._file is not None:
            _FILES.submit(self._file.close)
            self._file = None
        if self._taken_bytes:
            self._budget.give_back(self._taken_bytes)
            self._taken_bytes = 0

    async def _write(self) -> None:
        pieces, self._pieces, self._pieces_bytes = self._pieces, [], 0
        try:
            if self._file is None:
                await to_its_end(_FILES, self._open)
            file = self._file
            assert file is not None
            await to_its_end(_FILES, lambda: _write_all(file.fileno(), pieces))
        except OSError as error:
            raise ModelNotAvailable(
                f"The body of the request cannot be kept on the server's disk ({error.strerror}). "
                "Make room there, then try again."
            ) from error

    def _open(self) -> None:
        # Set on the thread: whoever was cancelled meanwhile still has it to close.
        self._file = tempfile.TemporaryFile(buffering=0, dir=self._folder, prefix="hypnos-body-")  # noqa: SIM115


def _write_all(fd: int, pieces: list[bytes]) -> None:
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(fd, rest) :]
