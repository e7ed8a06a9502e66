"""Who is next: among a model's waiters, and among the models that wait to be loaded.

The order, from the strongest reason to the weakest:

1. Waiters at their bound (`limits.max_overtakes`, `limits.max_overtaken_secs`), the oldest first; then the model for
   which others have left already.
2. Deadlines that would soon be missed and can still be met, the nearest first.
3. The priority of the model.
4. The fair share of the key, by its weight.
5. Grouping: the model for whose load most requests wait, for the time that it takes.
6. Arrival.
"""

from collections.abc import Iterable

from hypnos_engine.domain.kinds import Residency
from hypnos_engine.scheduler.room import RANK
from hypnos_engine.scheduler.state import ModelState, State, Waiting

URGENT = 2.0
"""A deadline is urgent when less than so many times the expected wait is left until it."""
UNKNOWN_SERVICE_S = 1.0
"""What a request of a model takes that has not answered any yet."""

_LATER = float("inf")
_LEAST_S = 1e-3


def at_bound(state: State, waiting: Waiting) -> bool:
    """Whether nobody who came later may be served before this request any more."""
    limits = state.limits
    return waiting.overtaken >= limits.max_overtakes or waiting.overtaken_s >= limits.max_overtaken_s


def overdue(state: State, models: Iterable[ModelState]) -> list[tuple[ModelState, Waiting]]:
    """The waiters at their bound whose models are not loaded, the oldest of each model, oldest first."""
    found = [
        (model, first)
        for model in models
        for first in (next((w for w in model.waiting.values() if at_bound(state, w)), None),)
        if first is not None
    ]
    return sorted(found, key=lambda pair: pair[1].arrived_at)


def next_waiter(state: State, model: ModelState, now: float, before: float) -> Waiting | None:
    """The request that gets the model's next free slot; only those that arrived up to `before` count."""
    waiters = model.waiting
    first = next(iter(waiters.values()))
    if len(waiters) == 1 or first.returned:
        return first if first.arrived_at <= before else None
    if state.shares.single and all(waiter.deadline_at is None for waiter in waiters.values()):
        return first if first.arrived_at <= before else None
    return min(
        (waiter for waiter in waiters.values() if waiter.arrived_at <= before),
        key=lambda waiter: _waiter_key(state, model, waiter, now),
        default=None,
    )


def _waiter_key(state: State, model: ModelState, waiter: Waiting, now: float) -> tuple[float, ...]:
    if waiter.returned or at_bound(state, waiter):
        return (0.0, waiter.arrived_at)  # 1
    return (
        1.0,
        _urgency(state, model, waiter, now),  # 2
        state.shares.turn(waiter.key),  # 4
        waiter.arrived_at,  # 6
    )


def candidates(wanted: list[ModelState], state: State, now: float) -> list[ModelState]:
    """The models that wait to be loaded, in the order in which that is tried."""
    asked = [model for model in wanted if model.waiting or model.staged or model.promoted]
    if len(asked) > 1:
        asked.sort(key=lambda model: _model_key(state, model, now))
    return asked


def _model_key(state: State, model: ModelState, now: float) -> tuple[float, ...]:
    if model.promoted:
        return (-1.0,)
    if model.promised and not any(at_bound(state, waiter) for waiter in model.waiting.values()):
        return (0.5,)
    if not model.waiting:
        return (9.0, -float(RANK[model.spec.priority]))
    waiters = model.waiting.values()
    bound = min((waiter.arrived_at for waiter in waiters if at_bound(state, waiter)), default=_LATER)
    shares = state.shares
    return (
        0.0 if bound < _LATER else 1.0,
        bound,  # 1
        min(_urgency(state, model, waiter, now) for waiter in waiters),  # 2
        -float(RANK[model.spec.priority]),  # 3
        0.0 if shares.single else float(min(shares.rank(waiter.key) for waiter in waiters)),  # 4
        -len(waiters) / max(state.reload_s(model) + service_s(model), _LEAST_S),  # 5
        model.oldest().arrived_at,  # 6
    )


def _urgency(state: State, model: ModelState, waiter: Waiting, now: float) -> float:
    """The deadline, when it is near and can be met; else a moment that never comes."""
    if waiter.deadline_at is None or now < urgent_at(state, model, waiter.deadline_at):
        return _LATER
    load = 0.0 if model.residency is Residency.READY else state.reload_s(model)
    return waiter.deadline_at if now + load <= waiter.deadline_at else _LATER


def urgent_at(state: State, model: ModelState, deadline_at: float) -> float:
    """When a deadline begins to count."""
    load = 0.0 if model.residency is Residency.READY else state.reload_s(model)
    return deadline_at - URGENT * (load + service_s(model))


def service_s(model: ModelState) -> float:
    """How long one request of the model takes, as far as is known."""
    return UNKNOWN_SERVICE_S if model.service_s is None else model.service_s


def expected_wait_s(state: State, model: ModelState) -> float:
    """Seconds that one more request would wait (contract §1): those in excess of the slots, and the load."""
    ahead = len(model.waiting) + len(model.leases)
    excess = max(0, ahead + 1 - model.spec.slots)
    load = 0.0
    if model.residency is Residency.LOADING:
        load = state.reload_s(model, model.loading_from) * (1.0 - model.load_fraction)
    elif model.residency is not Residency.READY:
        load = state.reload_s(model)
    return excess * (model.service_s or 0.0) + load


def crowded_out(state: State, ready: Iterable[ModelState]) -> list[tuple[float, ModelState]]:
    """Ready models whose oldest waiter was held up to its bound by what runs beside it, with that waiter's arrival."""
    limit = state.limits.max_overtaken_s
    return [
        (model.oldest().arrived_at, model) for model in ready if is_full(model) and model.oldest().crowded_s >= limit
    ]


def is_full(model: ModelState) -> bool:
    """Whether somebody waits for a slot of the model; work that nobody sits in front of does not count."""
    return bool(model.waiting) and len(model.leases) >= model.spec.slots and not model.is_batch


def crowd(granted: Waiting, served_s: float, waiters: Iterable[Waiting]) -> None:
    """Count a grant of another model against everyone in `waiters` who came before."""
    for waiter in waiters:
        if waiter.arrived_at < granted.arrived_at:
            waiter.crowded_s += served_s


def overtake(state: State, granted: Waiting, served_s: float, waiters: Iterable[Waiting]) -> None:
    """Count a grant against everyone in `waiters` who came before."""
    for waiter in waiters:
        if waiter.arrived_at < granted.arrived_at:
            waiter.overtaken += 1
            waiter.overtaken_s += served_s
