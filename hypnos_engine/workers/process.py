"""Decides when a worker process ends by itself and what its standard streams are; must never outlive its supervisor."""

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading

EXIT_ORPHANED = 3
"""Exit status of a worker whose supervisor is gone."""

_PR_SET_PDEATHSIG = 1
_LOW_PRIORITY = 10
"""A tenth of an ordinary thread's share."""


def take_over_channel() -> tuple[int, int]:
    """Return private duplicates of stdin and stdout; afterwards stdin is empty and stdout goes to stderr.

    Libraries that print can then never corrupt the channel. Both may be the same socket.
    """
    read_fd, write_fd = os.dup(0), os.dup(1)
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(read_fd, os.O_BINARY)
        msvcrt.setmode(write_fd, os.O_BINARY)
    else:
        os.set_blocking(read_fd, True)
        os.set_blocking(write_fd, True)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # started without a stderr
        os.dup2(null, 1)
        os.dup2(null, 2)
    os.close(null)
    return read_fd, write_fd


def end_with_parent(parent: int | None) -> None:
    """Arrange that the process dies with process `parent`, or at once if that one is gone already.

    The end of the channel says the same and works everywhere; this covers a supervisor that is killed while another
    process still holds the channel's other end.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is None:
        return
    if sys.platform == "darwin":
        threading.Thread(target=_watch, args=(parent,), name="parent watch", daemon=True).start()
    if sys.platform != "win32" and os.getppid() != parent:
        os._exit(EXIT_ORPHANED)


def leave_no_core() -> None:
    """Write no image of the process when it crashes: it would hold whole weights, and what people asked."""
    if sys.platform != "win32":
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def yield_to_others() -> None:
    """Let this thread, not its process, have the processor when others want little of it; where threads can be told."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW_PRIORITY)


def leave_interrupts_to_parent() -> None:
    """Ignore Ctrl-C: a terminal sends it to the whole group, and the supervisor drains before it ends its workers."""
    with contextlib.suppress(ValueError):  # not on the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if sys.platform == "darwin":

    def _watch(parent: int) -> None:
        watch = select.kqueue()
        exits = select.kevent(
            parent, select.KQ_FILTER_PROC, select.KQ_EV_ADD | select.KQ_EV_ONESHOT, select.KQ_NOTE_EXIT
        )
        with contextlib.suppress(ProcessLookupError):
            watch.control([exits], 1, None)
        os._exit(EXIT_ORPHANED)

else:

    def _watch(parent: int) -> None:
        raise AssertionError("only macOS watches the parent this way")
