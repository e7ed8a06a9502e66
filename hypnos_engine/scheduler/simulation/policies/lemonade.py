"""Lemonade as it behaves: a number of models of each type, the least recently used leaves; or, opted in, by a score.

Sources: lemonade-sdk/lemonade, docs/guide/configuration/multi-model.md and src/cpp/server/router.cpp, as of August
2026. Its rules:

1. A request for a loaded model is passed on at once, unless that model has been chosen to leave.
2. Loads come one after the other, in the order in which their requests came; whoever finds its model loaded by then is
   passed on.
3. Each type of model (chat, embeddings, transcription, speech, images, ...) has `max_loaded_models` slots, 1 where
   nobody sets it. With a type's slots full its least recently used model leaves, as soon as its requests have ended.
4. Memory is not looked at before a load. A load that fails makes every model leave, when its requests have ended, and
   is tried once more; then it is an error.
5. Opted in (`auto_evict`), with no number of slots: whenever more than 90 % of the device's memory is in use and one is
   idle, the model leaves whose idle time over its load time is the largest; and one that was idle for 300 s leaves.

Servers get all layers on the accelerator; only a model that is loaded alone may leave layers to the processor. Its
first stage of idleness, which gives back nothing with llama.cpp, and the pool for routing models are left out.
"""

from collections import deque
from collections.abc import Sequence

from hypnos_engine.domain.errors import HypnosError
from hypnos_engine.domain.kinds import Modality, Residency
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.limits import Limits
from hypnos_engine.scheduler.placement import Plan
from hypnos_engine.scheduler.simulation.policies.fleet import Fleet, Server, room_bytes, too_large, used_bytes

MAX_LOADED_MODELS = 1
PRESSURE = 0.9
EVICT_IDLE_S = 300.0


class Lemonade:
    """Rules 1 to 5; without a number of slots rule 5 takes the place of rule 3."""

    def __init__(self, models: Sequence[ModelSpec], max_loaded_models: int | None) -> None:
        self._fleet = Fleet(models)
        self._slots = max_loaded_models
        self._pending: deque[int] = deque()
        self._joined: list[int] = []
        """Who waits for the load that is under way."""
        self._loading: ModelId | None = None
        self._leaving: set[ModelId] = set()
        self._alone: int | None = None
        """The request whose load failed, and is tried once more with every model gone."""
        self._wake: float | None = None

    def on(self, event: ev.Event, now: float) -> Sequence[fx.Effect]:
        if self._fleet.take(event):
            return ()
        match event:
            case ev.RequestArrived(request, model):
                self._fleet.arrive(event, now)
                self._arrived(request, model, now)
            case ev.LeaseEnded(request):
                self._fleet.ended(request, now)
            case ev.RequestCancelled(request):
                self._forget(request)
                self._fleet.ended(request, now)
            case ev.LoadFinished(model):
                self._fleet.loaded(model, now)
                self._loading = self._alone = None
                joined, self._joined = self._joined, []
                for request in joined:
                    self._fleet.pass_on(request, now)
            case ev.LoadFailed(model, error):
                self._fleet.gone(model)
                self._load_failed(error)
            case ev.UnloadFinished(model):
                self._fleet.gone(model)
            case ev.Woken():
                self._wake = None
            case _:
                pass
        self._end_those_who_leave()
        self._next_load(now)
        if self._slots is None:
            self._relieve(now)
        return self._fleet.done()

    def _arrived(self, request: int, model: ModelId, now: float) -> None:
        server = self._fleet.servers[model]
        if server.residency is Residency.READY and model not in self._leaving:  # 1
            self._fleet.pass_on(request, now)
        elif model == self._loading:
            self._joined.append(request)
        else:
            self._pending.append(request)

    def _next_load(self, now: float) -> None:
        """Rules 2 to 4."""
        while self._pending and self._loading is None and not self._leaving:
            request = self._pending[0]
            server = self._fleet.servers[self._fleet.model_of(request)]
            if server.residency is Residency.READY:
                self._pending.popleft()
                self._fleet.pass_on(request, now)
                continue
            present = self._fleet.present
            if any(other.residency is Residency.UNLOADING for other in present):
                return
            same = [other for other in present if kind_of(other.spec) == kind_of(server.spec)]
            if self._slots is not None and len(same) >= self._slots:  # 3
                self._leaving.add(min(same, key=lambda other: other.used_at).id)
                self._end_those_who_leave()
                return
            self._load(request, server, present, now)

    def _load(self, request: int, server: Server, present: Sequence[Server], now: float) -> None:
        placed = self._fleet.plan(server, self._fleet.free(), whole=bool(present))
        if isinstance(placed, Plan):
            self._pending.popleft()
            self._loading = server.id
            self._joined = [request]
            self._fleet.load(server, placed, now)
        elif present and self._alone != request:  # 4: that would have failed
            self._alone = request
            self._leaving |= {other.id for other in present}
            self._end_those_who_leave()
        else:
            self._pending.popleft()
            self._alone = None
            self._fleet.refuse(request, too_large(server, placed))

    def _load_failed(self, error: HypnosError) -> None:
        joined, self._joined, self._loading = self._joined, [], None
        others = self._fleet.present
        if joined and others and self._alone != joined[0]:  # 4
            self._alone = joined[0]
            self._pending.extendleft(reversed(joined))
            self._leaving |= {other.id for other in others}
        else:
            self._alone = None
            for request in joined:
                self._fleet.refuse(request, error)

    def _end_those_who_leave(self) -> None:
        for model in sorted(self._leaving):
            server = self._fleet.servers[model]
            if server.residency is Residency.READY and not server.in_flight:
                head = self._pending[0] if self._pending else None
                self._fleet.unload(server, None if head is None else self._fleet.model_of(head))
            if server.residency is not Residency.READY:
                self._leaving.discard(model)

    def _relieve(self, now: float) -> None:
        """Rule 5."""
        idle = [
            server
            for server in self._fleet.present
            if server.residency is Residency.READY and not server.in_flight and server.id not in self._leaving
        ]
        for server in tuple(idle):
            if now >= server.used_at + EVICT_IDLE_S:  # as the wake is reckoned, or rounding wakes for ever
                self._fleet.unload(server, None)
                idle.remove(server)
        pressed = used_bytes(self._fleet) > PRESSURE * room_bytes(self._fleet.budgets)
        freeing = any(server.residency is Residency.UNLOADING for server in self._fleet.present)
        if pressed and not freeing and idle:
            worst = max(idle, key=lambda server: (now - server.used_at) / max(server.load_s, 1e-3))
            if now > worst.used_at:
                self._fleet.unload(worst, None)
                idle.remove(worst)
        soonest = min((server.used_at + EVICT_IDLE_S for server in idle), default=None)
        if soonest is not None and (self._wake is None or soonest < self._wake):
            self._wake = soonest
            self._fleet.wake_at(soonest)

    def _forget(self, request: int) -> None:
        if request in self._pending:
            self._pending.remove(request)
        if request in self._joined:
            self._joined.remove(request)


def kind_of(spec: ModelSpec) -> Modality:
    """The type whose slots a model takes; a model that sees pictures is a chat model."""
    return Modality.TEXT if spec.modality is Modality.VISION else spec.modality


def make_default(models: Sequence[ModelSpec], _limits: Limits) -> Lemonade:
    """One model of each type."""
    return Lemonade(models, MAX_LOADED_MODELS)


def make_scored(models: Sequence[ModelSpec], _limits: Limits) -> Lemonade:
    """Any number of models, relieved by score."""
    return Lemonade(models, None)
