"""The scheduler: which request runs, which model is loaded, which has to go; a function of state, event and time.

`Scheduler.on(event, now)` changes its own state and returns effects. It never reads a clock, never waits, never logs.

After each event the same steps run, in this order:

1. Requests whose deadline has passed are refused; tasks that fell silent are closed; a hold that has run out ends.
2. Models that have to go (a hold, a lost device, a change of the pool, a person's wish) go once nobody uses them.
3. Waiters at their bound whose model is not loaded claim memory, the oldest first: the models in their way grant
   nothing more to requests that came after them (draining), free slots or not.
4. Ready models grant leases to their waiters, as many as they have slots, in the order of `order.py`.
5. One model at a time is loaded on each device, in the order of `order.py`. For each one:
   a. it fits: load it;
   b. it fits once what is leaving has left: wait, and let nobody else take that room;
   c. it fits once what is idle has left: let as little of that go as needed, cheapest loss first;
   d. it would fit once running requests end: wait;
   e. it cannot fit beside what never leaves: refuse its waiters with the bytes.
6. A model that somebody announced is loaded ahead of time, if that costs nobody more than it saves.
7. Pages are brought into tier 2 while memory is free (`pages.py`).
8. A person's wish to move a model is answered once it is where it should be, or cannot get there.
9. Busy models share the processor's cores (`threads.py`).
"""

import math
from collections.abc import Sequence

from hypnos_engine.domain.errors import (
    Cancelled,
    DeadlineUnmeetable,
    DeviceOutOfMemory,
    HypnosError,
    ModelBusy,
    ModelDisabled,
    ModelNotAvailable,
    ModelNotFound,
)
from hypnos_engine.domain.kinds import Pages, Residency, Tier
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.scheduler import changes, leaving, ledger, loads, order, pages, room, threads
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.limits import Limits
from hypnos_engine.scheduler.loads import Claim
from hypnos_engine.scheduler.state import Leased, ModelState, State, Waiting

FAILURES_BEFORE_REFUSING = 3
"""From here on a model that keeps failing refuses requests during its back-off instead of letting them wait."""
LONGEST_BACKOFF_S = 30.0
MOST_CALLERS = 4096
"""Callers whose next step is remembered."""
_NO_CLAIMS: dict[ModelId, Claim] = {}


class Scheduler:
    """Owns the state of all models and requests. Not thread-safe; belongs to one loop."""

    def __init__(self, models: Sequence[ModelSpec], limits: Limits | None = None) -> None:
        self.state = State(models={spec.id: ModelState(spec) for spec in models}, limits=limits or Limits())
        self._wake_at: float | None = None
        self._busy_changed = False
        self._drained: dict[ModelId, Claim] = {}
        """The claims of the last time that there were any: those are written down already."""

    def on(self, event: ev.Event, now: float) -> list[fx.Effect]:
        """Take one event; return what has to be done about it, in order."""
        out: list[fx.Effect] = []
        self._take(event, now, out)
        arriving = event.request if isinstance(event, ev.RequestArrived) else None
        self._settle(arriving, now, out)
        if arriving is not None:
            self._explain_wait(arriving, now, out)
        return out

    # --- events -----------------------------------------------------------------------------------------------------

    def _take(self, event: ev.Event, now: float, out: list[fx.Effect]) -> None:
        match event:
            case ev.RequestArrived():
                self._arrived(event, now, out)
            case ev.LeaseEnded(request, ok=ok):
                self._left(request, now, out, ok=ok)
            case ev.RequestCancelled(request):
                self._left(request, now, out, ok=False)
            case ev.RequestReturned():
                self._returned(event, now, out)
            case ev.Woken():
                self._wake_at = None
            case ev.DrainStarted():
                self._drain(now, out)
            case ev.LoadProgressed(model, fraction):
                if (loading := self.state.models.get(model)) is not None:
                    loading.load_fraction = min(max(fraction, 0.0), 1.0)
            case ev.WorkerDied(model, error):
                self._died(model, error, now, out)
            case ev.LoadFailed(model, error):
                self._load_failed(model, error, now, out)
            case ev.LoadFinished():
                loads.finished(self.state, event, now, out)
                self._busy_changed = True
            case ev.UnloadFinished(model):
                loads.gone(self.state, model)
            case ev.ContextWanted() | ev.ContextResized():
                loads.context(self.state, event, out)
            case ev.WorkerMeasured():
                loads.measured_again(self.state, event, out)
            case ev.PagesFilled() | ev.PagesDropped() | ev.PagesLost() | ev.KvParked():
                loads.memory_changed(self.state, event, out)
            case ev.MachineSampled(host, devices):
                if (host, devices) != (self.state.host_available_bytes, self.state.device_free_bytes):
                    self.state.host_available_bytes = host
                    self.state.device_free_bytes = devices
                    self.state.freed()
            case _:
                changes.take(self.state, event, now, out)

    def _arrived(self, event: ev.RequestArrived, now: float, out: list[fx.Effect]) -> None:
        state = self.state
        model = state.models.get(event.model)
        deadline_at = event.deadline_at
        if deadline_at is None and state.limits.shed_s is not None:
            deadline_at = now + state.limits.shed_s
        error = self._reason_to_refuse(event, model, deadline_at, now)
        if error is not None or model is None:
            error = error or ModelNotFound(f"There is no model '{event.model}'.")
            out.append(fx.Refuse(event.request, error))
            queue = () if model is None else (("waiting", len(model.waiting)), ("running", len(model.leases)))
            out.append(fx.Record("refuse", event.model, error.message, queue))
            return
        model.note_request(now)
        self._end_announcement(event, model)
        if event.cells > model.wanted_cells:
            model.wanted_cells = _power_of_two(event.cells)
        tier, estimate = state.tier(model), self.estimated_wait_s(event.model)
        waiting = Waiting(event.request, event.model, now, deadline_at, tier, estimate, model.loads, event.key)
        waiting.weight = event.weight if event.weight > 0 else 1.0
        waiting.workflow, waiting.next_model = event.workflow, event.next_model
        model.waiting[event.request] = waiting
        state.where[event.request] = event.model
        state.shares.arrive(event.key)
        state.workflows.arrived(event.workflow, now)

    def _reason_to_refuse(
        self, event: ev.RequestArrived, model: ModelState | None, deadline_at: float | None, now: float
    ) -> HypnosError | None:
        """The checks of an arriving request, in the contract's order (A-36)."""
        state = self.state
        if model is None:
            return ModelNotFound(f"There is no model '{event.model}'. GET /v1/models lists the models in service.")
        if not model.spec.enabled:
            return ModelDisabled(f"The model '{event.model}' is switched off.")
        if state.draining:
            return Cancelled("Hypnos is shutting down.")
        if model.problem is not None and model.change is None:
            return model.problem
        if model.failures >= FAILURES_BEFORE_REFUSING and now < model.retry_at:
            return ModelNotAvailable(
                f"The model '{event.model}' failed {model.failures} times in a row and rests for "
                f"{math.ceil(model.retry_at - now)} s. Last failure: {model.last_failure}",
                retry_after_s=model.retry_at - now,
            )
        if len(model.waiting) + len(model.leases) >= state.limits.max_queue_per_model:
            return ModelBusy(
                f"The model '{event.model}' already has {state.limits.max_queue_per_model} requests queued or running "
                "(limits.max_queue_per_model); try again shortly."
            )
        if deadline_at is not None:
            estimate = order.expected_wait_s(state, model)
            if now + estimate > deadline_at:
                allows = "its deadline" if event.deadline_at is not None else "the profile's objective"
                return DeadlineUnmeetable(
                    f"The request would wait about {estimate:.1f} s, longer than {allows} allows.",
                    retry_after_s=max(1.0, estimate),
                )
        return None

    def _left(self, request: int, now: float, out: list[fx.Effect], *, ok: bool) -> None:
        state = self.state
        name = state.where.pop(request, None)
        if name is None:
            return
        model = state.models[name]
        lease = model.leases.pop(request, None)
        if lease is None:
            waiting = model.waiting.pop(request)
            leaving.forget_promise(model)
            state.shares.leave(waiting.key)
            state.freed()
            leaving.end_step(state, waiting, now, out)
            return
        if not model.leases:
            self._busy_changed = True
            state.freed()
        served_s = now - lease.granted_at
        state.shares.correct(lease.waiting.key, served_s - lease.charged_s, lease.waiting.weight)
        model.last_used_at = now
        if ok:
            model.note_service(served_s)
            model.failures = 0
        leaving.end_step(state, lease.waiting, now, out)

    def _returned(self, event: ev.RequestReturned, now: float, out: list[fx.Effect]) -> None:
        """Put a request back that lost its worker: once, at the head, for it has waited already."""
        state = self.state
        name = state.where.get(event.request)
        model = None if name is None else state.models[name]
        lease = None if model is None else model.leases.get(event.request)
        if model is None or lease is None:
            return
        if lease.waiting.returned or state.draining or not model.spec.enabled:
            self._left(event.request, now, out, ok=False)
            out.append(fx.Refuse(event.request, event.error))
            out.append(fx.Record("refuse", model.spec.id, event.error.message))
            return
        del model.leases[event.request]
        self._busy_changed = True
        waiting = lease.waiting
        waiting.returned = True
        state.shares.arrive(waiting.key)
        state.shares.correct(waiting.key, -lease.charged_s, waiting.weight)
        first = [w.request for w in model.waiting.values() if w.returned and w.arrived_at <= waiting.arrived_at]
        model.waiting[event.request] = waiting
        for request in (event.request, *reversed(first)):
            model.waiting.move_to_end(request, last=False)

    def _load_failed(self, name: ModelId, error: HypnosError, now: float, out: list[fx.Effect]) -> None:
        model = self.state.models[name]
        first_time = isinstance(error, DeviceOutOfMemory) and not model.out_of_memory
        if isinstance(error, DeviceOutOfMemory):
            loads.doubt(self.state, model, error, now, out)
        changes.has_gone(self.state, model)
        model.staged = False
        if first_time:
            model.out_of_memory = True  # 5c: what is idle leaves, and the load is tried once more
            return
        model.out_of_memory = False
        loads.believe_again(self.state)
        self._note_failure(model, error, now)
        leaving.answer_move(model, error, out)
        leaving.refuse_all(self.state, model, error, now, out)
        out.append(fx.Record("load_failed", name, f"{name} could not be loaded: {error}"))

    def _died(self, name: ModelId, error: HypnosError, now: float, out: list[fx.Effect]) -> None:
        model = self.state.models[name]
        if isinstance(error, DeviceOutOfMemory):
            loads.doubt(self.state, model, error, now, out)
        changes.has_gone(self.state, model)
        self._busy_changed = True
        self._note_failure(model, error, now)
        out.append(fx.Record("worker_died", name, f"{name} lost its worker: {error}"))

    def _note_failure(self, model: ModelState, error: HypnosError, now: float) -> None:
        model.failures += 1
        model.last_failure = error
        if model.failures > 1:
            model.retry_at = now + min(LONGEST_BACKOFF_S, 2.0 ** (model.failures - 2))

    def _drain(self, now: float, out: list[fx.Effect]) -> None:
        self.state.draining = True
        error = Cancelled("Hypnos is shutting down.")
        for model in self.state.models.values():
            model.staged = False
            leaving.answer_move(model, error, out)
            leaving.refuse_all(self.state, model, error, now, out)

    # --- the steps --------------------------------------------------------------------------------------------------

    def _settle(self, arriving: int | None, now: float, out: list[fx.Effect]) -> None:
        state = self.state
        waiting = [model for model in state.models.values() if model.waiting]
        if waiting:
            self._refuse_late(waiting, arriving, now, out)  # 1
        if state.workflows.any_open:
            out.extend(fx.WorkflowEnded(name, seconds) for name, seconds in state.workflows.close_idle(now))
        changes.settle(state, now, out)  # 2
        cold = [m for m in waiting if m.residency is Residency.COLD and not state.is_taken(m)]
        if waiting:
            claims = self._claim(cold, now, out) if cold else _NO_CLAIMS  # 3
            self._grant(waiting, cold, claims, now, out)  # 4
        else:
            claims = _NO_CLAIMS
        if not state.draining:
            loads.settle(state, waiting, claims, now, out)  # 5, 6
            if claims:  # whoever is in nobody's way any more goes on
                still_cold = [model for model in cold if model.waiting]
                self._grant(waiting, still_cold, self._claim(still_cold, now, out), now, out)
            if not claims:  # else somebody at the bound waits for that memory
                pages.settle(state, now, out)  # 7
        changes.answer_moves(state, out)  # 8
        if self._busy_changed:
            self._busy_changed = False
            out.extend(threads.shared_out(state))  # 9
        self._ask_to_wake(waiting, now, out)

    def _refuse_late(self, waiting: list[ModelState], arriving: int | None, now: float, out: list[fx.Effect]) -> None:
        """Whoever arrives at this moment is asked first whether it can start: a deadline of 0 means at once."""
        for model in waiting:
            late = [
                w
                for w in model.waiting.values()
                if w.deadline_at is not None and w.deadline_at <= now and w.request != arriving
            ]
            for waiter in late:
                error = DeadlineUnmeetable(
                    "The request's deadline passed before it could start.",
                    retry_after_s=max(1.0, order.expected_wait_s(self.state, model)),
                )
                leaving.refuse(self.state, model, waiter, error, now, out)
                waited = (("waited_s", now - waiter.arrived_at),)
                out.append(fx.Record("refuse", model.spec.id, error.message, waited))

    def _claim(self, cold: list[ModelState], now: float, out: list[fx.Effect]) -> dict[ModelId, Claim]:
        """The models that drain, each with the waiter for whom it does."""
        overdue = order.overdue(self.state, cold)
        late = [(model, waiter) for model, waiter in overdue if loads.is_loadable(self.state, model, now)]
        if not late:
            return _NO_CLAIMS
        claims: dict[ModelId, Claim] = {}
        leaving_too = ledger.room_in_flight(self.state)
        for model, waiter in late:
            if loads.place(self.state, model, leaving_too) is not None:
                continue
            way = room.in_the_way(self.state, model, now, leaving_too, loads.good_enough(self.state, model))
            claim = Claim(model.spec.id, waiter.arrived_at)
            for name in sorted(way or ()):
                if claims.setdefault(name, claim) is claim and self._drained.get(name) != claim:
                    out.append(_drained(name, model, waiter, now))
            leaving_too = leaving_too | ledger.Gone(models=frozenset(way or ()))
        self._drained = claims
        return claims

    def _grant(
        self,
        waiting: list[ModelState],
        cold: list[ModelState],
        claims: dict[ModelId, Claim],
        now: float,
        out: list[fx.Effect],
    ) -> None:
        state = self.state
        ready = [model for model in waiting if model.residency is Residency.READY]
        crowded = order.crowded_out(state, ready) if len(ready) > 1 else []
        before_all = len(out)
        for model in ready:
            if state.unsettled and changes.reason_to_go(state, model) is not None:
                continue
            claim = claims.get(model.spec.id)
            before = math.inf if claim is None else claim.since
            for arrived_at, other in crowded:
                if other is not model:
                    before = min(before, arrived_at)
            while model.waiting and len(model.leases) < model.spec.slots:
                waiter = order.next_waiter(state, model, now, before)
                if waiter is None:
                    break
                self._grant_one(model, waiter, cold, now, out)
                for other in ready:
                    if other is not model and order.is_full(other):
                        order.crowd(waiter, order.service_s(model), other.waiting.values())
        if crowded and len(out) > before_all:  # who was held up may be served now, and whom that kept back goes on
            self._grant(waiting, cold, claims, now, out)

    def _grant_one(
        self, model: ModelState, waiter: Waiting, cold: list[ModelState], now: float, out: list[fx.Effect]
    ) -> None:
        state = self.state
        served_s = order.service_s(model)
        del model.waiting[waiter.request]
        self._busy_changed = self._busy_changed or not model.leases
        model.leases[waiter.request] = Leased(waiter.request, waiter, now, served_s)
        state.shares.leave(waiter.key)
        state.shares.charge(waiter.key, served_s, waiter.weight)
        if model.waiting:
            order.overtake(state, waiter, served_s, model.waiting.values())
        if cold and model.may_leave:
            for other in cold:
                order.overtake(state, waiter, served_s, other.waiting.values())
        self._announce(model, waiter, now)
        waited_for_load = model.loads > waiter.loads
        load_ended_at = model.load_started_at + model.load_s.get(model.loading_from, 0.0)
        loaded_s = load_ended_at - max(model.load_started_at, waiter.arrived_at) if waited_for_load else 0.0
        out.append(
            fx.Grant(
                waiter.request,
                model.spec.id,
                waiter.previous_tier,
                waited_s=now - waiter.arrived_at,
                waited_for_load=waited_for_load,
                loaded_s=max(0.0, loaded_s),
                evicted=model.evicted_for_load if waited_for_load else (),
                estimated_wait_s=waiter.estimate_s,
                overtaken=waiter.overtaken,
            )
        )

    def _end_announcement(self, event: ev.RequestArrived, model: ModelState) -> None:
        """Whoever is here now asks what it asks: what was expected of it is of no use any more."""
        model.announced_at = None
        expected = self.state.announced_by.pop(_caller(event.workflow, event.key), None)
        other = None if expected is None else self.state.models.get(expected)
        if other is not None:
            other.announced_at = None

    def _announce(self, model: ModelState, waiter: Waiting, now: float) -> None:
        """Note whom this caller will ask next: as it says, else as it usually does."""
        workflow = waiter.workflow
        caller = _caller(workflow, waiter.key)
        habit = self.state.workflows.step(caller, model.spec.id)
        named = waiter.next_model if waiter.next_model is not None else habit
        following = None if named is None else self.state.models.get(named)
        if following is not None and following is not model:
            following.announced_at = now
            self.state.announced_by[caller] = following.spec.id
            if len(self.state.announced_by) > MOST_CALLERS:
                self.state.announced_by.popitem(last=False)
            self.state.wishing.add(following.spec.id)

    def _ask_to_wake(self, waiting: list[ModelState], now: float, out: list[fx.Effect]) -> None:
        state = self.state
        soonest = changes.wake_at(state)
        silent = state.workflows.wake_at() if state.workflows.any_open else None
        if silent is not None:
            soonest = min(soonest, silent)
        for name in state.wishing:
            wished = state.models.get(name)
            if wished is not None and now < wished.retry_at < soonest:
                soonest = wished.retry_at
        for model in waiting:
            if now < model.retry_at < soonest and model.residency is Residency.COLD:
                soonest = model.retry_at
            for waiter in model.waiting.values():
                if waiter.deadline_at is not None:
                    urgent = order.urgent_at(state, model, waiter.deadline_at)
                    soonest = min(soonest, urgent if urgent > now else waiter.deadline_at)
        if math.isinf(soonest):
            return
        soonest = max(soonest, math.nextafter(now, math.inf))
        if soonest != self._wake_at:
            self._wake_at = soonest
            out.append(fx.WakeAt(soonest))

    def _explain_wait(self, request: int, now: float, out: list[fx.Effect]) -> None:
        """Say why a request that has just arrived was not granted at once."""
        name = self.state.where.get(request)
        model = None if name is None else self.state.models[name]
        if model is None or request not in model.waiting:
            return
        behind = len(model.waiting) - 1
        numbers: tuple[tuple[str, float], ...] = (
            ("waiting_before", behind),
            ("expected_s", order.expected_wait_s(self.state, model)),
        )
        reason, because = self._why_waiting(model, now)
        out.append(fx.Record("wait", model.spec.id, f"A request for {name} waits: {because}.", numbers, reason=reason))

    def _why_waiting(self, model: ModelState, now: float) -> tuple[str, str]:
        """A word for those who count, and the end of a sentence."""
        name = model.spec.id
        if (closing := changes.reason_to_go(self.state, model)) is not None:
            return "leaving", f"the model is about to leave tier 1 ({closing.reason})"
        if model.residency is Residency.READY:
            if len(model.leases) >= model.spec.slots:
                return "slots", f"its {model.spec.slots} slots are taken"
            return "older_requests", f"older requests wait for memory that {name} holds"
        if model.residency is Residency.LOADING:
            return "loading", "it is being loaded"
        if model.retry_at > now:
            return "retry", "its last load failed, the next one is tried in a moment"
        others = (m.spec.id for m in self.state.models.values() if m.residency is Residency.LOADING)
        if (loading := next(others, None)) is not None:
            return "other_load", f"{loading} is loaded first"
        if any(m.residency is Residency.UNLOADING for m in self.state.models.values()) or any(
            files.pages is Pages.DROPPING for files in self.state.files.values()
        ):
            return "freeing", "memory is being freed for it"
        busy = ", ".join(m.spec.id for m in self.state.models.values() if m.leases)
        return "memory", f"its memory is held by models at work ({busy or 'none'})"

    # --- questions --------------------------------------------------------------------------------------------------

    def estimated_wait_s(self, model_id: ModelId) -> float | None:
        """Seconds that a request arriving now would wait (contract §1); None before the model has served anything."""
        model = self.state.models[model_id]
        return None if model.service_s is None else order.expected_wait_s(self.state, model)

    def pins_problem(self) -> HypnosError | None:
        """Why the pinned models cannot all be in tier 1 together; None when they can. For the start of the program."""
        return loads.pins_problem(self.state)

    def tier(self, model_id: ModelId) -> Tier:
        """Where a model is served from."""
        return self.state.tier(self.state.models[model_id])


def _drained(name: ModelId, model: ModelState, waiter: Waiting, now: float) -> fx.Record:
    waited_s = now - waiter.arrived_at
    return fx.Record(
        "drain",
        name,
        f"{name} serves only what came before a request for {model.spec.id}, which waits for its memory: that was "
        f"overtaken {waiter.overtaken} times in {waited_s:.1f} s.",
        (("overtaken", waiter.overtaken), ("overtaken_s", waiter.overtaken_s), ("waited_s", waited_s)),
        chosen=model.spec.id,
    )


def _caller(workflow: ev.Workflow | None, key: str) -> str:
    """Who asks one thing after the other: a run of a task, else a key."""
    return f"task:{workflow.name}/{workflow.run}" if workflow is not None else f"key:{key}"


def _power_of_two(cells: int) -> int:
    return 1 << (cells - 1).bit_length()
