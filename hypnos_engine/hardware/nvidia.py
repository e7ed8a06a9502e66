"""Asks NVIDIA's driver what its cards have left and how they are; opens no compute context and plans nothing.

A figure that the driver does not give (MIG, WDDM, old cards) is None, and so is a driver that is not there. Blocks, and
a broken driver may hang: never call it on the loop.
"""

import contextlib
import ctypes
import functools
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import psutil

from hypnos_engine.domain.memory import Device
from hypnos_engine.hardware.monitor import GpuSample, Reading

FIGURES_EVERY_S = 2.0
"""Figures other than memory are asked for at most this often."""
MISSES = 2
"""So many looks in a row may go wrong for another reason than a lost device before it counts as lost."""

_LIBRARY = "libnvidia-ml.so.1"
_NOT_SUPPORTED, _NO_DATA = 3, 21
_NOT_ANSWERING = frozenset({4, 7, 10, 11, 17, 19, 20, 23, 27, 999})
"""NVML's errors that may pass; any other about a card's memory means that the card or the driver has gone."""

_TEMPERATURE_GPU, _CLOCK_SM, _UNCORRECTED, _SINCE_DRIVER_LOAD = 0, 1, 1, 0

T = TypeVar("T")
Handle = Any
"""An opaque handle of the driver's library."""


class Nvml(Protocol):
    """The functions of nvidia-ml-py that are used, under their own names; each may raise NVMLError."""

    NVMLError: type[Exception]
    """Its instances have the driver's code as `value`."""

    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlShutdown(self) -> None: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Handle: ...  # noqa: N802
    def nvmlDeviceGetName(self, handle: Handle, /) -> str: ...  # noqa: N802
    def nvmlDeviceGetPciInfo(self, handle: Handle, /) -> Any: ...  # noqa: N802
    def nvmlDeviceGetMemoryInfo(self, handle: Handle, /) -> Any: ...  # noqa: N802
    def nvmlDeviceGetMigMode(self, handle: Handle, /) -> Any: ...  # noqa: N802
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle, /) -> int: ...  # noqa: N802
    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Handle, index: int, /) -> Handle: ...  # noqa: N802
    def nvmlDeviceGetUtilizationRates(self, handle: Handle, /) -> Any: ...  # noqa: N802
    def nvmlDeviceGetTemperature(self, handle: Handle, sensor: int, /) -> int: ...  # noqa: N802
    def nvmlDeviceGetPowerUsage(self, handle: Handle, /) -> int: ...  # noqa: N802
    def nvmlDeviceGetClockInfo(self, handle: Handle, clock: int, /) -> int: ...  # noqa: N802
    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Handle, /) -> int: ...  # noqa: N802
    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Handle, /) -> int: ...  # noqa: N802
    def nvmlDeviceGetTotalEccErrors(self, handle: Handle, kind: int, counter: int, /) -> int: ...  # noqa: N802
    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: Handle, /) -> int: ...  # noqa: N802
    def nvmlDeviceGetRemappedRows(self, handle: Handle, /) -> Any: ...  # noqa: N802
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle, /) -> Any: ...  # noqa: N802
    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Handle, /) -> Any: ...  # noqa: N802


@dataclass(frozen=True, slots=True)
class Card:
    """One card as the driver lists it."""

    handle: Handle
    name: str
    bus_id: str
    total_bytes: int
    """0 where the driver does not say."""
    divided: bool = False
    """MIG is on: nothing computes on the card itself, only on its instances."""
    instances: tuple[tuple[Handle, int], ...] = ()
    """Each with its bytes."""

    def handle_for(self, total_bytes: int) -> Handle:
        """What to ask about the memory of a device of that size on this card."""
        if not self.instances:
            return self.handle
        return min(self.instances, key=lambda instance: abs(instance[1] - total_bytes))[0]


class DriverSilent(Exception):
    """There is no driver, or it does not work; the message says which."""


def nvml() -> Nvml | None:
    """The driver's library as Python sees it; None where no driver is installed, or nvidia-ml-py is not.

    Blocks for the time of an import.
    """
    try:
        if sys.platform == "linux":
            ctypes.CDLL(_LIBRARY)  # on the many machines without one, the import and its memory are saved
        import pynvml
    except (ImportError, OSError):
        return None
    found: Nvml = pynvml
    return found


def is_ours(pid: int) -> bool:
    """Whether a process is this program or was started by it."""
    if pid == os.getpid():
        return True
    try:
        return any(parent.pid == os.getpid() for parent in psutil.Process(pid).parents())
    except (psutil.Error, ValueError):
        return False


@dataclass(slots=True)
class NvidiaCards:
    """The driver's cards. Opens the driver's library when it is needed, and anew after a card was lost."""

    library: Nvml
    ours: Callable[[int], bool] = is_ours
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    _cards: tuple[Card, ...] | None = None
    _figures: dict[str, tuple[float, GpuSample]] = field(default_factory=dict)
    _last: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Free bytes that a card last told, and how many looks have gone wrong since."""

    def cards(self) -> tuple[Card, ...]:
        """All cards, also those that nothing here can compute on. Raises DriverSilent."""
        if self._cards is None:
            try:
                self.library.nvmlInit()
                handles = [self.library.nvmlDeviceGetHandleByIndex(n) for n in range(self.library.nvmlDeviceGetCount())]
                self._cards = tuple(self._card(handle) for handle in handles)
            except self.library.NVMLError as error:
                self.close()
                raise DriverSilent(f"NVIDIA's driver does not work ({error})") from error
        return self._cards

    def close(self) -> None:
        """Let go of the driver's library; the next question opens it again."""
        self._cards = None
        self._figures.clear()
        with contextlib.suppress(self.library.NVMLError):
            self.library.nvmlShutdown()

    def read(self, device: Device) -> Reading:
        """What a device that the inference library uses has left, and how it is."""
        try:
            card = self._find(device)
        except DriverSilent as silent:
            return Reading(None, str(silent))
        if card is None:
            self.close()
            return Reading(None, "NVIDIA's driver does not list it any more")
        try:
            handle = card.handle_for(device.total_bytes)
            free_bytes = int(self.library.nvmlDeviceGetMemoryInfo(handle).free)
        except self.library.NVMLError as error:
            return self._without_memory(device, card, error)
        self._last[card.bus_id] = free_bytes, 0
        return Reading(free_bytes, gpu=self._figures_of(card, handle), others_bytes=self._others(handle))

    # --- cards ------------------------------------------------------------------------------------------------------

    def _card(self, handle: Handle) -> Card:
        library = self.library
        memory = self._ask(lambda: library.nvmlDeviceGetMemoryInfo(handle))
        mode = self._ask(lambda: library.nvmlDeviceGetMigMode(handle))
        divided = mode is not None and bool(mode[0])
        return Card(
            handle,
            _text(library.nvmlDeviceGetName(handle)),
            _address(_text(library.nvmlDeviceGetPciInfo(handle).busId)),
            0 if memory is None else int(memory.total),
            divided,
            tuple(self._instances(handle)) if divided else (),
        )

    def _instances(self, handle: Handle) -> Iterable[tuple[Handle, int]]:
        library = self.library
        for index in range(self._ask(lambda: library.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
            instance = self._ask(functools.partial(library.nvmlDeviceGetMigDeviceHandleByIndex, handle, index))
            memory = (
                None if instance is None else self._ask(functools.partial(library.nvmlDeviceGetMemoryInfo, instance))
            )
            if memory is not None:
                yield instance, int(memory.total)

    def _find(self, device: Device) -> Card | None:
        return next((card for card in self.cards() if card.bus_id == device.bus_id), None)

    def _without_memory(self, device: Device, card: Card, error: Exception) -> Reading:
        code = getattr(error, "value", 999)
        if code in (_NOT_SUPPORTED, _NO_DATA):  # a processor that shares the host's memory
            return Reading(device.free_bytes, gpu=self._figures_of(card, card.handle))
        free_bytes, missed = self._last.get(card.bus_id, (device.free_bytes, 0))
        if code in _NOT_ANSWERING and missed < MISSES:
            self._last[card.bus_id] = free_bytes, missed + 1
            return Reading(free_bytes)
        self.close()
        return Reading(None, f"NVIDIA's driver says '{error}'")

    # --- figures ----------------------------------------------------------------------------------------------------

    def _figures_of(self, card: Card, handle: Handle) -> GpuSample:
        asked_at, known = self._figures.get(card.bus_id, (0.0, None))
        if known is not None and self.clock() - asked_at < FIGURES_EVERY_S:
            return known
        sample = self._ask_figures(card, handle)
        self._figures[card.bus_id] = self.clock(), sample
        return sample

    def _ask_figures(self, card: Card, handle: Handle) -> GpuSample:
        library, ask, whole = self.library, self._ask, card.handle
        busy = ask(lambda: library.nvmlDeviceGetUtilizationRates(handle))  # of an instance nobody tells
        milliwatts = _known(ask(lambda: library.nvmlDeviceGetPowerUsage(whole)))
        reasons = ask(lambda: library.nvmlDeviceGetCurrentClocksEventReasons(whole))
        if reasons is None:  # the name that older drivers know
            reasons = ask(lambda: library.nvmlDeviceGetCurrentClocksThrottleReasons(whole))
        return GpuSample(
            name=card.name,
            utilization_percent=None if busy is None else _known(busy.gpu),
            temperature_celsius=_known(ask(lambda: library.nvmlDeviceGetTemperature(whole, _TEMPERATURE_GPU))),
            power_watts=None if milliwatts is None else milliwatts / 1e3,
            sm_clock_mhz=_known(ask(lambda: library.nvmlDeviceGetClockInfo(whole, _CLOCK_SM))),
            throttle_reasons=reasons,
            ecc_uncorrected_errors=ask(
                lambda: library.nvmlDeviceGetTotalEccErrors(whole, _UNCORRECTED, _SINCE_DRIVER_LOAD)
            )
            or 0,
            retired_pages_pending=self._is_pending(whole),
            sampled_unix_ms=int(self.wall_clock() * 1e3),
        )

    def _is_pending(self, handle: Handle) -> bool:
        """Cards before Ampere retire pages, later ones remap rows."""
        pages = self._ask(lambda: self.library.nvmlDeviceGetRetiredPagesPendingStatus(handle))
        rows = self._ask(lambda: self.library.nvmlDeviceGetRemappedRows(handle))
        return bool(pages) or (rows is not None and bool(rows[2]))

    def _others(self, handle: Handle) -> int | None:
        """What other programs' processes have; None as soon as one's share is not known."""
        shares: dict[int, int | None] = {}
        for ask in (
            self.library.nvmlDeviceGetComputeRunningProcesses,
            self.library.nvmlDeviceGetGraphicsRunningProcesses,
        ):
            processes = self._ask(functools.partial(ask, handle))
            if processes is None:
                return None
            shares |= {process.pid: process.usedGpuMemory for process in processes}
        total = 0
        for pid, used_bytes in shares.items():
            if self.ours(pid):
                continue
            if used_bytes is None:
                return None
            total += int(used_bytes)
        return total

    def _ask(self, question: Callable[[], T]) -> T | None:
        """The answer; None when the driver has none."""
        try:
            return question()
        except self.library.NVMLError:
            return None


def _known(figure: int | None) -> int | None:
    """A figure that is one: the driver writes -1 of 32 bits where it has none."""
    return None if figure is None or figure == 0xFFFFFFFF else int(figure)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _address(text: str) -> str:
    """The driver's address of a card as others write it: a domain of four digits, in small letters."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]:0>4}:{rest}"
