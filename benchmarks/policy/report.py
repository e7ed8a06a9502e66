"""Writes the tables of README.md and the pictures from the figures that `run` wrote down; measures nothing.

python -m benchmarks.policy.report                # from the figures of the seeds that nobody tunes by
python -m benchmarks.policy.report --print FILE   # only show the tables of some figures
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from benchmarks.policy import plot
from benchmarks.policy.comparing import Comparison, Verdict
from benchmarks.policy.grid import Measured
from benchmarks.policy.judging import (
    MOST_RATIO,
    MUCH_LOADING,
    MUCH_SAVED,
    Figures,
    Judged,
    by_cell,
    counts,
    judge,
    ratios,
)
from benchmarks.policy.kept import FOLDER
from benchmarks.policy.small import Compared
from hypnos_engine.scheduler.simulation.policies.catalog import OWN, POLICIES

README = Path(__file__).with_name("README.md")
PLOTS = Path(__file__).with_name("plots")
BEGIN, END = "<!-- tables begin -->", "<!-- tables end -->"
_LEAST_DRAWN_S = 0.1


class Results(msgspec.Struct, frozen=True):
    """The file that `run` writes."""

    requests: int
    seeds: tuple[int, ...]
    figures: dict[str, tuple[tuple[str | int | float, ...], ...]]
    handfuls: tuple[Compared, ...]

    @property
    def measured(self) -> Figures:
        return {
            policy: tuple(msgspec.convert(dict(zip(_FIELDS, row, strict=True)), Measured) for row in rows)
            for policy, rows in self.figures.items()
        }


_FIELDS = tuple(Measured.__dataclass_fields__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("file", nargs="?", type=Path, default=FOLDER / "report.json")
    parser.add_argument("--print", action="store_true", help="show the tables and write nothing")
    chosen = parser.parse_args(arguments)
    results = msgspec.json.decode(chosen.file.read_bytes(), type=Results)
    figures = results.measured
    tables = "\n".join(_tables(results, figures))
    if chosen.print:
        print(tables)
        return 0
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN, 1)
    README.write_text(f"{before}{BEGIN}\n{tables}\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")
    PLOTS.mkdir(exist_ok=True)
    for name, picture in _pictures(figures):
        (PLOTS / f"{name}.svg").write_text(picture, encoding="utf-8")
    return 0


def _tables(results: Results, figures: Figures) -> Iterable[str]:
    judged = judge(figures)
    yield f"{len(judged)} situations, {len(results.seeds)} seeds ({results.seeds[0]} to {results.seeds[-1]}), "
    yield f"{results.requests} requests each."
    yield ""
    yield from _summary(judged)
    yield from _much_loading(judged)
    yield from _small(results)
    yield from _by_situation(judged)
    yield from _by_policy(figures)


def _summary(judged: Sequence[Judged]) -> Iterable[str]:
    yield "### Verdicts against the best peer of each situation"
    yield ""
    yield "| machine | trace | mean wait: better / equal / worse | 99th percentile | time to the end |"
    yield "|---|---|---|---|---|"
    groups = dict.fromkeys((one.cell.machine, one.cell.generator) for one in judged)
    for machine, generator in groups:
        mine = [one for one in judged if (one.cell.machine, one.cell.generator) == (machine, generator)]
        yield f"| {machine} | {generator} | {_verdicts(mine)} |"
    yield f"| **all** | | {_verdicts(judged)} |"
    yield ""
    unserved = sum(one.unserved for one in judged)
    yield f"Requests that the own policy did not serve: {unserved}."
    yield ""


def _verdicts(judged: Sequence[Judged]) -> str:
    columns: list[list[Comparison]] = [
        [one.mean for one in judged],
        [one.p99 for one in judged],
        [one.sojourn for one in judged],
    ]
    return " | ".join(" / ".join(str(counts(column)[verdict]) for verdict in Verdict) for column in columns)


def _much_loading(judged: Sequence[Judged]) -> Iterable[str]:
    much = [one for one in judged if one.enough is not None]
    yield f"### Where the best peer spends more than {MUCH_LOADING:.0%} of its time loading"
    yield ""
    yield f"{sum(1 for one in much if one.enough)} of {len(much)} situations save at least {MUCH_SAVED:.0%}."
    yield ""
    if much:
        yield "| machine | trace | load | peer | it loads | saved |"
        yield "|---|---|---|---|---|---|"
    for one in much:
        cell = one.cell
        yield (
            f"| {cell.machine} | {cell.generator} | {cell.load:g} | {one.mean_peer} | {one.peer_loading:.0%} "
            f"| {one.mean.gain:.0%} |"
        )
    yield ""


def _small(results: Results) -> Iterable[str]:
    yield "### Against the least wait that is possible"
    yield ""
    exact = sum(1 for one in results.handfuls if one.exact)
    yield f"{len(results.handfuls)} small traces, {exact} of them searched to the end; wanted: at most {MOST_RATIO}."
    yield ""
    columns = ["policy", "nothing done ahead: all traces together", "mean of the ratios", "worst"]
    yield f"| {' | '.join([*columns, 'all that is possible', 'traces'])} |"
    yield "|---|---|---|---|---|---|"
    for one in ratios(results.handfuls, list(POLICIES)):
        shown = [f"{value:.2f}" for value in (one.together, one.asked, one.worst, one.ahead)]
        yield f"| {one.policy} | {' | '.join(shown)} | {one.traces} |"
    yield ""


def _by_situation(judged: Sequence[Judged]) -> Iterable[str]:
    yield "### Every situation"
    yield ""
    columns = ["machine", "trace", "load", "mean wait, s", "best peer", "saved", "difference, s (95 %)", "verdict"]
    columns += ["p99, s", "its best peer", "verdict", "loading own / peer"]
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for one in judged:
        cell, mean, p99 = one.cell, one.mean, one.p99
        yield (
            f"| {cell.machine} | {cell.generator} | {cell.load:g} | {mean.ours.mean:.2f} "
            f"| {mean.peer.mean:.2f} {one.mean_peer} | {mean.gain:.0%} "
            f"| {mean.difference.mean:.2f} ({mean.difference.low:.2f} to {mean.difference.high:.2f}) | {mean.verdict} "
            f"| {p99.ours.mean:.1f} | {p99.peer.mean:.1f} {one.p99_peer} | {p99.verdict} "
            f"| {one.own_loading:.0%} / {one.peer_loading:.0%} |"
        )
    yield ""


def _by_policy(figures: Figures) -> Iterable[str]:
    yield "### Every policy: mean wait in seconds, over the loads"
    yield ""
    sorted_figures = {policy: by_cell(runs) for policy, runs in figures.items()}
    cells = list(next(iter(sorted_figures.values())))
    yield "| machine | trace | " + " | ".join(sorted_figures) + " |"
    yield "|---|---|" + "---|" * len(sorted_figures)
    for machine, generator in dict.fromkeys((cell.machine, cell.generator) for cell in cells):
        mine = [cell for cell in cells if (cell.machine, cell.generator) == (machine, generator)]
        means = [fmean(run.mean_s for cell in mine for run in runs[cell]) for runs in sorted_figures.values()]
        yield f"| {machine} | {generator} | " + " | ".join(f"{mean:.1f}" for mean in means) + " |"
    yield ""


def _pictures(figures: Figures) -> Iterable[tuple[str, str]]:
    sorted_figures = {policy: by_cell(runs) for policy, runs in figures.items()}
    cells = list(sorted_figures[OWN])
    for machine, generator in dict.fromkeys((cell.machine, cell.generator) for cell in cells):
        mine = [cell for cell in cells if (cell.machine, cell.generator) == (machine, generator)]
        lines = [
            plot.Line(policy, tuple((cell.load, fmean(run.mean_s for run in runs[cell])) for cell in mine))
            for policy, runs in sorted_figures.items()
        ]
        title = f"{generator} on {machine}: mean wait"
        yield f"{machine}-{generator}", plot.draw(title, "load", "seconds", lines, least=_LEAST_DRAWN_S)


if __name__ == "__main__":
    sys.exit(main())
