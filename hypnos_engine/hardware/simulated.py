"""A made-up machine from `[hardware.simulate]`: its snapshot, and a monitor that follows what other programs take.

Its devices answer always. Touches no device and knows no model: what Hypnos itself holds is asked of the caller.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from hypnos_engine.config.hardware_settings import SimulatedMachine
from hypnos_engine.domain.kinds import Accelerator, Topology
from hypnos_engine.domain.memory import Device, HardwareSnapshot
from hypnos_engine.hardware.machine import together
from hypnos_engine.hardware.monitor import DeviceSample


@dataclass(frozen=True, slots=True)
class Use:
    """What the program and its workers hold of the machine, loads in flight aside."""

    host_bytes: int = 0
    device_bytes: tuple[int, ...] = ()


def simulated_snapshot(machine: SimulatedMachine) -> HardwareSnapshot:
    """The machine that the settings describe. Where devices share the host's memory there is at most one."""
    unified = machine.topology is Topology.UNIFIED
    described = machine.devices if machine.topology is Topology.DISCRETE else machine.devices[:1]
    devices = tuple(
        Device(index, device.name, machine.accelerator, device.total_bytes, device.total_bytes, unified=unified)
        for index, device in enumerate(described)
    )
    if unified and not devices:
        name = f"Simulated {machine.accelerator}"
        devices = (Device(0, name, machine.accelerator, machine.host_bytes, machine.host_bytes, unified=True),)
    if machine.topology is Topology.HOST:
        devices = ()
    return HardwareSnapshot(
        topology=machine.topology,
        accelerator=machine.accelerator if devices else Accelerator.CPU,
        device_name=together(device.name for device in devices) or "Simulated processor",
        host_total_bytes=machine.host_bytes,
        host_available_bytes=machine.host_bytes,
        cores=machine.cores,
        devices=devices,
        simulated=True,
    )


class SimulatedMonitor:
    """The monitor of a made-up machine; its time begins when it is made."""

    def __init__(
        self, machine: SimulatedMachine, in_use: Callable[[], Use], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._machine = machine
        self._discrete = machine.topology is Topology.DISCRETE
        self._sizes = tuple(device.total_bytes for device in machine.devices) if self._discrete else ()
        self._in_use = in_use
        self._clock = clock
        self._began_at = clock()

    def sample(self) -> DeviceSample:
        use = self._in_use()
        own = (*use.device_bytes, *(0 for _ in self._sizes))
        others = tuple(self._others(device) for device in range(len(self._sizes)))
        taken = use.host_bytes + (0 if self._discrete else self._others(0))
        return DeviceSample(
            free_bytes=tuple(
                max(0, size - mine - theirs) for size, mine, theirs in zip(self._sizes, own, others, strict=False)
            ),
            gpus=tuple(None for _ in self._sizes),
            others_bytes=others,
            host_available_bytes=max(0, self._machine.host_bytes - taken),
        )

    async def fresh(self) -> DeviceSample:
        return self.sample()

    async def run(self, on_change: Callable[[], None]) -> None:
        for at_s in sorted({other.after_secs for other in self._machine.others}):
            await self._until(at_s)
            on_change()
        await asyncio.Event().wait()

    async def _until(self, at_s: float) -> None:
        """Sleep until so many seconds have passed; a loop wakes up to a tick too early."""
        left_s = self._began_at + at_s - self._clock()
        if left_s > 0:
            await asyncio.sleep(left_s)
            await self._until(at_s)

    def _others(self, device: int) -> int:
        """What other programs hold now: the newest entry whose time has come."""
        passed_s = self._clock() - self._began_at
        begun = [other for other in self._machine.others if other.device == device and other.after_secs <= passed_s]
        return max(begun, key=lambda other: other.after_secs).used_bytes if begun else 0
