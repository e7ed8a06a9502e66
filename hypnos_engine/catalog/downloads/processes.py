"""Starts a download child and listens to it; decides nothing about the job, and leaves no process behind."""

import asyncio
import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import IO, Final, Protocol

import msgspec

from hypnos_engine.catalog.downloads import orders
from hypnos_engine.catalog.downloads.orders import End, Ended, Order, Said
from hypnos_engine.ipc import programs
from hypnos_engine.ipc.programs import Program

GRACE_S: Final = 3.0
"""From the wish to stop to the kill: enough to note where the bytes end, and nothing is lost without that."""
_WITHHELD: Final = ("HYPNOS_", "HF_DEBUG", "HF_XET")
_FIXED: Final = {
    "HF_HUB_DISABLE_XET": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DOWNLOAD_TIMEOUT": "30",
    "HF_HUB_VERBOSITY": "error",
}


class Child(Protocol):
    """One run of one job."""

    async def run(self, order: Order, hear: Callable[[Said], None]) -> Ended:
        """Work the order off; returns the last word when nothing is left of the child.

        `hear` is called on this loop. Cancelling kills the child; what has come stays. Never raises for what the
        child does.
        """
        ...

    def grant(self) -> None:
        """Let the files be replaced that the child said it is about to replace."""
        ...

    def stop(self) -> None:
        """Ask for the end, with everything kept; `run` returns soon. Idempotent, on the loop of `run`."""
        ...


class ChildProcess:
    """A child in a process of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._killer: asyncio.TimerHandle | None = None

    async def run(self, order: Order, hear: Callable[[Said], None]) -> Ended:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Ended] = loop.create_future()

        def tell(said: Said) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is gone: nobody listens
                loop.call_soon_threadsafe(hear, said)

        def work() -> None:
            last = self._work(order, tell)
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(last))

        thread = threading.Thread(target=work, name="hypnos-download", daemon=True)
        thread.start()
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            self._kill()
            thread.join()  # a killed process is gone at once
            raise
        finally:
            if self._killer is not None:
                self._killer.cancel()

    def grant(self) -> None:
        self._tell_child(orders.GO)

    def stop(self) -> None:
        if self._stopped:
            return
        with self._lock:
            self._stopped = True
        self._tell_child(orders.STOP)
        self._killer = asyncio.get_running_loop().call_later(GRACE_S, self._kill)

    def _tell_child(self, line: bytes) -> None:
        with self._lock:
            process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                process.stdin.write(line)
                process.stdin.flush()

    def _kill(self) -> None:
        with self._lock:
            self._stopped = True
            if self._process is not None and self._process.poll() is None:
                self._process.kill()

    def _work(self, order: Order, tell: Callable[[Said], None]) -> Ended:
        """On its own thread: start, listen, reap."""
        try:
            with self._lock:
                if self._stopped:
                    return Ended(End.STOPPED)
                process = self._process = _spawn()
        except OSError as error:
            return Ended(End.CRASHED, f"The download's process cannot be started ({error.strerror}).")
        assert process.stdin is not None
        assert process.stdout is not None
        last: Ended | None = None
        with contextlib.suppress(OSError):
            process.stdin.write(orders.line_of(order))
            process.stdin.flush()
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            last = _listen(process.stdout, tell)
        with self._lock:  # so that nobody writes to what is being closed
            stopped = self._stopped
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    stream.close()
            if last is None:
                process.kill()
        status = process.wait()
        if last is not None:
            return last
        if stopped:
            return Ended(End.STOPPED)
        return Ended(End.CRASHED, f"The download's process ended unexpectedly (status {status}).")


def _listen(stream: IO[bytes], tell: Callable[[Said], None]) -> Ended | None:
    for line in stream:
        said = orders.read_said(line)
        if isinstance(said, Ended):
            return said
        tell(said)
    return None


def _spawn() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        programs.command(Program.DOWNLOADER),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_environment(os.environ),
        start_new_session=True,
    )


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What the child sees: the hub's and the proxy's variables, none of our own keys."""
    kept = {name: value for name, value in environment.items() if not name.upper().startswith(_WITHHELD)}
    return {**kept, **_FIXED}
