"""The scheduler: which request runs, which model is loaded, which has to go; a function of state, event and time.

`Scheduler.on(event, now)` changes its own state and returns effects. It never reads a clock, never waits, never logs.

After each event the same five steps run, in this order:

1. A request whose deadline has passed is refused.
2. A waiter past its bound (`limits.max_overtaken_secs`) whose model is not loaded claims the memory: models that may be
   evicted grant nothing more to requests that came after it (draining), free slots or not.
3. Ready models grant leases to their waiters in order of arrival, as many as they have slots.
4. At most one model is loaded at a time. Candidates are tried in this order: waiters past their bound, priority, age of
   the oldest waiter; models that nobody waits for come last. For each one:
   a. it fits: load it;
   b. it fits once idle models have left: unload as few as needed, cheapest loss first;
   c. it would fit once running requests end: wait;
   d. it cannot fit beside what never leaves: refuse its waiters with the bytes.
5. Busy models share the processor's cores.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hypnos_engine.domain.errors import (
    Cancelled,
    DeadlineUnmeetable,
    HypnosError,
    InsufficientMemory,
    ModelBusy,
    ModelDisabled,
    ModelNotAvailable,
    ModelNotFound,
)
from hypnos_engine.domain.kinds import Priority, Residency
from hypnos_engine.domain.memory import Footprint
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler import room
from hypnos_engine.scheduler.corrections import error_fraction, once_touched
from hypnos_engine.scheduler.placement import Plan, Shortage
from hypnos_engine.scheduler.state import Leased, ModelState, State, Waiting

FAILURES_BEFORE_REFUSING = 3
"""From here on a model that keeps failing refuses requests during its back-off instead of letting them wait."""
LONGEST_BACKOFF_S = 30.0

_RANK = {priority: rank for rank, priority in enumerate(Priority)}


class Scheduler:
    """Owns the state of all models and requests. Not thread-safe; belongs to one loop."""

    def __init__(self, models: Sequence[ModelSpec], *, max_queue_per_model: int, max_overtaken_s: float) -> None:
        self.state = State(
            models={spec.id: ModelState(spec) for spec in models},
            max_queue_per_model=max_queue_per_model,
            max_overtaken_s=max_overtaken_s,
        )
        self._wake_at: float | None = None

    def on(self, event: ev.Event, now: float) -> list[fx.Effect]:
        """Take one event; return what has to be done about it, in order."""
        out: list[fx.Effect] = []
        self._take(event, now, out)
        self._settle(now, out)
        return out

    # --- events -----------------------------------------------------------------------------------------------------

    def _take(self, event: ev.Event, now: float, out: list[fx.Effect]) -> None:
        match event:
            case ev.RequestArrived():
                self._arrived(event, now, out)
            case ev.RequestCancelled(request) | ev.LeaseEnded(request, ok=_):
                self._left(request, now, ok=isinstance(event, ev.LeaseEnded) and event.ok)
            case ev.StageRequested(model):
                self.state.models[model].staged = True
            case ev.LoadFinished():
                self._loaded(event, now, out)
            case ev.LoadFailed(model, error):
                self._load_failed(self.state.models[model], error, now, out)
            case ev.UnloadFinished(model):
                self._cold(self.state.models[model])
            case ev.WorkerDied(model, error):
                self._died(self.state.models[model], error, now, out)
            case ev.ContextWanted(model, context_len):
                self._context_wanted(self.state.models[model], context_len, out)
            case ev.ContextResized():
                self._context_resized(event)
            case ev.ModelInspected(model, shape, problem):
                self.state.models[model].shape = shape
                self.state.models[model].problem = problem
            case ev.MachineSampled(host, device):
                self.state.host_available_bytes = host
                self.state.device_free_bytes = device
            case ev.BudgetsSet(budgets):
                self.state.budgets = budgets
            case ev.DrainStarted():
                self._drain(out)
            case ev.Woken():
                self._wake_at = None

    def _arrived(self, event: ev.RequestArrived, now: float, out: list[fx.Effect]) -> None:
        model = self.state.models.get(event.model)
        error = self._reason_to_refuse(event, model, now)
        if error is not None or model is None:
            out.append(fx.Refuse(event.request, error or ModelNotFound(f"There is no model '{event.model}'.")))
            return
        model.note_request(now)
        estimate = self.estimated_wait_s(event.model)
        waiting = Waiting(event.request, event.model, now, event.deadline_at, model.tier, estimate, model.loads)
        model.waiting[event.request] = waiting
        self.state.where[event.request] = event.model

    def _reason_to_refuse(self, event: ev.RequestArrived, model: ModelState | None, now: float) -> HypnosError | None:
        """The checks of an arriving request, in the contract's order (A-36)."""
        if model is None:
            return ModelNotFound(f"There is no model '{event.model}'. GET /v1/models lists the models in service.")
        if not model.spec.enabled:
            return ModelDisabled(f"The model '{event.model}' is switched off.")
        if self.state.draining:
            return Cancelled("Hypnos is shutting down.")
        if model.problem is not None:
            return model.problem
        if model.failures >= FAILURES_BEFORE_REFUSING and now < model.retry_at:
            return ModelNotAvailable(
                f"The model '{event.model}' failed {model.failures} times in a row and rests for "
                f"{math.ceil(model.retry_at - now)} s. Last failure: {model.last_failure}",
                retry_after_s=model.retry_at - now,
            )
        if len(model.waiting) + len(model.leases) >= self.state.max_queue_per_model:
            return ModelBusy(
                f"The model '{event.model}' already has {self.state.max_queue_per_model} requests queued or running "
                "(limits.max_queue_per_model); try again shortly."
            )
        if event.deadline_at is not None:
            estimate = self._expected_wait_s(model)
            if now + estimate > event.deadline_at:
                return DeadlineUnmeetable(
                    f"The request would wait about {estimate:.1f} s, longer than its deadline allows.",
                    retry_after_s=max(1.0, estimate),
                )
        return None

    def _left(self, request: int, now: float, *, ok: bool) -> None:
        model_id = self.state.where.pop(request, None)
        if model_id is None:
            return
        model = self.state.models[model_id]
        lease = model.leases.pop(request, None)
        if lease is None:
            del model.waiting[request]
            return
        model.last_used_at = now
        if ok:
            model.note_service(now - lease.granted_at)
            model.failures = 0

    def _loaded(self, event: ev.LoadFinished, now: float, out: list[fx.Effect]) -> None:
        model = self.state.models[event.model]
        if model.plan is None:
            return
        planned_bytes = model.plan.footprint.total
        error = error_fraction(model.plan.footprint, event.measured)
        model.residency = Residency.READY
        self._measured(model, model.plan, event.context_len, event.measured)
        model.load_s = now - model.load_started_at
        model.loads += 1
        model.last_used_at = now
        model.staged = False
        out.append(
            fx.Record(
                "loaded",
                model.spec.id,
                f"{model.spec.id} is ready after {model.load_s:.1f} s and holds {room.human(event.measured.total)}; "
                f"planned were {room.human(planned_bytes)}.",
                (("load_s", model.load_s), ("measured_bytes", event.measured.total), ("plan_error", error)),
            )
        )

    def _load_failed(self, model: ModelState, error: HypnosError, now: float, out: list[fx.Effect]) -> None:
        self._cold(model)
        self._note_failure(model, error, now)
        model.staged = False
        self._refuse_all(model, error, out)

    def _died(self, model: ModelState, error: HypnosError, now: float, out: list[fx.Effect]) -> None:
        self._cold(model)
        self._note_failure(model, error, now)
        out.append(fx.Record("worker_died", model.spec.id, f"{model.spec.id} lost its worker: {error}"))

    def _note_failure(self, model: ModelState, error: HypnosError, now: float) -> None:
        model.failures += 1
        model.last_failure = error
        if model.failures > 1:
            model.retry_at = now + min(LONGEST_BACKOFF_S, 2.0 ** (model.failures - 2))

    def _cold(self, model: ModelState) -> None:
        model.residency = Residency.COLD
        model.plan = None
        model.measured = None
        model.resizing = False
        model.threads = 0
        model.evicted_for_load = ()

    def _context_wanted(self, model: ModelState, context_len: int, out: list[fx.Effect]) -> None:
        if model.residency is not Residency.READY or model.plan is None:
            return
        grown = room.grown_plan(self.state, model, context_len)
        if isinstance(grown, Shortage):
            model.wanted_cells = max(model.wanted_cells, context_len)
            out.append(fx.DenyContext(model.spec.id))
            out.append(
                fx.Record(
                    "context_denied",
                    model.spec.id,
                    f"{model.spec.id} keeps its context: {context_len} cells need "
                    f"{room.human(grown.needed_bytes)}, {room.human(grown.free_bytes)} are free.",
                    (("needed_bytes", grown.needed_bytes), ("free_bytes", grown.free_bytes)),
                )
            )
            return
        model.plan = grown
        model.correction = room.known_error(self.state, model, context_len)
        model.measured = None
        model.resizing = True
        out.append(fx.ResizeContext(model.spec.id, context_len))

    def _context_resized(self, event: ev.ContextResized) -> None:
        model = self.state.models[event.model]
        model.resizing = False
        if model.residency is Residency.READY and model.plan is not None:
            self._measured(model, model.plan, event.context_len, event.measured)

    def _measured(self, model: ModelState, plan: Plan, context_len: int, measured: Footprint) -> None:
        """Book what the worker holds, and learn how wrong the plan was."""
        planned = plan.footprint
        held = replace(once_touched(planned, measured), device_context=planned.device_context)
        model.measured = held
        model.plan = room.as_loaded(plan, context_len)
        if context_len == plan.placement.allocated_context_len and model.shape is not None:
            self.state.corrections.learn(model.spec.weights_path, context_len, planned, held, model.correction)

    def _drain(self, out: list[fx.Effect]) -> None:
        self.state.draining = True
        for model in self.state.models.values():
            model.staged = False
            self._refuse_all(model, Cancelled("Hypnos is shutting down."), out)

    def _refuse_all(self, model: ModelState, error: HypnosError, out: list[fx.Effect]) -> None:
        for request in model.waiting:
            del self.state.where[request]
            out.append(fx.Refuse(request, error))
        model.waiting.clear()

    # --- the five steps ---------------------------------------------------------------------------------------------

    def _settle(self, now: float, out: list[fx.Effect]) -> None:
        self._refuse_late(now, out)  # 1
        overdue = self._overdue(now)  # 2
        held = self._held_for(overdue)
        self._grant(now, held, math.inf if overdue is None else _oldest(overdue), out)  # 3
        if not self.state.draining:
            self._load_one(now, overdue, held, out)  # 4
        self._share_cores(out)  # 5
        self._ask_to_wake(now, out)

    def _refuse_late(self, now: float, out: list[fx.Effect]) -> None:
        for model in self.state.models.values():
            late = [w for w in model.waiting.values() if w.deadline_at is not None and w.deadline_at <= now]
            for waiting in late:
                del model.waiting[waiting.request]
                del self.state.where[waiting.request]
                error = DeadlineUnmeetable(
                    "The request's deadline passed before it could start.",
                    retry_after_s=max(1.0, self._expected_wait_s(model)),
                )
                out.append(fx.Refuse(waiting.request, error))

    def _overdue(self, now: float) -> ModelState | None:
        """The model whose oldest waiter has waited past the bound for longest, if it is not loaded."""
        late = [
            model
            for model in self._loadable(now)
            if model.waiting and now - _oldest(model) >= self.state.max_overtaken_s
        ]
        return min(late, key=_oldest, default=None)

    def _held_for(self, overdue: ModelState | None) -> frozenset[ModelId]:
        if overdue is None or isinstance(room.plan_without(self.state, overdue, ()), Plan):
            return frozenset()
        return frozenset(
            model.spec.id
            for model in self.state.models.values()
            if model is not overdue and model.residency is Residency.READY and room.may_leave(model)
        )

    def _grant(self, now: float, held: frozenset[ModelId], claimed_since: float, out: list[fx.Effect]) -> None:
        for model in self.state.models.values():
            if model.residency is not Residency.READY:
                continue
            while model.waiting and len(model.leases) < model.spec.slots:
                if model.spec.id in held and _oldest(model) > claimed_since:
                    break
                _, waiting = model.waiting.popitem(last=False)
                model.leases[waiting.request] = Leased(waiting.request, model.spec.id, now)
                out.append(self._grant_of(model, waiting, now))

    def _grant_of(self, model: ModelState, waiting: Waiting, now: float) -> fx.Grant:
        waited_for_load = model.loads > waiting.loads
        load_ended_at = model.load_started_at + (model.load_s or 0.0)
        loaded_s = load_ended_at - max(model.load_started_at, waiting.arrived_at) if waited_for_load else 0.0
        return fx.Grant(
            waiting.request,
            model.spec.id,
            waiting.previous_tier,
            waited_s=now - waiting.arrived_at,
            waited_for_load=waited_for_load,
            loaded_s=loaded_s,
            evicted=model.evicted_for_load if waited_for_load else (),
            estimated_wait_s=waiting.estimate_s,
        )

    def _load_one(self, now: float, overdue: ModelState | None, held: frozenset[ModelId], out: list[fx.Effect]) -> None:
        if any(m.residency in (Residency.LOADING, Residency.UNLOADING) for m in self.state.models.values()):
            return
        for model in self._candidates(now, overdue):
            plan = room.plan_without(self.state, model, ())
            if isinstance(plan, Plan):  # a
                self._start_load(model, plan, now, out)
                return
            if model.staged and not model.waiting:
                model.staged = False
                out.append(fx.Record("stage_skipped", model.spec.id, f"{model.spec.id} stays on disk: {_short(plan)}"))
                continue
            victims = room.victims(self.state, model, held, now)
            if victims:  # b
                self._evict(model, victims, plan, out)
                return
            if isinstance(room.plan_without(self.state, model, room.leaving(self.state, model)), Plan):  # c
                if model is overdue:
                    return
                continue
            self._refuse_all(model, self._no_room(model, plan), out)  # d

    def _candidates(self, now: float, overdue: ModelState | None) -> list[ModelState]:
        wanted = [model for model in self._loadable(now) if model.waiting or model.staged]
        return sorted(
            wanted,
            key=lambda model: (
                model is not overdue,
                not model.waiting,
                -_RANK[model.spec.priority],
                _oldest(model) if model.waiting else 0.0,
            ),
        )

    def _loadable(self, now: float) -> Iterable[ModelState]:
        return (
            model
            for model in self.state.models.values()
            if model.residency is Residency.COLD and model.retry_at <= now and model.problem is None
        )

    def _start_load(self, model: ModelState, plan: Plan, now: float, out: list[fx.Effect]) -> None:
        busy = sum(1 for other in self.state.models.values() if other.leases)
        model.residency = Residency.LOADING
        model.plan = plan
        model.correction = room.known_error(self.state, model, plan.placement.allocated_context_len)
        model.load_started_at = now
        model.threads = max(1, self.state.budgets.cores // (busy + 1))
        out.append(
            fx.Record(
                "load",
                model.spec.id,
                f"{model.spec.id} is loaded: {room.human(plan.footprint.peak)} fit, {len(model.waiting)} waiting.",
                (("peak_bytes", plan.footprint.peak), ("waiting", len(model.waiting))),
            )
        )
        out.append(fx.Load(model.spec.id, plan, model.threads))

    def _evict(self, model: ModelState, victims: tuple[ModelState, ...], short: Shortage, out: list[fx.Effect]) -> None:
        model.evicted_for_load = tuple(victim.spec.id for victim in victims)
        for victim in victims:
            victim.residency = Residency.UNLOADING
            out.append(
                fx.Record(
                    "evict",
                    victim.spec.id,
                    f"{victim.spec.id} makes room for {model.spec.id}: {_short(short)}",
                    (("needed_bytes", short.needed_bytes), ("free_bytes", short.free_bytes)),
                )
            )
            out.append(fx.Unload(victim.spec.id, model.spec.id, "memory_budget"))

    def _no_room(self, model: ModelState, short: Shortage) -> InsufficientMemory:
        holders = [m for m in self.state.models.values() if m.residency is not Residency.COLD and not room.may_leave(m)]
        held = ", ".join(f"{m.spec.id} holds {room.human(m.footprint.total)}" for m in holders)
        budgets = self.state.budgets
        return InsufficientMemory(
            f"The model '{model.spec.id}' does not fit: {_short(short)} {f'{held}. ' if held else ''}"
            f"Models may use {room.human(budgets.device_bytes or budgets.host_bytes)} (hardware.tier1_bytes, "
            f"hardware.os_reserve_bytes), and the machine has {room.human(self.state.host_available_bytes)} left. "
            "Give the model a smaller context_len, choose a smaller variant, or free memory."
        )

    def _share_cores(self, out: list[fx.Effect]) -> None:
        busy = [m for m in self.state.models.values() if m.leases and m.residency is Residency.READY]
        for model in busy:
            threads = max(1, self.state.budgets.cores // len(busy))
            if model.threads != threads:
                model.threads = threads
                out.append(fx.SetThreads(model.spec.id, threads))

    def _ask_to_wake(self, now: float, out: list[fx.Effect]) -> None:
        moments: list[float] = []
        for model in self.state.models.values():
            moments += [w.deadline_at for w in model.waiting.values() if w.deadline_at is not None]
            if model.waiting and model.residency is Residency.COLD:
                moments += [_oldest(model) + self.state.max_overtaken_s, model.retry_at]
        soonest = min((moment for moment in moments if moment > now), default=None)
        if soonest is not None and soonest != self._wake_at:
            self._wake_at = soonest
            out.append(fx.WakeAt(soonest))

    # --- questions --------------------------------------------------------------------------------------------------

    def estimated_wait_s(self, model_id: ModelId) -> float | None:
        """Seconds that a request arriving now would wait (contract §1); None before the model has served anything."""
        model = self.state.models[model_id]
        return None if model.service_s is None else self._expected_wait_s(model)

    def _expected_wait_s(self, model: ModelState) -> float:
        ahead = len(model.waiting) + len(model.leases)
        excess = max(0, ahead + 1 - model.spec.slots)
        load = 0.0 if model.residency is Residency.READY else model.reload_s()
        return excess * (model.service_s or 0.0) + load


def _oldest(model: ModelState) -> float:
    return next(iter(model.waiting.values())).arrived_at


def _short(short: Shortage) -> str:
    return f"it needs {room.human(short.needed_bytes)}, {room.human(short.free_bytes)} are free."
