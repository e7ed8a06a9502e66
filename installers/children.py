"""Runs pip and its compilers as one group of processes, so that an interruption ends all of them and not only pip."""

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from installers.progress import Display, Reading
from installers.refusal import SetupRefused

_REDRAW_S = 0.25
_GRACE_S = 5.0
_TAIL_LINES = 15
_UNREACHABLE = re.compile(
    r"No matching distribution found|Max retries exceeded|Connection(?:Reset)?Error|Read timed out"
)
_OFFLINE = "The package index could not be reached, or does not have it: is this computer online?"


def run_step(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    display: Display,
    keep_open: Sequence[int] = (),
    failure: str,
) -> None:
    """Run one command to its end, its output in `log`, its progress on `display`.

    `keep_open` are descriptors of locks: the command keeps them locked for as long as it lives, even when this
    program is killed. Raises SetupRefused with `failure`, the end of the output and the log's path; on
    KeyboardInterrupt ends the whole group of processes first.
    """
    process = _start(command, environment, keep_open)
    reading, lines = Reading(), _Lines(process.stdout)
    try:
        with log.open("a", encoding="utf-8") as written:
            written.write(f"\n$ {' '.join(command)}\n")
            while (batch := lines.wait(_REDRAW_S)) is not None:
                for line in batch:
                    written.write(line)
                    reading.take(line)
                display.update(reading.phrase())
        code = process.wait()
    except BaseException:
        _end(process)
        raise
    if code != 0:
        tail = _tail(log)
        offline = f"{_OFFLINE}\n" if _UNREACHABLE.search(tail) else ""
        raise SetupRefused(f"{failure}\n{tail}\n{offline}The whole output is in {log}.")


def _start(command: Sequence[str], environment: Mapping[str, str], keep_open: Sequence[int]) -> subprocess.Popen[str]:
    posix = os.name == "posix"
    flags = 0 if posix else subprocess.CREATE_NEW_PROCESS_GROUP  # type: ignore[attr-defined,unused-ignore]
    return subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=posix,
        pass_fds=tuple(keep_open) if posix else (),
        creationflags=flags,
    )


class _Lines:
    """Lines of a pipe, handed over by a reader thread so that the display moves while nothing is printed."""

    def __init__(self, pipe: IO[str] | None) -> None:
        assert pipe is not None
        self._pipe = pipe
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(ValueError, OSError), self._pipe:
            for line in self._pipe:
                self._queue.put(line)
        self._queue.put(None)

    def wait(self, timeout_s: float) -> list[str] | None:
        """Lines that have come, after `timeout_s` at most; None at the end of the output."""
        batch: list[str] = []
        with contextlib.suppress(queue.Empty):
            line = self._queue.get(timeout=timeout_s)
            while line is not None:
                batch.append(line)
                line = self._queue.get_nowait()
            if not batch:
                return None
            self._queue.put(None)
        return batch


def _end(process: subprocess.Popen[str]) -> None:
    # pip takes its temporary folders away on SIGINT only.
    for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(process.pid, number)
            else:
                subprocess.run(  # taskkill alone reaches a process' children on Windows
                    [f"{os.environ['SYSTEMROOT']}\\System32\\taskkill.exe", "/T", "/F", "/PID", str(process.pid)],
                    check=False,
                    capture_output=True,
                )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
            return


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"  | {line[:200]}" for line in lines[-_TAIL_LINES:])


def replace_with(command: Sequence[str], environment: Mapping[str, str], folder: Path | None) -> int:
    """Become `command` where the system can; elsewhere run it and return its exit code."""
    if folder is not None:
        os.chdir(folder)
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "posix":
        os.execve(command[0], list(command), dict(environment))  # noqa: S606 - a list of arguments, no shell
    process = subprocess.Popen(command, env=dict(environment))
    while True:
        # Ctrl-C reaches the child too, which ends in its own time; this one only waits for it.
        with contextlib.suppress(KeyboardInterrupt):
            return process.wait()
