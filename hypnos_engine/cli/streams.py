"""What the process does about its standard streams and an interrupt while nothing else looks after them.

Imports hardly anything: an interrupt before it is in place shows a traceback.
"""

import io
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # loading typing takes longer than all the rest
    from typing import TextIO

EXIT_INTERRUPTED = 128 + signal.SIGINT


def end_quietly_when_interrupted() -> None:
    """End at once and without a word on Ctrl-C; an interrupt that is ignored stays ignored.

    Right as long as there is nothing to clean up: while modules are imported, and when everything has ended.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)


def raise_when_interrupted() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, for what has to be cleaned up."""
    if signal.getsignal(signal.SIGINT) is _end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_at_once(_signal: int, _frame: object) -> None:
    os._exit(EXIT_INTERRUPTED)


def open_missing() -> None:
    """Put the null device where a standard stream was closed: the next file would take its number and its output."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number that is free
    sys.stdin = sys.stdin or _stream(0, "r")
    sys.stdout = sys.stdout or _stream(1, "w")
    sys.stderr = sys.stderr or _stream(2, "w")


def _stream(descriptor: int, mode: str) -> "TextIO":
    # Without closefd the stream ends like the ones that Python makes: its descriptor outlives it.
    return io.TextIOWrapper(io.FileIO(descriptor, mode, closefd=False), encoding="utf-8", errors="backslashreplace")


def let_go(stream: "TextIO") -> None:
    """Send to the null device what nobody reads any more, so that Python does not fail again when it flushes."""
    import contextlib

    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def settle() -> None:
    """Write out what is still held back; a reader who has left is no failure."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            let_go(stream)
