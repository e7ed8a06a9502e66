"""How many events a second the simulator handles, and what part of the time is the policy's.

    python -m benchmarks.policy.speed [--requests 50000] [--policy hypnos] [--profile]

An event is one that the policy was given (an arrival, the end of a lease, a load, a sample, ...). `warm` is a pool that
fits, so that nearly all events are arrivals and ends; `swapping` is one that does not, with a load for about every
second request. Compare runs on the same machine only.
"""

import argparse
import cProfile
import pstats
import random
import time
from collections.abc import Sequence

from hypnos_engine.scheduler.effects import Effect
from hypnos_engine.scheduler.events import Event
from hypnos_engine.scheduler.limits import Limits
from hypnos_engine.scheduler.simulation.machine import SimMachine, SimModel, models_of
from hypnos_engine.scheduler.simulation.policies.catalog import OWN, POLICIES
from hypnos_engine.scheduler.simulation.policies.policy import Policy
from hypnos_engine.scheduler.simulation.run import simulate
from hypnos_engine.scheduler.simulation.trace import TraceModel, TraceRequest

GIB = 2**30
SIZES = {"chat": 5, "code": 8, "reason": 9, "draw": 7, "ear": 2, "voice": 1, "embed": 1, "read": 3}
MACHINES = {
    "warm": SimMachine(host_bytes=128 * GIB, devices=(64 * GIB,)),
    "swapping": SimMachine(host_bytes=64 * GIB, devices=(16 * GIB,)),
}


class Timed:
    """Adds up the time that a policy takes."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.took_s = 0.0

    def on(self, event: Event, now: float) -> Sequence[Effect]:
        began = time.process_time()
        effects = self._policy.on(event, now)
        self.took_s += time.process_time() - began
        return effects


def pool() -> tuple[SimModel, ...]:
    """Eight models, 36 GiB in all."""
    return models_of(
        TraceModel(id=name, weight_bytes=size * GIB, min_gpu_layer_ratio=1.0) for name, size in SIZES.items()
    )


def day(count: int, seed: int) -> list[TraceRequest]:
    """Requests that come as they like: a Poisson process over models of different popularity."""
    chance = random.Random(seed)
    names = list(SIZES)
    shares = [1 / (place + 1) for place in range(len(names))]
    requests, now = [], 0.0
    for number in range(count):
        now += chance.expovariate(0.25)
        (name,) = chance.choices(names, shares)
        requests.append(
            TraceRequest(
                id=str(number),
                model=name,
                at_s=now,
                prompt_tokens=chance.randint(50, 2000),
                output_tokens=chance.randint(20, 400),
            )
        )
    return requests


def measure(machine: SimMachine, policy_name: str, requests: Sequence[TraceRequest], repeats: int) -> str:
    """Run a few times and take the fastest: what disturbs a run only makes it slower. Counts the processor's time."""
    models = pool()
    specs = [model.spec for model in models]
    best_s, policy_s, events, loads = float("inf"), float("inf"), 0, 0
    for _ in range(repeats):
        began = time.process_time()
        result = simulate(requests, models, machine, POLICIES[policy_name](specs, Limits()))
        best_s = min(best_s, time.process_time() - began)
        events, loads = result.events, result.loads
        timed = Timed(POLICIES[policy_name](specs, Limits()))  # apart: the looking at the clock takes time, too
        simulate(requests, models, machine, timed)
        policy_s = min(policy_s, timed.took_s)
    return (
        f"{events / best_s:>9,.0f} events/s  ({events:,} events, {loads:,} loads in {best_s:.2f} s; "
        f"policy {policy_s / events * 1e6:.1f} us an event, simulator {(best_s - policy_s) / events * 1e6:.1f} us)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", action="append", choices=list(POLICIES))
    parser.add_argument("--profile", action="store_true", help="show where the time goes instead")
    options = parser.parse_args()
    requests = day(options.requests, options.seed)
    for name in options.policy or [OWN, "llama-swap"]:
        for place, machine in MACHINES.items():
            if options.profile:
                with cProfile.Profile() as profile:
                    measure(machine, name, requests, 1)
                pstats.Stats(profile).sort_stats("tottime").print_stats(25)
            else:
                print(f"{name:24} {place:10} {measure(machine, name, requests, options.repeats)}")


if __name__ == "__main__":
    main()
