"""The router of llama.cpp's server as it behaves: a number of models at once, the least recently used one leaves.

Sources: ggml-org/llama.cpp, tools/server/server-models.cpp and README.md (`--models-max`, `--fit`), its pull requests
26572 (the queue of models, August 2026) and 29217 (its races, September 2026). Its rules:

1. A request for a model that is loaded is passed on at once, before everybody who waits for another model.
2. Else its model is put at the end of the queue of models, or the request joins the entry or the load that is there.
3. The queue is served from its head: while fewer than `models_max` models have memory the head is loaded.
4. Else the least recently used model leaves that is loaded and has no request; the head takes its place. Models that
   are in use, or loading, never leave; then the head waits, and all behind it.
5. All that waited for a model are passed on together when it is loaded.
6. Memory is never looked at. A server takes what is free and leaves the other layers to the processor (`--fit`); where
   even that is not possible it does not come up, and everybody who waited for it gets an error (500).

`models_max` is 4 where nobody sets it. The other variant has the largest number with which any models fit wholly
together: what somebody who knows the machine would set.
"""

from collections.abc import Sequence

from hypnos_engine.domain.errors import HypnosError
from hypnos_engine.domain.kinds import Residency
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.limits import Limits
from hypnos_engine.scheduler.placement import Shortage
from hypnos_engine.scheduler.simulation.policies.fleet import Fleet, Server, room_bytes, too_large, whole_bytes

MODELS_MAX = 4


class LlamaRouter:
    """Rules 1 to 6; without a number the largest one with which any models fit together."""

    def __init__(self, models: Sequence[ModelSpec], models_max: int | None) -> None:
        self._fleet = Fleet(models)
        self._models_max = models_max
        self._queue: list[ModelId] = []
        self._waiters: dict[ModelId, list[int]] = {}

    def on(self, event: ev.Event, now: float) -> Sequence[fx.Effect]:
        if self._fleet.take(event):
            return ()
        match event:
            case ev.RequestArrived(request, model):
                self._fleet.arrive(event, now)
                self._arrived(request, model, now)
            case ev.LeaseEnded(request):
                self._fleet.ended(request, now)
                self._serve_queue(now)
            case ev.RequestCancelled(request):
                self._forget(request)
                self._fleet.ended(request, now)
                self._serve_queue(now)
            case ev.LoadFinished(model):
                self._fleet.loaded(model, now)
                for request in self._waiters.pop(model, ()):  # 5
                    self._fleet.pass_on(request, now)
                self._serve_queue(now)
            case ev.LoadFailed(model, error):
                self._fleet.gone(model)
                self._fail(model, error)
                self._serve_queue(now)
            case ev.UnloadFinished(model):
                self._fleet.gone(model)
                self._serve_queue(now)
            case _:
                pass
        return self._fleet.done()

    def _arrived(self, request: int, model: ModelId, now: float) -> None:
        server = self._fleet.servers[model]
        if server.residency is Residency.READY:  # 1
            self._fleet.pass_on(request, now)
            return
        self._waiters.setdefault(model, []).append(request)  # 2
        if server.residency is not Residency.LOADING and model not in self._queue:
            self._queue.append(model)
        self._serve_queue(now)

    def _serve_queue(self, now: float) -> None:
        while self._queue:
            head = self._fleet.servers[self._queue[0]]
            present = self._fleet.present
            if head.residency is Residency.UNLOADING:
                return
            if len(present) < self._most():  # 3
                del self._queue[0]
                self._load(head, now)
                continue
            leaving = any(server.residency is Residency.UNLOADING for server in present)
            idle = [server for server in present if self._may_leave(server)]
            if not leaving and idle:  # 4
                self._fleet.unload(min(idle, key=lambda server: server.used_at), head.id)
            return

    def _may_leave(self, server: Server) -> bool:
        return server.residency is Residency.READY and not server.in_flight

    def _load(self, server: Server, now: float) -> None:
        placed = self._fleet.plan(server, self._fleet.free())
        if isinstance(placed, Shortage):
            self._fail(server.id, too_large(server, placed))  # 6
        else:
            self._fleet.load(server, placed, now)

    def _fail(self, model: ModelId, error: HypnosError) -> None:
        for request in self._waiters.pop(model, ()):
            self._fleet.refuse(request, error)

    def _forget(self, request: int) -> None:
        """A caller has left: an entry of the queue that nobody is behind any more goes too."""
        for model, waiters in tuple(self._waiters.items()):
            if request in waiters:
                waiters.remove(request)
                if not waiters:
                    del self._waiters[model]
                    self._queue = [queued for queued in self._queue if queued != model]

    def _most(self) -> int:
        if self._models_max is None:
            self._models_max = fitting_count(self._fleet)
        return self._models_max


def fitting_count(fleet: Fleet) -> int:
    """The largest number of models of which any choice fits wholly together; at least 1."""
    sizes = sorted((whole_bytes(fleet, server) for server in fleet.servers.values()), reverse=True)
    left, count = room_bytes(fleet.budgets), 0
    for size in sizes:
        left -= size
        if left < 0:
            break
        count += 1
    return max(1, count)


def make_default(models: Sequence[ModelSpec], _limits: Limits) -> LlamaRouter:
    """As it is without an option."""
    return LlamaRouter(models, MODELS_MAX)


def make_fitted(models: Sequence[ModelSpec], _limits: Limits) -> LlamaRouter:
    """With the number of models that the machine has room for."""
    return LlamaRouter(models, None)
