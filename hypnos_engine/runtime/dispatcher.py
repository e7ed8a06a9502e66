"""Performs the scheduler's effects and turns every outcome into exactly one event; the only owner of the scheduler.

It decides nothing about models or memory. All of it runs on one loop; events that arise while one is being handled are
taken in turn, so that the scheduler is never entered twice.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from hypnos_engine.domain.errors import EngineFailed, HypnosError, WorkerDied
from hypnos_engine.domain.kinds import Residency, Tier
from hypnos_engine.domain.memory import Footprint
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.engines.base import Engine
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.lease import Ask, EvictionRecord, Lease, Switch
from hypnos_engine.runtime.loading import load_request, measured_footprint
from hypnos_engine.runtime.model_lease import ModelLease
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.core import Scheduler
from hypnos_engine.scheduler.placement import Plan

log = logging.getLogger("hypnos.scheduler")

EVICTIONS_KEPT = 32
DECISIONS_KEPT = 256

Clock = Callable[[], float]
Sampler = Callable[[], ev.MachineSampled]
MakeEngine = Callable[[ModelSpec], Engine]


class _Granted(NamedTuple):
    grant: fx.Grant
    live: "_Live"


@dataclass(slots=True)
class _Live:
    """A worker that is loading, ready or unloading, and the tasks that look after it."""

    engine: Engine
    task: asyncio.Task[None]
    loaded: m.Loaded | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """A record of the scheduler with the moment it was made."""

    unix_ms: int
    record: fx.Record


class Dispatcher:
    """Runs a scheduler on the current loop. Make it on that loop; `stop` ends every worker."""

    def __init__(
        self,
        scheduler: Scheduler,
        make_engine: MakeEngine,
        *,
        weights_path: Callable[[ModelId], str],
        sample: Sampler,
        clock: Clock | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.evictions: deque[EvictionRecord] = deque(maxlen=EVICTIONS_KEPT)
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self.progress: dict[ModelId, m.LoadProgress] = {}
        """Newest progress of every load in flight."""
        self._make_engine = make_engine
        self._weights_path = weights_path
        self._sample = sample
        self._loop = asyncio.get_running_loop()
        self._clock = clock or self._loop.time
        self._events: deque[ev.Event] = deque()
        self._busy = False
        self._live: dict[ModelId, _Live] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._waiting: dict[int, asyncio.Future[_Granted]] = {}
        self._wake: asyncio.TimerHandle | None = None
        self._next_request = 0
        self._changed: list[asyncio.Future[None]] = []

    @property
    def now(self) -> float:
        """Seconds on the clock that the scheduler is given."""
        return self._clock()

    # --- leases -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lease(self, ask: Ask) -> AsyncIterator[Lease]:
        """Wait for a model and hold it until the block is left; see `runtime.lease.Runtime.lease`."""
        self._next_request += 1
        request = self._next_request
        granted: asyncio.Future[_Granted] = self._loop.create_future()
        self._waiting[request] = granted
        deadline_at = None if ask.deadline_s is None else self.now + ask.deadline_s
        try:
            if not self._is_ready(ask.model):  # else nothing is loaded for it, and a sample costs more than the rest
                self.post(self._sample())
            self.post(ev.RequestArrived(request, ask.model, deadline_at, key=ask.key_label))
            grant, live = await granted
        except BaseException:
            # Refused requests are unknown to the scheduler by now, and it ignores them; a cancelled one may have been
            # granted in this very turn of the loop.
            self._waiting.pop(request, None)
            self.post(ev.RequestCancelled(request))
            raise
        lease = ModelLease(self._spec(ask.model), self._switch(grant, live), live.engine, ask.key_label, request)
        lease.place(lambda: self.scheduler.state.models[ask.model].placement)

        async def again(death: HypnosError) -> Engine:
            """Its worker died before it said anything: the request waits once more, first in line."""
            nonlocal live
            self._bury(ask.model, live, death)
            self._waiting[request] = self._loop.create_future()
            self.post(self._sample(), ev.RequestReturned(request, death))
            _, live = await self._waiting[request]
            return live.engine

        lease.may_return(again)
        try:
            yield lease
        finally:
            self._waiting.pop(request, None)
            if lease.death is not None:
                self._bury(ask.model, live, lease.death)
            self.post(ev.LeaseEnded(request, ok=lease.finished_well))

    def _is_ready(self, model: ModelId) -> bool:
        state = self.scheduler.state.models.get(model)
        return state is not None and state.residency is Residency.READY

    def _switch(self, grant: fx.Grant, live: _Live) -> Switch:
        loaded_here = grant.waited_for_load and live.loaded is not None
        estimate = grant.estimated_wait_s
        return Switch(
            previous_tier=grant.previous_tier,
            latency_ms=grant.loaded_s * 1e3,
            phases=live.loaded.phases if loaded_here and live.loaded is not None else None,
            evicted=grant.evicted,
            waited_ms=grant.waited_s * 1e3,
            estimated_wait_ms=None if estimate is None else estimate * 1e3,
        )

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

    def _try(self, effect: fx.Effect) -> None:
        """Perform an effect; one that fails unexpectedly still has its outcome, and the others are performed."""
        try:
            self._perform(effect)
        except Exception as error:
            log.exception("a decision could not be carried out: %r", effect)
            failure = EngineFailed(f"Hypnos could not carry out a decision ({type(error).__name__}); see its log.")
            match effect:
                case fx.Load(model):
                    self._live.pop(model, None)
                    self._events.append(ev.LoadFailed(model, failure))
                case fx.Unload(model):
                    self._live.pop(model, None)
                    self._events.append(ev.UnloadFinished(model))
                case fx.Grant(request):
                    self._events.append(ev.RequestCancelled(request))
                case _:
                    pass

    def _perform(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Load(model, plan, threads):
                self._start_load(model, plan, threads)
            case fx.Unload():
                self._start_unload(effect)
            case fx.Grant(request, model):
                waiting = self._waiting.pop(request, None)
                if waiting is None or waiting.done():
                    self._events.append(ev.RequestCancelled(request))
                elif (live := self._live.get(model)) is None:
                    lost = WorkerDied(f"The worker of '{model}' is gone; try again.")
                    waiting.set_exception(lost)
                    self._events.extend((ev.WorkerDied(model, lost), ev.RequestCancelled(request)))
                else:
                    waiting.set_result(_Granted(effect, live))
            case fx.Refuse(request, error):
                waiting = self._waiting.pop(request, None)
                if waiting is not None and not waiting.done():
                    waiting.set_exception(_fresh(error))
            case fx.ResizeContext(model, context_len):
                self._send(model, m.ResizeContext(context_len))
            case fx.DenyContext(model):
                self._send(model, m.DenyContext())
            case fx.SetThreads(model, threads):
                self._send(model, m.SetThreads(threads))
            case fx.WakeAt(at):
                self._wake_at(at)
            case fx.Record():
                self.decisions.append(Decision(int(time.time() * 1e3), effect))
                log.info("%s", effect.because)
            case fx.WorkflowEnded(name, duration_s):
                log.info("the task %s took %.1f s", name, duration_s)
            case fx.FillPages(files):
                # Nothing holds pages without a worker yet; the budgets say so, and this says it once more.
                self._events.append(ev.PagesFilled(files, 0))
            case fx.DropPages(files):
                self._events.append(ev.PagesDropped(files))
            case fx.DropParked() | fx.Moved() | fx.PoolChanged():
                pass  # nothing is parked, and nobody moves models or changes the pool by way of this class

    def _wake_at(self, at: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake = self._loop.call_later(max(0.0, at - self.now), lambda: self.post(ev.Woken()))

    def _send(self, model: ModelId, message: m.ResizeContext | m.DenyContext | m.SetThreads) -> None:
        live = self._live.get(model)
        if live is not None:
            live.engine.send(message)

    # --- workers ----------------------------------------------------------------------------------------------------

    def _start_load(self, model: ModelId, plan: Plan, threads: int) -> None:
        spec = self._spec(model)
        try:
            engine = self._make_engine(spec)
        except HypnosError as error:
            self._events.append(ev.LoadFailed(model, error))
            return
        request = load_request(spec, self._weights_path(model), plan, threads)
        task = self._loop.create_task(self._look_after(model, engine, request), name=f"worker {model}")
        self._live[model] = _Live(engine, task)

    async def _look_after(self, model: ModelId, engine: Engine, request: m.Load) -> None:
        """Load, then watch until the worker is gone; exactly one event for each of the two."""
        try:
            loaded = await engine.load(
                request, lambda progress: self._progressed(model, progress), lambda wish: self._context(model, wish)
            )
        except HypnosError as error:
            log.warning("loading %s failed: %s", model, error)
            self._forget(model, engine)
            self.post(self._sample(), ev.LoadFailed(model, error))
            return
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("loading %s failed unexpectedly", model)
            await engine.unload(0.0)
            self._forget(model, engine)
            self.post(self._sample(), ev.LoadFailed(model, EngineFailed(f"Loading '{model}' failed: {error}")))
            return
        self.progress.pop(model, None)
        self._live[model].loaded = loaded
        measured = measured_footprint(loaded.memory, loaded.phases.load_mode)
        finished = ev.LoadFinished(model, measured, loaded.context_len, loaded.gpu_layers)
        self.post(self._sample(), finished)
        ended = await engine.exited()
        if not ended.expected:
            self._mourn(model, engine, ended.error or WorkerDied(f"The worker of '{model}' ended."))

    def _bury(self, model: ModelId, live: "_Live", death: HypnosError) -> None:
        """Tell of a death before the leases on the dead worker end: else its free slots would be granted again."""
        if self._live.get(model) is not live or live.loaded is None:
            return
        live.task.cancel()
        self._keep(self._loop.create_task(live.engine.unload(0.0), name=f"bury {model}"))
        self._mourn(model, live.engine, death)

    def _mourn(self, model: ModelId, engine: Engine, death: HypnosError) -> None:
        self._forget(model, engine)
        log.warning("the worker of %s died: %s", model, death)
        self.post(self._sample(), ev.WorkerDied(model, death))

    def _keep(self, task: asyncio.Task[None]) -> None:
        """Own a task until it is done."""
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _start_unload(self, effect: fx.Unload) -> None:
        live = self._live[effect.model]
        if effect.for_model is not None:
            record = EvictionRecord(
                effect.model, effect.for_model, effect.reason, Tier.DISK, unix_ms=int(time.time() * 1e3)
            )
            self.evictions.appendleft(record)
        live.task.cancel()
        self._keep(self._loop.create_task(self._unload(effect.model, live.engine), name=f"unload {effect.model}"))

    async def _unload(self, model: ModelId, engine: Engine) -> None:
        await engine.unload()
        self._forget(model, engine)
        self.post(self._sample(), ev.UnloadFinished(model))

    def _forget(self, model: ModelId, engine: Engine) -> None:
        self.progress.pop(model, None)
        live = self._live.get(model)
        if live is not None and live.engine is engine:
            del self._live[model]

    def _progressed(self, model: ModelId, progress: m.LoadProgress) -> None:
        self.progress[model] = progress

    def _context(self, model: ModelId, wish: m.ContextWanted | m.ContextResized) -> None:
        if isinstance(wish, m.ContextWanted):
            self.post(self._sample(), ev.ContextWanted(model, wish.context_len))
        elif (loaded := self._live[model].loaded) is not None:
            measured = measured_footprint(wish.memory, loaded.phases.load_mode)
            self.post(self._sample(), ev.ContextResized(model, wish.context_len, measured))

    # --- the end ----------------------------------------------------------------------------------------------------

    async def drain(self, grace_s: float) -> bool:
        """Refuse what waits and let running requests end; False when some were still running after `grace_s`."""
        self.post(ev.DrainStarted())
        deadline = self._loop.time() + grace_s
        while any(model.leases for model in self.scheduler.state.models.values()):
            left_s = deadline - self._loop.time()
            if left_s <= 0 or not await self._change_within(left_s):
                return not any(model.leases for model in self.scheduler.state.models.values())
        return True

    async def stop(self) -> None:
        """End every worker, whatever it is doing, and wait until all are reaped."""
        if self._wake is not None:
            self._wake.cancel()
        live = list(self._live.values())
        for one in live:
            one.task.cancel()
        await asyncio.gather(*(one.engine.unload() for one in live))
        await asyncio.gather(*(one.task for one in live), *self._ending, return_exceptions=True)
        self._live.clear()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return as soon as `condition` holds after some event."""
        while not condition():
            await self._change_within(math.inf)

    async def _change_within(self, seconds: float) -> bool:
        changed: asyncio.Future[None] = self._loop.create_future()
        self._changed.append(changed)
        try:
            await asyncio.wait_for(changed, None if math.isinf(seconds) else seconds)
        except TimeoutError:
            return False
        return True

    def _tell_watchers(self) -> None:
        watchers, self._changed = self._changed, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    # --- small questions --------------------------------------------------------------------------------------------

    def _spec(self, model: ModelId) -> ModelSpec:
        return self.scheduler.state.models[model].spec

    def resident(self) -> Iterable[tuple[ModelId, Footprint]]:
        """Each model with a live worker and the bytes booked for it."""
        for state in self.scheduler.state.models.values():
            if state.residency is not Residency.COLD:
                yield state.spec.id, state.footprint


def _fresh(error: HypnosError) -> HypnosError:
    """A copy to raise: one error may refuse many requests, and a raised exception collects its raisers' frames."""
    copy = error.__class__.__new__(error.__class__)
    copy.__dict__.update(error.__dict__)
    copy.args = error.args
    return copy
