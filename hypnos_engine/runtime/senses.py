"""What the machine has left at this moment, as the scheduler is told it; decides nothing and never waits.

What the system calls available is not all there for the taking: pages that are kept warm without a lock, and memory
that was promised to something in flight but not taken yet, are subtracted.
"""

import contextlib
from collections.abc import Callable

import psutil

from hypnos_engine.domain.kinds import Pages, Residency
from hypnos_engine.domain.model import ModelId
from hypnos_engine.engines.holder import HolderReport
from hypnos_engine.hardware.monitor import DeviceSample
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler import ledger
from hypnos_engine.scheduler.state import ModelState, State


class Senses:
    """Gathers samples. Used on one loop."""

    def __init__(
        self,
        state: State,
        devices: Callable[[], DeviceSample],
        held: Callable[[], HolderReport | None],
        taken_by_load: Callable[[ModelId], int],
    ) -> None:
        """`taken_by_load` tells how much anonymous memory the worker of a model that is being loaded has already."""
        self._state = state
        self._devices = devices
        self._held = held
        self._taken_by_load = taken_by_load
        self._host_bytes = 0
        self._lost: frozenset[int] = frozenset()
        self._returned: list[tuple[int, ...]] = []
        """What each dead worker has left on the devices that were not looked at since."""

    def sample(self) -> ev.MachineSampled:
        """What is left now. Never raises: where the system does not tell, what it last told holds."""
        devices = self._devices()
        promised = self._promised_to_loads()
        if devices.host_available_bytes is not None:
            self._host_bytes = devices.host_available_bytes
        else:
            promised += self._promised_to_pages()
            with contextlib.suppress(OSError, psutil.Error):
                self._host_bytes = psutil.virtual_memory().available
        free = devices.free_bytes
        for shares in self._returned:
            free = tuple(map(sum, zip(free, shares, strict=True)))
        return ev.MachineSampled(max(0, self._host_bytes - promised), free)

    def died(self, model: ModelState) -> Callable[[], None]:
        """Count what a dead worker held as free: else others leave for it.

        What is returned is called once the devices have been looked at again.
        """
        shares = tuple(ledger.share_of(model, device) for device in range(len(self._devices().free_bytes)))
        if not any(shares):
            return lambda: None
        self._returned.append(shares)
        return lambda: self._returned.remove(shares)

    def changed(self) -> tuple[ev.Event, ...]:
        """What there is to tell of since the last call: accelerators that went or came back, and a fresh sample."""
        lost = frozenset(self._devices().lost)
        went, came = sorted(lost - self._lost), sorted(self._lost - lost)
        self._lost = lost
        return (*map(ev.DeviceLost, went), self.sample(), *map(ev.DeviceReturned, came))

    def _promised_to_pages(self) -> int:
        """Pages that are kept warm although they are not locked, and what is still to be read of those being filled."""
        report = self._held()
        there = {held.files: held for held in report.held} if report is not None else {}
        promised = sum(max(0, held.held_bytes - held.locked_bytes) for held in there.values())
        for files in self._state.files.values():
            if files.pages is Pages.FILLING:
                so_far = there.get(files.path)
                promised += max(0, files.held_bytes - (0 if so_far is None else so_far.held_bytes))
        return promised

    def _promised_to_loads(self) -> int:
        """What the workers that are being loaded will take and have not taken yet."""
        return sum(
            max(0, model.private_bytes - self._taken_by_load(name))
            for name, model in self._state.models.items()
            if model.residency is Residency.LOADING
        )
