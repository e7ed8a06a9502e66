"""Finds out what the machine is at the start: the snapshot, and the monitor that follows it from then on.

Asks the library in a child and drivers on a thread of its own; one that hangs delays the start by seconds, no more.
"""

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from hypnos_engine.domain.errors import EngineFailed
from hypnos_engine.domain.kinds import Accelerator, Topology
from hypnos_engine.domain.memory import HardwareSnapshot, UnusableDevice
from hypnos_engine.hardware import apple, ggml, nvidia
from hypnos_engine.hardware.looking import DriversLook, Probe
from hypnos_engine.hardware.machine import HostMemory, accelerator_of, host_memory, snapshot
from hypnos_engine.hardware.monitor import Monitor, NoDevices, Times, WatchedDevices
from hypnos_engine.hardware.system import PCI_FOLDER, Adapter, adapters
from hypnos_engine.hardware.unusable import NvidiaDriver, unusable
from hypnos_engine.ipc.messages import Device, ProbeReport

log = logging.getLogger("hypnos.hardware")

DRIVER_S = 5.0
"""How long NVIDIA's driver may take to list its cards."""
RETRY_S = (1.0, 2.0, 4.0)
"""Waits before a library that should see a card and does not is asked again: at boot, drivers come up late."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the answers come from; the defaults are this machine."""

    probe: Callable[[], Awaitable[ProbeReport]] = ggml.probe
    prober: Callable[[], Probe] = ggml.Prober
    nvml: Callable[[], nvidia.Nvml | None] = nvidia.nvml
    pci_folder: Path = PCI_FOLDER
    sysctl: apple.Sysctl = apple.sysctl
    host: Callable[[], HostMemory] = host_memory
    retry_s: tuple[float, ...] = RETRY_S
    driver_s: float = DRIVER_S
    times: Times | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What the machine is, and who follows it."""

    hardware: HardwareSnapshot
    monitor: Monitor


async def discover(*, backend: str = "auto", wants_library: bool = True, sources: Sources | None = None) -> Found:
    """Look at the machine. Never raises for what is not there: then there is the processor, and the log says why.

    `wants_library` is False where nothing is configured that computes with llama.cpp: it may not be installed then.
    """
    ask = sources or Sources()
    host = ask.host()
    if not wants_library:
        return Found(snapshot(host, None, backend=backend), NoDevices())
    listed = await _adapters(ask)
    cards, driver = await _nvidia(ask)
    report = await _report(ask)
    for wait_s in ask.retry_s:
        if not _is_late(report, driver, any(adapter.discrete for adapter in listed)):
            break
        await asyncio.sleep(wait_s)
        cards, driver = await _nvidia(ask)
        report = await _report(ask)
    if report is not None:
        report = _with_addresses(await _with_working_set(report, host, ask), driver)
    hardware = snapshot(host, report, backend=backend, unusable=unusable(report, listed, driver))
    for device in hardware.unusable:
        level = logging.INFO if hardware.devices else logging.WARNING
        log.log(level, "%s is not used: %s. To mend it: %s", device.name, device.why, device.mend)
    if backend not in ("auto", "cpu") and not hardware.devices:
        log.warning("hardware.backend is '%s', but llama.cpp has no such device: models compute on the CPU.", backend)
    if hardware.topology is not Topology.DISCRETE:
        return Found(hardware, NoDevices())
    look = DriversLook(hardware.devices, cards, ask.prober(), ask.pci_folder)
    return Found(hardware, WatchedDevices(hardware.devices, look, times=ask.times))


async def look_for_unusable(report: ProbeReport | None, *, sources: Sources | None = None) -> list[UnusableDevice]:
    """The graphics processors of this machine that a library with such a report cannot compute on."""
    ask = sources or Sources()
    _, driver = await _nvidia(ask)
    return unusable(report if report is None else _with_addresses(report, driver), await _adapters(ask), driver)


async def _adapters(ask: Sources) -> tuple[Adapter, ...]:
    """What is on the bus; a card that has to wake up for the question may take its time."""
    try:
        return await aside(lambda: adapters(ask.pci_folder), ask.driver_s)
    except TimeoutError:
        return ()


async def _report(ask: Sources) -> ProbeReport | None:
    try:
        return await ask.probe()
    except EngineFailed as error:
        log.warning("%s Only the processor is planned with.", error.message)
        return None


def _is_late(report: ProbeReport | None, driver: NvidiaDriver, has_card: bool) -> bool:
    """Whether a build that could use a card sees none although there is one."""
    if report is None or not report.gpu_offload:
        return False
    return (has_card or bool(driver.cards)) and not any(device.kind in ("gpu", "igpu") for device in report.devices)


async def _with_working_set(report: ProbeReport, host: HostMemory, ask: Sources) -> ProbeReport:
    """Metal's devices with the bytes that Metal recommends to use of the Mac's memory."""
    devices: list[Device] = []
    for device in report.devices:
        total_bytes = device.total_bytes
        if accelerator_of(device.name) is Accelerator.METAL:
            known = functools.partial(apple.working_set_bytes, total_bytes, host.total_bytes, ask.sysctl)
            total_bytes = await aside(known, 2 * apple.ANSWER_S)
        devices.append(msgspec.structs.replace(device, total_bytes=total_bytes))
    return msgspec.structs.replace(report, devices=tuple(devices))


def _with_addresses(report: ProbeReport, driver: NvidiaDriver) -> ProbeReport:
    """NVIDIA's devices with the addresses that an older library does not tell: of equal cards in the driver's order."""
    known = {device.bus_id for device in report.devices}
    free = [card for card in driver.cards if card.bus_id not in known]
    devices: list[Device] = []
    for device in report.devices:
        fitting = [card for card in free if not device.bus_id and device.description.startswith(card.name)]
        if fitting and device.kind in ("gpu", "igpu"):
            free.remove(fitting[0])
            device = msgspec.structs.replace(device, bus_id=fitting[0].bus_id)
        devices.append(device)
    return msgspec.structs.replace(report, devices=tuple(devices))


async def _nvidia(ask: Sources) -> tuple[nvidia.NvidiaCards | None, NvidiaDriver]:
    """NVIDIA's cards, and what the driver said; no cards where there is none to ask later on either."""

    def cards() -> tuple[nvidia.NvidiaCards, NvidiaDriver] | None:
        library = ask.nvml()
        if library is None:
            return None
        found = nvidia.NvidiaCards(library)
        return found, NvidiaDriver(found.cards())

    try:
        return await aside(cards, ask.driver_s) or (
            None,
            NvidiaDriver(problem="NVIDIA's driver, or nvidia-ml-py, is not installed"),
        )
    except nvidia.DriverSilent as silent:
        return None, NvidiaDriver(problem=str(silent))
    except TimeoutError:
        return None, NvidiaDriver(problem=f"NVIDIA's driver did not answer within {ask.driver_s:.0f} s")


async def aside(question: Callable[[], T], longest_s: float) -> T:
    """Answer a question that blocks on a thread of its own. Raises TimeoutError, and what the question raises.

    Not on the loop's executor: the program could not end while one of its threads hangs in a driver.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(cast("T", result))

    def work() -> None:
        result, error = None, None
        try:
            result = question()
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name="driver", daemon=True).start()
    async with asyncio.timeout(longest_s):
        return await answer
