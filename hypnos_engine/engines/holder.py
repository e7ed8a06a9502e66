"""Keeps files in memory without a worker: the supervisor's side of the holder process, and what every holder promises.

Decides when the process is started, given up and started again; never what is held, and never waits for a disk.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hypnos_engine.engines.last_words import describe_exit, telling_lines
from hypnos_engine.engines.process import DEFAULT_TRANSPORT, Transport, WorkerProcess
from hypnos_engine.engines.runtimes import WorkerRuntime, environment_of
from hypnos_engine.engines.watch import Patience, Watch
from hypnos_engine.ipc import holder_messages as h
from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.framing import FrameDecoder, FrameError

if TYPE_CHECKING:
    from hypnos_engine.engines.channel import Channel

log = logging.getLogger(__name__)

CHECK_EVERY_S = 5.0
"""How often the pages are looked at."""
FILL_PATIENCE = Patience(least_s=60.0, slowest_steps=0.0, busy_times=3.0)
"""A fill says something with every few megabytes; a disk that gives nothing for so long hangs."""
ANSWER_WITHIN_S = 10.0
"""How long letting go of a set may take: it waits for one read at most, and for the unlocking."""
_LAST_BREATH_S = 1.0
"""How long a process whose channel has closed may take to end by itself, so that its own end is seen."""
_REAPED_WITHIN_S = 5.0
"""After that a process is left to its reaper: one that waits for a dead disk cannot be ended."""

LostSink = Callable[[str], None]
"""Called on the loop with the name of a file set; must not raise."""


@dataclass(frozen=True, slots=True)
class Held:
    """One file set that is held."""

    files: str
    """The scheduler's name of it."""
    size_bytes: int
    held_bytes: int
    """In memory, as of the last look."""
    locked_bytes: int
    """Of these, what cannot leave; the rest is kept warm."""


@dataclass(frozen=True, slots=True)
class HolderReport:
    """What is held now, and how well."""

    alive: bool
    """There is a holder; it is started by the first fill, and again by the next one after its death."""
    locking: bool
    """All that is held is locked."""
    why_not_locked: str | None
    """A sentence with the command that mends it; None when nothing has been refused."""
    held: tuple[Held, ...]


class PageHolder(Protocol):
    """Holds file sets in memory. All methods are called on one loop; `on_lost` of the implementations is called there.

    `on_lost(files)` comes once for each set that was held and is not any more without having been dropped: its pages
    left memory, its files changed, or the holder died. Nothing of it is held then.
    """

    async def fill(self, files: str, paths: Sequence[Path], on_progress: Callable[[float], None]) -> int:
        """Read a set's files and keep them in memory; the bytes that are held in the end, which is all or 0.

        0 for what cannot be opened, read or held; the log says why. Raises nothing for it. `on_progress` gets a
        fraction from 0 to 1 that only grows, at most ten times a second. A set that is held or being read is dropped
        first, and its earlier fill gives 0. Cancelling lets go of what was read, before the cancellation goes on.
        Whoever awaits this directly hears of a loss only after he has the result.
        """
        ...

    async def drop(self, files: str) -> None:
        """Let go of a set, which may still be read: that fill gives 0. Idempotent; unknown names are ignored."""
        ...

    def report(self) -> HolderReport:
        """The newest that is known. Immediate."""
        ...

    async def stop(self) -> None:
        """Let go of everything for good, without `on_lost`; fills give 0 from now on. Idempotent."""
        ...


@dataclass(slots=True, eq=False)
class _Set:
    """A file set that the process was told about."""

    files: str
    on_progress: Callable[[float], None]
    filled: asyncio.Future[int]
    fraction: float = 0.0
    handed_out: bool = False
    """The caller of `fill` has its bytes: from then on a loss is told."""
    now: Held | None = None


class HolderProcess:
    """A holder in a process of its own; implements PageHolder. Costs nothing before the first fill.

    Sets are read one after another, in the order of the fills. Made and used on the main thread.
    """

    def __init__(
        self,
        runtime: WorkerRuntime,
        on_lost: LostSink,
        *,
        on_change: Callable[[], None] = lambda: None,
        check_every_s: float = CHECK_EVERY_S,
        fill_patience: Patience = FILL_PATIENCE,
        answer_within_s: float = ANSWER_WITHIN_S,
        transport: Transport = DEFAULT_TRANSPORT,
    ) -> None:
        """`on_lost` as in PageHolder. `on_change` is called on the loop when `report` has changed; must not raise."""
        self._runtime = runtime
        self._on_lost = on_lost
        self._on_change = on_change
        self._check_every_s = check_every_s
        self._fill_patience = fill_patience
        self._answer_within_s = answer_within_s
        self._transport = transport
        self._numbers = 0
        self._sets: dict[int, _Set] = {}
        self._why_not_locked: str | None = None
        self._life: _Life | None = None
        self._ending: set[_Life] = set()
        """Processes that are not reaped yet."""
        self._starting = asyncio.Lock()
        self._stopped = False

    @property
    def pid(self) -> int | None:
        """Process id of the holder while there is one."""
        return self._life.process.pid if self._life is not None else None

    # --- PageHolder -------------------------------------------------------------------------------------------------

    async def fill(self, files: str, paths: Sequence[Path], on_progress: Callable[[float], None]) -> int:
        """As PageHolder.fill."""
        life = await self._started()
        while life is not None and (earlier := self._numbers_of(files)):
            await self._drop(earlier[0])
            life = await self._started()
        if life is None:
            return 0
        self._numbers += 1
        number = self._numbers
        asked = _Set(files, on_progress, asyncio.get_running_loop().create_future())
        self._sets[number] = asked
        try:
            life.send(h.Fill(number, tuple(os.fsencode(path) for path in paths)))
            life.watch()
            held_bytes = await asked.filled
        except FrameError:
            held_bytes = 0
        except BaseException:
            await self._drop(number)
            raise
        if number not in self._sets:  # lost, or dropped, since it was filled
            return 0
        if not held_bytes:
            del self._sets[number]
        asked.handed_out = True
        return held_bytes

    async def drop(self, files: str) -> None:
        """As PageHolder.drop."""
        for number in self._numbers_of(files):
            await self._drop(number)

    def report(self) -> HolderReport:
        """As PageHolder.report."""
        alive = self._life is not None
        held = tuple(known.now for known in self._sets.values() if known.now is not None)
        return HolderReport(alive, alive and self._why_not_locked is None, self._why_not_locked, held)

    async def stop(self) -> None:
        """As PageHolder.stop. Waits until the process is reaped, for a few seconds at most."""
        self._stopped = True
        async with self._starting:
            life = self._life
        if life is not None:
            self._part(life, tell=False)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REAPED_WITHIN_S):
                for ending in list(self._ending):
                    await ending.reaped.wait()

    # --- the process ------------------------------------------------------------------------------------------------

    async def _started(self) -> "_Life | None":
        """The process that runs, or a new one; None when there can be none."""
        async with self._starting:
            if self._life is None and not self._stopped:
                await self._start()
            return self._life if not self._stopped else None

    async def _start(self) -> None:
        try:
            life = self._life = _Life(self._runtime, self._transport, self._fill_patience, self)
        except OSError as error:
            log.warning(
                "Nothing can be held in memory: the program '%s' cannot be started (%s). Install Hypnos again.",
                self._runtime.argv[0],
                error.strerror,
            )
            return
        try:
            await life.open()
        except BaseException:
            self._part(life, tell=False)
            raise
        life.send(h.CheckEvery(self._check_every_s))

    def on_message(self, life: "_Life", message: h.FromHolder) -> None:
        """Called by the process."""
        if life is not self._life:
            return
        match message:
            case m.Hello(protocol=protocol, kind=kind):
                if (protocol, kind) != (m.PROTOCOL_VERSION, h.KIND):
                    self.give_up(life, "comes from another version of Hypnos: install Hypnos or its engine pack again")
            case h.FillProgress(number=number, fraction=fraction) if number in self._sets:
                self._progressed(self._sets[number], fraction)
            case h.Filled(number=number, held_bytes=held_bytes, why=why) if number in self._sets:
                known = self._sets[number]
                if why:
                    log.info("the files of %s are not held: %s", known.files, why)
                if not known.filled.done():
                    known.filled.set_result(held_bytes)
            case h.Holding(held=held, why_not_locked=why_not):
                self._take(held, why_not)
            case h.Lost(number=number, why=why) if number in self._sets:
                log.info("the files of %s are not held any more: %s", self._sets[number].files, why)
                self._lose(number)
            case h.Dropped(number=number):
                life.answer_drop(number)
            case _:
                pass

    def is_filling(self) -> bool:
        """Whether the process owes the end of a fill."""
        return any(not known.filled.done() for known in self._sets.values())

    def give_up(self, life: "_Life", why: str) -> None:
        """Part with a process that is dead or of no use; what it held is lost."""
        if life is self._life:
            log.warning("The process that holds files in memory %s. It is started again when it is needed.", why)
            self._part(life, tell=True)

    def on_reaped(self, life: "_Life", how: str) -> None:
        """Called by the process."""
        self.give_up(life, how)
        self._ending.discard(life)

    def _part(self, life: "_Life", *, tell: bool) -> None:
        """End the process, which has nothing to save, and forget all that it holds."""
        self._life = None
        self._ending.add(life)
        life.process.kill()
        self._why_not_locked = None
        life.leave()
        for number in list(self._sets):
            self._lose(number, tell=tell)
        self._on_change()

    # --- sets -------------------------------------------------------------------------------------------------------

    def _numbers_of(self, files: str) -> list[int]:
        return [number for number, known in self._sets.items() if known.files == files]

    async def _drop(self, number: int) -> None:
        """Have the process let go of a set, and wait until it has; a process that does not is ended."""
        known = self._sets.pop(number, None)
        life = self._life
        if known is None:
            return
        if not known.filled.done():
            known.filled.set_result(0)
        if life is not None and not await life.drop(number, self._answer_within_s):
            self.give_up(life, "did not let go of a file in time, perhaps because its disk hangs, and was ended")

    def _lose(self, number: int, *, tell: bool = True) -> None:
        known = self._sets.pop(number)
        if not known.filled.done():
            known.filled.set_result(0)
        if known.handed_out and tell:
            self._on_lost(known.files)

    def _take(self, held: tuple[h.HeldSet, ...], why_not_locked: str | None) -> None:
        if why_not_locked is not None and why_not_locked != self._why_not_locked:
            log.info("%s", why_not_locked)
        self._why_not_locked = why_not_locked
        for one in held:
            known = self._sets.get(one.number)
            if known is not None:
                known.now = Held(known.files, one.size_bytes, one.held_bytes, one.locked_bytes)
        self._on_change()

    def _progressed(self, known: _Set, fraction: float) -> None:
        if known.filled.done() or not known.fraction < fraction <= 1.0:
            return
        known.fraction = fraction
        try:
            known.on_progress(fraction)
        except Exception:
            log.exception("the receiver of the progress of %s failed", known.files)


class _Life:
    """One holder process from its start to its reaping."""

    def __init__(self, runtime: WorkerRuntime, transport: Transport, patience: Patience, owner: HolderProcess) -> None:
        """Raises OSError when the program cannot be started."""
        self._owner = owner
        self._channel: Channel | None = None
        self._drops: dict[int, asyncio.Future[None]] = {}
        self._left = False
        self.reaped = asyncio.Event()
        command = runtime.command(h.KIND, os.getpid())
        environment = environment_of(runtime, h.KIND, 1)
        self.process = WorkerProcess(command, environment, h.KIND, self._on_exit, transport=transport)
        self._watch = Watch(self.process.pid, patience, owner.is_filling, self._on_hung)

    async def open(self) -> None:
        """Take over the channel; called once, right after the start."""
        self._channel = await self.process.open_channel(self._on_message, FrameDecoder[h.FromHolder](h.FromHolder))
        self._channel.closed.add_done_callback(self._on_closed)
        if self._left:
            self._channel.close()

    def send(self, message: m.Message) -> None:
        """Never waits; what a dead process is told is lost. Raises FrameError for a message that no frame can hold."""
        if self._channel is not None:
            self._channel.send(message, urgent=True)

    def watch(self) -> None:
        """There is a fill to wait for."""
        self._watch.start()

    async def drop(self, number: int, within_s: float) -> bool:
        """Have a set let go of; False when that took too long. True as well when the process has ended."""
        if self._left:
            return True
        answer = self._drops.setdefault(number, asyncio.get_running_loop().create_future())
        self.send(h.Drop(number))
        try:
            async with asyncio.timeout(within_s):
                await answer
        except TimeoutError:
            return False
        finally:
            self._drops.pop(number, None)
        return True

    def answer_drop(self, number: int) -> None:
        """The set has been let go of."""
        answer = self._drops.get(number)
        if answer is not None and not answer.done():
            answer.set_result(None)

    def leave(self) -> None:
        """Nobody waits for this process any more. Idempotent."""
        self._left = True
        self._watch.close()
        for number in list(self._drops):
            self.answer_drop(number)
        if self._channel is not None:
            self._channel.close()

    def _on_message(self, message: h.FromHolder) -> None:
        self._watch.heard()
        self._owner.on_message(self, message)

    def _on_hung(self, silent_s: float, state: str) -> None:
        self._owner.give_up(self, f"read nothing for {silent_s:.3g} s ({state}) and was ended: its disk may hang")

    def _on_closed(self, closed: "asyncio.Future[FrameError | None]") -> None:
        error = None if closed.cancelled() else closed.result()
        if error is not None:
            self._owner.give_up(self, f"sent what is no message ({error}) and was ended")
        elif not self._left:
            asyncio.get_running_loop().call_later(_LAST_BREATH_S, self._owner.give_up, self, "closed its channel")

    def _on_exit(self, status: int) -> None:
        self.reaped.set()
        words = telling_lines(self.process.stderr.lines())
        self._owner.on_reaped(self, describe_exit(status) + (f" ({words})" if words else ""))
