"""Compares policies with the least wait that is possible at all, on traces small enough to know it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.policy.grid import limits
from hypnos_engine.scheduler.simulation.bound import least_mean_wait
from hypnos_engine.scheduler.simulation.generators_machines import MACHINES
from hypnos_engine.scheduler.simulation.generators_small import Handful
from hypnos_engine.scheduler.simulation.machine import models_of
from hypnos_engine.scheduler.simulation.policies.catalog import POLICIES
from hypnos_engine.scheduler.simulation.run import simulate


@dataclass(frozen=True, slots=True)
class Compared:
    """One small trace."""

    machine: str
    seed: int
    ahead_s: float
    """Least mean wait of whoever knows the future and may load ahead of it: no policy does better."""
    asked_s: float
    """Least mean wait of whoever knows the future, but does nothing for a model before somebody asks for it."""
    exact: bool
    waits_s: dict[str, float | None]
    """Mean wait of each policy; None where it did not serve all."""


def run(policies: Sequence[str], machines: Sequence[str], seeds: Sequence[int]) -> list[Compared]:
    """Compare on one trace for each machine and seed."""
    return [_compare(policies, machine, seed) for machine in machines for seed in seeds]


def _compare(policies: Sequence[str], machine: str, seed: int) -> Compared:
    owned = MACHINES[machine]
    trace = Handful().trace(owned.lineup, random.Random(seed))
    models = models_of(trace.models)
    ahead = least_mean_wait(trace.requests, models, owned.machine)
    asked = least_mean_wait(trace.requests, models, owned.machine, ahead=False)
    waits: dict[str, float | None] = {}
    for policy in policies:
        made = POLICIES[policy]([model.spec for model in models], limits())
        result = simulate(trace.requests, models, owned.machine, made)
        waits[policy] = result.wait.mean_s if len(result.waits) == len(trace.requests) else None
    return Compared(machine, seed, ahead.mean_wait_s, asked.mean_wait_s, ahead.exact and asked.exact, waits)
