"""Ollama as it behaves: one queue that its head blocks, bytes that are predicted, the idle model leaves first.

Source: ollama/ollama, server/sched.go and envconfig, as of August 2026. Its rules:

1. A request for a model that is loaded or loading goes to it at once, past everybody who waits (the bypass), even when
   the model has been told to leave: then its leaving waits for that request too.
2. Any other request goes to the end of one queue; one more than 512 (OLLAMA_MAX_QUEUE) is refused (503).
3. Only the head of the queue is looked at, and the next one only when its model is ready: one load at a time, and who
   would fit waits behind who does not.
4. With no model loaded the head is loaded, with as many layers on the accelerator as fit.
5. With 3 models for each accelerator loaded (OLLAMA_MAX_LOADED_MODELS) one has to leave, whatever there is of memory.
6. Else the head is loaded if it fits wholly on one accelerator and takes at most 80 % of what is free; if not, one
   model has to leave, and then rules 4 to 6 are asked again.
7. Who leaves: of the idle models the one with the shortest keep-alive, then by name, whether or not its size helps;
   with none idle, of all models the one with the shortest keep-alive, when its requests have ended.
8. A model that nobody has used for its keep-alive (5 minutes) leaves by itself.
9. A load that fails for want of memory makes everybody else leave and is tried once more; then it is an error.

Every model keeps its own number of slots here, as with the other policies; OLLAMA_NUM_PARALLEL is 1 where nobody sets
it, which is the other variant. Reloads for requests with another context size do not occur.
"""

from collections import deque
from collections.abc import Mapping, Sequence

from hypnos_engine.domain.errors import HypnosError, ModelBusy
from hypnos_engine.domain.kinds import Residency
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.limits import Limits
from hypnos_engine.scheduler.placement import Plan, Shortage
from hypnos_engine.scheduler.simulation.policies.fleet import Fleet, Server, too_large

MAX_QUEUE = 512
MODELS_PER_DEVICE = 3
KEEP_ALIVE_S = 300.0
USABLE = 0.8
"""Part of what is free that a model may take beside others."""


class Ollama:
    """Rules 1 to 9."""

    def __init__(
        self,
        models: Sequence[ModelSpec],
        *,
        parallel: int | None = None,
        keep_alive_s: Mapping[ModelId, float] | None = None,
        max_queue: int = MAX_QUEUE,
    ) -> None:
        self._fleet = Fleet(models, parallel)
        self._keep_alive_s = {spec.id: KEEP_ALIVE_S for spec in models} | dict(keep_alive_s or {})
        self._max_queue = max_queue
        self._pending: deque[int] = deque()
        self._joined: dict[ModelId, list[int]] = {}
        """Who waits for a model that is loading."""
        self._leaving: set[ModelId] = set()
        """Told to leave when idle: their keep-alive is 0."""
        self._retried: set[int] = set()
        self._failed: HypnosError | None = None
        self._wake: float | None = None

    def on(self, event: ev.Event, now: float) -> Sequence[fx.Effect]:
        if self._fleet.take(event):
            return ()
        match event:
            case ev.RequestArrived(request, model):
                self._fleet.arrive(event, now)
                self._arrived(request, model, now)
            case ev.LeaseEnded(request):
                self._ended(request, now)
            case ev.RequestCancelled(request):
                self._forget(request)
                self._ended(request, now)
            case ev.LoadFinished(model):
                self._fleet.loaded(model, now)
                for request in self._joined.pop(model, ()):
                    self._fleet.pass_on(request, now)
                self._look_at_head(now)
            case ev.LoadFailed(model, error):
                self._fleet.gone(model)
                self._load_failed(model, error, now)
            case ev.UnloadFinished(model):
                self._fleet.gone(model)
                self._look_at_head(now)
            case ev.Woken():
                self._wake = None
            case _:
                pass
        self._expire(now)
        return self._fleet.done()

    def _arrived(self, request: int, model: ModelId, now: float) -> None:
        server = self._fleet.servers[model]
        if server.residency is Residency.READY:  # 1
            self._fleet.pass_on(request, now)
        elif server.residency is Residency.LOADING:  # 1
            self._joined[model].append(request)
        elif len(self._pending) >= self._max_queue:  # 2
            self._fleet.refuse(request, ModelBusy("The server is busy: too many requests are pending."))
        else:
            self._pending.append(request)
            self._look_at_head(now)

    def _ended(self, request: int, now: float) -> None:
        server = self._fleet.ended(request, now)
        if server is not None and not server.in_flight and server.id in self._leaving:
            self._end(server)

    def _look_at_head(self, now: float) -> None:
        """Rules 3 to 6."""
        while self._pending and not self._changing():
            request = self._pending[0]
            server = self._fleet.servers[self._fleet.model_of(request)]
            if server.residency is Residency.READY:
                self._pending.popleft()
                self._fleet.pass_on(request, now)
                continue
            loaded = self._fleet.present
            placed = self._place(server, loaded)
            if isinstance(placed, Plan):
                self._pending.popleft()
                self._joined[server.id] = [request]
                self._fleet.load(server, placed, now)
            elif loaded:
                self._let_one_leave(loaded, server.id)
                return
            else:
                self._pending.popleft()
                self._fleet.refuse(request, too_large(server, placed))

    def _changing(self) -> bool:
        """Whether a load or an unload is under way, or somebody has been told to leave for the head."""
        return bool(self._leaving) or any(server.residency is not Residency.READY for server in self._fleet.present)

    def _place(self, server: Server, loaded: Sequence[Server]) -> Plan | Shortage:
        free = self._fleet.free()
        if not loaded:  # 4
            return self._fleet.plan(server, free)
        most = MODELS_PER_DEVICE * max(1, len(self._fleet.budgets.device_bytes))
        if len(loaded) >= most:  # 5
            return Shortage(0, 0)
        placed = self._fleet.plan(server, free, whole=True)  # 6
        if isinstance(placed, Shortage):
            return placed
        if free.unified:
            needed, there = placed.footprint.total, free.host_bytes
        else:
            needed, there = sum(placed.device_shares), sum(free.device_bytes[index] for index in placed.devices)
        return placed if needed <= USABLE * there else Shortage(needed, int(USABLE * there))

    def _let_one_leave(self, loaded: Sequence[Server], for_model: ModelId) -> None:
        by_keep_alive = sorted(loaded, key=lambda server: (self._keep_alive_s[server.id], server.id))
        idle = [server for server in by_keep_alive if not server.in_flight]
        victim = (idle or by_keep_alive)[0]  # 7
        self._leaving.add(victim.id)
        if idle:
            self._end(victim, for_model)

    def _end(self, server: Server, for_model: ModelId | None = None) -> None:
        self._leaving.discard(server.id)
        if for_model is None and self._pending:
            for_model = self._fleet.model_of(self._pending[0])
        self._fleet.unload(server, for_model)

    def _load_failed(self, model: ModelId, error: HypnosError, now: float) -> None:
        """Rule 9."""
        waiters = self._joined.pop(model)
        others = self._fleet.present
        if others and waiters and waiters[0] not in self._retried:
            self._retried.add(waiters[0])
            self._pending.extendleft(reversed(waiters))
            for server in others:
                self._leaving.add(server.id)
                if not server.in_flight and server.residency is Residency.READY:
                    self._end(server, model)
        else:
            for request in waiters:
                self._fleet.refuse(request, error)
        self._look_at_head(now)

    def _expire(self, now: float) -> None:
        """Rule 8, and a wake for the next model that it will concern."""
        moments: list[float] = []
        for server in self._fleet.present:
            if server.residency is not Residency.READY or server.in_flight or server.id in self._leaving:
                continue
            moment = server.used_at + self._keep_alive_s[server.id]
            if moment <= now:
                self._fleet.unload(server, None)
            else:
                moments.append(moment)
        soonest = min(moments, default=None)
        if soonest is not None and (self._wake is None or soonest < self._wake):
            self._wake = soonest
            self._fleet.wake_at(soonest)

    def _forget(self, request: int) -> None:
        if request in self._pending:
            self._pending.remove(request)
        for waiters in self._joined.values():
            if request in waiters:
                waiters.remove(request)


def make_default(models: Sequence[ModelSpec], _limits: Limits) -> Ollama:
    """With every model's own slots."""
    return Ollama(models)


def make_one_slot(models: Sequence[ModelSpec], _limits: Limits) -> Ollama:
    """As it is without a setting: one request at a time on each model."""
    return Ollama(models, parallel=1)
