"""The running engine of this process: the dispatcher, the models' files and the machine, behind `lease.Runtime`.

It decides nothing about memory or order; it keeps the scheduler informed of files, budgets and devices.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import psutil

from hypnos_engine.domain.errors import ConfigurationInvalid, HypnosError, ModelNotFound
from hypnos_engine.domain.kinds import Accelerator, MoeOffload, Pages, Residency, Tier, Topology
from hypnos_engine.domain.memory import HardwareSnapshot
from hypnos_engine.domain.model import ModelId, ModelShape, ModelSpec
from hypnos_engine.engines.holder import PageHolder
from hypnos_engine.hardware.bandwidths import Bandwidths, Speeds, StatedSpeeds, Transfer
from hypnos_engine.hardware.monitor import Monitor, NoDevices
from hypnos_engine.hardware.simulated import Use
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.accelerators import Accelerators, copied, use_of
from hypnos_engine.runtime.by_hand import CHANGE_WITHIN_S, ByHand
from hypnos_engine.runtime.dispatcher import Dispatcher, Surroundings
from hypnos_engine.runtime.feed import ChangeFeed, ChangeKind
from hypnos_engine.runtime.inspection import Tested
from hypnos_engine.runtime.lease import Ask, Lease
from hypnos_engine.runtime.model_files import ModelFiles
from hypnos_engine.runtime.parking import Conversations, ParkView
from hypnos_engine.runtime.recount import Difference, recount
from hypnos_engine.runtime.releasing import Releasing
from hypnos_engine.runtime.residents import MakeEngine
from hypnos_engine.runtime.snapshot import Decision, HoldView, MemoryView, ModelView, OffloadChange
from hypnos_engine.runtime.views import Beside, memory_view, model_view
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.core import Scheduler
from hypnos_engine.scheduler.limits import NO_BUDGETS, Budgets, Limits
from hypnos_engine.scheduler.loads import pins_problem
from hypnos_engine.scheduler.placement import Plan
from hypnos_engine.scheduler.state import ModelState

log = logging.getLogger("hypnos")

UNKNOWN_HARDWARE = HardwareSnapshot(Topology.HOST, Accelerator.CPU, "CPU", 0, 0, 1)
"""Before the probe has answered."""
STAGE_PAGES_S = 300.0
"""How long the start waits for startup models of tier 2; a slow disk reads on afterwards."""

LOOK_AROUND_S = 5.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What this engine may use: the hardware and the budgets that follow from it and from the settings."""

    hardware: HardwareSnapshot
    budgets: Budgets
    tier2_budget_bytes: int
    process_cap_bytes: int | None = None
    """As the owner set it; what models may take under it is in the budgets."""
    park_max_bytes: int | None = None
    """Most bytes of parked conversations, should they be parked; None = as their keeper was made."""
    monitor: Monitor = field(default_factory=NoDevices)
    speeds: Speeds = field(default_factory=StatedSpeeds)


NO_PARKING = ParkView(enabled=False, max_bytes=0, used_bytes=0)
NO_MACHINE = Machine(UNKNOWN_HARDWARE, NO_BUDGETS, 0)


class LocalRuntime:
    """Implements `lease.Runtime`. Make it on the loop that will run it; `start` before use, `stop` at the end."""

    def __init__(
        self,
        models: Sequence[ModelSpec],
        roots: Sequence[Path],
        make_engine: MakeEngine,
        limits: Limits,
        *,
        holder: PageHolder | None = None,
        conversations: Conversations | None = None,
        kv_idle_timeout_s: float | None = None,
        on_workflow_ended: Callable[[str, float], None] | None = None,
        on_decision: Callable[[Decision], None] = lambda decision: None,
        spare_bytes: Callable[[], int] = lambda: 0,
        tested: Tested = lambda: None,
    ) -> None:
        """Without a holder nothing is kept in tier 2, without `conversations` nothing is parked.

        `stop` ends neither of them. `spare_bytes` is the memory of workers that have no model yet. `tested` are the
        architectures that are loaded without `allow_untested`.
        """
        scheduler = Scheduler(models, limits)
        self._on_decision = on_decision
        self._files = ModelFiles(
            roots,
            scheduler.state,
            clock=lambda: self.dispatcher.now,
            post=lambda event: self.dispatcher.post(event),
            on_replaced=self.pages_lost,  # what is held are pages of files that are not there any more
            tested=tested,
        )
        self._machine = NO_MACHINE
        self._staging = True
        self._watching: asyncio.Task[None] | None = None
        self._sampled_process: tuple[float, int] = (-1.0, 0)
        self._spare_bytes = spare_bytes
        self._feed = ChangeFeed(self.memory)
        around = Surroundings(
            make_engine,
            self._files.get,
            holder=holder,
            conversations=conversations,
            kv_idle_timeout_s=kv_idle_timeout_s,
            on_change=self._feed.touch,
            on_decision=self._decided,
        )
        if on_workflow_ended is not None:
            around.on_workflow_ended = on_workflow_ended
        self.dispatcher = Dispatcher(scheduler, around)
        self._by_hand = ByHand(self.dispatcher, self._files)
        self._releasing = Releasing(self.dispatcher, self._files, roots)

    @property
    def staging(self) -> bool:
        """True until the models that belong in tier 1 or 2 from the start are there."""
        return self._staging

    # --- start and end ----------------------------------------------------------------------------------------------

    async def start(self, machine: Machine) -> None:
        """Look at every model's files, then bring models to their initial tiers, as far as they fit.

        Raises ConfigurationInvalid when pinned models cannot be met together.
        """
        around, hardware = self.dispatcher.around, machine.hardware
        self._machine = machine
        around.monitor = machine.monitor
        around.accelerators = Accelerators.of(hardware)
        around.on_loaded = self._loaded
        if not hardware.simulated:
            around.device_totals = tuple(device.total_bytes for device in hardware.devices if not device.unified)
        self._watching = asyncio.create_task(self._watch(machine.monitor), name="devices")
        if around.conversations is not None and machine.park_max_bytes is not None:
            around.conversations.configure(max_bytes=machine.park_max_bytes)
        await asyncio.gather(*(self._files.look(spec) for spec in self._specs()))
        self.dispatcher.machine_changed()
        self.dispatcher.post(ev.BudgetsSet(self._budgets()))
        self._check_pins()
        await self._stage()
        self._staging = False

    async def _watch(self, monitor: Monitor) -> None:
        looking = asyncio.create_task(self._look_around(), name="host memory")
        try:
            await monitor.run(self.dispatcher.machine_changed)
        except Exception:
            log.exception("the devices are not watched any more")
            await looking
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _look_around(self) -> None:
        """Other programs give memory back without a word: while something waits for it, it is looked for."""
        state = self.dispatcher.scheduler.state
        while True:
            await asyncio.sleep(LOOK_AROUND_S)
            if state.wanted_pages or any(m.waiting and m.residency is Residency.COLD for m in state.models.values()):
                self.dispatcher.post(self.dispatcher.sample())

    def _budgets(self) -> Budgets:
        """As planned for the machine, less what nobody is there to do."""
        budgets, around = self._machine.budgets, self.dispatcher.around
        view = None if around.conversations is None else around.conversations.view()
        return replace(
            budgets,
            tier2_bytes=0 if around.holder is None else budgets.tier2_bytes,
            park_bytes=0 if view is None or not view.enabled else view.max_bytes,
            disk_bytes_per_s=self._machine.speeds.disk_bytes_per_s or budgets.disk_bytes_per_s,
            device_bytes_per_s=self._machine.speeds.device_bytes_per_s or budgets.device_bytes_per_s,
        )

    def _loaded(self, model: ModelId, plan: Plan, loaded: m.Loaded) -> None:
        """What a load from held pages took tells how fast bytes reach the devices."""
        speeds = self._machine.speeds
        if isinstance(speeds, Bandwidths):
            source = self.dispatcher.scheduler.state.models[model].loading_from
            transfer = copied(plan, loaded.phases, source)
            if transfer.tells:
                self.dispatcher.residents.own(self._learn(speeds, transfer), "speed of the devices")

    async def _learn(self, speeds: Bandwidths, transfer: Transfer) -> None:
        await asyncio.get_running_loop().run_in_executor(None, speeds.measured_device, transfer)
        self.dispatcher.post(ev.BudgetsSet(self._budgets()))

    async def _stage(self) -> None:
        states = self.dispatcher.scheduler.state.models
        wanted = [spec for spec in self._specs() if spec.enabled and states[spec.id].problem is None]
        first = [spec.id for spec in wanted if spec.initial_tier is Tier.GPU]
        held = {spec.weights_path for spec in wanted if spec.initial_tier is Tier.RAM}
        self.dispatcher.post(*map(ev.StageRequested, first))
        await self.dispatcher.until(
            lambda: not any(states[name].staged or states[name].residency is Residency.LOADING for name in first)
        )
        await self.dispatcher.until(lambda: not self._are_coming(held), within_s=STAGE_PAGES_S)

    def _are_coming(self, held: set[str]) -> bool:
        """Whether the pages of some file set are on their way; not when they wait for room that nobody is making."""
        state = self.dispatcher.scheduler.state
        filling = {path for path, files in state.files.items() if files.pages is Pages.FILLING}
        moving = bool(filling) or any(files.pages is Pages.DROPPING for files in state.files.values())
        moving = moving or any(model.residency is Residency.LOADING for model in state.models.values())
        return not held.isdisjoint(filling) or (moving and not held.isdisjoint(state.wanted_pages))

    def _check_pins(self) -> None:
        """Raises ConfigurationInvalid when the pinned models do not fit together: they would never leave."""
        problem = self.dispatcher.scheduler.pins_problem()
        if problem is not None:
            raise ConfigurationInvalid(problem.message)

    async def drain(self, grace_s: float) -> bool:
        """Refuse what waits, let what runs end; False when something was still running after `grace_s`."""
        return await self.dispatcher.drain(grace_s)

    async def stop(self) -> None:
        """End every worker and wait until all are reaped; whoever still waits for something is told so."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self.dispatcher.stop()

    def _decided(self, decision: Decision) -> None:
        self._on_decision(decision)
        self._feed.publish(ChangeKind.DECISION, decision)

    # --- leases -----------------------------------------------------------------------------------------------------

    def lease(self, ask: Ask) -> AbstractAsyncContextManager[Lease]:
        """See `lease.Runtime.lease`."""
        state = self.dispatcher.scheduler.state.models.get(ask.model)
        if state is not None and state.residency is Residency.COLD:
            return self._lease_inspected(ask, state.spec)
        return self.dispatcher.lease(ask)

    @asynccontextmanager
    async def _lease_inspected(self, ask: Ask, spec: ModelSpec) -> AsyncIterator[Lease]:
        await self._files.look(spec)
        async with self.dispatcher.lease(ask) as lease:
            yield lease

    def estimated_wait_ms(self, model: ModelId) -> float | None:
        """See `lease.Runtime.estimated_wait_ms`."""
        if model not in self.dispatcher.scheduler.state.models:
            return None
        estimate_s = self.dispatcher.scheduler.estimated_wait_s(model)
        return None if estimate_s is None else estimate_s * 1e3

    # --- by hand ----------------------------------------------------------------------------------------------------

    async def move(self, model: ModelId, tier: Tier, *, context_len: int | None = None) -> ModelView:
        """See `lease.Runtime.move`."""
        await self._by_hand.move(model, tier, context_len)
        return self._view(model)

    async def switch(self, model: ModelId, *, enabled: bool) -> ModelView:
        """See `lease.Runtime.switch`."""
        await self._by_hand.switch(model, enabled=enabled)
        return self._view(model)

    async def set_expert_offload(self, model: ModelId, mode: MoeOffload) -> OffloadChange:
        """See `lease.Runtime.set_expert_offload`."""
        applies_now = await self._by_hand.set_expert_offload(model, mode)
        return OffloadChange(self._view(model), applies_now)

    async def free(self, until_s: float | None) -> HoldView:
        """See `lease.Runtime.free`."""
        return await self._by_hand.free(until_s)

    async def restore(self) -> HoldView:
        """See `lease.Runtime.restore`."""
        return await self._by_hand.restore()

    def hold(self) -> HoldView | None:
        """See `lease.Runtime.hold`."""
        return self._by_hand.hold()

    async def add(self, spec: ModelSpec) -> ModelView:
        """Take a new model into service, cold. Raises InvalidRequest when there is one of its name."""
        await self._by_hand.add(spec)
        return self._view(spec.id)

    async def replace(self, spec: ModelSpec, within_s: float = CHANGE_WITHIN_S) -> ModelView:
        """Give a model other settings once its running requests have ended; waiting ones get the new settings.

        Raises ModelNotFound, and ModelBusy when they have not ended in time: then it stays as it is.
        """
        await self._by_hand.replace(spec, within_s)
        return self._view(spec.id)

    async def remove(self, model: ModelId, within_s: float = CHANGE_WITHIN_S) -> None:
        """Take a model out of the pool once its running requests have ended; errors as `replace`."""
        await self._by_hand.remove(model, within_s)
        self._files.forget(model)

    def release(
        self, files: Sequence[Path], within_s: float = CHANGE_WITHIN_S
    ) -> AbstractAsyncContextManager[tuple[ModelId, ...]]:
        """For whoever replaces or deletes files of models: within the block no worker has them open, no page is held.

        Running requests end first, new ones wait; afterwards the files are looked at anew. Write a new file beside the
        old one before, and only switch the names within the block: it should be short. Gives the models concerned,
        none for files of no model. Raises ModelBusy on entering when requests have not ended within `within_s`, and
        Cancelled at the end of the program. Has to be left whatever happens, as any block.
        """
        return self._releasing.release(files, within_s)

    def pins_problem(self, spec: ModelSpec, shape: ModelShape | None) -> HypnosError | None:
        """Why the pinned models would not fit together with this one in the pool; None when they would."""
        state = self.dispatcher.scheduler.state
        budgets = state.budgets
        trial = replace(
            state,
            models={**state.models, spec.id: ModelState(spec, shape)},
            # Those that are there already are counted with the others, so nothing of it is taken yet.
            host_available_bytes=max(state.host_available_bytes, budgets.host_bytes),
            device_free_bytes=budgets.device_bytes,
        )
        return pins_problem(trial)

    def pages_lost(self, files: str) -> None:
        """What was held of a file set is not in memory any more. For the holder; called on the loop."""
        self.dispatcher.pages.lost(files)

    # --- parked conversations ---------------------------------------------------------------------------------------

    def parking(self) -> ParkView:
        """See `lease.Runtime.parking`."""
        conversations = self.dispatcher.around.conversations
        return NO_PARKING if conversations is None else conversations.view()

    async def set_parking(self, *, enabled: bool | None, max_bytes: int | None) -> ParkView:
        """See `lease.Runtime.set_parking`."""
        conversations = self.dispatcher.around.conversations
        if conversations is not None:
            dropped = conversations.configure(enabled=enabled, max_bytes=max_bytes)
            self.dispatcher.post(*(ev.KvParked(model, 0) for model in dropped), ev.BudgetsSet(self._budgets()))
        return self.parking()

    def parked_dropped(self, model: ModelId) -> None:
        """Parked conversations had to go for the bound. For whoever keeps them; called on the loop."""
        self.dispatcher.post(ev.KvParked(model, 0))

    # --- views ------------------------------------------------------------------------------------------------------

    def model(self, model: ModelId) -> ModelView | None:
        """One model's present state; None for an unknown id."""
        state = self.dispatcher.scheduler.state.models.get(model)
        if state is None:
            return None
        progress = self.dispatcher.residents.progress.get(model)
        return model_view(self.dispatcher.scheduler, state, progress, self.dispatcher.now)

    def _view(self, model: ModelId) -> ModelView:
        view = self.model(model)
        if view is None:
            raise ModelNotFound(f"The model '{model}' was removed.")
        return view

    def models(self) -> tuple[ModelView, ...]:
        """All configured models, in the order of the configuration."""
        scheduler, now, progress = self.dispatcher.scheduler, self.dispatcher.now, self.dispatcher.residents.progress
        return tuple(
            model_view(scheduler, state, progress.get(name), now) for name, state in scheduler.state.models.items()
        )

    def memory(self) -> MemoryView:
        """A snapshot of all tiers."""
        machine, around = self._machine, self.dispatcher.around
        self.dispatcher.post(self.dispatcher.sample())
        beside = Beside(
            hardware=machine.hardware,
            devices=around.monitor.sample(),
            tier2_budget_bytes=machine.tier2_budget_bytes,
            program_bytes=self._program_bytes(),
            process_cap_bytes=machine.process_cap_bytes,
            evictions=tuple(self.dispatcher.evictions),
            progress=self.dispatcher.residents.progress,
            pages=self.dispatcher.pages.report(),
            parking=self.parking(),
            hold=self._by_hand.hold(),
            tier2_to_tier1_bytes_per_s=machine.speeds.device_bytes_per_s,
            tier3_to_tier2_bytes_per_s=machine.speeds.disk_bytes_per_s,
        )
        return memory_view(self.dispatcher.scheduler, beside, self.dispatcher.now)

    def decisions(self, limit: int) -> tuple[Decision, ...]:
        """See `lease.Runtime.decisions`."""
        return tuple(islice(reversed(self.dispatcher.decisions), max(0, limit)))

    def changes(self) -> ChangeFeed:
        """See `lease.Runtime.changes`."""
        return self._feed

    def recount(self) -> tuple[Difference, ...]:
        """Everything in which the ledger differs from a fresh count; empty when all is right."""
        return recount(self.dispatcher)

    def in_use(self) -> Use:
        """What a made-up machine is to count as taken by this program."""
        return use_of(self.dispatcher.scheduler.state)

    def _program_bytes(self) -> int:
        """Memory of this process and of workers that have no model, read at most once a second."""
        now = self.dispatcher.now
        sampled_at, own = self._sampled_process
        if now - sampled_at >= 1.0:
            with contextlib.suppress(OSError, psutil.Error):
                own = psutil.Process().memory_info().rss + self._spare_bytes()
            self._sampled_process = (now, own)
        return own

    def _specs(self) -> list[ModelSpec]:
        return [state.spec for state in self.dispatcher.scheduler.state.models.values()]

    def forget_inspections(self) -> None:
        """Look at every model that is not loaded anew on its next request, however short ago it was looked at."""
        self._files.look_again()
