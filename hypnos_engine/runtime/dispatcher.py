"""Performs the scheduler's effects and turns every outcome into exactly one event; the only owner of the scheduler.

It decides nothing about models or memory. All of it runs on one loop; events that arise while one is being handled are
taken in turn, so that the scheduler is never entered twice.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hypnos_engine.domain.errors import EngineFailed, HypnosError, WorkerDied
from hypnos_engine.domain.kinds import Residency
from hypnos_engine.domain.model import ModelId
from hypnos_engine.engines.base import Engine
from hypnos_engine.engines.holder import PageHolder
from hypnos_engine.hardware.monitor import Monitor, NoDevices
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.accelerators import NO_ACCELERATORS, Accelerators
from hypnos_engine.runtime.device_return import DeviceReturn
from hypnos_engine.runtime.growth import private_bytes_of
from hypnos_engine.runtime.inspection import Inspection
from hypnos_engine.runtime.lease import Ask, Lease, Switch
from hypnos_engine.runtime.model_lease import ModelLease
from hypnos_engine.runtime.pages import PageFiller
from hypnos_engine.runtime.parking import Conversations
from hypnos_engine.runtime.residents import MakeEngine, Measure, Resident, Residents
from hypnos_engine.runtime.senses import Senses
from hypnos_engine.runtime.snapshot import Decision, EvictionRecord
from hypnos_engine.runtime.wishes import Granted, Wishes
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.core import Scheduler
from hypnos_engine.scheduler.placement import Plan

log = logging.getLogger("hypnos.scheduler")

EVICTIONS_KEPT = 32
DECISIONS_KEPT = 256
AUTOMATIC = frozenset({"memory_budget", "full_gpu_placement", "process_memory_cap", "device_out_of_memory"})
"""Reasons of an unload that nobody asked for by hand (contract §14.1)."""

Clock = Callable[[], float]
Sampler = Callable[[], ev.MachineSampled]


@dataclass(slots=True)
class Surroundings:
    """What effects are performed with and outcomes are told to. All of it is used on the dispatcher's loop."""

    make_engine: MakeEngine
    files: Callable[[ModelId], Inspection | None]
    """What is known of a model's files."""
    monitor: Monitor = field(default_factory=NoDevices)
    device_totals: tuple[int, ...] = ()
    """Bytes of each accelerator with memory of its own; empty where devices do not report what workers take."""
    accelerators: Accelerators = NO_ACCELERATORS
    """Known from the start on, like the totals."""
    holder: PageHolder | None = None
    """None = no pages are held."""
    conversations: Conversations | None = None
    """None = nothing is parked."""
    kv_idle_timeout_s: float | None = None
    """How long a conversation may be idle before its worker forgets it; None = for ever."""
    sample: Sampler | None = None
    """In place of what the machine says of itself."""
    clock: Clock | None = None
    measure: Measure = private_bytes_of
    on_change: Callable[[], None] = lambda: None
    """Called after each batch of events."""
    on_loaded: Callable[[ModelId, Plan, m.Loaded], None] = lambda model, plan, loaded: None
    on_decision: Callable[[Decision], None] = lambda decision: None
    on_workflow_ended: Callable[[str, float], None] = lambda name, seconds: None


class Dispatcher:
    """Runs a scheduler on the current loop. Make it on that loop; `stop` ends every worker and every wait."""

    def __init__(self, scheduler: Scheduler, around: Surroundings) -> None:
        self.scheduler = scheduler
        self.evictions: deque[EvictionRecord] = deque(maxlen=EVICTIONS_KEPT)
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        """Oldest first."""
        self.wishes = Wishes()
        self.around = around
        self._loop = asyncio.get_running_loop()
        self._clock = around.clock or self._loop.time
        self._events: deque[ev.Event] = deque()
        self._busy = False
        self._wake: asyncio.TimerHandle | None = None
        self._decided = 0
        self._changed: list[asyncio.Future[None]] = []
        self._stopping = False
        self.senses = Senses(
            scheduler.state,
            lambda: around.monitor.sample(),
            lambda: self.pages.report(),
            lambda model: self.residents.taken_by_load(model),
        )
        self.pages = PageFiller(around.holder, self._paths, post=self.post, sample=self.sample)
        self.residents = Residents(
            scheduler.state,
            around.make_engine,
            around.files,
            post=self.post,
            sample=self.sample,
            on_death=lambda model: self.senses.died(scheduler.state.models[model]),
            device_return=DeviceReturn(lambda: around.monitor, lambda: around.device_totals),
            conversations=around.conversations,
            measure=around.measure,
            kv_idle_timeout_s=around.kv_idle_timeout_s,
            accelerators=lambda: around.accelerators,
            on_loaded=lambda model, plan, loaded: around.on_loaded(model, plan, loaded),
        )

    @property
    def now(self) -> float:
        """Seconds on the clock that the scheduler is given."""
        return self._clock()

    @property
    def stopping(self) -> bool:
        """True once `stop` has been called."""
        return self._stopping

    def sample(self) -> ev.MachineSampled:
        """What the machine has left now."""
        return self.senses.sample() if self.around.sample is None else self.around.sample()

    def machine_changed(self) -> None:
        """Look at what the monitor says: accelerators that went or came back, and what is left."""
        events = self.senses.changed()
        self.post(*(self.sample() if isinstance(event, ev.MachineSampled) else event for event in events))

    # --- leases -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lease(self, ask: Ask) -> AsyncIterator[Lease]:
        """Wait for a model and hold it until the block is left; see `runtime.lease.Runtime.lease`."""
        request = self.wishes.next_number()
        grant, live = await self._ask(request, ask)
        lease: ModelLease | None = None

        async def again(death: HypnosError) -> Engine:
            """Its worker died before it said anything: the request waits once more, first in line."""
            nonlocal live
            self.residents.bury(ask.model, live, death)
            with self.wishes.request(request) as granted:
                self.post(self.sample(), ev.RequestReturned(request, death))
                _, live = await granted
            return live.engine

        try:
            state = self.scheduler.state.models[ask.model]
            lease = ModelLease(state.spec, _switch(grant, live), live.engine, ask.key_label, request)
            lease.place(lambda: state.placement)
            lease.may_return(again)
            yield lease
        finally:
            if lease is not None and lease.death is not None:
                self.residents.bury(ask.model, live, lease.death)
            self.post(ev.LeaseEnded(request, ok=lease is not None and lease.finished_well))
            self.residents.served(ask.model, live)

    async def _ask(self, request: int, ask: Ask) -> Granted:
        deadline_at = None if ask.deadline_s is None else self.now + ask.deadline_s
        arrived = ev.RequestArrived(
            request,
            ask.model,
            deadline_at,
            key=ask.key_label,
            weight=ask.weight,
            cells=ask.cells,
            workflow=ask.workflow,
            next_model=ask.next_model,
        )
        with self.wishes.request(request) as granted:
            try:
                if not self._is_ready(ask.model):  # else nothing is loaded for it, and a sample costs more than that
                    self.post(self.sample())
                self.post(arrived)
                return await granted
            except BaseException:
                # Refused requests are unknown to the scheduler by now, and it ignores them; a cancelled one may have
                # been granted in this very turn of the loop.
                self.post(ev.RequestCancelled(request))
                raise

    def _is_ready(self, model: ModelId) -> bool:
        state = self.scheduler.state.models.get(model)
        return state is not None and state.residency is Residency.READY

    # --- events and effects -----------------------------------------------------------------------------------------

    def post(self, *events: ev.Event) -> None:
        """Give events to the scheduler and perform what it answers. Returns when all of it has been started."""
        self._events.extend(events)
        if self._busy:
            return
        self._busy = True
        try:
            while self._events:
                for effect in self.scheduler.on(self._events.popleft(), self.now):
                    self._try(effect)
        finally:
            self._busy = False
        self._tell_watchers()
        self.around.on_change()

    def _try(self, effect: fx.Effect) -> None:
        """Perform an effect; one that fails unexpectedly still has its outcome, and the others are performed."""
        try:
            self._perform(effect)
        except Exception as error:
            log.exception("a decision could not be carried out: %r", effect)
            failure = EngineFailed(f"Hypnos could not carry out a decision ({type(error).__name__}); see its log.")
            match effect:
                case fx.Load(model):
                    self._events.append(ev.LoadFailed(model, failure))
                case fx.Unload(model):
                    self._events.append(ev.UnloadFinished(model))
                case fx.FillPages(files):
                    self._events.append(ev.PagesFilled(files, 0))
                case fx.DropPages(files):
                    self._events.append(ev.PagesDropped(files))
                case fx.Grant(request):
                    self._events.append(ev.RequestCancelled(request))
                    self.wishes.refuse(request, failure)
                case _:
                    pass

    def _perform(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Load():
                self.residents.load(effect)
            case fx.Unload():
                self._note_eviction(effect)
                self.residents.unload(effect)
            case fx.Grant():
                self._grant(effect)
            case fx.Refuse(request, error):
                self.wishes.refuse(request, error)
            case fx.FillPages():
                self.pages.fill(effect)
            case fx.DropPages():
                self.pages.drop(effect)
            case fx.DropParked(model):
                self.residents.drop_parked(model)
            case fx.Moved(request):
                self.wishes.moved(request)
            case fx.PoolChanged(model, done):
                self.wishes.changed(model, done=done)
            case fx.ResizeContext(model, context_len):
                self.residents.send(model, m.ResizeContext(context_len))
            case fx.DenyContext(model):
                self.residents.send(model, m.DenyContext())
            case fx.SetThreads(model, threads):
                self.residents.send(model, m.SetThreads(threads))
            case fx.WakeAt(at):
                self._wake_at(at)
            case fx.Record():
                self._note_decision(effect)
            case fx.WorkflowEnded(name, duration_s):
                log.info("the task %s took %.1f s", name, duration_s)
                self.around.on_workflow_ended(name, duration_s)

    def _grant(self, effect: fx.Grant) -> None:
        live = self.residents.get(effect.model)
        if live is None:
            lost = WorkerDied(f"The worker of '{effect.model}' is gone; try again.")
            self.wishes.refuse(effect.request, lost)
            self._events.extend((ev.WorkerDied(effect.model, lost), ev.RequestCancelled(effect.request)))
        elif not self.wishes.grant(effect, live):
            self._events.append(ev.RequestCancelled(effect.request))

    def _note_eviction(self, effect: fx.Unload) -> None:
        if effect.for_model is not None or effect.reason in AUTOMATIC:
            who = effect.for_model or effect.model
            self.evictions.appendleft(EvictionRecord(effect.model, who, effect.reason, effect.to_tier, _unix_ms()))

    def _note_decision(self, record: fx.Record) -> None:
        self._decided += 1
        decision = Decision(self._decided, _unix_ms(), record)
        self.decisions.append(decision)
        log.info("%s", record.because)
        self.around.on_decision(decision)

    def _wake_at(self, at: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        if not self._stopping:
            self._wake = self._loop.call_later(max(0.0, at - self.now), lambda: self.post(ev.Woken()))

    def _paths(self, files: str, model: ModelId) -> Sequence[Path]:
        """The files of a file set: as they were last seen, of whichever of its models has been looked at."""
        users = (user.spec.id for user in self.scheduler.state.users(files))
        for user in (model, *users):
            found = self.around.files(user)
            if found is not None and found.weights_path == files and found.files:
                return found.files
        return ()

    # --- the end ----------------------------------------------------------------------------------------------------

    async def drain(self, grace_s: float) -> bool:
        """Refuse what waits and let running requests end; False when some were still running after `grace_s`."""
        self.post(ev.DrainStarted())
        return await self.until(lambda: not self._leases(), within_s=grace_s)

    def _leases(self) -> int:
        return sum(len(model.leases) for model in self.scheduler.state.models.values())

    async def stop(self) -> None:
        """End every worker, whatever it is doing, and wait until all are reaped. Whoever still waits is told so."""
        self._stopping = True
        if self._wake is not None:
            self._wake.cancel()
        self.post(ev.DrainStarted())
        self.wishes.close()
        await asyncio.gather(self.pages.stop(), self.residents.stop())
        self._tell_watchers()

    async def until(self, condition: Callable[[], bool], *, within_s: float = math.inf) -> bool:
        """Return True as soon as `condition` holds after some event, False when it does not within that time."""
        deadline = self._loop.time() + within_s
        while not condition():
            changed: asyncio.Future[None] = self._loop.create_future()
            self._changed.append(changed)
            try:
                left_s = deadline - self._loop.time()
                await asyncio.wait_for(changed, None if math.isinf(left_s) else left_s)
            except TimeoutError:
                return condition()
            finally:
                if changed in self._changed:
                    self._changed.remove(changed)
        return True

    def _tell_watchers(self) -> None:
        watchers, self._changed = self._changed, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)


def _switch(grant: fx.Grant, live: Resident) -> Switch:
    loaded = live.loaded if grant.waited_for_load else None
    estimate = grant.estimated_wait_s
    return Switch(
        previous_tier=grant.previous_tier,
        latency_ms=grant.loaded_s * 1e3,
        phases=None if loaded is None else loaded.phases,
        evicted=grant.evicted,
        waited_ms=grant.waited_s * 1e3,
        estimated_wait_ms=None if estimate is None else estimate * 1e3,
        restored=live.restored if grant.waited_for_load else None,
        overtaken=grant.overtaken,
    )


def _unix_ms() -> int:
    return int(time.time() * 1e3)
