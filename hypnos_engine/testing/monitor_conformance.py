"""What every monitor of accelerators has to keep, whatever it follows."""

import asyncio
import contextlib
from abc import abstractmethod

from hypnos_engine.hardware.monitor import Monitor


class MonitorTests:
    """Inherit, and give `monitor`; `devices` is how many accelerators with memory of their own it follows."""

    devices: int

    @abstractmethod
    def monitor(self) -> Monitor:
        """A new one, made without a loop."""

    async def test_there_is_a_sample_before_the_first_look(self) -> None:
        sample = self.monitor().sample()
        assert len(sample.free_bytes) == self.devices
        assert sample.lost == ()

    async def test_every_part_of_a_fresh_sample_is_about_the_same_devices(self) -> None:
        sample = await self.monitor().fresh()
        assert len(sample.free_bytes) == len(sample.gpus) == len(sample.others_bytes) == self.devices
        assert all(free >= 0 for free in sample.free_bytes)
        assert all(0 <= device < self.devices for device in sample.lost)

    async def test_what_was_fresh_is_what_is_known(self) -> None:
        monitor = self.monitor()
        assert await monitor.fresh() == monitor.sample()

    async def test_it_runs_until_it_is_cancelled(self) -> None:
        monitor = self.monitor()
        running = asyncio.create_task(monitor.run(lambda: None))
        await monitor.fresh()
        assert not running.done()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert running.cancelled()

    async def test_who_asks_after_its_end_is_answered_with_what_is_known(self) -> None:
        monitor = self.monitor()
        running = asyncio.create_task(monitor.run(lambda: None))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert len((await monitor.fresh()).free_bytes) == self.devices

    async def test_many_may_ask_at_once(self) -> None:
        monitor = self.monitor()
        samples = await asyncio.gather(*(monitor.fresh() for _ in range(8)))
        assert {len(sample.free_bytes) for sample in samples} == {self.devices}
