"""One worker that was started ahead of need: its library imported, no model, no device.

Decides whether it is still good for a load; what is wrong with it is told to its owner and never to a request.
"""

import asyncio
import itertools
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.engines.channel import Channel, MessageSink
from hypnos_engine.engines.process import DEFAULT_TRANSPORT, ExitSink, Transport, WorkerProcess
from hypnos_engine.engines.runtimes import WorkerRuntime, environment_of
from hypnos_engine.ipc import messages as m

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartedWorker:
    """A worker that has said hello; whoever gets it has to end it."""

    process: WorkerProcess
    channel: Channel
    hello: m.Hello


class Spare:
    """Made and used on the main thread's loop; `end` or `pass_on` is its last call."""

    def __init__(
        self,
        runtime: WorkerRuntime,
        kind: EngineKind,
        on_gone: Callable[["Spare"], None],
        *,
        transport: Transport = DEFAULT_TRANSPORT,
    ) -> None:
        """Start the process. `on_gone` is called once, when it is reaped without having been passed on.

        Raises OSError when it cannot be started.
        """
        self.runtime = runtime
        self.kind = kind
        self._pids: tuple[int, ...] = ()
        """Itself and what it has started, once it is ready."""
        self._on_gone = on_gone
        self._sink: MessageSink = self._on_message
        self._hello: m.Hello | None = None
        self._channel: Channel | None = None
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[bool]] = {}
        self._usable = True
        command = [*runtime.command(kind, os.getpid()), "--spare"]
        # What its libraries may start of themselves is fixed now, for whatever number of threads it will be told.
        environment = environment_of(runtime, kind, 1)
        self._process = WorkerProcess(command, environment, "spare", self._on_exit, transport=transport)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def bytes(self) -> int:
        """Memory that ending it would give back, about; 0 before it is ready."""
        return sum(map(_own_bytes, self._pids)) if self._usable else 0

    async def get_ready(self, within_s: float) -> bool:
        """Wait until its library is imported; False when it cannot be used. Called once, right after the start."""
        if not self._usable:
            return False
        channel = await self._process.open_channel(lambda message: self._sink(message))
        if not self._usable:
            channel.close()
            return False
        self._channel = channel
        channel.closed.add_done_callback(lambda _: self._spoil())
        ready = await self.answers(within_s)
        if ready:
            self._pids = _with_children(self.pid)
        return ready

    async def answers(self, within_s: float) -> bool:
        """Whether it is alive and its library imported; False once `within_s` have passed."""
        if self._channel is None or not self._usable:
            return False
        number = next(self._numbers)
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._channel.send(m.Ping(number), urgent=True)
        try:
            return await asyncio.wait_for(answer, within_s) and self._usable
        except TimeoutError:
            return False
        finally:
            self._asked.pop(number, None)

    def pass_on(self, name: str, on_message: MessageSink, on_exit: ExitSink) -> StartedWorker:
        """Give the worker to a model of this name; called after it has answered, in the same turn of the loop."""
        assert self._channel is not None
        assert self._hello is not None
        self._sink = on_message
        self._process.report_to(name, on_exit)
        return StartedWorker(self._process, self._channel, self._hello)

    def end(self) -> None:
        """Kill it; `on_gone` follows. Idempotent."""
        self._spoil()
        self._process.kill()

    def _on_message(self, message: m.FromWorker) -> None:
        match message:
            case m.Hello(m.PROTOCOL_VERSION, self.kind) if self._hello is None:
                self._hello = message
            case m.Pong(number) if self._hello is not None:
                asked = self._asked.get(number)
                if asked is not None and not asked.done():
                    asked.set_result(True)
            case _:
                log.debug("a spare worker said what it has no reason to: %s", type(message).__name__)
                self.end()

    def _spoil(self) -> None:
        self._usable = False
        for asked in self._asked.values():
            if not asked.done():
                asked.set_result(False)

    def _on_exit(self, _status: int) -> None:
        self._spoil()
        if self._channel is not None:
            self._channel.close()
        self._on_gone(self)


def _with_children(pid: int) -> tuple[int, ...]:
    """A process and what its main thread has started, where the system tells that without a look at every process."""
    try:
        return pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    except (OSError, ValueError):
        return (pid,)


def _own_bytes(pid: int) -> int:
    """Memory that nobody shares with the process; 0 where the system does not say."""
    try:
        memory = psutil.Process(pid).memory_info()
    except (psutil.Error, OSError):
        return 0
    shared = int(memory.shared) if sys.platform == "linux" else 0
    return int(memory.rss) - shared
