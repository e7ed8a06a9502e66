"""Runs one policy through one trace: a virtual clock, every effect performed, every effect answered by one event.

The only moments at which anything happens are arrivals and the ends of what is under way. At one moment ends come
before arrivals, and both in the order in which they became known; nothing depends on anything else, so the same input
gives the same result to the last digit.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from hypnos_engine.domain.errors import DeviceOutOfMemory, HypnosError
from hypnos_engine.domain.kinds import Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.simulation.machine import SimMachine, SimModel
from hypnos_engine.scheduler.simulation.policies.policy import Policy
from hypnos_engine.scheduler.simulation.requests import Requests
from hypnos_engine.scheduler.simulation.result import ModelResult, Outcome, SimResult
from hypnos_engine.scheduler.simulation.service import Foretold, Services, Station
from hypnos_engine.scheduler.simulation.trace import TraceRequest, check_requests
from hypnos_engine.scheduler.simulation.workers import Workers

MOST_WAKES = 10_000
"""So many wakes in a row without anything else happening mean that nothing else will."""


def simulate(
    trace: Sequence[TraceRequest],
    models: Sequence[SimModel],
    machine: SimMachine,
    policy: Policy,
    *,
    patience_s: float | None = None,
) -> SimResult:
    """Give a fresh policy the machine, the models and then the requests; return what became of them.

    A caller waits `patience_s` for its grant (None: for ever). Raises ConfigurationInvalid for a trace that is none,
    and AssertionError when the policy breaks a rule that holds for all of them.
    """
    check_requests(trace, (model.id for model in models))
    return _Simulation(trace, models, machine, policy, patience_s).run()


_Then = Callable[[Any], None]


class _Simulation:
    def __init__(
        self,
        trace: Sequence[TraceRequest],
        models: Sequence[SimModel],
        machine: SimMachine,
        policy: Policy,
        patience_s: float | None,
    ) -> None:
        self._now = 0.0
        self._policy = policy
        self._models = models
        self._machine = machine
        self._patience_s = patience_s
        self._requests = Requests(trace, {model.id: model for model in models})
        self._workers = Workers(models, machine)
        self._services = Services()
        self._agenda: list[tuple[float, int, _Then, Any]] = []
        self._known = 0
        self._wake: float | None = None
        self._idle_wakes = 0
        self._events = 0
        self._sampled: ev.MachineSampled | None = None
        self._perform: dict[type, Callable[[Any], None]] = {
            fx.Grant: self._grant,
            fx.Load: self._load,
            fx.Unload: self._unload,
            fx.FillPages: self._fill,
            fx.DropPages: self._drop,
            fx.Refuse: self._refuse,
            fx.WakeAt: self._wake_at,
            fx.ResizeContext: self._resize,
        }

    # --- the clock --------------------------------------------------------------------------------------------------

    def run(self) -> SimResult:
        self._begin()
        arrivals, agenda = self._requests.arrivals, self._agenda
        position = 0
        while self._requests.open:
            if agenda and (position == len(arrivals) or agenda[0][0] <= arrivals[position][0]):
                self._now, _, then, argument = heapq.heappop(agenda)
                then(argument)
            elif position < len(arrivals):
                self._now, request = arrivals[position]
                position += 1
                self._arrive(request)
            else:
                break
            if self._idle_wakes > MOST_WAKES:
                break
        return self._result()

    def _begin(self) -> None:
        for other in self._machine.others:
            self._at(other.at_s, self._others_use, other)
        for model in self._models:
            self._give(ev.ModelInspected(model.id, model.shape, None))
        self._tell(ev.BudgetsSet(self._machine.budgets))
        for model in self._models:
            if model.spec.enabled and model.spec.initial_tier is Tier.GPU:
                self._tell(ev.StageRequested(model.id))

    def _at(self, moment: float, then: _Then, argument: Any) -> None:
        self._known += 1
        heapq.heappush(self._agenda, (moment, self._known, then, argument))

    def _tell(self, event: ev.Event) -> None:
        """Give the policy an event, what the machine has left before it, and perform what it answers."""
        if self._workers.changed:
            self._workers.changed = False
            sample = ev.MachineSampled(self._workers.host_available_bytes, self._workers.device_free_bytes)
            if sample != self._sampled:
                self._sampled = sample
                self._give(sample)
        self._give(event)

    def _give(self, event: ev.Event) -> None:
        self._events += 1
        perform = self._perform
        for effect in self._policy.on(event, self._now):
            act = perform.get(type(effect))
            if act is not None:
                act(effect)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _arrive(self, request: int) -> None:
        self._idle_wakes = 0
        event = self._requests.arrive(request, self._now)
        if self._patience_s is not None:
            self._at(self._now + self._patience_s, self._give_up, request)
        self._tell(event)

    def _give_up(self, request: int) -> None:
        if self._requests.waits(request):
            self._close(request, Outcome.TIMED_OUT)
            self._tell(ev.RequestCancelled(request))

    def _grant(self, effect: fx.Grant) -> None:
        request, now = effect.request, self._now
        station = self._workers.lease(effect.model, request)
        work = self._requests.grant(request, effect.model, now)
        self._foretell(self._services.begin(station, request, work, now))

    def _foretell(self, ends: list[Foretold]) -> None:
        for moment, station in ends:
            self._known += 1
            heapq.heappush(self._agenda, (moment, self._known, self._end, station))

    def _end(self, station: Station) -> None:
        request, ends = self._services.look(station, self._now)
        self._foretell(ends)
        if request is None:
            return
        self._idle_wakes = 0
        self._workers.release(self._requests.model_of(request), request)
        self._close(request, Outcome.SERVED)
        self._tell(ev.LeaseEnded(request))

    def _refuse(self, effect: fx.Refuse) -> None:
        if self._requests.waits(effect.request):
            self._close(effect.request, Outcome.REFUSED, effect.error)

    def _close(self, request: int, outcome: Outcome, error: HypnosError | None = None) -> None:
        for follower, moment in self._requests.close(request, outcome, self._now, error):
            self._at(moment, self._arrive, follower)

    # --- workers ----------------------------------------------------------------------------------------------------

    def _load(self, effect: fx.Load) -> None:
        end = self._workers.start(effect.model, effect.plan, self._now)
        if end is None:
            self._at(self._now + self._workers.model(effect.model).start_s, self._load_failed, effect)
        else:
            self._at(end, self._loaded, effect)

    def _loaded(self, effect: fx.Load) -> None:
        self._idle_wakes = 0
        plan = effect.plan
        self._workers.ready(effect.model, self._now)
        placement = plan.placement
        cells = placement.allocated_context_len
        self._tell(ev.LoadFinished(effect.model, plan.footprint, cells, placement.gpu_layers))

    def _load_failed(self, effect: fx.Load) -> None:
        self._idle_wakes = 0
        self._workers.failed(effect.model, self._now)
        error = DeviceOutOfMemory(f"There is not enough memory left to load '{effect.model}'.")
        self._tell(ev.LoadFailed(effect.model, error))

    def _unload(self, effect: fx.Unload) -> None:
        self._workers.stop(effect.model, self._now)
        self._at(self._now + self._machine.stop_s, self._unloaded, effect)

    def _unloaded(self, effect: fx.Unload) -> None:
        self._idle_wakes = 0
        self._workers.gone(effect.model, self._now)
        if effect.park_bytes:  # conversations are not simulated, so there is nothing to park
            self._tell(ev.KvParked(effect.model, 0))
        self._tell(ev.UnloadFinished(effect.model))

    def _resize(self, effect: fx.ResizeContext) -> None:
        self._at(self._now, self._resized, effect)

    def _resized(self, effect: fx.ResizeContext) -> None:
        cells, footprint = self._workers.resize(effect.model, effect.context_len, self._now)
        self._tell(ev.ContextResized(effect.model, cells, footprint))

    # --- pages and time ---------------------------------------------------------------------------------------------

    def _fill(self, effect: fx.FillPages) -> None:
        self._at(self._workers.fill(effect.model, effect.size_bytes, self._now), self._filled, effect)

    def _filled(self, effect: fx.FillPages) -> None:
        self._idle_wakes = 0
        self._tell(ev.PagesFilled(effect.files, self._workers.hold(effect.files, effect.size_bytes, self._now)))

    def _drop(self, effect: fx.DropPages) -> None:
        self._at(self._now, self._dropped, effect)

    def _dropped(self, effect: fx.DropPages) -> None:
        self._workers.let_go(effect.files, self._now)
        self._tell(ev.PagesDropped(effect.files))

    def _others_use(self, other: Any) -> None:
        self._workers.others_use(other.device, other.used_bytes, self._now)
        sample = ev.MachineSampled(self._workers.host_available_bytes, self._workers.device_free_bytes)
        self._workers.changed = False
        self._sampled = sample
        self._give(sample)

    def _wake_at(self, effect: fx.WakeAt) -> None:
        self._wake = effect.at
        self._at(effect.at, self._woken, effect.at)

    def _woken(self, moment: float) -> None:
        if self._wake == moment:
            self._wake = None
            self._idle_wakes += 1
            self._tell(ev.Woken())

    # --- the end ----------------------------------------------------------------------------------------------------

    def _result(self) -> SimResult:
        requests = self._requests.results()
        served = Counter(request.model for request in requests if request.outcome is Outcome.SERVED)
        ends = [request.finished_s for request in requests if request.finished_s is not None]
        return SimResult(
            requests=requests,
            models=tuple(self._model_result(model.id, served[model.id]) for model in self._models),
            runs=self._requests.runs(),
            timeline=tuple(self._workers.timeline),
            end_s=max(ends, default=0.0),
            events=self._events,
        )

    def _model_result(self, model: ModelId, served: int) -> ModelResult:
        worker = self._workers.of(model)
        return ModelResult(
            model=model,
            loads=worker.loads,
            failed_loads=worker.failed_loads,
            evictions=worker.evictions,
            loading_s=worker.loading_s,
            disk_bytes=worker.disk_bytes,
            device_bytes=worker.device_bytes,
            served=served,
        )
