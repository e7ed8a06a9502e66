"""Workers kept ready for the next load: decides when one is started, handed out and given up.

A spare never makes a load fail or wait for long: one that is dead or hangs is passed over, and a worker is started as
if there were none. It is started only while nothing loads and memory is plentiful, and is the first to be given up.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakSet

import psutil

from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.engines.process import DEFAULT_TRANSPORT, Transport
from hypnos_engine.engines.runtimes import WorkerRuntime
from hypnos_engine.engines.spare import Spare

log = logging.getLogger(__name__)

LEAST_TOTAL_BYTES = 8 * 2**30
"""A machine with less keeps no spare of its own accord."""
PLENTY_BYTES = 2 * 2**30
"""Of available memory, before a spare is started."""
SHORT_BYTES = 2**30
"""Below it, spares are given up."""


@dataclass(frozen=True, slots=True)
class SpareTimes:
    """How patient the pool is, in seconds."""

    quiet_s: float = 0.25
    """After a load, before the next spare takes the processor; and how often to look for a pause in the answers."""
    busy_s: float = 2.0
    """How long running answers are left alone; then a spare is started beside them, which imports at low priority."""
    look_s: float = 10.0
    """Between two looks at the machine's memory while there is a spare or the wish for one."""
    ready_s: float = 60.0
    """From the start of a spare until its library has to be imported."""
    starting_s: float = 1.0
    """How long a load waits for a spare that is still importing."""
    answer_s: float = 0.5
    """How long a load waits for a spare that was ready."""
    back_off_s: float = 5.0
    """After one that failed; twice as long after each further one."""
    longest_back_off_s: float = 600.0


class Works(Protocol):
    """An engine, as far as the pool minds it."""

    @property
    def busy(self) -> bool:
        """Whether it owes somebody an answer."""
        ...


class Memory(Protocol):
    """Host memory now, in bytes."""

    @property
    def total_bytes(self) -> int: ...
    @property
    def available_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SystemMemory:
    """What the operating system says; implements Memory."""

    total_bytes: int
    available_bytes: int


def system_memory() -> Memory:
    """A reading of the whole machine. Raises OSError or psutil.Error where the system does not tell."""
    memory = psutil.virtual_memory()
    return SystemMemory(memory.total, memory.available)


def likeliest(configured: Collection[EngineKind], startable: Collection[EngineKind]) -> EngineKind | None:
    """The kind that the next load most likely is of: llama where it is configured, else what most models are of.

    The demonstration's engine has nothing to import.
    """
    known = [kind for kind in configured if kind in startable and kind is not EngineKind.FAKE]
    if EngineKind.LLAMA in known:
        return EngineKind.LLAMA
    return max(known, key=known.count, default=None)


def automatic_count(total_bytes: int) -> int:
    """How many spares a machine keeps whose owner has not said."""
    return 1 if total_bytes >= LEAST_TOTAL_BYTES else 0


class Spares:
    """The pool. Made on the main thread; does nothing before `begin`, and leaves no process after `close`."""

    def __init__(
        self,
        runtime: WorkerRuntime,
        kind: EngineKind,
        count: int,
        *,
        memory: Callable[[], Memory] = system_memory,
        times: SpareTimes | None = None,
        transport: Transport = DEFAULT_TRANSPORT,
    ) -> None:
        self._runtime = runtime
        self._kind = kind
        self._count = count
        self._memory = memory
        self._times = times or SpareTimes()
        self._transport = transport
        self._begun = False
        self._spares: list[Spare] = []
        """Oldest first."""
        self._tasks: dict[Spare, asyncio.Task[None]] = {}
        """Of those that are getting ready."""
        self._leaving: set[Spare] = set()
        """Given up or failed, and not reaped yet."""
        self._changed: list[asyncio.Future[None]] = []
        self._engines: WeakSet[Works] = WeakSet()
        self._loads = 0
        self._failures = 0
        self._not_before_s = 0.0
        self._busy_since_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def bytes(self) -> int:
        """Memory that giving all spares up would free."""
        return sum(spare.bytes for spare in self._spares)

    @property
    def ready(self) -> int:
        """Spares whose library is imported."""
        return len(self._spares) - len(self._tasks)

    def begin(self) -> None:
        """Keep spares from now on: the models of the start have been loaded."""
        self._begun = True
        self._tend()

    async def close(self) -> None:
        """End every spare and return when all are reaped; none is started afterwards."""
        self._begun = False
        self._set_timer(None)
        self.give_up()
        await self.until(lambda: not self._leaving and not self._tasks)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return as soon as `condition` holds after a spare got ready, was taken or was reaped."""
        while not condition():
            changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._changed.append(changed)
            await changed

    def give_up(self) -> None:
        """End every spare, for want of memory; others are started when there is plenty again."""
        for spare in tuple(self._spares):
            self._dismiss(spare)

    # --- loads ------------------------------------------------------------------------------------------------------

    def mind(self, engine: Works) -> None:
        """Leave the processor to this engine's answers as long as is bearable."""
        self._engines.add(engine)

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Start no spare during the block, nor right after it."""
        self._loads += 1
        try:
            yield
        finally:
            self._loads -= 1
            self._wait(self._times.quiet_s)
            self._tend()

    async def take(self, runtime: WorkerRuntime, kind: EngineKind) -> Spare | None:
        """A spare that has just answered, to be passed on or ended by the caller; None when there is no good one."""
        for spare in tuple(self._spares):
            if spare.runtime != runtime or spare.kind is not kind or spare not in self._spares:
                continue
            task = self._tasks.get(spare)
            self._spares.remove(spare)
            self._leaving.add(spare)  # until it has answered: who closes the pool meanwhile waits for it
            try:
                if await self._is_good(spare, task):
                    self._leaving.discard(spare)
                    self._failures = 0
                    self._tell()
                    return spare
            except BaseException:
                spare.end()
                raise
            log.warning("a spare worker did not answer and was ended; a new one is started for this load")
            spare.end()
            self._failed()
        return None

    async def _is_good(self, spare: Spare, starting: asyncio.Task[None] | None) -> bool:
        if starting is not None:
            await asyncio.wait({starting}, timeout=self._times.starting_s)
            if not starting.done():
                return False
        return await spare.answers(self._times.answer_s)

    # --- tending ----------------------------------------------------------------------------------------------------

    def _tend(self) -> None:
        """Do what is to be done now, and look again when something may have changed.

        1. With memory short, give up what there is.
        2. As many as wanted: look at the memory again, in a while.
        3. While something loads, wait for its end, which asks again.
        4. After a load or a failure, wait a while.
        5. Without plenty of memory, look again in a while.
        6. While answers run, wait for a pause; not for ever, on a machine that is never idle.
        7. Start one.
        """
        if not self._begun or self._count <= 0:
            return
        now_s = asyncio.get_running_loop().time()
        try:
            available_bytes = self._memory().available_bytes
        except (OSError, psutil.Error) as error:  # out of descriptors: what there is stays, and nothing new is started
            log.debug("the machine does not tell its memory: %s", error)
            self._set_timer(self._times.look_s)
            return
        if available_bytes < SHORT_BYTES:  # 1
            self.give_up()
        if len(self._spares) >= self._count:  # 2
            self._set_timer(self._times.look_s)
        elif self._loads:  # 3
            self._set_timer(None)
        elif now_s < self._not_before_s:  # 4
            self._set_timer(self._not_before_s - now_s)
        elif available_bytes < PLENTY_BYTES:  # 5
            self._set_timer(self._times.look_s)
        elif not self._may_disturb(now_s):  # 6
            self._set_timer(self._times.quiet_s)
        else:  # 7
            self._start()
            self._set_timer(self._times.look_s)

    def _may_disturb(self, now_s: float) -> bool:
        if not any(engine.busy for engine in self._engines):
            self._busy_since_s = None
            return True
        if self._busy_since_s is None:
            self._busy_since_s = now_s
        return now_s - self._busy_since_s >= self._times.busy_s

    def _start(self) -> None:
        self._busy_since_s = None
        try:
            spare = Spare(self._runtime, self._kind, self._on_gone, transport=self._transport)
        except OSError as error:
            log.warning("a spare worker could not be started: %s", error)
            self._failed()
            return
        self._spares.append(spare)
        task = asyncio.get_running_loop().create_task(self._get_ready(spare), name="spare worker")
        self._tasks[spare] = task

    async def _get_ready(self, spare: Spare) -> None:
        try:
            ready = await spare.get_ready(self._times.ready_s)
        except OSError as error:
            log.debug("a spare worker's channel could not be opened: %s", error)
            ready = False
        finally:
            self._tasks.pop(spare, None)
            self._tell()
        if spare not in self._spares:
            return  # taken, or given up, meanwhile
        if ready:
            log.debug("a spare worker is ready (%d MiB)", spare.bytes >> 20)
            self._tend()
        else:
            self._dismiss(spare)
            self._failed()

    def _dismiss(self, spare: Spare) -> None:
        self._spares.remove(spare)
        self._leaving.add(spare)
        spare.end()

    def _on_gone(self, spare: Spare) -> None:
        """A spare was reaped that nobody has taken."""
        self._leaving.discard(spare)
        if spare in self._spares:  # by itself
            self._spares.remove(spare)
            log.info("a spare worker died")
            self._failed()
        self._tend()
        self._tell()

    def _failed(self) -> None:
        """Wait longer after each one in a row, be it a broken library or somebody who keeps killing them."""
        wait_s = min(self._times.longest_back_off_s, self._times.back_off_s * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        self._wait(wait_s)
        self._tend()

    def _tell(self) -> None:
        watchers, self._changed = self._changed, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    def _wait(self, seconds: float) -> None:
        self._not_before_s = max(self._not_before_s, asyncio.get_running_loop().time() + seconds)

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if seconds is None else loop.call_later(seconds, self._tend)
