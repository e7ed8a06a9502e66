"""The worker's end of the channel: whole frames out, decoded messages in. A channel that ends, ends the process.

Must never let a half-written frame or a lost supervisor go unnoticed: there is nobody to report an error to.
"""

import contextlib
import os
import queue
import sys
import threading
import time
from typing import Generic, NoReturn, TypeVar

from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.framing import FrameDecoder, FrameError, encode, to_worker_decoder
from hypnos_engine.workers.process import EXIT_ORPHANED

EXIT_CHANNEL_BROKEN = 4
"""Exit status of a worker that was sent bytes which are no message."""

BEAT_S = 1.0
"""A worker with work in hand says something at least about so often, steps longer than that aside."""
_CHUNK_BYTES = 256 * 1024

T = TypeVar("T")


class Channel(Generic[T]):
    """Messages to and from the supervisor. `inbox` also takes what the worker's own threads post to its main loop."""

    def __init__(self, read_fd: int, write_fd: int, decoder: FrameDecoder[T] | None = None) -> None:
        """Both descriptors belong to the channel. `decoder` is for programs that are told other things than workers."""
        self.inbox: queue.SimpleQueue[m.ToWorker | T] = queue.SimpleQueue()
        self.shutdown_seen = False
        """True as soon as a Shutdown has arrived, also while the main thread is inside a native call."""
        self.handles_fd: int | None = None
        """Descriptor of the socket over which blocks come, where there is one (`ipc.blocks`)."""
        self._decoder: FrameDecoder[T] | FrameDecoder[m.ToWorker] = decoder or to_worker_decoder()
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._writing = threading.Lock()
        self._sent_s = 0.0

    def start_reading(self) -> None:
        """Read on a thread of its own, so that the end of the channel is seen whatever the main thread does."""
        threading.Thread(target=self._read, name="channel", daemon=True).start()

    def send(self, *messages: m.Message) -> None:
        """Write the frames of all messages in one piece.

        Blocks while the supervisor does not read, so that nothing piles up here: neither a frame is lost nor memory.
        """
        if not messages:
            return
        self._sent_s = time.monotonic()
        rest = memoryview(b"".join(encode(message) for message in messages))
        try:
            with self._writing:
                while rest:
                    rest = rest[os.write(self._write_fd, rest) :]
        except OSError:
            _end(EXIT_ORPHANED)

    def beat(self) -> None:
        """Say that the main loop turns, if nothing was sent for BEAT_S; called by that loop, between two steps."""
        if time.monotonic() - self._sent_s >= BEAT_S:
            self.send(m.Beat())

    def next_message(self, *, busy: bool) -> m.ToWorker | T:
        """Wait for a message; a loop that has work in hand goes on beating meanwhile."""
        while busy:
            with contextlib.suppress(queue.Empty):
                return self.inbox.get(timeout=BEAT_S)
            self.beat()
        return self.inbox.get()

    def _read(self) -> None:
        try:
            while chunk := os.read(self._read_fd, _CHUNK_BYTES):
                for message in self._decoder.feed(chunk):
                    if isinstance(message, m.Shutdown):
                        self.shutdown_seen = True
                    self.inbox.put(message)
        except FrameError as error:
            _end(EXIT_CHANNEL_BROKEN, f"the channel from the supervisor is broken: {error}")
        except OSError:
            pass
        _end(EXIT_ORPHANED)


def _end(status: int, last_words: str = "") -> NoReturn:
    """Leave at once, also while another thread is inside a native call."""
    if last_words:
        os.write(2, f"{last_words}\n".encode())
    sys.stderr.flush()
    os._exit(status)
