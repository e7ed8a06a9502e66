"""Runs every policy through every situation and writes the figures down; judges nothing (see `report`).

    python -m benchmarks.policy.run              # all situations, the seeds that nobody tunes by; about 20 minutes
    python -m benchmarks.policy.run --quick      # a part of them with fewer seeds; about 2 minutes
    python -m benchmarks.policy.run --seeds tune # the seeds to look at while the policy changes
    python -m benchmarks.policy.run --write-traces DIR

A run that was ended is taken up where it stood: figures are kept under a hash of their sources and parameters. It takes
two processes at most, and gives way to others.
"""

import argparse
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

import msgspec

from benchmarks.policy import grid, small
from benchmarks.policy.grid import Cell, Measured
from benchmarks.policy.kept import FOLDER, Kept
from hypnos_engine.scheduler.simulation.generators import GENERATORS
from hypnos_engine.scheduler.simulation.generators_machines import MACHINES
from hypnos_engine.scheduler.simulation.policies.catalog import POLICIES
from hypnos_engine.scheduler.simulation.trace import write_trace

MOST_JOBS = 2
QUICK_LOADS = (0.5, 0.9)
QUICK_SEEDS = 3
_NICE = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    chosen = _parser().parse_args(arguments)
    cells = list(grid.cells(chosen.machines, chosen.generators, chosen.loads))
    seeds = grid.TUNE if chosen.seeds == "tune" else grid.REPORT
    if chosen.quick:
        cells = [cell for cell in cells if cell.load in QUICK_LOADS]
        seeds = seeds[:QUICK_SEEDS]
    if chosen.write_traces:
        write_traces(chosen.write_traces, cells, seeds, chosen.requests)
        return 0
    figures = run(chosen.policies, cells, seeds, chosen.requests, chosen.jobs)
    enough = chosen.quick or chosen.seeds == "tune"
    handfuls = small.run(chosen.policies, chosen.machines, seeds if enough else grid.SMALL_REPORT)
    path = chosen.out or (FOLDER / f"{'quick-' if chosen.quick else ''}{chosen.seeds}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        msgspec.json.format(
            msgspec.json.encode(
                {
                    "requests": chosen.requests,
                    "seeds": seeds,
                    "figures": {policy: [_row(one) for one in figures[policy]] for policy in figures},
                    "handfuls": [asdict(one) for one in handfuls],
                }
            ),
            indent=0,
        )
    )
    print(path)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer loads and seeds")
    parser.add_argument("--seeds", choices=("tune", "report"), default="report")
    parser.add_argument("--policies", nargs="+", choices=tuple(POLICIES), default=tuple(POLICIES))
    parser.add_argument("--machines", nargs="+", choices=tuple(MACHINES), default=tuple(MACHINES))
    parser.add_argument("--generators", nargs="+", choices=tuple(GENERATORS), default=tuple(GENERATORS))
    parser.add_argument("--loads", nargs="+", type=float, default=grid.LOADS)
    parser.add_argument("--requests", type=int, default=grid.REQUESTS)
    parser.add_argument("--jobs", type=int, choices=range(1, MOST_JOBS + 1), default=MOST_JOBS)
    parser.add_argument("--out", type=Path, help="file for the figures")
    parser.add_argument("--write-traces", type=Path, metavar="DIR", help="write the traces as JSONL and run nothing")
    return parser


def run(
    policies: Sequence[str], cells: Sequence[Cell], seeds: Sequence[int], requests: int, jobs: int
) -> dict[str, list[Measured]]:
    """Measure what is not known yet; returns all figures of each policy, in the order of the cells and seeds."""
    kept = {policy: Kept(policy, requests) for policy in policies}
    missing = [
        (policy, cell, seeds_left, requests)
        for cell in cells
        for policy in policies
        if (seeds_left := tuple(seed for seed in seeds if kept[policy].find(cell, seed) is None))
    ]
    began, done = time.monotonic(), 0
    with ProcessPoolExecutor(jobs, initializer=os.nice, initargs=(_NICE,)) as pool:
        for future in as_completed([pool.submit(_measure, task) for task in missing]):
            policy, figures = future.result()
            kept[policy].add(figures)
            done += 1
            if done % 50 == 0 or done == len(missing):
                print(f"{done} of {len(missing)} after {time.monotonic() - began:.0f} s", file=sys.stderr)
    return {policy: list(_found(kept[policy], cells, seeds)) for policy in policies}


def _measure(task: tuple[str, Cell, tuple[int, ...], int]) -> tuple[str, list[Measured]]:
    policy, cell, seeds, requests = task
    return policy, [grid.measure(cell, policy, seed, requests) for seed in seeds]


def _found(kept: Kept, cells: Sequence[Cell], seeds: Sequence[int]) -> Iterator[Measured]:
    for cell in cells:
        for seed in seeds:
            measured = kept.find(cell, seed)
            assert measured is not None, "everything that was missing has been measured"
            yield measured


def _row(measured: Measured) -> list[str | float | int]:
    """The figures of one run in the order of the fields, to four digits."""
    return [float(f"{value:.4g}") if isinstance(value, float) else value for value in asdict(measured).values()]


def write_traces(folder: Path, cells: Sequence[Cell], seeds: Sequence[int], requests: int) -> None:
    """Write each trace with its models; a trace does not depend on the policy."""
    folder.mkdir(parents=True, exist_ok=True)
    for cell in cells:
        for seed in seeds:
            trace = GENERATORS[cell.generator].trace(
                MACHINES[cell.machine].lineup, random.Random(seed), load=cell.load, requests=requests
            )
            path = folder / f"{cell.machine}-{cell.generator}-{cell.load:g}-{seed}.jsonl"
            path.write_text("".join(write_trace(trace)), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
