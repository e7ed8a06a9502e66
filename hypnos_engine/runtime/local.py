"""The running engine of this process: the dispatcher, the models' files and the machine, behind `lease.Runtime`.

It decides nothing about memory or order; it keeps the scheduler informed of files and budgets.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from hypnos_engine.domain.errors import ConfigurationInvalid
from hypnos_engine.domain.kinds import Accelerator, Residency, Tier, Topology
from hypnos_engine.domain.memory import HardwareSnapshot
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.runtime.dispatcher import Dispatcher, MakeEngine
from hypnos_engine.runtime.inspection import Inspection, inspect_files
from hypnos_engine.runtime.lease import Ask, Lease, MemoryView, ModelView
from hypnos_engine.runtime.views import memory_view, model_view
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.core import Scheduler
from hypnos_engine.scheduler.limits import NO_BUDGETS, Budgets, Limits

UNKNOWN_HARDWARE = HardwareSnapshot(Topology.HOST, Accelerator.CPU, "CPU", 0, 0, 1)
"""Before the probe has answered."""
REINSPECT_S = 1.0
"""A model that is not loaded is looked at again on request, at most this often: its file may have been replaced."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What this engine may use: the hardware and the budgets that follow from it and from the settings."""

    hardware: HardwareSnapshot
    budgets: Budgets
    tier2_budget_bytes: int
    process_cap_bytes: int | None = None


class LocalRuntime:
    """Implements `lease.Runtime`. Make it on the loop that will run it; `start` before use, `stop` at the end."""

    def __init__(
        self,
        models: Sequence[ModelSpec],
        roots: Sequence[Path],
        make_engine: MakeEngine,
        limits: Limits,
    ) -> None:
        scheduler = Scheduler(models, limits)
        self._roots = tuple(roots)
        self._inspections: dict[ModelId, Inspection] = {}
        self._inspected_at: dict[ModelId, float] = {}
        self._machine: Machine | None = None
        self._staging = True
        self._last_sample = ev.MachineSampled(0)
        self._sampled_process: tuple[float, int] = (-1.0, 0)
        self.dispatcher = Dispatcher(scheduler, make_engine, weights_path=self._weights_path, sample=self._sample)

    @property
    def staging(self) -> bool:
        """True until the models that belong in tier 1 from the start are there."""
        return self._staging

    # --- start and end ----------------------------------------------------------------------------------------------

    async def start(self, machine: Machine) -> None:
        """Look at every model's files, then load those whose `initial_tier` is tier 1, as far as they fit.

        Raises ConfigurationInvalid when pinned models cannot be met together.
        """
        self._machine = machine
        await asyncio.gather(*(self._inspect(spec) for spec in self._specs()))
        self.dispatcher.post(self._sample(), ev.BudgetsSet(machine.budgets))
        self._check_pins()
        wanted = [spec.id for spec in self._specs() if spec.enabled and spec.initial_tier is Tier.GPU]
        states = self.dispatcher.scheduler.state.models
        self.dispatcher.post(*(ev.StageRequested(model) for model in wanted if states[model].problem is None))
        await self.dispatcher.until(
            lambda: not any(states[model].staged or states[model].residency is Residency.LOADING for model in wanted)
        )
        self._staging = False

    def _check_pins(self) -> None:
        """Raises ConfigurationInvalid when the pinned models do not fit together: they would never leave."""
        problem = self.dispatcher.scheduler.pins_problem()
        if problem is not None:
            raise ConfigurationInvalid(problem.message)

    async def drain(self, grace_s: float) -> bool:
        """Refuse what waits, let what runs end; False when something was still running after `grace_s`."""
        return await self.dispatcher.drain(grace_s)

    async def stop(self) -> None:
        """End every worker and wait until all are reaped."""
        await self.dispatcher.stop()

    # --- leases -----------------------------------------------------------------------------------------------------

    def lease(self, ask: Ask) -> AbstractAsyncContextManager[Lease]:
        """See `lease.Runtime.lease`."""
        state = self.dispatcher.scheduler.state.models.get(ask.model)
        if state is not None and state.residency is Residency.COLD:
            return self._lease_inspected(ask, state.spec)
        return self.dispatcher.lease(ask)

    @asynccontextmanager
    async def _lease_inspected(self, ask: Ask, spec: ModelSpec) -> AsyncIterator[Lease]:
        since_s = self.dispatcher.now - self._inspected_at.get(ask.model, float("-inf"))
        if since_s >= REINSPECT_S:
            await self._inspect(spec)
        async with self.dispatcher.lease(ask) as lease:
            yield lease

    def estimated_wait_ms(self, model: ModelId) -> float | None:
        """What a request arriving now would wait, in milliseconds; None without a measured service time."""
        estimate_s = self.dispatcher.scheduler.estimated_wait_s(model)
        return None if estimate_s is None else estimate_s * 1e3

    # --- views ------------------------------------------------------------------------------------------------------

    def model(self, model: ModelId) -> ModelView | None:
        """One model's present state; None for an unknown id."""
        state = self.dispatcher.scheduler.state.models.get(model)
        return None if state is None else model_view(self.dispatcher.scheduler, state, self.dispatcher.now)

    def models(self) -> tuple[ModelView, ...]:
        """All configured models, in the order of the configuration."""
        scheduler, now = self.dispatcher.scheduler, self.dispatcher.now
        return tuple(model_view(scheduler, state, now) for state in scheduler.state.models.values())

    def memory(self) -> MemoryView:
        """A snapshot of all tiers."""
        machine = self._machine
        if machine is None:
            machine = Machine(UNKNOWN_HARDWARE, NO_BUDGETS, 0)
        self.dispatcher.post(self._sample())
        return memory_view(
            self.dispatcher.scheduler,
            machine.hardware,
            tier2_budget_bytes=machine.tier2_budget_bytes,
            process_bytes=self._process_bytes(),
            process_cap_bytes=machine.process_cap_bytes,
            evictions=tuple(self.dispatcher.evictions),
            now=self.dispatcher.now,
        )

    def _process_bytes(self) -> int:
        """Memory of this process and what its workers reported; read at most once a second."""
        now = self.dispatcher.now
        sampled_at, own = self._sampled_process
        if now - sampled_at >= 1.0:
            with contextlib.suppress(OSError, psutil.Error):
                own = psutil.Process().memory_info().rss
            self._sampled_process = (now, own)
        return own + sum(footprint.total for _, footprint in self.dispatcher.resident())

    # --- files and samples ------------------------------------------------------------------------------------------

    def _specs(self) -> list[ModelSpec]:
        return [state.spec for state in self.dispatcher.scheduler.state.models.values()]

    def forget_inspections(self) -> None:
        """Look at every model that is not loaded anew on its next request, however short ago it was looked at."""
        self._inspected_at.clear()

    async def _inspect(self, spec: ModelSpec) -> None:
        self._inspected_at[spec.id] = self.dispatcher.now
        loop = asyncio.get_running_loop()
        known = self._inspections.get(spec.id)
        found = await loop.run_in_executor(None, inspect_files, spec, self._roots, known)
        if found is not known:
            self._inspections[spec.id] = found
            self.dispatcher.post(ev.ModelInspected(spec.id, found.shape, found.problem))

    def _weights_path(self, model: ModelId) -> str:
        found = self._inspections[model].path
        return "" if found is None else str(found)

    def _sample(self) -> ev.MachineSampled:
        """What is left now. Never raises: where the system does not tell, what it last told holds."""
        devices = self._machine.hardware.devices if self._machine else ()
        with contextlib.suppress(OSError, psutil.Error):
            self._last_sample = ev.MachineSampled(
                host_available_bytes=psutil.virtual_memory().available,
                device_free_bytes=tuple(device.free_bytes for device in devices if not device.unified),
            )
        return self._last_sample
