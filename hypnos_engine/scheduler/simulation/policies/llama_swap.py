"""llama-swap as it behaves: groups that the user wrote decide who may stay, memory is never looked at.

Sources: mostlygeek/llama-swap, internal/router/scheduler/fifo.go (the queue), internal/router/group.go (the groups),
as of August 2026; its pull request 790 (grouping of queued requests). Its rules, in the order in which a request meets
them:

1. A request for a model whose swap is under way joins that swap; all that joined are served when it is done.
2. A request for a model that runs, that needs nobody to leave and that no swap will stop, is passed on at once, before
   everybody who waits for another model.
3. A request whose swap would touch a model of a swap under way, or would stop a model that has requests, waits.
4. Else its swap begins: those who must leave are stopped, then the model is started. Swaps that stop different models
   run at the same time.
5. Who must leave: of the model's own group all others if the group swaps; of other groups everybody if the group is
   exclusive, except members of persistent groups.
6. When a swap is done, or a model's last request has ended, the queue is walked once in order of arrival and each
   request meets rules 1 to 3 again. So A B C A B C is served A A B B C C. Nothing bounds a wait.
7. At most 10 requests are passed on to one model at once; one more is refused (429).
8. A model whose server does not come up refuses everybody who joined its swap.

Without groups all models are one group that swaps and is exclusive: one model at a time. With llama.cpp's own fitting a
server takes what is free and leaves the rest of its layers to the processor; the planner does the same here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hypnos_engine.domain.errors import HypnosError
from hypnos_engine.domain.kinds import Residency
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.limits import Limits
from hypnos_engine.scheduler.placement import Shortage
from hypnos_engine.scheduler.simulation.policies.fleet import Fleet, room_bytes, too_busy, too_large, whole_bytes

CONCURRENCY_LIMIT = 10


@dataclass(frozen=True, slots=True)
class SwapGroup:
    """One group of its configuration."""

    members: frozenset[ModelId]
    swap: bool = True
    exclusive: bool = True
    persistent: bool = False


@dataclass(slots=True)
class _Swap:
    target: ModelId
    evicts: frozenset[ModelId]
    waiters: list[int] = field(default_factory=list)


class LlamaSwap:
    """Rules 1 to 8. Groups that are not given are chosen as a careful user would: see `fitting_groups`."""

    def __init__(
        self,
        models: Sequence[ModelSpec],
        groups: Sequence[SwapGroup] | None,
        concurrency_limit: int = CONCURRENCY_LIMIT,
    ) -> None:
        self._fleet = Fleet(models)
        self._concurrency_limit = concurrency_limit
        self._groups = groups
        self._active: dict[ModelId, _Swap] = {}
        self._queue: list[int] = []

    def on(self, event: ev.Event, now: float) -> Sequence[fx.Effect]:
        if self._fleet.take(event):
            return ()
        match event:
            case ev.RequestArrived(request):
                self._fleet.arrive(event, now)
                if not self._try(request, now):
                    self._queue.append(request)
            case ev.LeaseEnded(request):
                self._ended(request, now)
            case ev.RequestCancelled(request):
                self._forget(request)
                self._ended(request, now)
            case ev.UnloadFinished(model):
                self._fleet.gone(model)
                for swap in tuple(self._active.values()):
                    if model in swap.evicts:
                        self._start_when_clear(swap, now)
            case ev.LoadFinished(model):
                self._fleet.loaded(model, now)
                self._swapped(model, None, now)
            case ev.LoadFailed(model, error):
                self._fleet.gone(model)
                self._swapped(model, error, now)
            case _:
                pass
        return self._fleet.done()

    def _forget(self, request: int) -> None:
        """A caller has left; a swap that was begun for it goes on."""
        self._queue = [other for other in self._queue if other != request]
        for swap in self._active.values():
            swap.waiters = [other for other in swap.waiters if other != request]

    def _ended(self, request: int, now: float) -> None:
        server = self._fleet.ended(request, now)
        if server is not None and not server.in_flight:
            self._walk(now)  # 6

    def _try(self, request: int, now: float) -> bool:
        """Rules 1 to 4; False when the request has to wait."""
        model = self._fleet.model_of(request)
        if (joined := self._active.get(model)) is not None:  # 1
            joined.waiters.append(request)
            return True
        server = self._fleet.servers[model]
        evicts = self._evicted_for(model)
        collides = any(
            swap.target in evicts or model in swap.evicts or evicts & swap.evicts for swap in self._active.values()
        )
        if collides:  # 3
            return False
        if server.residency is Residency.READY and not evicts:  # 2
            self._pass_on(request, now)
            return True
        if any(self._fleet.servers[other].in_flight for other in evicts):  # 3
            return False
        swap = self._active[model] = _Swap(model, evicts, [request])  # 4
        for other in sorted(evicts):
            if self._fleet.servers[other].residency is Residency.READY:
                self._fleet.unload(self._fleet.servers[other], model)
        self._start_when_clear(swap, now)
        return True

    def _evicted_for(self, target: ModelId) -> frozenset[ModelId]:
        """Rule 5, over everybody who runs or is about to."""
        if self._groups is None:
            self._groups = fitting_groups(self._fleet)
        running = {server.id for server in self._fleet.present} | self._active.keys()
        own = next(group for group in self._groups if target in group.members)
        leaving: set[ModelId] = set()
        for group in self._groups:
            if group is own:
                leaving |= group.members if group.swap else frozenset()
            elif own.exclusive and not group.persistent:
                leaving |= group.members
        return frozenset((leaving & running) - {target})

    def _start_when_clear(self, swap: _Swap, now: float) -> None:
        servers = self._fleet.servers
        if any(servers[other].residency is not Residency.COLD for other in swap.evicts):
            return
        server = servers[swap.target]
        if server.residency is Residency.READY:  # it ran already, and only others had to leave
            self._swapped(swap.target, None, now)
            return
        placed = self._fleet.plan(server, self._fleet.free())
        if isinstance(placed, Shortage):
            self._swapped(swap.target, too_large(server, placed), now)  # 8
        else:
            self._fleet.load(server, placed, now)

    def _swapped(self, model: ModelId, error: HypnosError | None, now: float) -> None:
        swap = self._active.pop(model)
        for request in swap.waiters:
            if error is None:
                self._pass_on(request, now)
            else:
                self._fleet.refuse(request, error)
        self._walk(now)  # 6

    def _walk(self, now: float) -> None:
        pending, self._queue = self._queue, []
        self._queue += [request for request in pending if not self._try(request, now)]

    def _pass_on(self, request: int, now: float) -> None:
        model = self._fleet.model_of(request)
        if self._fleet.servers[model].in_flight >= self._concurrency_limit:  # 7
            self._fleet.refuse(request, too_busy(model, self._concurrency_limit))
        else:
            self._fleet.pass_on(request, now)


def fitting_groups(fleet: Fleet) -> tuple[SwapGroup, ...]:
    """What a careful user writes: the smallest models stay beside any one of the others, which take turns.

    As many of the smallest models as fit wholly beside the largest one are a persistent group that does not swap; the
    others swap among themselves. So whatever runs fits.
    """
    sizes = {server.id: whole_bytes(fleet, server) for server in fleet.servers.values()}
    by_size = sorted(sizes, key=lambda model: (sizes[model], model))
    left = room_bytes(fleet.budgets) - sizes[by_size[-1]]
    staying: list[ModelId] = []
    for model in by_size[:-1]:
        left -= sizes[model]
        if left < 0:
            break
        staying.append(model)
    turns = [model for model in by_size if model not in staying]
    groups = [SwapGroup(frozenset(turns), swap=len(turns) > 1, exclusive=False)]
    if staying:
        groups.append(SwapGroup(frozenset(staying), swap=False, exclusive=False, persistent=True))
    return tuple(groups)


def one_at_a_time(models: Iterable[ModelSpec]) -> tuple[SwapGroup, ...]:
    """What holds without groups in its configuration."""
    return (SwapGroup(frozenset(spec.id for spec in models)),)


def make_default(models: Sequence[ModelSpec], limits: Limits) -> LlamaSwap:
    """One model at a time; its own limit of requests, unless the owner's is higher (`concurrencyLimit`)."""
    return LlamaSwap(models, one_at_a_time(models), max(CONCURRENCY_LIMIT, limits.max_queue_per_model))


def make_grouped(models: Sequence[ModelSpec], limits: Limits) -> LlamaSwap:
    """With the groups that a careful user writes for the machine; the limit as by default."""
    return LlamaSwap(models, None, max(CONCURRENCY_LIMIT, limits.max_queue_per_model))
