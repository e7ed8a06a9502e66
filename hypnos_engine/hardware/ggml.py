"""Asks the inference library what it can use, in a child that ends at once.

The supervisor must never open a compute context of its own (each costs hundreds of megabytes of device memory).
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

from hypnos_engine.domain.errors import EngineFailed
from hypnos_engine.ipc import programs
from hypnos_engine.ipc.framing import FrameError, from_worker_decoder
from hypnos_engine.ipc.messages import ProbeReport
from hypnos_engine.ipc.programs import Program

_CLOSING_S = 1.0
"""How long a child that was killed may take to close its pipes."""


async def probe(
    argv: Sequence[str] | None = None, timeout_s: float = 20.0, *, environment: Mapping[str, str] | None = None
) -> ProbeReport:
    """Start the probe and return its report. Raises EngineFailed with the child's last words, off the loop.

    Whoever cancels it ends the child too; neither the caller nor the end of the loop waits for a child that hangs.
    """
    child = _Child(tuple(argv or programs.command(Program.WORKER, "--probe")), environment)
    try:
        return await asyncio.get_running_loop().run_in_executor(None, child.run, timeout_s)
    finally:
        child.end()


class Prober:
    """Asks again and again, one question at a time, on a thread of the caller's."""

    def __init__(self, argv: Sequence[str] | None = None, timeout_s: float = 20.0) -> None:
        self._argv = argv
        self._timeout_s = timeout_s
        self._child: _Child | None = None
        self._ended = False

    def ask(self) -> ProbeReport:
        """Blocks for the time of a child, `timeout_s` at most. Raises EngineFailed, also when `end` was called."""
        child = self._child = _Child(tuple(self._argv or programs.command(Program.WORKER, "--probe")), None)
        if self._ended:
            child.end()
        try:
            return child.run(self._timeout_s)
        finally:
            child.end()

    def end(self) -> None:
        """Stop a question that is being asked, and all later ones. May be called from any thread."""
        self._ended = True
        if self._child is not None:
            self._child.end()


class _Child:
    """The probe's process, run by one thread and ended by any. Never outlives `end`, whenever that is called."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None) -> None:
        self._command = command
        self._environment = None if environment is None else dict(environment)
        self._lock = threading.Lock()
        self._ended = False
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, timeout_s: float) -> ProbeReport:
        """Blocks until the child has answered, hangs for too long or is ended."""
        try:
            process = self._start()
        except OSError as error:
            raise EngineFailed(f"The worker program cannot be started: {error}") from error
        try:
            output, complaints = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_CLOSING_S)
            raise EngineFailed(f"The inference library did not answer within {timeout_s:.0f} s.") from None
        return _report(output, complaints.decode(errors="replace"), process.returncode)

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._ended:
                raise EngineFailed("The question about the inference library was taken back.")
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
                start_new_session=True,  # what it starts, such as a driver's daemon, ends with it
            )
            return self._process

    def end(self) -> None:
        """Kill what still runs; the thread that waits for it wakes up."""
        with self._lock:
            self._ended = True
            if self._process is None or self._process.returncode is not None:
                return
            if sys.platform == "win32":
                self._process.kill()
            else:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)


def _report(output: bytes, complaints: str, status: int) -> ProbeReport:
    try:
        for message in from_worker_decoder().feed(output):
            if isinstance(message, ProbeReport):
                return message
    except FrameError as error:
        raise EngineFailed(f"The worker program gave no readable report: {error}") from error
    last = complaints.strip().splitlines()[-1:] or [f"exit status {status}"]
    raise EngineFailed(f"The inference library cannot be used: {last[0]}")
