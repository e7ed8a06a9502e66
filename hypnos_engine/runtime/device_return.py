"""Waits until accelerators report the bytes back that a worker held; never for longer than a moment.

What is not back by then is left to the samples: the scheduler plans with what a device really has.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from hypnos_engine.hardware.monitor import DeviceSample, Monitor
from hypnos_engine.scheduler import ledger
from hypnos_engine.scheduler.state import ModelState

log = logging.getLogger("hypnos.scheduler")

RETURN_WITHIN_S = 3.0
"""How long a device may take to report the memory of a process that is gone."""
LOOK_EVERY_S = 0.05
NEARLY = 0.9
"""Drivers round, and bookings contain what opening the device costs: this share of the booked bytes counts as all."""

NOTHING: Mapping[int, int] = {}


class DeviceReturn:
    """Used on one loop. `totals` are the bytes of each device, in the order of the budgets."""

    def __init__(self, monitor: Callable[[], Monitor], totals: Callable[[], tuple[int, ...]]) -> None:
        self._monitor = monitor
        self._totals = totals

    async def look(self) -> DeviceSample:
        """The newest sample after a fresh look; a driver that hangs is not waited for."""
        try:
            async with asyncio.timeout(RETURN_WITHIN_S):
                return await self._monitor().fresh()
        except TimeoutError:
            return self._monitor().sample()

    async def before(self, model: ModelState) -> Mapping[int, int]:
        """What each device should have free once the worker of this model has gone; empty where it holds nothing."""
        devices = () if model.plan is None else tuple(model.plan.devices)
        if not devices:
            return NOTHING
        shares = {device: int(NEARLY * ledger.share_of(model, device)) for device in devices}
        seen, totals = await self.look(), self._totals()
        awaited: dict[int, int] = {}
        for device, share in shares.items():
            if device >= len(seen.free_bytes) or device >= len(totals) or device in seen.lost:
                continue
            others = seen.others_bytes[device] if device < len(seen.others_bytes) else None
            ours = totals[device] - seen.free_bytes[device] - (others or 0)
            if ours >= share:  # else the device does not count what the worker holds
                awaited[device] = seen.free_bytes[device] + share
        return awaited

    async def wait(self, awaited: Mapping[int, int]) -> None:
        """Return once every device has so much free, or after RETURN_WITHIN_S."""
        if not awaited:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RETURN_WITHIN_S
        while True:
            seen = await self.look()
            missing = {device: free - seen.free_bytes[device] for device, free in awaited.items()}
            if all(lacking <= 0 or device in seen.lost for device, lacking in missing.items()):
                return
            if loop.time() >= deadline:
                log.info("%s bytes of a worker that is gone are not back on their devices yet", missing)
                return
            await asyncio.sleep(LOOK_EVERY_S)
