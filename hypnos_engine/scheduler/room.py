"""Who would have to leave so that a model fits. Asks only: nothing here changes the state."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hypnos_engine.domain.kinds import Pages, Priority, Residency, Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler.ledger import Gone, Item, What, plan_without
from hypnos_engine.scheduler.placement import Plan
from hypnos_engine.scheduler.state import ModelState, State

RANK = {priority: rank for rank, priority in enumerate(Priority)}
ANNOUNCED_S = 15.0
"""For so long an announced model counts as about to be asked."""
ANNOUNCED_PER_MINUTE = 60.0
"""The rate of requests that an announcement stands for: one within the next second."""
PARKED_S = 1.0
"""What computing parked conversations again takes, as far as a comparison with loads goes."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that could leave, and what that would cost."""

    item: Item
    rank: int
    """Of the priority; lower leaves first."""
    cost: float
    """Expected seconds of loading per minute that its loss brings."""
    last_used_at: float


@dataclass(frozen=True, slots=True)
class Victims:
    """What has to leave, and what was spared."""

    chosen: tuple[Candidate, ...]
    spared: tuple[Candidate, ...]

    @property
    def cost(self) -> float:
        return sum(candidate.cost for candidate in self.chosen)


def loss(state: State, model: ModelState, now: float) -> float:
    """What unloading the model costs: the measured reload time times the rate of its requests."""
    rate = model.requests_per_minute(now)
    if model.announced_at is not None and now - model.announced_at < ANNOUNCED_S:
        rate = max(rate, ANNOUNCED_PER_MINUTE)
    return state.reload_s(model, Tier.GPU) * rate


def victims(
    state: State,
    model: ModelState,
    now: float,
    enough: Callable[[Plan], bool],
    *,
    closed: frozenset[ModelId] = frozenset(),
) -> Victims | None:
    """What is idle and has to leave so that `model` fits: cheapest loss first, no more than needed; None = not enough.

    It fits with a plan that is `enough`.
    Models in `closed` count as idle although requests wait for them: they are kept from granting.
    """
    return _fewest(state, model, sorted(_droppable(state, model, now, closed), key=_order), Gone(), enough)


def in_the_way(
    state: State, model: ModelState, now: float, leaving: Gone, enough: Callable[[Plan], bool]
) -> frozenset[ModelId] | None:
    """The models, busy or not, that have to take no more requests so that `model` fits some time; None = in vain.

    What is in `leaving` is counted as gone already.
    """
    busy = [
        _worker(state, other, now)
        for name, other in state.models.items()
        if other is not model
        and other.may_leave
        and name not in leaving.models
        and (other.residency is Residency.READY or other.residency is Residency.LOADING)
    ]
    # Idle ones first: they hurt nobody. Then those that lose least.
    ordered = sorted(
        busy, key=lambda candidate: (not state.models[ModelId(candidate.item.name)].idle, *_order(candidate))
    )
    found = _fewest(state, model, [*_droppable_memory(state, model, now), *ordered], leaving, enough)
    if found is None:
        return None
    return frozenset(ModelId(candidate.item.name) for candidate in found.chosen if candidate.item.what is What.WORKER)


def _fewest(
    state: State, model: ModelState, ordered: list[Candidate], before: Gone, enough: Callable[[Plan], bool]
) -> Victims | None:
    """Take from the front until the model fits, then give back what was not needed, the costliest first.

    1. Pages and parked conversations alone, if they are enough: losing them costs time only.
    2. Workers alone, if they are enough: pages in host memory are no help where an accelerator is full.
    3. Both.
    """
    fits = _question(state, model, before, enough)
    memory = [candidate for candidate in ordered if candidate.item.what is not What.WORKER]
    workers = [candidate for candidate in ordered if candidate.item.what is What.WORKER]
    chosen: list[Candidate] | None = None
    if memory and fits(memory):
        chosen = _first(memory, fits)  # 1
    if chosen is None:
        chosen = _first(workers, fits)  # 2
    if chosen is None and memory and workers and fits(ordered):
        chosen = _first([*memory, *workers], fits)  # 3
    if chosen is None:
        return None
    for candidate in chosen[-2::-1]:
        fewer = [other for other in chosen if other is not candidate]
        if fits(fewer):
            chosen = fewer
    return Victims(tuple(chosen), tuple(other for other in workers if other not in chosen))


def _first(ordered: list[Candidate], fits: Callable[[list[Candidate]], bool]) -> list[Candidate] | None:
    chosen: list[Candidate] = []
    for candidate in ordered:
        chosen.append(candidate)
        if fits(chosen):
            return chosen
    return None


def _question(
    state: State, model: ModelState, before: Gone, enough: Callable[[Plan], bool]
) -> Callable[[list[Candidate]], bool]:
    def fits(chosen: list[Candidate]) -> bool:
        gone = before | Gone.of(candidate.item for candidate in chosen)
        plan = plan_without(state, model, gone)
        return isinstance(plan, Plan) and enough(plan)

    return fits


def _droppable(state: State, model: ModelState, now: float, closed: frozenset[ModelId]) -> Iterable[Candidate]:
    for name, other in state.models.items():
        if other is model or not other.may_leave or other.move is not None:
            continue
        free = other.residency is Residency.READY and not other.leases and not other.resizing
        if free and (not other.waiting or name in closed):
            yield _worker(state, other, now)
    yield from _droppable_memory(state, model, now)


def _droppable_memory(state: State, model: ModelState, now: float) -> Iterable[Candidate]:
    """Pages and parked conversations: what can leave at once and costs time only."""
    for path, files in state.files.items():
        if files.pages is Pages.HELD and path != model.spec.weights_path and not state.is_read(path):
            yield _pages(state, path, now)
    for name, other in state.models.items():
        if other.parked_bytes and other is not model and other.residency is Residency.COLD:
            cost = PARKED_S * other.requests_per_minute(now)
            yield Candidate(Item(What.PARKED, name), RANK[other.spec.priority], cost, other.last_used_at)


def _worker(state: State, model: ModelState, now: float) -> Candidate:
    item = Item(What.WORKER, model.spec.id)
    return Candidate(item, RANK[model.spec.priority], loss(state, model, now), model.last_used_at)


def _pages(state: State, path: str, now: float) -> Candidate:
    """Held pages: the next load would have to read the disk."""
    users = tuple(state.users(path))
    cost = sum(saved_s(state, user) * user.requests_per_minute(now) for user in users)
    # Pages that were asked to stay go after everything else of their priority.
    kept = any(user.spec.keep_warm_in_ram for user in users)
    rank = max((RANK[user.spec.priority] for user in users), default=0)
    last = max((user.last_used_at for user in users), default=0.0)
    return Candidate(Item(What.PAGES, path), rank, cost + (1e9 if kept else 0.0), last)


def saved_s(state: State, model: ModelState) -> float:
    """Seconds of a load that held pages save."""
    return max(0.0, state.reload_s(model, Tier.DISK) - state.reload_s(model, Tier.RAM))


def _order(candidate: Candidate) -> tuple[float, ...]:
    return (candidate.rank, candidate.cost, candidate.last_used_at)
