"""The made-up machine of `[hardware.simulate]`: what it is, and what its other programs leave as time goes by."""

import asyncio
import re
from pathlib import Path

import pytest

from hypnos_engine.config.hardware_settings import OtherPrograms, SimulatedDevice, SimulatedMachine
from hypnos_engine.config.load import load
from hypnos_engine.domain.kinds import Accelerator, Topology
from hypnos_engine.hardware.machine import MemoryLimits, plan_budgets
from hypnos_engine.hardware.monitor import Monitor
from hypnos_engine.hardware.simulated import SimulatedMonitor, Use, simulated_snapshot
from hypnos_engine.testing.monitor_conformance import MonitorTests

GIB = 2**30
TWO_CARDS = SimulatedMachine(
    host_bytes=64 * GIB,
    devices=(SimulatedDevice(total_bytes=24 * GIB, name="Big"), SimulatedDevice(total_bytes=8 * GIB, name="Small")),
    others=(
        OtherPrograms(used_bytes=GIB),
        OtherPrograms(used_bytes=6 * GIB, after_secs=60.0),
        OtherPrograms(used_bytes=2 * GIB, after_secs=30.0, device=1),
        OtherPrograms(used_bytes=0, after_secs=90.0),
    ),
)
IDLE = Use()


class Clock:
    now = 500.0

    def __call__(self) -> float:
        return self.now


class TestSimulatedMonitor(MonitorTests):
    devices = 2

    def monitor(self) -> Monitor:
        return SimulatedMonitor(TWO_CARDS, lambda: IDLE)


def test_the_snapshot_is_the_machine_that_was_described() -> None:
    """[§14.1-04] `simulated` says that it is none."""
    seen = simulated_snapshot(TWO_CARDS)
    assert (seen.simulated, seen.topology, seen.accelerator) == (True, Topology.DISCRETE, Accelerator.CUDA)
    assert (seen.host_total_bytes, seen.cores, seen.device_name) == (64 * GIB, 8, "Big, Small")
    budgets = plan_budgets(seen, MemoryLimits())
    assert budgets.device_bytes == (24 * GIB - GIB // 2, 8 * GIB - GIB // 2)
    assert budgets.tier2_bytes == 32 * GIB


def test_the_documented_machine_can_be_read(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "hardware.md"
    (example,) = re.findall(r"```toml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    config = tmp_path / "hypnos.toml"
    config.write_text(example, "utf-8")
    config.chmod(0o600)
    settings = load(config)
    assert settings.without_effect == ()
    assert settings.hardware.simulate is not None
    assert simulated_snapshot(settings.hardware.simulate).devices[0].total_bytes == 24 * GIB


def test_one_pool_with_and_without_an_accelerator() -> None:
    mac = simulated_snapshot(
        SimulatedMachine(
            host_bytes=48 * GIB,
            topology=Topology.UNIFIED,
            accelerator=Accelerator.METAL,
            devices=(SimulatedDevice(total_bytes=36 * GIB, name="Apple M4 Pro"),),
        )
    )
    assert (mac.topology, mac.device_name, len(mac.devices)) == (Topology.UNIFIED, "Apple M4 Pro", 1)
    assert plan_budgets(mac, MemoryLimits()).host_bytes == 36 * GIB
    nameless = simulated_snapshot(SimulatedMachine(host_bytes=16 * GIB, topology=Topology.UNIFIED))
    assert plan_budgets(nameless, MemoryLimits()).host_bytes == 12 * GIB
    processor = simulated_snapshot(SimulatedMachine(host_bytes=16 * GIB, topology=Topology.HOST))
    assert (processor.accelerator, processor.devices) == (Accelerator.CPU, ())


@pytest.mark.parametrize(
    ("passed_s", "free_gib"), [(0, (23, 8)), (29, (23, 8)), (30, (23, 6)), (60, (18, 6)), (90, (24, 6)), (9e9, (24, 6))]
)
def test_what_others_hold_changes_with_time(passed_s: float, free_gib: tuple[int, int]) -> None:
    clock = Clock()
    monitor = SimulatedMonitor(TWO_CARDS, lambda: IDLE, clock=clock)
    clock.now += passed_s
    sample = monitor.sample()
    assert sample.free_bytes == tuple(gib * GIB for gib in free_gib)
    assert sample.host_available_bytes == 64 * GIB
    assert sample.gpu is None, "there is no driver that could tell"


def test_what_workers_hold_is_not_free() -> None:
    monitor = SimulatedMonitor(TWO_CARDS, lambda: Use(10 * GIB, (20 * GIB, 0)), clock=Clock())
    sample = monitor.sample()
    assert (sample.free_bytes, sample.host_available_bytes) == ((3 * GIB, 8 * GIB), 54 * GIB)
    over = SimulatedMonitor(TWO_CARDS, lambda: Use(99 * GIB, (99 * GIB, 0)), clock=Clock()).sample()
    assert (over.free_bytes, over.host_available_bytes) == ((0, 8 * GIB), 0)


def test_on_one_pool_others_hold_of_the_host() -> None:
    machine = SimulatedMachine(
        host_bytes=16 * GIB, topology=Topology.HOST, others=(OtherPrograms(used_bytes=6 * GIB, after_secs=1.0),)
    )
    clock = Clock()
    monitor = SimulatedMonitor(machine, lambda: IDLE, clock=clock)
    assert monitor.sample().host_available_bytes == 16 * GIB
    clock.now += 1.0
    assert monitor.sample().host_available_bytes == 10 * GIB
    assert monitor.sample().free_bytes == ()


async def test_each_change_is_told_when_its_time_has_come() -> None:
    machine = SimulatedMachine(
        host_bytes=GIB,
        devices=(SimulatedDevice(total_bytes=GIB),),
        others=tuple(OtherPrograms(used_bytes=n, after_secs=n * 0.02) for n in range(1, 4)),
    )
    monitor = SimulatedMonitor(machine, lambda: IDLE)
    told: list[tuple[int, ...]] = []
    done = asyncio.Event()

    def on_change() -> None:
        told.append(monitor.sample().free_bytes)
        if len(told) == 3:
            done.set()

    running = asyncio.create_task(monitor.run(on_change))
    async with asyncio.timeout(30):
        await done.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert told == sorted(told, reverse=True)
    assert told[-1] == (GIB - 3,)
