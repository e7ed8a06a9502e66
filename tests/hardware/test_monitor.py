"""The monitor of real accelerators: what it tells, and what it makes of drivers that fail, hang or come back."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hypnos_engine.domain.kinds import Accelerator
from hypnos_engine.domain.memory import Device
from hypnos_engine.hardware.looking import DriversLook
from hypnos_engine.hardware.monitor import (
    NOTICED_BYTES,
    DeviceSample,
    Monitor,
    NoDevices,
    Reading,
    Times,
    WatchedDevices,
)
from hypnos_engine.hardware.nvidia import NvidiaCards
from hypnos_engine.testing.monitor_conformance import MonitorTests
from tests.hardware import recorded

GIB = 2**30
SOON = Times(every_s=0.001, answer_s=60.0, late_s=600.0, slept_s=600.0)
IMPATIENT = Times(every_s=0.001, answer_s=0.2, late_s=0.0, slept_s=600.0)
CARDS = tuple(
    Device(n, f"Card {n}", Accelerator.CUDA, 8 * GIB, 7 * GIB, unified=False, library_name=f"CUDA{n}") for n in range(2)
)
WELL = (Reading(5 * GIB), Reading(6 * GIB))


class Scripted:
    """A look that answers what the test says, once the test lets it."""

    def __init__(self, readings: Sequence[Reading] = WELL) -> None:
        self.readings = readings
        self.error: Exception | None = None
        self.open = threading.Event()
        self.open.set()
        self.slept: list[bool] = []
        self.stopped = False

    def __call__(self, *, slept: bool) -> Sequence[Reading]:
        self.slept.append(slept)
        self.open.wait()
        if self.error is not None:
            raise self.error
        return self.readings

    def stop(self) -> None:
        self.stopped = True
        self.open.set()


class TestNoDevices(MonitorTests):
    devices = 0

    def monitor(self) -> Monitor:
        return NoDevices()


class TestWatchedDevices(MonitorTests):
    devices = 2

    def monitor(self) -> Monitor:
        return WatchedDevices(CARDS, Scripted(), times=SOON)


async def until_told(monitor: Monitor, happens: Callable[[], bool]) -> None:
    """Let it run until something is told and holds."""
    told = asyncio.Event()
    running = asyncio.create_task(monitor.run(lambda: told.set() if happens() else None))
    try:
        async with asyncio.timeout(30):
            await told.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_before_the_first_look_the_probe_s_figures_hold_and_then_the_drivers() -> None:
    monitor = WatchedDevices(CARDS, Scripted(), times=SOON)
    assert monitor.sample() == DeviceSample((7 * GIB, 7 * GIB))
    assert (await monitor.fresh()).free_bytes == (5 * GIB, 6 * GIB)


async def test_a_change_is_told_once_and_a_small_one_not_at_all() -> None:
    look = Scripted((Reading(7 * GIB), Reading(7 * GIB - NOTICED_BYTES // 2)))
    monitor = WatchedDevices(CARDS, look, times=SOON)
    told: list[tuple[int, ...]] = []
    running = asyncio.create_task(monitor.run(lambda: told.append(monitor.sample().free_bytes)))
    async with asyncio.timeout(30):
        while len(look.slept) < 5:
            await monitor.fresh()
        assert told == []
        look.readings = (Reading(GIB), Reading(7 * GIB))
        while not told:
            await monitor.fresh()
        seen = len(look.slept)
        while len(look.slept) < seen + 5:
            await monitor.fresh()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert told == [(GIB, 7 * GIB)]
    assert look.stopped


async def test_a_lost_device_is_told_with_its_reason_and_so_is_its_return(expected_log: list[str]) -> None:
    expected_log.append("Card 1 is lost: it fell off the bus")
    look = Scripted((Reading(5 * GIB), Reading(None, "it fell off the bus")))
    monitor = WatchedDevices(CARDS, look, times=SOON)
    await until_told(monitor, lambda: monitor.sample().lost == (1,))
    assert monitor.sample().free_bytes == (5 * GIB, 0)

    again = WatchedDevices(CARDS, look, times=SOON)
    await again.fresh()
    look.readings = WELL
    await until_told(again, lambda: again.sample().lost == ())


async def test_a_driver_that_hangs_holds_up_neither_the_loop_nor_those_who_ask(expected_log: list[str]) -> None:
    expected_log += [f"Card {n} is lost: its driver does not answer" for n in range(2)]
    look = Scripted()
    look.open.clear()
    monitor = WatchedDevices(CARDS, look, times=IMPATIENT)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    samples = await asyncio.gather(monitor.fresh(), monitor.fresh())
    turning.cancel()
    assert turns > 10
    assert samples[-1].lost == (0, 1), "late counts as lost"
    look.open.set()
    async with asyncio.timeout(30):
        while (await monitor.fresh()).lost:
            pass
    assert monitor.sample().free_bytes == (5 * GIB, 6 * GIB)


async def test_a_driver_that_takes_a_moment_is_not_lost() -> None:
    look = Scripted()
    look.open.clear()
    monitor = WatchedDevices(CARDS, look, times=Times(0.001, 0.01, 600.0, 15.0))
    assert (await monitor.fresh()).lost == ()
    look.open.set()


async def test_a_look_that_goes_wrong_in_an_unforeseen_way_is_a_loss_and_not_the_end(
    expected_log: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    expected_log += ["the accelerators cannot be looked at", "Card 0 is lost", "Card 1 is lost"]
    look = Scripted()
    look.error = ZeroDivisionError()
    monitor = WatchedDevices(CARDS, look, times=SOON)
    for _ in range(3):
        assert (await monitor.fresh()).lost == (0, 1)
    assert len(caplog.records) == 3, "each device once, and the reason once"
    look.error = None
    assert (await monitor.fresh()).lost == ()


async def test_after_sleep_the_next_look_is_told_until_one_has_answered() -> None:
    now = 1000.0
    look = Scripted()
    monitor = WatchedDevices(CARDS, look, times=Times(0.001, 2.0, 600.0, 15.0), wall_clock=lambda: now)
    await monitor.fresh()
    now += 3600.0
    look.open.clear()
    await monitor.fresh()
    look.open.set()
    await monitor.fresh()
    await monitor.fresh()
    assert look.slept == [False, True, True, False]


async def test_it_ends_when_it_is_cancelled_in_the_moment_of_an_answer() -> None:
    for turns in range(30):
        monitor = WatchedDevices(CARDS, Scripted(), times=Times(600.0, 600.0, 600.0, 15.0))
        running = asyncio.create_task(monitor.run(lambda: None))
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled()


async def test_recorded_cards_through_all_layers(tmp_path: Path) -> None:
    """[§14.1-07, §14.1-15]"""
    machine = recorded.machine("two_cards", tmp_path)
    assert machine.nvml is not None
    cards = tuple(
        Device(index, "", Accelerator.CUDA, 0, 0, unified=False, library_name=f"CUDA{index}", bus_id=bus_id)
        for index, bus_id in enumerate(("0000:01:00.0", "0000:0b:00.0"))
    )
    look = DriversLook(cards, NvidiaCards(machine.nvml), machine.probe, machine.pci_folder)
    sample = await WatchedDevices(cards, look).fresh()
    assert sample.free_bytes == (25757220864 - 3100 * 2**20, 12884901888 - 350 * 2**20)
    assert sample.gpu is not None
    assert sample.gpu.name == "NVIDIA GeForce RTX 4090"
    assert [gpu is not None for gpu in sample.gpus] == [True, True]
