"""The process that downloads one job: gets an order on stdin, says how it goes on stdout, and ends with its parent.

Never runs inside the server: what the network or a library does here ends this process only.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO, Final

from hypnos_engine.catalog.downloads import orders
from hypnos_engine.catalog.downloads.orders import End, Ended, Order, Said

if TYPE_CHECKING:
    from hypnos_engine.catalog.downloads.work import Work

EXIT_OK: Final = 0
EXIT_ORPHANED: Final = 3
STOP_S: Final = 0.5
"""From the wish to stop until the process ends although its main thread does not come back."""
_LOOK_S: Final = 0.25


def main(arguments: Sequence[str]) -> int:
    """Work off the order that comes on stdin; returns the exit status."""
    if arguments:
        sys.stderr.write("usage: hypnos-worker --download\n\nGets its order on stdin.\n")
        return 2
    with contextlib.suppress(ValueError, OSError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    asked, mouth = os.fdopen(os.dup(0), "rb", buffering=0), _Mouth(_private_stdout())
    line = _first_line(asked)
    if not line:
        return EXIT_OK
    try:
        order = orders.read_order(line)
        mouth.say(_run(order, asked, mouth))
    except BaseException as error:
        mouth.say(Ended(End.RETRY, f"The download's process failed ({type(error).__name__})."))
        raise
    return EXIT_OK


def _run(order: Order, asked: BinaryIO, mouth: "_Mouth") -> Ended:
    try:
        # Here and not at the top: it takes half a second, and a failure of it can be told.
        from hypnos_engine.catalog.downloads.work import Work
    except ImportError as error:
        return Ended(End.REFUSED, f"This installation cannot download: {error.name or error} is missing.")
    work = Work(order, mouth.say)
    threading.Thread(target=_listen, args=(asked, work, mouth), name="orders", daemon=True).start()
    threading.Thread(target=_watch, args=(work, mouth), name="stall watch", daemon=True).start()
    return work.run()


def _listen(asked: BinaryIO, work: "Work", mouth: "_Mouth") -> None:
    """Stop when that is asked; end at once when nobody is there any more."""
    while line := asked.readline():
        if line == orders.GO:
            work.grant()
        elif line == orders.STOP:
            work.stop()
            patience = threading.Timer(STOP_S, _end_here, args=(work, mouth, Ended(End.STOPPED)))
            patience.daemon = True
            patience.start()
    work.note()
    os._exit(EXIT_ORPHANED)


def _end_here(work: "Work", mouth: "_Mouth", last: Ended) -> None:
    """End a process whose main thread hangs in a read, and lose nothing."""
    work.note()
    mouth.say(last)
    os._exit(EXIT_OK)


def _watch(work: "Work", mouth: "_Mouth") -> None:
    """End the process when the far side is silent: a blocked read cannot be ended otherwise. Nothing noted is lost."""
    seen, since = work.heartbeats, time.monotonic()
    pause = threading.Event()
    while not pause.wait(min(_LOOK_S, work.order.stall_s / 4)):
        now = time.monotonic()
        work.tell_if_quiet()
        if work.heartbeats != seen:
            seen, since = work.heartbeats, now
        elif now - since > work.order.stall_s:
            _end_here(work, mouth, Ended(End.RETRY, f"Nothing came for {work.order.stall_s:.0f} s."))


class _Mouth:
    """The stream that the parent reads. Says one thing at a time; silent after the last word."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._lock, self._ended = stream, threading.Lock(), False

    def say(self, message: Said) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = isinstance(message, Ended)
            try:
                self._stream.write(orders.line_of(message))
                self._stream.flush()
            except OSError:
                os._exit(EXIT_ORPHANED)


def _private_stdout() -> BinaryIO:
    """What was stdout; libraries that print can no longer write into it."""
    private = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(null, standard)
    os.close(null)
    return os.fdopen(private, "wb")


def _first_line(asked: BinaryIO) -> bytes:
    line = asked.readline()
    return line if line.endswith(b"\n") else b""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
