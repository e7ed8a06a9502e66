"""A worker's operating-system process: started on the main thread, watched, killed with its group, always reaped.

Knows nothing of messages. Two threads serve each process (one reads stderr, one waits for the end), because neither
child watchers nor pipes work alike on every loop that the program runs on.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from hypnos_engine.engines.channel import Channel, M, PipeChannel, SocketChannel
from hypnos_engine.engines.last_words import StderrTail
from hypnos_engine.ipc.blocks import Block, BlockSender
from hypnos_engine.ipc.framing import FrameDecoder

if sys.platform == "win32":
    from hypnos_engine.engines.windows_job import Job, create_flags

_VMSTAT = Path("/proc/vmstat")
_STDERR_CHUNK_BYTES = 64 * 1024
_STDERR_DRAIN_S = 0.5
"""How long to wait for the rest of stderr after the end; only a process that left the group can keep it open."""

_Popen: TypeAlias = "subprocess.Popen[bytes]"

ExitSink = Callable[[int], None]
"""Called on the loop with the return code (negative = signal) once the process is reaped."""


class Transport(Enum):
    """What the worker gets as its stdin and stdout."""

    SOCKET = "socket"
    PIPES = "pipes"


DEFAULT_TRANSPORT = Transport.PIPES if sys.platform == "win32" else Transport.SOCKET


class WorkerProcess:
    """One child process and its process group. Made on the main thread while a loop runs there."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        name: str,
        on_exit: ExitSink,
        *,
        transport: Transport = DEFAULT_TRANSPORT,
    ) -> None:
        """Start the process. `name` is the model, for logs. Raises OSError when the program cannot be started."""
        if threading.current_thread() is not threading.main_thread():
            # Linux' parent-death signal follows the thread that spawned, not the process.
            raise RuntimeError("workers are started on the main thread")
        self._loop = asyncio.get_running_loop()
        self._on_exit = on_exit
        self._transport = transport
        self._ending = threading.Lock()
        self._reaped = False
        self._oom_kills = _oom_kills()
        self.memory_ran_out = False
        """Set at the end: the system killed processes for want of memory during the life of this one."""
        self._log = _log_of(name)
        self.stderr = StderrTail()
        self._end: socket.socket | None = None
        self._popen, self._blocks = self._spawn_with_blocks(list(argv), dict(environment))
        self._drain = self._thread(self._read_stderr, "stderr")
        self._waiter = self._thread(self._wait, "exit")

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its group; may be another process's after the end."""
        return self._popen.pid

    async def open_channel(self, on_message: Callable[[M], None], decoder: FrameDecoder[M] | None = None) -> Channel:
        """Take over the ends of the channel; called once, right after the start. `decoder` as of the channels."""
        if self._end is not None:
            end, self._end = self._end, None
            return await SocketChannel.open(end, on_message, decoder)
        assert self._popen.stdout is not None
        assert self._popen.stdin is not None
        read_fd, write_fd = os.dup(self._popen.stdout.fileno()), os.dup(self._popen.stdin.fileno())
        self._popen.stdout.close()
        self._popen.stdin.close()
        return PipeChannel(read_fd, write_fd, on_message, decoder)

    def hand_over(self, block: Block) -> int:
        """Give the worker a handle of a block; returns the number under which it takes it. Never blocks.

        Raises BlockError when the worker is gone or has not taken earlier ones.
        """
        return self._blocks.hand_over(block)

    def report_to(self, name: str, on_exit: ExitSink) -> None:
        """From now on it is the worker of `name`, and its end is told to `on_exit`. Called on the loop."""
        self._log = _log_of(name)
        self._on_exit = on_exit
        self._oom_kills = _oom_kills()

    def kill(self) -> None:
        """End the process and its whole group at once. Idempotent; does nothing once the process is reaped."""
        with self._ending:
            if not self._reaped:
                self._kill_group()

    def _spawn_with_blocks(self, argv: list[str], environment: dict[str, str]) -> tuple[_Popen, BlockSender]:
        """Start the process with what it needs to take blocks: on POSIX one end of a socket pair."""
        if sys.platform == "win32":
            popen = self._spawn(argv, environment, ())
            return popen, BlockSender(popen.pid)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                popen = self._spawn([*argv, "--handles-fd", str(theirs.fileno())], environment, (theirs.fileno(),))
            except BaseException:
                ours.close()
                raise
        return popen, BlockSender(ours)

    def _spawn(self, argv: list[str], environment: dict[str, str], inherited: tuple[int, ...]) -> _Popen:
        if sys.platform == "win32":
            popen = _popen(argv, environment, subprocess.PIPE, creationflags=create_flags())
            self._job = Job.holding(popen)
            return popen
        if self._transport is Transport.PIPES:
            return _popen(argv, environment, subprocess.PIPE, inherited=inherited)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                popen = _popen(argv, environment, theirs.fileno(), inherited=inherited)
            except BaseException:
                ours.close()
                raise
        self._end = ours
        return popen

    def _thread(self, target: Callable[[], None], role: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"hypnos-worker-{role}-{self.pid}", daemon=True)
        thread.start()
        return thread

    def _read_stderr(self) -> None:
        assert self._popen.stderr is not None
        with self._popen.stderr as pipe:
            while chunk := pipe.read(_STDERR_CHUNK_BYTES):
                for line in self.stderr.feed(chunk):
                    self._log.debug("%s", line)

    def _wait(self) -> None:
        if sys.platform == "linux":
            # The unreaped leader keeps the group's number from being given to strangers while the rest is killed.
            os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
            with self._ending:
                self._kill_group()
                status = self._popen.wait()
                self._reaped = True
        else:
            status = self._popen.wait()
            with self._ending:
                self._reaped = True
                self._kill_group()
        self.memory_ran_out = _oom_kills() > self._oom_kills
        self._drain.join(_STDERR_DRAIN_S)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(self._report, status)

    def _report(self, status: int) -> None:
        for end in (self._end, self._popen.stdin, self._popen.stdout):
            if end is not None:
                end.close()
        self._end = None
        self._blocks.close()
        self._on_exit(status)

    def _kill_group(self) -> None:
        if sys.platform == "win32":
            self._job.terminate()
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGKILL)


def _log_of(name: str) -> logging.Logger:
    return logging.getLogger(f"hypnos.worker.{name.replace('.', '_')}")


def _oom_kills() -> int:
    """Processes that the system has killed for want of memory since it started; 0 where it does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_VMSTAT.read_text().rpartition("\noom_kill ")[2].split()[0])
    return 0


def _popen(
    argv: list[str],
    environment: dict[str, str],
    channel: int,
    *,
    inherited: tuple[int, ...] = (),
    creationflags: int = 0,
) -> _Popen:
    """Start a process whose stdin and stdout are `channel`, in a session of its own."""
    return subprocess.Popen(
        argv,
        bufsize=0,
        stdin=channel,
        stdout=channel,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=sys.platform != "win32",
        pass_fds=inherited,
        creationflags=creationflags,
    )
