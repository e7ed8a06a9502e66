"""A made-up machine around the scheduler: keeps its own books and checks every effect against them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypnos_engine.domain.errors import HypnosError, LoadFailed, WorkerDied
from hypnos_engine.domain.kinds import Pages, Residency, Tier
from hypnos_engine.domain.memory import Footprint
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.scheduler import changes, ledger, order, room
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.core import Scheduler
from hypnos_engine.scheduler.limits import Budgets, Limits
from hypnos_engine.scheduler.loads import good_enough, is_loadable, place
from hypnos_engine.scheduler.state import FIXED_THREADS
from tests.scheduler.made_up import GIB, PINNED, as_reported, shape, spec

__all__ = ["GIB", "LIMITS", "PINNED", "World", "shape", "spec"]

MAX_QUEUE = 4
LIMITS = Limits(max_queue_per_model=MAX_QUEUE, max_overtakes=3, max_overtaken_s=30.0)


class World:
    """Drives a scheduler and remembers what it asked for.

    `budget_bytes` are host memory; with `device_bytes` the machine has accelerators with memory of their own.
    """

    def __init__(
        self,
        sizes: dict[str, int],
        *,
        budget_bytes: int,
        specs: Sequence[ModelSpec] | None = None,
        device_bytes: tuple[int, ...] = (),
        tier2_bytes: int = 0,
        park_bytes: int = 0,
        limits: Limits = LIMITS,
        cores: int = 4,
        cap_bytes: int | None = None,
    ) -> None:
        self.specs = list(specs or [spec(name) for name in sizes])
        self.limits = limits
        self.scheduler = Scheduler(self.specs, limits)
        self.now = 0.0
        self.sizes = sizes
        self.budgets = Budgets(
            device_bytes,
            budget_bytes,
            cores,
            bool(device_bytes),
            tier2_bytes=tier2_bytes,
            park_bytes=park_bytes,
            process_cap_bytes=cap_bytes,
        )
        self.shrinking = False
        """A smaller budget takes effect step by step."""
        self.others_bytes = 0
        """Host memory that other programs take."""
        self.others_device_bytes = 0
        """What they take of each accelerator."""
        self.told: list[tuple[ev.Event, float]] = []
        """All events, in order, each with its moment."""
        self.loading: dict[ModelId, fx.Load] = {}
        self.unloading: dict[ModelId, fx.Unload] = {}
        self.ready: dict[ModelId, fx.Load] = {}
        self.resizing: dict[ModelId, int] = {}
        self.filling: dict[str, int] = {}
        self.dropping: set[str] = set()
        self.held: dict[str, int] = {}
        self.waiting: dict[int, ModelId] = {}
        self.arrived_at: dict[int, float] = {}
        self.leases: dict[int, ModelId] = {}
        self.lost: set[int] = set()
        """Leases whose worker died under them; they still have to be ended by their owners."""
        self.moving: dict[int, ModelId] = {}
        self.moved: list[int] = []
        self.changing: dict[ModelId, bool] = {}
        """Pool changes that are not answered yet."""
        self.changed: list[fx.PoolChanged] = []
        self.workflows: list[fx.WorkflowEnded] = []
        self.refused: dict[int, HypnosError] = {}
        self.granted: list[fx.Grant] = []
        self.records: list[fx.Record] = []
        self.effects: list[fx.Effect] = []
        """All of them, in order."""
        self.threads: dict[ModelId, int] = {}
        self.wished: set[ModelId] = set()
        """Models that may be loaded although nobody waits: staged, driven away, or announced when room was made."""
        self.wake_at: float | None = None
        self._next = 0
        for name, size in sizes.items():
            self.send(ev.ModelInspected(ModelId(name), shape(size), None))
        self.sample()
        self.send(ev.BudgetsSet(self.budgets))

    # --- what a test does -------------------------------------------------------------------------------------------

    def arrive(self, name: str, *, deadline_s: float | None = None, **wishes: object) -> int:
        self._next += 1
        request = self._next
        self.waiting[request] = ModelId(name)
        self.arrived_at[request] = self.now
        deadline_at = None if deadline_s is None else self.now + deadline_s
        self.send(ev.RequestArrived(request, ModelId(name), deadline_at, **wishes))  # type: ignore[arg-type]
        return request

    def serve(self, name: str, *, takes_s: float = 0.0, load_s: float = 0.0, **wishes: object) -> fx.Grant:
        """A whole request of a model that gets its turn as soon as what is under way has ended; returns its grant."""
        request = self.arrive(name, **wishes)  # type: ignore[arg-type]  # the keys are those of `arrive`
        while request in self.waiting:
            if self.unloading:
                self.finish_unload(next(iter(self.unloading)))
            elif self.dropping:
                self.finish_drop(next(iter(self.dropping)))
            else:
                self.pass_time(load_s)
                self.finish_load(next(iter(self.loading)))
        self.pass_time(takes_s)
        self.end(request)
        return next(grant for grant in reversed(self.granted) if grant.request == request)

    def recorded(self, kind: str, name: str | None = None) -> list[fx.Record]:
        """The decisions of a kind, oldest first; about one model, if it is named."""
        return [record for record in self.records if record.kind == kind and name in (None, record.model)]

    def move(self, name: str, tier: Tier, *, context_len: int | None = None) -> int:
        self._next += 1
        self.moving[self._next] = ModelId(name)
        self.send(ev.MoveRequested(self._next, ModelId(name), tier, context_len))
        return self._next

    def change(self, event: ev.ModelAdded | ev.ModelReplaced | ev.ModelRemoved) -> None:
        name = event.model if isinstance(event, ev.ModelRemoved) else event.spec.id
        self.changing[name] = True
        self.send(event)

    def cancel(self, request: int) -> None:
        self.waiting.pop(request, None)
        self.leases.pop(request, None)
        self.lost.discard(request)
        self.send(ev.RequestCancelled(request))

    def end(self, request: int, *, ok: bool = True) -> None:
        del self.leases[request]
        self.lost.discard(request)
        self.send(ev.LeaseEnded(request, ok=ok))

    def bring_back(self, request: int) -> None:
        """The worker of a lease is gone and nothing was sent: it waits again, or is refused."""
        model = self.leases.pop(request)
        self.lost.discard(request)
        self.waiting[request] = model
        self.send(ev.RequestReturned(request, WorkerDied(f"{model} was killed")))

    def finish_load(self, name: str, *, measured: Footprint | None = None) -> None:
        load = self.loading.pop(ModelId(name))
        if not self.scheduler.state.models[ModelId(name)].driven_away:
            self.wished.discard(ModelId(name))
        self.ready[ModelId(name)] = load
        self.send(
            ev.LoadFinished(
                ModelId(name),
                measured or as_reported(load.plan.footprint),
                load.plan.placement.allocated_context_len,
                load.plan.placement.gpu_layers,
            )
        )

    def fail_load(self, name: str, error: HypnosError | None = None) -> None:
        del self.loading[ModelId(name)]
        self.send(ev.LoadFailed(ModelId(name), error or LoadFailed(f"{name} is damaged")))

    def finish_unload(self, name: str) -> None:
        unload = self.unloading.pop(ModelId(name))
        if unload.park_bytes:
            self.send(ev.KvParked(ModelId(name), unload.park_bytes // 2))
        self.send(self.measured(without=ModelId(name)))
        self.send(ev.UnloadFinished(ModelId(name)))

    def die(self, name: str, error: HypnosError | None = None) -> None:
        self.ready.pop(ModelId(name))
        closing = self.scheduler.state.models[ModelId(name)].closing
        if closing is not None and closing.reason in ("full_gpu_placement", "grown"):
            self.wished.add(ModelId(name))
        self.resizing.pop(ModelId(name), None)
        self.lost |= {request for request, model in self.leases.items() if model == name}
        self.send(ev.WorkerDied(ModelId(name), error or WorkerDied(f"{name} was killed")))

    def finish_resize(self, name: str) -> None:
        cells = self.resizing.pop(ModelId(name))
        footprint = self.scheduler.state.models[ModelId(name)].footprint
        self.send(ev.ContextResized(ModelId(name), cells, footprint))

    def grow(self, name: str, more_bytes: int) -> None:
        """A worker is seen to hold more private memory than is booked."""
        self.shrinking = True
        private = self.scheduler.state.models[ModelId(name)].private_bytes
        self.send(ev.WorkerMeasured(ModelId(name), private + more_bytes))

    def finish_fill(self, path: str, *, share: float = 1.0) -> None:
        held = int(self.filling.pop(path) * share)
        self.held[path] = held
        self.send(ev.PagesFilled(path, held))

    def finish_drop(self, path: str) -> None:
        self.dropping.discard(path)
        self.held.pop(path, None)
        self.sample()
        self.send(ev.PagesDropped(path))

    def sample(self) -> None:
        """Tell what the machine has left, as the machine itself would count it."""
        self.send(self.measured())

    def measured(self, without: ModelId | None = None) -> ev.MachineSampled:
        """What the machine says it has left; `without` is a worker that is gone unheard of."""
        state = self.scheduler.state
        private = sum(model.private_bytes for name, model in state.models.items() if name != without)
        private += sum(model.parked_bytes for model in state.models.values())
        held = sum(self.held.values()) + sum(self.filling.values())
        host = self.budgets.host_bytes - self.others_bytes - private - held
        gone = ledger.Gone(frozenset() if without is None else frozenset((without,)))
        devices = tuple(
            max(0, total - self.others_device_bytes - ledger.device_booked(state, index, gone))
            for index, total in enumerate(self.budgets.device_bytes)
        )
        return ev.MachineSampled(max(0, host), devices)

    def set_budget(self, host_bytes: int) -> None:
        self.shrinking = self.shrinking or host_bytes < self.budgets.host_bytes
        self.budgets = replace(self.budgets, host_bytes=host_bytes)
        self.send(ev.BudgetsSet(self.budgets))

    def set_cap(self, cap_bytes: int | None, *, host_bytes: int) -> None:
        self.shrinking = True
        self.budgets = replace(self.budgets, host_bytes=host_bytes, process_cap_bytes=cap_bytes)
        self.send(ev.BudgetsSet(self.budgets))

    def pass_time(self, seconds: float) -> None:
        self.pass_until(self.now + seconds)

    def pass_until(self, target: float) -> None:
        while self.wake_at is not None and self.wake_at <= target:
            self.now, self.wake_at = self.wake_at, None
            self.send(ev.Woken())
        self.now = target

    def go_on(self) -> bool:
        """Finish the first thing that is under way; False when nothing is."""
        if self.loading:
            self.finish_load(next(iter(self.loading)))
        elif self.unloading:
            self.finish_unload(next(iter(self.unloading)))
        elif self.resizing:
            self.finish_resize(next(iter(self.resizing)))
        elif self.filling:
            self.finish_fill(next(iter(self.filling)))
        elif self.dropping:
            self.finish_drop(next(iter(self.dropping)))
        elif self.leases:
            self.end(next(iter(self.leases)))
        else:
            return False
        return True

    def run_dry(self) -> None:
        """Finish everything that is under way until nothing is."""
        for _ in range(10_000):
            if self.go_on():
                continue
            if self.wake_at is None:
                return
            self.pass_until(self.wake_at)
        raise AssertionError(f"the scheduler never comes to rest: {self.waiting}, {self.records[-3:]}")

    # --- what the scheduler does ------------------------------------------------------------------------------------

    def send(self, event: ev.Event) -> list[fx.Effect]:
        closed = self._closed_to_newcomers()
        self.told.append((event, self.now))
        if isinstance(event, ev.StageRequested):
            self.wished.add(event.model)
        effects = self.scheduler.on(event, self.now)
        self.effects += effects
        for effect in effects:
            self._perform(effect)
        if not isinstance(event, ev.LimitsSet):  # then the bound is another one
            self._check_bound(effects, closed)
        self._check_records(effects)
        return effects

    def _perform(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Load(model):
                self._check_load(effect)
                self.loading[model] = effect
                self.threads[model] = effect.threads
            case fx.Unload(model):
                assert model in self.ready, "unloaded what is not ready"
                users = [r for r, m in self.leases.items() if m == model and r not in self.lost]
                assert not users, "unloaded under a lease"
                assert model not in self.resizing, "unloaded while its context is rebuilt"
                del self.ready[model]
                self.unloading[model] = effect
                if effect.reason in ("full_gpu_placement", "grown"):
                    self.wished.add(model)
                elif effect.for_model is not None and effect.for_model not in self.waiting.values():
                    self.wished.add(effect.for_model)
            case fx.Grant(request, model):
                assert self.waiting.pop(request) == model, "granted to the wrong model"
                assert model in self.ready, "granted on a model that is not ready"
                self.leases[request] = model
                self.granted.append(effect)
            case fx.Refuse(request, error):
                assert (request in self.waiting) != (request in self.moving), "refused what is not waiting"
                self.waiting.pop(request, None)
                self.moving.pop(request, None)
                self.refused[request] = error
            case fx.ResizeContext(model, context_len):
                assert model in self.ready
                self.resizing[model] = context_len
            case fx.SetThreads(model, threads):
                assert model in self.ready
                self.threads[model] = threads
            case fx.FillPages(path, _, size_bytes):
                assert path not in self.held, "filled what is held"
                assert not self.filling, "two file sets are read at once"
                self.filling[path] = size_bytes
            case fx.DropPages(path, for_model):
                if for_model is not None and for_model not in self.waiting.values():
                    self.wished.add(for_model)
                assert path in self.held, "dropped what is not held"
                self.dropping.add(path)
            case fx.Moved(request):
                del self.moving[request]
                self.moved.append(request)
            case fx.PoolChanged(model):
                self.changing.pop(model, None)
                self.changed.append(effect)
            case fx.WorkflowEnded():
                self.workflows.append(effect)
            case fx.WakeAt(at):
                assert at > self.now, "asked to be woken in the past"
                self.wake_at = at
            case fx.Record():
                self.records.append(effect)
                if effect.kind in ("hold", "device_lost"):
                    self.wished.add(effect.model)
            case fx.DropParked() | fx.DenyContext():
                pass

    def _check_load(self, load: fx.Load) -> None:
        assert load.model not in self.loading, "loaded twice at once"
        assert load.model not in self.ready, "loaded although it is ready"
        assert load.model not in self.unloading, "loaded before its old worker was gone"
        for other in self.loading.values():
            assert len(self.budgets.device_bytes) > 1, "two loads at a time"
            assert not load.plan.devices & other.plan.devices, "two loads at a time on one accelerator"
        model = self.scheduler.state.models[load.model]
        assert (load.from_tier is Tier.RAM) == (self.scheduler.state.tier(model) is Tier.RAM)
        wanted = load.model in self.wished or model.promoted or model.announced_at is not None
        assert wanted or load.model in self.waiting.values(), "loaded although nobody wants it any more"

    def _check_bound(self, effects: Sequence[fx.Effect], closed: Mapping[ModelId, float]) -> None:
        """Who came after a waiter at its bound is not served by what is in that one's way, before it or after."""
        still = self._closed_to_newcomers() if closed else {}
        for effect in effects:
            if isinstance(effect, fx.Grant) and effect.model in closed and effect.model in still:
                since = max(closed[effect.model], still[effect.model])
                assert self.arrived_at[effect.request] <= since, "served before a waiter at its bound"

    def _check_records(self, effects: Sequence[fx.Effect]) -> None:
        """What is decided is written down."""
        kinds = [effect.kind for effect in effects if isinstance(effect, fx.Record)]
        assert kinds.count("load") == sum(isinstance(effect, fx.Load) for effect in effects)
        unloads = sum(isinstance(effect, fx.Unload) for effect in effects)
        assert kinds.count("evict") + kinds.count("unload") == unloads
        assert "refuse" in kinds or not any(isinstance(effect, fx.Refuse) for effect in effects)

    # --- what must always hold --------------------------------------------------------------------------------------

    def check(self) -> None:
        state = self.scheduler.state
        assert self.host_recount() == ledger.host_booked(state), "the ledger differs from a recount"
        within = ledger.host_booked(state) <= ledger.host_budget(state)
        assert within or self.shrinking, "more booked than the budget"
        for index, total in enumerate(self.budgets.device_bytes):
            booked = self.device_recount(index)
            assert booked == ledger.device_booked(state, index), "the accelerator's ledger differs from a recount"
            kept = booked <= total
            assert kept or self.shrinking, "more booked than the accelerator's budget"
            within = within and kept
        self.shrinking = self.shrinking and not within
        assert sum(files.held_bytes for files in state.files.values()) <= self.budgets.tier2_bytes
        assert ledger.parked_bytes(state) <= self.budgets.park_bytes
        inside = {request for model in state.models.values() for request in model.leases}
        assert inside == set(self.leases), "leases inside and outside differ"
        queued = {request for model in state.models.values() for request in model.waiting}
        assert queued == set(self.waiting), "queues inside and outside differ"
        assert not inside & queued, "a request is in two places"
        assert set(state.where) == inside | queued
        for name, model in state.models.items():
            assert len(model.waiting) + len(model.leases) <= self.limits.max_queue_per_model
            alive = sum(1 for request in model.leases if request not in self.lost)
            assert alive <= model.spec.slots, "more leases than slots"
            assert (model.residency is Residency.READY) == (name in self.ready)
            assert (model.residency is Residency.LOADING) == (name in self.loading)
            assert (model.residency is Residency.UNLOADING) == (name in self.unloading)
            if model.residency is Residency.COLD:
                assert model.footprint.total == 0, "a cold model holds bytes"
            assert (model.move is not None) == (name in self.moving.values())
        for path, files in state.files.items():
            assert (files.pages is Pages.FILLING) == (path in self.filling)
            assert (files.pages is Pages.DROPPING) == (path in self.dropping)
            assert files.pages is not Pages.HELD or files.held_bytes == self.held[path]
        self._check_progress()
        self._check_threads()

    def host_recount(self) -> int:
        """Host memory as this side knows it: workers by their plans or reports, each file once, held pages, parked."""
        state = self.scheduler.state
        lines: dict[str, int] = dict(self.held)
        lines.update(self.filling)
        total = 0
        for name, model in state.models.items():
            total += model.parked_bytes
            if name in self.loading or name in self.ready or name in self.unloading:
                total += model.private_bytes
                path = model.spec.weights_path
                lines[path] = max(lines.get(path, 0), model.mapped_bytes)
        return total + sum(lines.values())

    def device_recount(self, device: int) -> int:
        """An accelerator's memory as this side knows it: workers by their plans."""
        models = self.scheduler.state.models
        plans = [models[name].plan for name in (*self.loading, *self.ready, *self.unloading)]
        return sum(plan.device_shares[device] for plan in plans if plan is not None and plan.device_shares)

    def _closed_to_newcomers(self) -> dict[ModelId, float]:
        """The models in the way of the oldest waiter at its bound, with the moment at which that one came."""
        state = self.scheduler.state
        cold = [model for model in state.models.values() if model.waiting and is_loadable(state, model, self.now)]
        for model, waiter in order.overdue(state, cold):
            if place(state, model, ledger.room_in_flight(state)) is None:
                enough = good_enough(state, model)
                way = room.in_the_way(state, model, self.now, ledger.room_in_flight(state), enough)
                return dict.fromkeys(way or (), waiter.arrived_at)
        return {}

    def _check_progress(self) -> None:
        """Nobody waits for nothing."""
        state = self.scheduler.state
        resting = {name for name, model in state.models.items() if model.retry_at > self.now}
        under_way = self.loading or self.unloading or self.resizing or self.filling or self.dropping or self.leases
        if not under_way:
            assert set(self.waiting.values()) <= resting, "somebody waits although nothing is under way"
            assert set(self.moving.values()) <= resting, "a wish waits although nothing is under way"
        held_up = self._closed_to_newcomers() or order.crowded_out(
            state, [m for m in state.models.values() if m.waiting]
        )
        for name in () if held_up else self.ready:
            model = state.models[name]
            if model.waiting and len(model.leases) < model.spec.slots:
                assert changes.reason_to_go(state, model) is not None, "a slot is free and somebody waits for it"
        moments = [
            w.deadline_at for m in state.models.values() for w in m.waiting.values() if w.deadline_at is not None
        ]
        moments += [state.models[name].retry_at for name in resting & set(self.waiting.values())]
        moments += [state.hold.until] if state.hold is not None and state.hold.until is not None else []
        if moments:
            assert self.wake_at is not None, "nobody will wake the scheduler"
            assert self.wake_at <= max(min(moments), math.nextafter(self.now, math.inf)), "woken too late"

    def _check_threads(self) -> None:
        """Busy models have at least one thread each, and together no more than there are cores."""
        state = self.scheduler.state
        busy = [m for m in state.models.values() if m.leases and m.residency is Residency.READY]
        assert all(model.threads >= 1 for model in busy)
        assert all(self.threads[model.spec.id] == model.threads for model in busy)
        if not any(model.spec.engine in FIXED_THREADS for model in busy):
            assert sum(model.threads for model in busy) <= max(self.budgets.cores, len(busy))

    def check_replay(self) -> None:
        """The same events at the same moments lead to the same effects."""
        again = Scheduler(self.specs, self.limits)
        effects = [repr(effect) for event, moment in self.told for effect in again.on(event, moment)]
        assert effects == [repr(effect) for effect in self.effects]

    def check_not_forgotten(self) -> None:
        """While nothing is under way and no alarm is set, nobody waits: no event would come that could serve them."""
        under_way = self.loading or self.unloading or self.resizing or self.filling or self.dropping or self.leases
        if not under_way and self.wake_at is None:
            assert not self.waiting, f"forgotten: {self.waiting}"

    def check_at_rest(self) -> None:
        """With nothing under way, nobody waits who could be served."""
        assert not self.waiting, f"left waiting: {self.waiting}"
        assert not self.leases
        assert not self.moving, f"wishes without an answer: {self.moving}"
        assert not self.changing, f"pool changes without an answer: {self.changing}"
