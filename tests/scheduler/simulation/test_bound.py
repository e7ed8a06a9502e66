"""The bound on waiting: known optima, an independent exhaustive search, and that no policy ever does better."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations
from random import Random

import pytest

from hypnos_engine.scheduler.limits import Limits
from hypnos_engine.scheduler.simulation.bound import least_mean_wait
from hypnos_engine.scheduler.simulation.bound_search import Bounds, Found, Job, Movable, least_total_wait
from hypnos_engine.scheduler.simulation.machine import SimMachine, SimModel, models_of
from hypnos_engine.scheduler.simulation.policies.catalog import POLICIES
from hypnos_engine.scheduler.simulation.run import simulate
from hypnos_engine.scheduler.simulation.trace import TraceModel, TraceRequest

NOTHING = Bounds(capacity_bytes=1, start_s=0.0, stop_s=0.0, ahead=True)


def least(models: list[Movable], jobs: list[tuple[int, float, float]], bounds: Bounds = NOTHING) -> Found:
    found = least_total_wait(models, [Job(*job) for job in jobs], bounds)
    assert found.exact
    return found


def one_at_a_time(count: int, copy_s: float = 4.0) -> list[Movable]:
    return [Movable(held_bytes=1, copy_s=copy_s, read_s=0.0, slots=1) for _ in range(count)]


def test_whoever_knows_the_future_loads_ahead_of_it() -> None:
    assert least(one_at_a_time(1), [(0, 10.0, 1.0)]).total_wait_s == 0.0


def test_who_does_nothing_ahead_waits_for_the_load() -> None:
    bounds = Bounds(1, start_s=1.0, stop_s=0.5, ahead=False)
    assert least(one_at_a_time(1), [(0, 10.0, 1.0)], bounds).total_wait_s == 5.0


def test_one_swap_costs_the_end_of_the_worker_and_the_load() -> None:
    # 0 is ready at 5 and busy to 7; its worker has gone at 7.5; 1 is ready at 12.5.
    bounds = Bounds(1, start_s=1.0, stop_s=0.5, ahead=True)
    assert least(one_at_a_time(2), [(0, 0.0, 2.0), (1, 0.0, 2.0)], bounds).total_wait_s == 5.0 + 12.5


def test_a_b_a_b_is_served_as_a_a_b_b() -> None:
    jobs = [(0, 0.0, 1.0), (1, 0.0, 1.0), (0, 0.0, 1.0), (1, 0.0, 1.0)]
    # Ready at 4: waits 4 and 5; ends at 6; the other one is ready at 10: waits 10 and 11.
    assert least(one_at_a_time(2), jobs).total_wait_s == 30.0


def test_a_request_soon_to_come_is_worth_holding_the_model_for() -> None:
    # The second request for 0 comes one second after the first one's end; swapping twice for 1 would cost it 9.
    jobs = [(0, 4.0, 1.0), (0, 6.0, 1.0), (1, 5.0, 1.0)]
    assert least(one_at_a_time(2), jobs).total_wait_s == 7.0 + 4.0 - 5.0


def test_a_long_request_can_stand_back() -> None:
    # One slot: the short one first, although the long one came earlier.
    assert least(one_at_a_time(1), [(0, 0.0, 100.0), (0, 0.0, 1.0)]).total_wait_s == 4.0 + 5.0


def test_a_slot_may_be_left_idle_for_a_short_request_soon_to_come() -> None:
    assert least(one_at_a_time(1), [(0, 4.0, 100.0), (0, 5.0, 1.0)]).total_wait_s == 2.0


def test_first_loads_wait_for_the_disk_one_after_the_other() -> None:
    models = [Movable(1, copy_s=1.0, read_s=10.0, slots=1) for _ in range(2)]
    bounds = Bounds(2, start_s=0.0, stop_s=0.0, ahead=True)
    assert least(models, [(0, 0.0, 1.0), (1, 0.0, 1.0)], bounds).total_wait_s == 10.0 + 20.0


def test_later_loads_do_not() -> None:
    models = [Movable(1, copy_s=1.0, read_s=10.0, slots=1), Movable(1, copy_s=1.0, read_s=0.0, slots=1)]
    jobs = [(0, 10.0, 1.0), (1, 11.0, 1.0), (0, 12.0, 1.0)]
    assert least(models, jobs).total_wait_s == 1.0 + 2.0


def test_what_does_not_fit_by_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        least([Movable(2, 1.0, 0.0, 1)], [(0, 0.0, 1.0)])


def test_a_search_cut_short_is_no_more_than_the_least() -> None:
    models = one_at_a_time(3)
    dice = Random(5)
    jobs = [Job(dice.randrange(3), dice.uniform(0, 20), dice.uniform(1, 5)) for _ in range(8)]
    whole = least_total_wait(models, jobs, NOTHING)
    bounds = [least_total_wait(models, jobs, NOTHING, max_nodes) for max_nodes in (0, 1, 10, 50)]
    assert whole.exact
    assert not bounds[0].exact
    assert all(short.total_wait_s <= whole.total_wait_s + 1e-9 for short in bounds)
    assert bounds[0].total_wait_s <= bounds[-1].total_wait_s


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_an_exhaustive_search_finds_the_same(seed: int, ahead: bool) -> None:
    """The reference goes second by second and tries everything that could be done in each of them."""
    dice = Random(seed)
    models = [Movable(dice.choice((1, 1, 2)), dice.choice((1.0, 2.0)), 0.0, dice.choice((1, 2))) for _ in range(3)]
    jobs = [Job(dice.randrange(3), float(dice.randrange(6)), float(dice.randrange(1, 4))) for _ in range(4)]
    bounds = Bounds(2, 0.0, 0.0, ahead)
    assert least_total_wait(models, jobs, bounds).total_wait_s == pytest.approx(tried_out(models, jobs, bounds))


def tried_out(models: list[Movable], jobs: list[Job], bounds: Bounds) -> float:
    """Least total wait over all that can be done at whole seconds."""
    horizon = 24

    @cache
    def rest(now: int, there: tuple[tuple[int, int], ...], running: tuple[tuple[int, int], ...], waiting: int) -> float:
        """Waits from now on. `there`: models and when each is ready; `running`: models and when each request ends."""
        if not waiting:
            return 0.0
        if now == horizon:
            return float("inf")
        best = float("inf")
        for present in after_loads(now, there, running, waiting):
            for started in startable(now, present, running, waiting):
                left = waiting
                busy = list(running)
                for j in started:
                    left &= ~(1 << j)
                    busy.append((jobs[j].model, now + int(jobs[j].service_s)))
                waits = sum(1 for j in range(len(jobs)) if left >> j & 1 and jobs[j].at_s <= now)
                still = tuple(sorted((m, end) for m, end in busy if end > now + 1))
                loaded = tuple((m, ready if ready > now + 1 else 0) for m, ready in present)
                best = min(best, waits + rest(now + 1, loaded, still, left))
        return best

    def after_loads(
        now: int, there: tuple[tuple[int, int], ...], running: tuple[tuple[int, int], ...], waiting: int
    ) -> Iterator[tuple[tuple[int, int], ...]]:
        yield there
        if any(ready > now for _, ready in there):
            return  # one transfer at a time
        idle = [m for m, _ in there if m not in {busy for busy, end in running if end > now}]
        for amount in range(len(idle) + 1):
            for gone in combinations(idle, amount):
                stays = tuple((m, ready) for m, ready in there if m not in gone)
                asked = {
                    job.model for j, job in enumerate(jobs) if waiting >> j & 1 and (bounds.ahead or job.at_s <= now)
                }
                for new in asked - {m for m, _ in stays}:
                    if sum(models[m].held_bytes for m, _ in stays) + models[new].held_bytes <= bounds.capacity_bytes:
                        yield tuple(sorted((*stays, (new, now + int(models[new].copy_s)))))

    def startable(
        now: int, there: tuple[tuple[int, int], ...], running: tuple[tuple[int, int], ...], waiting: int
    ) -> Iterator[tuple[int, ...]]:
        ready = {m for m, since in there if since <= now}
        able = [j for j, job in enumerate(jobs) if waiting >> j & 1 and job.at_s <= now and job.model in ready]
        for amount in range(len(able) + 1):
            for chosen in combinations(able, amount):
                load = [m for m, end in running if end > now] + [jobs[j].model for j in chosen]
                if all(load.count(m) <= models[m].slots for m in ready):
                    yield chosen

    return rest(0, (), (), (1 << len(jobs)) - 1)


# --- against the simulator ------------------------------------------------------------------------------------------


def text(name: str, gb: float, slots: int = 2) -> TraceModel:
    return TraceModel(
        id=name,
        weight_bytes=int(gb * 1e9),
        kv_bytes_per_cell=0,
        slots=slots,
        min_gpu_layer_ratio=1.0,
        batch_gain=10_000.0,
    )


CARD = SimMachine(64 * 2**30, (12 * 2**30,), disk_bytes_per_s=4e9, device_bytes_per_s=20e9)
POOL = SimMachine(20 * 2**30, unified=True, disk_bytes_per_s=4e9)


def test_one_request_waits_for_the_disk_and_no_policy_less() -> None:
    models = models_of([text("a", 8)])
    trace = [TraceRequest(id="r", model="a", service_s=1.0)]
    assert least_mean_wait(trace, models, CARD).mean_wait_s == pytest.approx(2.0)
    # A policy that waits to be asked has to start a process first.
    assert least_mean_wait(trace, models, CARD, ahead=False).mean_wait_s == pytest.approx(3.0)
    assert served_wait_s("llama-swap", trace, models, CARD) == pytest.approx(3.0, abs=1e-6)


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        ([], "0 requests"),
        ([TraceRequest(id=f"r{n}", model="a", service_s=1.0) for n in range(17)], "17 requests"),
        (
            [
                TraceRequest(id="r", model="a", service_s=1.0),
                TraceRequest(id="s", model="a", service_s=1.0, after=("r",)),
            ],
            "after another",
        ),
    ],
)
def test_traces_that_the_bound_would_be_wrong_about_are_refused(trace: list[TraceRequest], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        least_mean_wait(trace, models_of([text("a", 8)]), CARD)


def test_models_that_the_processor_may_help_with_are_refused() -> None:
    models = models_of([TraceModel(id="a", weight_bytes=8 * 10**9)])
    with pytest.raises(ValueError, match="processor"):
        least_mean_wait([TraceRequest(id="r", model="a", service_s=1.0)], models, CARD)


@pytest.mark.parametrize("machine", [CARD, POOL], ids=["card", "pool"])
@pytest.mark.parametrize("group", range(5))
def test_no_policy_ever_waits_less(group: int, machine: SimMachine) -> None:
    compared = 0
    for seed in range(25 * group, 25 * (group + 1)):
        dice = Random(seed)
        models = models_of([text(f"m{n}", dice.choice((2, 4, 6, 8)), dice.choice((1, 2))) for n in range(4)])
        trace = [
            TraceRequest(
                id=f"r{n}",
                model=f"m{dice.randrange(4)}",
                at_s=dice.uniform(0, 20),
                service_s=dice.uniform(0.2, 6),
                next_model=f"m{dice.randrange(4)}",
            )
            for n in range(dice.randrange(2, 9))
        ]
        trace.sort(key=lambda request: request.at_s)
        bound = least_mean_wait(trace, models, machine)
        for policy in POLICIES:
            wait_s = served_wait_s(policy, trace, models, machine)
            if wait_s is not None:
                compared += 1
                assert wait_s >= bound.mean_wait_s - 1e-6, f"{policy} beats the bound with seed {seed}"
    assert compared > 100


def served_wait_s(
    policy: str, trace: Sequence[TraceRequest], models: Sequence[SimModel], machine: SimMachine
) -> float | None:
    """Mean wait of a policy that serves everybody; None when it does not."""
    made = POLICIES[policy]([model.spec for model in models], Limits(max_queue_per_model=1000))
    result = simulate(trace, models, machine, made)
    return result.wait.mean_s if len(result.waits) == len(trace) else None
