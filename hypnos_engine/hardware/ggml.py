"""Asks the inference library what it can use, in a child that ends at once.

The supervisor must never open a compute context of its own (each costs hundreds of megabytes of device memory).
"""

import asyncio
import subprocess
import sys
from collections.abc import Mapping, Sequence

from hypnos_engine.domain.errors import EngineFailed
from hypnos_engine.ipc.framing import FrameError, from_worker_decoder
from hypnos_engine.ipc.messages import ProbeReport

DEFAULT_ARGV = (sys.executable, "-m", "hypnos_engine.workers", "--probe")


async def probe(
    argv: Sequence[str] | None = None, timeout_s: float = 20.0, *, environment: Mapping[str, str] | None = None
) -> ProbeReport:
    """Start the probe and return its report. Raises EngineFailed with the child's last words, off the loop."""
    command = tuple(argv or DEFAULT_ARGV)
    return await asyncio.get_running_loop().run_in_executor(None, _run, command, timeout_s, environment)


def _run(command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None) -> ProbeReport:
    try:
        done = subprocess.run(  # blocking is the point: this runs in an executor thread
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            env=None if environment is None else dict(environment),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EngineFailed(f"The inference library did not answer within {timeout_s:.0f} s.") from None
    except OSError as error:
        raise EngineFailed(f"The worker program cannot be started: {error}") from error
    return _report(done.stdout, done.stderr.decode(errors="replace"), done.returncode)


def _report(output: bytes, complaints: str, status: int) -> ProbeReport:
    try:
        for message in from_worker_decoder().feed(output):
            if isinstance(message, ProbeReport):
                return message
    except FrameError as error:
        raise EngineFailed(f"The worker program gave no readable report: {error}") from error
    last = complaints.strip().splitlines()[-1:] or [f"exit status {status}"]
    raise EngineFailed(f"The inference library cannot be used: {last[0]}")
