"""Sets the own policy against the best of the others, situation by situation; writes nothing."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.policy.comparing import Comparison, Verdict, compare
from benchmarks.policy.grid import Cell, Measured
from benchmarks.policy.small import Compared
from hypnos_engine.scheduler.simulation.policies.catalog import OWN

MUCH_LOADING = 1 / 3
"""Share of its time that the best peer spends loading, from which on much has to be saved."""
MUCH_SAVED = 0.40
"""Share of its mean wait that has to be saved there."""
MOST_RATIO = 1.25
"""Mean wait over the least possible one, on average over small traces."""

Figures = Mapping[str, Sequence[Measured]]
"""By policy, each in the order of the situations and seeds."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The own policy in one situation. The best peer is the one with the least mean over the seeds, for each figure."""

    cell: Cell
    mean_peer: str
    mean: Comparison
    p99_peer: str
    p99: Comparison
    sojourn_peer: str
    sojourn: Comparison
    peer_loading: float
    """Share of its time that the peer with the best mean wait spends loading."""
    own_loading: float
    unserved: int
    """Requests that the own policy did not serve, all seeds together."""

    @property
    def enough(self) -> bool | None:
        """Whether much is saved where much has to be; None where it has not."""
        return None if self.peer_loading <= MUCH_LOADING else self.mean.gain >= MUCH_SAVED


def by_cell(figures: Sequence[Measured]) -> dict[Cell, list[Measured]]:
    """Each situation's runs by seed."""
    found: dict[Cell, list[Measured]] = defaultdict(list)
    for measured in figures:
        found[measured.cell].append(measured)
    return {cell: sorted(runs, key=lambda run: run.seed) for cell, runs in found.items()}


def judge(figures: Figures) -> list[Judged]:
    """Judge every situation that the own policy was measured in."""
    sorted_figures = {policy: by_cell(runs) for policy, runs in figures.items()}
    return [_judge(cell, sorted_figures) for cell in sorted_figures[OWN]]


def _judge(cell: Cell, figures: Mapping[str, Mapping[Cell, Sequence[Measured]]]) -> Judged:
    own = figures[OWN][cell]

    def best(name: str) -> tuple[str, Comparison]:
        peers = {
            policy: [getattr(run, name) for run in runs[cell]] for policy, runs in figures.items() if policy != OWN
        }
        peer = min(peers, key=lambda policy: fmean(peers[policy]))
        return peer, compare([getattr(run, name) for run in own], peers[peer])

    mean_peer, mean = best("mean_s")
    p99_peer, p99 = best("p99_s")
    sojourn_peer, sojourn = best("sojourn_s")
    return Judged(
        cell,
        mean_peer,
        mean,
        p99_peer,
        p99,
        sojourn_peer,
        sojourn,
        peer_loading=fmean(run.loading for run in figures[mean_peer][cell]),
        own_loading=fmean(run.loading for run in own),
        unserved=sum(run.unserved for run in own),
    )


def counts(comparisons: Sequence[Comparison]) -> dict[Verdict, int]:
    """How many of each verdict."""
    return {verdict: sum(1 for one in comparisons if one.verdict is verdict) for verdict in Verdict}


@dataclass(frozen=True, slots=True)
class Ratio:
    """One policy on the small traces, against the least possible wait."""

    policy: str
    asked: float
    """Mean over the traces of its wait over the least one of whoever does nothing ahead."""
    worst: float
    """The largest of those ratios."""
    together: float
    """Its wait, all traces together, over the least one of whoever does nothing ahead."""
    ahead: float
    """Its wait, all traces together, over the least one of whoever may load ahead."""
    traces: int
    """Traces that it served all requests of; the others are left out."""


def ratios(compared: Sequence[Compared], policies: Sequence[str]) -> list[Ratio]:
    """Ratios of every policy that served any trace wholly."""
    found = []
    for policy in policies:
        pairs = [(wait, one) for one in compared if (wait := one.waits_s.get(policy)) is not None]
        if not pairs:
            continue
        each = [wait / one.asked_s for wait, one in pairs if one.asked_s > 0]
        ahead = sum(wait for wait, _ in pairs) / max(sum(one.ahead_s for _, one in pairs), 1e-9)
        together = sum(wait for wait, _ in pairs) / max(sum(one.asked_s for _, one in pairs), 1e-9)
        found.append(Ratio(policy, fmean(each), max(each), together, ahead, len(pairs)))
    return found
