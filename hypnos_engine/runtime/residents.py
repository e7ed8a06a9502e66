"""Starts, watches and ends the workers of models; tells each outcome with exactly one event.

It decides nothing: who is loaded and who leaves is the scheduler's word. Conversations are parked before a worker ends
and restored before its model takes requests.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from hypnos_engine.domain.errors import Cancelled, EngineFailed, HypnosError, WorkerDied
from hypnos_engine.domain.memory import Footprint
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.engines.base import Engine
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.accelerators import Accelerators
from hypnos_engine.runtime.device_return import DeviceReturn
from hypnos_engine.runtime.inspection import Inspection
from hypnos_engine.runtime.loading import fraction_of_load, load_request
from hypnos_engine.runtime.parking import Conversations, Restored
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.placement import Plan
from hypnos_engine.scheduler.state import State

log = logging.getLogger("hypnos.scheduler")

PARK_WITHIN_S = 60.0
"""A worker that has not handed its conversations over by then is ended without them."""
RESTORE_WITHIN_S = 60.0
"""A worker that has not taken its conversations by then serves without them."""
MEASURE_EVERY = 16
"""Requests of a worker after which it is looked at how much it has grown."""

MakeEngine = Callable[[ModelSpec], Engine]
Post = Callable[..., None]
Measure = Callable[[Engine], int]
"""Anonymous memory of an engine's process in bytes; 0 where it has none or the system does not say. May block."""
T = TypeVar("T")


@dataclass(slots=True)
class Resident:
    """A worker that is loading, ready or leaving."""

    engine: Engine
    task: asyncio.Task[None]
    plan: Plan
    """By which it was loaded."""
    loaded: m.Loaded | None = None
    memory: m.MemoryReport | None = None
    """As it last reported."""
    elsewhere_bytes: int = 0
    """Of its private memory, what counts as a made-up accelerator's."""
    restored: Restored | None = None
    """What came back of its model's conversations."""
    served: int = 0
    leaving: bool = False


class Residents:
    """Every worker of this program. Used on one loop; `stop` ends them all."""

    def __init__(
        self,
        state: State,
        make_engine: MakeEngine,
        files: Callable[[ModelId], Inspection | None],
        *,
        post: Post,
        sample: Callable[[], ev.MachineSampled],
        accelerators: Callable[[], Accelerators],
        on_loaded: Callable[[ModelId, Plan, m.Loaded], None],
        on_death: Callable[[ModelId], Callable[[], None]],
        device_return: DeviceReturn,
        conversations: Conversations | None,
        measure: Measure,
        kv_idle_timeout_s: float | None = None,
    ) -> None:
        self.progress: dict[ModelId, m.LoadProgress] = {}
        """Newest progress of every load in flight."""
        self._state = state
        self._make_engine = make_engine
        self._files = files
        self._post = post
        self._sample = sample
        self._accelerators = accelerators
        self._on_loaded = on_loaded
        self._on_death = on_death
        self._device_return = device_return
        self._conversations = conversations
        self._measure = measure
        self._kv_idle_timeout_s = kv_idle_timeout_s
        self._loop = asyncio.get_running_loop()
        self._live: dict[ModelId, Resident] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """Ends and measurements under way; loads belong to their residents."""
        self._stopping = False

    def get(self, model: ModelId) -> Resident | None:
        """The worker of a model, whatever it is doing."""
        return self._live.get(model)

    def all(self) -> tuple[tuple[ModelId, Resident], ...]:
        return tuple(self._live.items())

    @property
    def tasks(self) -> int:
        """Ends and measurements under way."""
        return len(self._tasks)

    def send(self, model: ModelId, message: m.ResizeContext | m.DenyContext | m.SetThreads) -> None:
        """Pass a setting to a worker; one that is gone ignores it."""
        if (live := self._live.get(model)) is not None:
            live.engine.send(message)

    # --- loads ------------------------------------------------------------------------------------------------------

    def load(self, effect: fx.Load) -> None:
        """Start a worker; LoadFinished or LoadFailed follows, and WorkerDied if it ends by itself afterwards."""
        model = effect.model
        if self._stopping:
            self._post(ev.LoadFailed(model, Cancelled("Hypnos is shutting down.")))
            return
        spec = self._state.models[model].spec
        try:
            engine = self._make_engine(spec)
        except HypnosError as error:
            self._post(ev.LoadFailed(model, error))
            return
        request = load_request(
            spec, self._files(model), effect.plan, effect.threads, self._accelerators(), self._kv_idle_timeout_s
        )
        task = self._loop.create_task(self._look_after(model, engine, request), name=f"worker {model}")
        self._live[model] = Resident(engine, task, effect.plan)

    async def _look_after(self, model: ModelId, engine: Engine, request: m.Load) -> None:
        """Load, then watch until the worker is gone; exactly one event for each of the two."""
        try:
            loaded = await self._load(model, engine, request)
        except HypnosError as error:
            log.warning("loading %s failed: %s", model, error)
            await self._failed(model, engine, error)
            return
        except Exception as error:
            log.exception("loading %s failed unexpectedly", model)
            await engine.unload(0.0)
            await self._failed(model, engine, EngineFailed(f"Loading '{model}' failed: {error}"))
            return
        live = self._live[model]
        self._on_loaded(model, live.plan, loaded)
        ended = await engine.exited()
        if not ended.expected:
            self._mourn(model, engine, ended.error or WorkerDied(f"The worker of '{model}' ended."))

    async def _load(self, model: ModelId, engine: Engine, request: m.Load) -> m.Loaded:
        """Load and tell of it."""
        loaded = await engine.load(
            request, lambda progress: self._progressed(model, progress), lambda wish: self._context(model, engine, wish)
        )
        live = self._live[model]
        if self._state.budgets.device_bytes:  # others may have taken some meanwhile: what is left is looked at anew
            await self._device_return.look()
        live.restored = await self._restore(model, engine, loaded)
        self.progress.pop(model, None)
        live.loaded, live.memory = loaded, loaded.memory
        measured = self._book(live, loaded.memory)
        self._post(self._sample(), ev.LoadFinished(model, measured, loaded.context_len, loaded.gpu_layers))
        return loaded

    async def _failed(self, model: ModelId, engine: Engine, error: HypnosError) -> None:
        if self._state.budgets.device_bytes:
            await self._device_return.look()
        self._forget(model, engine)
        self._post(self._sample(), ev.LoadFailed(model, error))

    async def _restore(self, model: ModelId, engine: Engine, loaded: m.Loaded) -> Restored | None:
        """Give a model its parked conversations back, if there are any; whatever happens, none stay booked."""
        if self._conversations is None or not self._state.models[model].parked_bytes:
            return None
        work = self._conversations.restore(model, engine, loaded)
        restored = await self._within(RESTORE_WITHIN_S, work, f"restoring conversations of {model}")
        self.drop_parked(model)
        self._post(ev.KvParked(model, 0))
        return restored

    def _progressed(self, model: ModelId, progress: m.LoadProgress) -> None:
        self.progress[model] = progress
        self._post(ev.LoadProgressed(model, fraction_of_load(progress)))

    def _context(self, model: ModelId, engine: Engine, wish: m.ContextWanted | m.ContextResized) -> None:
        live = self._live.get(model)
        if live is None or live.engine is not engine or live.loaded is None or live.leaving:
            engine.send(m.DenyContext())  # the scheduler has nothing to say about it now
        elif isinstance(wish, m.ContextWanted):
            self._post(self._sample(), ev.ContextWanted(model, wish.context_len))
        else:
            live.memory = wish.memory
            measured = self._book(live, wish.memory)
            self._post(self._sample(), ev.ContextResized(model, wish.context_len, measured))

    def _book(self, live: Resident, memory: m.MemoryReport) -> Footprint:
        """What a worker reports, as the ledger counts it."""
        load_mode = "" if live.loaded is None else live.loaded.phases.load_mode
        booked = self._accelerators().booked(memory, load_mode, live.plan)
        live.elsewhere_bytes = max(0, memory.anonymous_bytes - booked.anonymous)
        return booked

    def counted(self, live: Resident) -> Footprint | None:
        """What a worker said last that it holds, as the ledger counts it; None before it is loaded."""
        if live.loaded is None or live.memory is None:
            return None
        return self._accelerators().booked(live.memory, live.loaded.phases.load_mode, live.plan)

    # --- ends -------------------------------------------------------------------------------------------------------

    def unload(self, effect: fx.Unload) -> None:
        """End a worker; UnloadFinished follows when its process is reaped and the devices report its bytes."""
        live = self._live.get(effect.model)
        if live is None:  # it was lost in between, and nobody has been told yet
            self._post(ev.UnloadFinished(effect.model))
            return
        live.leaving = True
        live.task.cancel()
        self.own(self._unload(effect, live), f"unload {effect.model}")

    async def _unload(self, effect: fx.Unload, live: Resident) -> None:
        model = effect.model
        try:
            awaited = await self._device_return.before(self._state.models[model])
            if effect.park_bytes:
                await self._park(model, live.engine, effect.park_bytes)
            await live.engine.unload()
            await self._device_return.wait(awaited)
        except Exception:
            log.exception("unloading %s failed unexpectedly", model)
        finally:
            self._forget(model, live.engine)
            self._post(self._sample(), ev.UnloadFinished(model))

    async def _park(self, model: ModelId, engine: Engine, room_bytes: int) -> None:
        """Keep a model's conversations; tells what they take, also when that is nothing."""
        parked: int | None = None
        try:
            if self._conversations is not None and not self._stopping:
                work = self._conversations.park(model, engine, room_bytes)
                parked = await self._within(PARK_WITHIN_S, work, f"parking {model}")
        finally:
            if parked is None:
                self.drop_parked(model)
            self._post(ev.KvParked(model, parked or 0))

    def drop_parked(self, model: ModelId) -> None:
        """Forget a model's parked conversations, also those that are being parked at this moment."""
        if self._conversations is not None:
            self._conversations.drop(model)

    def bury(self, model: ModelId, live: Resident, death: HypnosError) -> None:
        """Tell of a death before the leases on the dead worker end: else its free slots would be granted again."""
        if self._live.get(model) is not live or live.loaded is None or live.leaving:
            return
        live.task.cancel()
        self.own(live.engine.unload(0.0), f"bury {model}")
        self._mourn(model, live.engine, death)

    def _mourn(self, model: ModelId, engine: Engine, death: HypnosError) -> None:
        self._forget(model, engine)
        looked_again = self._on_death(model)
        log.warning("the worker of %s died: %s", model, death)
        self._post(self._sample(), ev.WorkerDied(model, death))
        if self._state.budgets.device_bytes and not self._stopping:
            self.own(self._look_again(looked_again), f"look after {model}")

    async def _look_again(self, looked_again: Callable[[], None]) -> None:
        await self._device_return.look()
        looked_again()
        self._post(self._sample())

    def _forget(self, model: ModelId, engine: Engine) -> None:
        live = self._live.get(model)
        if live is not None and live.engine is engine:
            self.progress.pop(model, None)
            del self._live[model]

    # --- growth -----------------------------------------------------------------------------------------------------

    def served(self, model: ModelId, live: Resident) -> None:
        """Count a request that a worker has ended; now and then it is measured."""
        live.served += 1
        if live.served % MEASURE_EVERY == 0 and self._live.get(model) is live and not self._stopping:
            self.own(self._measure_again(model, live), f"measure {model}")

    async def _measure_again(self, model: ModelId, live: Resident) -> None:
        private_bytes = await self._loop.run_in_executor(None, self._measure, live.engine)
        private_bytes = max(0, private_bytes - live.elsewhere_bytes)
        if private_bytes and self._live.get(model) is live and live.loaded is not None and not live.leaving:
            self._post(ev.WorkerMeasured(model, private_bytes))

    def taken_by_load(self, model: ModelId) -> int:
        """Anonymous memory that the worker of a load has already."""
        live = self._live.get(model)
        return 0 if live is None or sys.platform == "darwin" else self._measure(live.engine)  # macOS takes its time

    # --- the end ----------------------------------------------------------------------------------------------------

    def own(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run something to its end, whoever leaves meanwhile."""
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _within(self, seconds: float, work: Awaitable[T], what: str) -> T | None:
        """The result of something that must not hold anybody up; None when it failed or took too long."""
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            log.warning("%s took longer than %g s and was given up", what, seconds)
        except HypnosError as error:
            log.info("%s failed: %s", what, error)
        except Exception:
            log.exception("%s failed unexpectedly", what)
        return None

    async def stop(self) -> None:
        """End every worker, whatever it is doing, and wait until all are reaped."""
        self._stopping = True
        live = self.all()
        for _, one in live:
            one.task.cancel()
        await asyncio.gather(*(one.engine.unload() for _, one in live), return_exceptions=True)
        tasks = [*(one.task for _, one in live), *self._tasks]
        await asyncio.gather(*tasks, return_exceptions=True)
        for model, one in live:
            self._forget(model, one.engine)
