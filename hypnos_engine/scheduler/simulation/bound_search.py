"""Finds the least total wait that any schedule of a few requests can have, the future being known; knows no policy.

The search goes over the order of loads. Between two loads nothing has to be decided but which requests each leaving
model serves before it goes, so a node is: which requests are still open, which models are loaded since when, when the
loader is free. A node costs the waits that are settled; the rest is estimated from below, which makes the search exact
when it ends and its best open node a lower bound when it is cut short.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, count, permutations, product


@dataclass(frozen=True, slots=True)
class Job:
    """One request: it comes, takes a slot of its model at full speed, and leaves."""

    model: int
    at_s: float
    service_s: float


@dataclass(frozen=True, slots=True)
class Movable:
    """What a model costs to have and to bring."""

    held_bytes: int
    """Bytes of the scarce memory while it is loaded or being loaded."""
    copy_s: float
    """Seconds of the way into that memory, which carries one model at a time."""
    read_s: float
    """Seconds of the disk before the model can be ready for the first time."""
    slots: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """What holds for every model."""

    capacity_bytes: int
    """Of the scarce memory."""
    start_s: float
    """From the order to load until the first byte can be copied; loads may overlap in it."""
    stop_s: float
    """From the order to unload until the memory is free."""
    ahead: bool
    """True: models may be read and loaded before anybody has asked for them. False: nothing is done for a model until
    a request that this stay or a later one serves has come."""


@dataclass(frozen=True, slots=True)
class Found:
    """The least total wait in seconds; no more than a lower bound for it unless `exact`."""

    total_wait_s: float
    exact: bool
    nodes: int


@dataclass(frozen=True, slots=True)
class _Node:
    free_at: float
    """When the way into memory is free for the next load."""
    since: tuple[tuple[int, float], ...]
    """The loaded models and when each became ready, by model."""
    open_jobs: int
    """Bit mask of the requests that are not settled."""
    brought: int
    """Bit mask of the models that have been loaded at least once."""
    wait_s: float
    """Waits of the settled requests."""


@dataclass(frozen=True, slots=True)
class _Ending:
    """A way to serve some requests in one stay: who, how long they wait in all, when the last one ends."""

    jobs: int
    wait_s: float
    ends_at: float


def least_total_wait(models: Sequence[Movable], jobs: Sequence[Job], bounds: Bounds, max_nodes: int = 100_000) -> Found:
    """Search all schedules that begin with nothing loaded.

    Raises ValueError when a model that is asked for does not fit by itself.
    """
    return _Search(models, jobs, bounds).run(max_nodes)


class _Search:
    def __init__(self, models: Sequence[Movable], jobs: Sequence[Job], bounds: Bounds) -> None:
        self._models = models
        self._jobs = jobs
        self._bounds = bounds
        self._of_model = [sum(1 << j for j, job in enumerate(jobs) if job.model == m) for m in range(len(models))]
        for m, model in enumerate(models):
            if self._of_model[m] and model.held_bytes > bounds.capacity_bytes:
                raise ValueError(f"model {m} does not fit by itself")
        self._endings = lru_cache(maxsize=50_000)(self._all_endings)
        self._seen: dict[tuple[int, tuple[int, ...], int], list[tuple[float, ...]]] = {}

    def run(self, max_nodes: int) -> Found:
        order = count()
        root = _Node(0.0, (), (1 << len(self._jobs)) - 1, 0, 0.0)
        heap = [(self._at_least(root), next(order), root)]
        nodes = 0
        while heap:
            bound_s, _, node = heapq.heappop(heap)
            if self._settled(node):
                return Found(bound_s, True, nodes)
            if nodes >= max_nodes:
                return Found(bound_s, False, nodes)
            nodes += 1
            for child in self._children(node):
                if self._is_new(child):
                    heapq.heappush(heap, (max(bound_s, self._at_least(child)), next(order), child))
        raise AssertionError("every request can be served by loading its model next")

    # --- nodes ------------------------------------------------------------------------------------------------------

    def _settled(self, node: _Node) -> bool:
        """Whether every open request's model is loaded; then the estimate of the node is its true cost."""
        reachable = 0
        for model, _ in node.since:
            reachable |= self._of_model[model]
        return not node.open_jobs & ~reachable

    def _children(self, node: _Node) -> Iterator[_Node]:
        loaded = {model for model, _ in node.since}
        for model in range(len(self._models)):
            if model not in loaded and node.open_jobs & self._of_model[model]:
                for leaving in self._victims(node, model):
                    yield from self._loads(node, model, leaving)

    def _victims(self, node: _Node, model: int) -> Iterator[tuple[tuple[int, float], ...]]:
        """Every set of loaded models whose leaving makes room and none of which could stay."""
        sizes = [self._models[m].held_bytes for m, _ in node.since]
        missing = sum(sizes) + self._models[model].held_bytes - self._bounds.capacity_bytes
        for amount in range(len(sizes) + 1):
            for chosen in combinations(range(len(sizes)), amount):
                freed = [sizes[c] for c in chosen]
                if sum(freed) >= missing and all(sum(freed) - size < missing for size in freed):
                    yield tuple(node.since[c] for c in chosen)

    def _loads(self, node: _Node, model: int, leaving: tuple[tuple[int, float], ...]) -> Iterator[_Node]:
        staying = tuple(entry for entry in node.since if entry not in leaving)
        stays = [
            [ending for ending in self._endings(m, since) if ending.jobs and not ending.jobs & ~node.open_jobs]
            for m, since in leaving
        ]
        for endings in product(*stays):
            begin = max([0.0, *(ending.ends_at + self._bounds.stop_s for ending in endings)])
            open_jobs = node.open_jobs
            for ending in endings:
                open_jobs &= ~ending.jobs
            if not self._bounds.ahead:
                begin = max(begin, self._asked_at(open_jobs, model))
            ready = self._ready(node.free_at, begin, node.brought, model)
            since = tuple(sorted((*staying, (model, ready))))
            wait_s = node.wait_s + sum(ending.wait_s for ending in endings)
            yield _Node(ready, since, open_jobs, node.brought | 1 << model, wait_s)

    def _asked_at(self, open_jobs: int, model: int) -> float:
        return min(self._jobs[j].at_s for j in _bits(open_jobs & self._of_model[model]))

    def _ready(self, free_at: float, begin: float, brought: int, model: int) -> float:
        """When a load that begins then is done, if the way into memory is free at `free_at`.

        A first load is not done before the disk has read the model and those that were ready before it.
        """
        what = self._models[model]
        begin += self._bounds.start_s
        ready = max(free_at, begin) + what.copy_s
        if brought >> model & 1:
            return ready
        read_by = what.read_s + sum(self._models[m].read_s for m in _bits(brought))
        return max(ready, read_by, begin + (0.0 if self._bounds.ahead else what.read_s))

    def _is_new(self, node: _Node) -> bool:
        """Remember the node unless one like it that is nowhere later or dearer has been seen."""
        key = (node.open_jobs, tuple(model for model, _ in node.since), node.brought)
        costs = (node.wait_s, node.free_at, *(since for _, since in node.since))
        seen = self._seen.setdefault(key, [])
        if any(all(old <= new for old, new in zip(other, costs, strict=True)) for other in seen):
            return False
        seen[:] = [other for other in seen if not all(n <= o for n, o in zip(costs, other, strict=True))]
        seen.append(costs)
        return True

    # --- estimates --------------------------------------------------------------------------------------------------

    def _at_least(self, node: _Node) -> float:
        """The settled waits and no more than what the open requests will have to wait."""
        total = node.wait_s
        loaded = 0
        for model, since in node.since:
            loaded |= 1 << model
            if mine := node.open_jobs & self._of_model[model]:
                total += min(ending.wait_s for ending in self._endings(model, since) if ending.jobs == mine)
        missing = [m for m in range(len(self._models)) if not loaded >> m & 1 and node.open_jobs & self._of_model[m]]
        return total + min((self._in_turn(node, order) for order in permutations(missing)), default=0.0)

    def _in_turn(self, node: _Node, models: tuple[int, ...]) -> float:
        """Waits if these models were loaded in this order without a pause, with room for all and slots without end."""
        free_at, brought, total = node.free_at, node.brought, 0.0
        for model in models:
            begin = 0.0 if self._bounds.ahead else self._asked_at(node.open_jobs, model)
            ready = self._ready(free_at, begin, brought, model)
            total += sum(max(0.0, ready - self._jobs[j].at_s) for j in _bits(node.open_jobs & self._of_model[model]))
            free_at, brought = ready, brought | 1 << model
        return total

    def _all_endings(self, model: int, since: float) -> list[_Ending]:
        """Every best way to serve each subset of a model's requests in one stay that begins at `since`."""
        slots = self._models[model].slots
        ways: dict[int, list[tuple[float, tuple[float, ...]]]] = {0: [(0.0, (since,) * slots)]}
        mine = list(_bits(self._of_model[model]))
        for amount in range(len(mine)):
            for served in [jobs for jobs in ways if jobs.bit_count() == amount]:
                for wait_s, free in ways[served]:
                    for j in mine:
                        if served >> j & 1:
                            continue
                        begin = max(free[0], self._jobs[j].at_s)
                        after = tuple(sorted((begin + self._jobs[j].service_s, *free[1:])))
                        way = (wait_s + begin - self._jobs[j].at_s, after)
                        _keep_best(ways.setdefault(served | 1 << j, []), way)
        best: list[_Ending] = []
        for served, options in ways.items():
            ends_at = math.inf
            for wait_s, free in sorted(options):
                if free[-1] < ends_at:
                    ends_at = free[-1]
                    best.append(_Ending(served, wait_s, ends_at))
        return best


def _keep_best(ways: list[tuple[float, tuple[float, ...]]], new: tuple[float, tuple[float, ...]]) -> None:
    """Add a way unless another one waits no longer and frees every slot no later."""
    if any(wait <= new[0] and all(a <= b for a, b in zip(free, new[1], strict=True)) for wait, free in ways):
        return
    ways[:] = [
        (wait, free)
        for wait, free in ways
        if not (new[0] <= wait and all(a <= b for a, b in zip(new[1], free, strict=True)))
    ]
    ways.append(new)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
