"""Follows what the accelerators have left and whether they answer; decides nothing about models.

Asks drivers on a thread of its own: one that hangs holds up neither the loop nor the end of the program.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hypnos_engine.domain.memory import Device

log = logging.getLogger("hypnos.hardware")

EVERY_S = 2.0
"""Between two looks at the devices."""
ANSWER_S = 3.0
"""How long whoever needs a fresh figure waits for it."""
LATE_S = 30.0
"""A driver that has not answered for so long is not waited for: its devices count as lost."""
SLEPT_S = 15.0
"""A look that comes later than planned by so much means that the machine was asleep."""
NOTICED_BYTES = 16 * 1024**2
"""Smaller changes are told with the next larger one."""

_SLOWED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""NVML's reasons for lower clocks that slow work down: power, heat, hardware. The others are wishes of a person."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """What a device's driver says of it; None where it does not say."""

    name: str
    utilization_percent: int | None
    temperature_celsius: int | None
    power_watts: float | None
    sm_clock_mhz: int | None
    throttle_reasons: int | None
    """NVML's bit mask."""
    ecc_uncorrected_errors: int
    """Since the driver was loaded; 0 on a device without error correction."""
    retired_pages_pending: bool
    """Whether a part of the memory waits to be taken out of use."""
    sampled_unix_ms: int

    @property
    def throttled(self) -> bool | None:
        """Whether work goes slower than the device could, for power, heat or a fault."""
        return None if self.throttle_reasons is None else bool(self.throttle_reasons & _SLOWED)


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at one device."""

    free_bytes: int | None
    """None = it does not answer."""
    why_lost: str = ""
    gpu: GpuSample | None = None
    others_bytes: int | None = None
    """What programs that are not ours have of it; None where the driver does not say."""


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """The newest that is known, one entry for each accelerator with memory of its own, in the order of the budgets."""

    free_bytes: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    """Numbers of the devices that do not answer; their `free_bytes` are 0."""
    gpus: tuple[GpuSample | None, ...] = ()
    others_bytes: tuple[int | None, ...] = ()
    host_available_bytes: int | None = None
    """Of a made-up machine; None = ask the operating system."""

    @property
    def gpu(self) -> GpuSample | None:
        """The first device whose driver tells of it."""
        return next((gpu for gpu in self.gpus if gpu is not None), None)


class Monitor(Protocol):
    """Knows what the accelerators have left. Made before the loop runs or on it; used on one loop only."""

    def sample(self) -> DeviceSample:
        """The newest that is known. Touches no device, never raises."""
        ...

    async def fresh(self) -> DeviceSample:
        """As `sample`, after a look that began no earlier than this call; a driver that hangs is waited for briefly."""
        ...

    async def run(self, on_change: Callable[[], None]) -> None:
        """Look every few seconds until cancelled; `on_change` is called on the loop when `sample` tells something new.

        Called once.
        """
        ...


class NoDevices:
    """The monitor of a machine whose models live in host memory."""

    def sample(self) -> DeviceSample:
        return DeviceSample()

    async def fresh(self) -> DeviceSample:
        return DeviceSample()

    async def run(self, on_change: Callable[[], None]) -> None:
        await asyncio.Event().wait()


class Look(Protocol):
    """One look at every device, in their order. Blocks; called on one thread."""

    def __call__(self, *, slept: bool) -> Sequence[Reading]:
        """`slept` = the machine was asleep since the last look: whether the devices can still be used is not known."""
        ...

    def stop(self) -> None:
        """Make the look that is in progress, if there is one, end soon. May be called from any thread."""
        ...


class LookFailed(Exception):
    """A look ended with an error that it should have told as a reading."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds, as the constants of this module."""

    every_s: float = EVERY_S
    answer_s: float = ANSWER_S
    late_s: float = LATE_S
    slept_s: float = SLEPT_S


class WatchedDevices:
    """The monitor of real accelerators. They count as answering until a look says otherwise."""

    def __init__(
        self,
        devices: Sequence[Device],
        look: Look,
        *,
        times: Times | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._names = tuple(device.name for device in devices)
        self._times = times or Times()
        self._sample = DeviceSample(tuple(device.free_bytes for device in devices))
        self._asking = _Asking(look)
        self._wall_clock = wall_clock
        self._looked_at = wall_clock()
        self._asked_since: float | None = None
        """When the first of the looks was ordered that have no answer yet."""
        self._slept = False

    def sample(self) -> DeviceSample:
        return self._sample

    async def fresh(self) -> DeviceSample:
        if self._asking.ended:
            return self._sample
        loop = asyncio.get_running_loop()
        if self._asked_since is None:
            self._asked_since = loop.time()
        wall = self._wall_clock()
        self._slept = self._slept or wall - self._looked_at > self._times.every_s + self._times.slept_s
        self._looked_at = wall
        try:
            async with asyncio.timeout(self._times.answer_s):
                readings = await self._asking.ask(loop, slept=self._slept)
        except TimeoutError:
            if self._asked_since is not None and loop.time() - self._asked_since >= self._times.late_s:
                self._take([Reading(None, "its driver does not answer")] * len(self._names))
        except LookFailed as failure:
            self._asked_since = None
            self._take([Reading(None, str(failure))] * len(self._names))
        else:
            self._asked_since = None
            self._slept = False
            self._take(readings)
        return self._sample

    async def run(self, on_change: Callable[[], None]) -> None:
        told = self._sample
        try:
            while True:
                await self.fresh()
                if _differs(told, self._sample):
                    told = self._sample
                    on_change()
                await asyncio.sleep(self._times.every_s)
        finally:
            self._asking.end()

    def _take(self, readings: Sequence[Reading]) -> None:
        lost = tuple(index for index, reading in enumerate(readings) if reading.free_bytes is None)
        for index in lost:
            if index not in self._sample.lost:
                log.warning("%s is lost: %s. Its models end.", self._names[index], readings[index].why_lost)
        for index in self._sample.lost:
            if index not in lost:
                log.info("%s answers again", self._names[index])
        self._sample = DeviceSample(
            tuple(reading.free_bytes or 0 for reading in readings),
            lost,
            tuple(reading.gpu for reading in readings),
            tuple(reading.others_bytes for reading in readings),
        )


def _differs(told: DeviceSample, now: DeviceSample) -> bool:
    if told.lost != now.lost:
        return True
    pairs = zip(told.free_bytes, now.free_bytes, strict=True)
    return any(abs(before - after) >= NOTICED_BYTES for before, after in pairs)


class _Asking:
    """Runs looks one after the other on a daemon thread, which is started with the first of them."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._started = False
        self._failed = False
        self.ended = False

    async def ask(self, loop: asyncio.AbstractEventLoop, *, slept: bool) -> Sequence[Reading]:
        """Order a look and wait for it. Whoever stops waiting takes nothing from the others."""
        answer: asyncio.Future[Sequence[Reading]] = loop.create_future()
        self._orders.put(_Order(loop, answer, slept))
        if not self._started:
            self._started = True
            # Not the loop's executor: the program could not end while one of its threads hangs in a driver.
            threading.Thread(target=self._work, name="devices", daemon=True).start()
        return await answer

    def end(self) -> None:
        """Let the thread end as soon as the driver lets it."""
        self.ended = True
        self._look.stop()
        self._orders.put(None)

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            if order.answer.cancelled():
                continue  # a driver that hung has kept others waiting: those who still wait are answered
            try:
                order.tell(self._look(slept=order.slept))
                self._failed = False
            except Exception as error:
                if not self._failed:  # else every few seconds
                    log.exception("the accelerators cannot be looked at")
                self._failed = True
                order.tell(LookFailed(f"it cannot be looked at ({type(error).__name__})"))


@dataclass(frozen=True, slots=True)
class _Order:
    loop: asyncio.AbstractEventLoop
    answer: "asyncio.Future[Sequence[Reading]]"
    slept: bool

    def tell(self, outcome: "Sequence[Reading] | LookFailed") -> None:
        def settle() -> None:
            if self.answer.done():
                return
            if isinstance(outcome, LookFailed):
                self.answer.set_exception(outcome)
            else:
                self.answer.set_result(outcome)

        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(settle)
