"""What is compared: policies, generators, machines, loads, seeds; and how one run is counted. Runs nothing in parallel.

How a request counts that was not served. Queues are as good as endless for every policy and nobody gives up, so all
policies have the same requests to serve and a served request counts as it waited. One that a policy refused, left
stranded or never let arrive (it comes after such a one) counts as waiting to the end of the run, and never less than
`limits.request_timeout_secs` would have let it wait. So nothing is gained by refusing.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.policy.comparing import quantile
from hypnos_engine.config.limit_settings import LimitSettings
from hypnos_engine.domain.kinds import Residency
from hypnos_engine.scheduler.limits import Limits
from hypnos_engine.scheduler.simulation.generators import GENERATORS
from hypnos_engine.scheduler.simulation.generators_machines import MACHINES
from hypnos_engine.scheduler.simulation.machine import models_of
from hypnos_engine.scheduler.simulation.policies.catalog import OWN, POLICIES
from hypnos_engine.scheduler.simulation.result import Outcome, RequestResult, SimResult
from hypnos_engine.scheduler.simulation.run import simulate

LOADS = (0.3, 0.5, 0.7, 0.9, 1.0, 1.2)
TUNE = tuple(range(10))
"""Seeds to look at while the policy is being changed."""
REPORT = tuple(range(10, 20))
"""Seeds that nobody tunes by."""
SMALL_REPORT = tuple(range(10, 40))
"""More of them for small traces, which differ more from each other."""
REQUESTS = 400
PEERS = tuple(name for name in POLICIES if name != OWN)
TIMEOUT_S = LimitSettings().request_timeout_secs
_NO_QUEUE_BOUND = 10**6


@dataclass(frozen=True, slots=True)
class Cell:
    """One situation."""

    machine: str
    generator: str
    load: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One policy in one situation with one seed."""

    machine: str
    generator: str
    load: float
    seed: int
    mean_s: float
    """Mean wait from arrival to grant, of all requests."""
    p99_s: float
    sojourn_s: float
    """Mean time from arrival to end."""
    run_s: float
    """Mean duration of a whole task or conversation; 0 where there are none."""
    loading: float
    """Share of the time in which at least one model was being loaded."""
    loads: int
    unserved: int

    @property
    def cell(self) -> Cell:
        return Cell(self.machine, self.generator, self.load)


def cells(
    machines: Sequence[str] = tuple(MACHINES),
    generators: Sequence[str] = tuple(GENERATORS),
    loads: Sequence[float] = LOADS,
) -> Iterator[Cell]:
    """Every combination."""
    yield from (Cell(machine, generator, load) for machine in machines for generator in generators for load in loads)


def limits() -> Limits:
    """As by default, but without bounds on queues."""
    return Limits(max_queue_per_model=_NO_QUEUE_BOUND)


def measure(cell: Cell, policy: str, seed: int, requests: int) -> Measured:
    """Run one policy through one invented trace."""
    owned = MACHINES[cell.machine]
    trace = GENERATORS[cell.generator].trace(owned.lineup, random.Random(seed), load=cell.load, requests=requests)
    models = models_of(trace.models)
    made = POLICIES[policy]([model.spec for model in models], limits())
    result = simulate(trace.requests, models, owned.machine, made)
    waits = [wait_s(request, result.end_s) for request in result.requests]
    return Measured(
        machine=cell.machine,
        generator=cell.generator,
        load=cell.load,
        seed=seed,
        mean_s=fmean(waits),
        p99_s=quantile(waits, 0.99),
        sojourn_s=fmean(
            wait + (request.service_s or request.alone_s) for wait, request in zip(waits, result.requests, strict=True)
        ),
        run_s=fmean([run.duration_s for run in result.runs] or [0.0]),
        loading=loading_share(result),
        loads=result.loads,
        unserved=sum(1 for request in result.requests if request.outcome is not Outcome.SERVED),
    )


def wait_s(request: RequestResult, end_s: float) -> float:
    """How long a request counts as waiting."""
    if request.outcome is Outcome.SERVED and request.wait_s is not None:
        return request.wait_s
    return max(TIMEOUT_S, end_s - (request.arrived_s or 0.0))


def loading_share(result: SimResult) -> float:
    """Share of the time in which something was being loaded."""
    loading: set[str] = set()
    total_s = began = 0.0
    for moment in result.timeline:
        was = bool(loading)
        (loading.add if moment.residency is Residency.LOADING else loading.discard)(moment.model)
        if loading and not was:
            began = moment.at_s
        elif was and not loading:
            total_s += moment.at_s - began
    return total_s / result.end_s if result.end_s else 0.0
