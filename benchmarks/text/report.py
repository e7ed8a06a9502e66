"""Turns measured pairs into figures, ratios and a table; decides whether a bar was met."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.text.noise import QUIET_CORES


@dataclass(frozen=True)
class Goal:
    """What is measured and what it should come to. A ratio is ours to theirs, a difference ours minus theirs."""

    what: str
    bar: float | None = None
    goal: float | None = None
    more_is_better: bool = False
    kind: str = "ratio"
    """`ratio`, `difference`, or `ours` where only our own value counts."""
    threads: int = 0
    """Engine threads; 0 = the measurement does not depend on them."""


@dataclass(frozen=True)
class Figure:
    """A measurement of both servers, round by round."""

    goal: Goal
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    foreign_cores: float = 0.0
    """CPU that other programs used meanwhile, in cores."""

    @staticmethod
    def of(goal: Goal, pairs: Sequence[tuple[float, float]], foreign_cores: float) -> "Figure":
        """A figure out of the pairs of all rounds."""
        return Figure(goal, [ours for ours, _ in pairs], [theirs for _, theirs in pairs], foreign_cores)

    @property
    def outcome(self) -> float:
        """What the bar is held against: the median over the rounds."""
        if self.goal.kind == "ours":
            return statistics.median(self.ours)
        pairs = zip(self.ours, self.theirs, strict=True)
        if self.goal.kind == "difference":
            return statistics.median(ours - theirs for ours, theirs in pairs)
        return statistics.median(ours / theirs for ours, theirs in pairs)

    @property
    def noisy(self) -> bool:
        return self.foreign_cores > QUIET_CORES

    @property
    def verdict(self) -> str:
        """`goal`, `bar`, `missed`, or empty where there is no bar or nothing was measured."""
        if not self.ours or self.goal.bar is None:
            return ""
        for name, limit in (("goal", self.goal.goal), ("bar", self.goal.bar)):
            if limit is not None and (self.outcome >= limit if self.goal.more_is_better else self.outcome <= limit):
                return name
        return "missed"

    def line(self) -> str:
        """The figure as a row of a Markdown table."""
        threads = str(self.goal.threads) if self.goal.threads else ""
        if not self.ours:
            return f"| {self.goal.what} | {threads} | - | - | - | - | nothing measured |"
        bars = "" if self.goal.bar is None else f"{self.goal.bar:g}, goal {self.goal.goal:g}"
        noise = f"{self.foreign_cores:.2f}{' NOISY' if self.noisy else ''}"
        return (
            f"| {self.goal.what} | {threads} | {_spread(self.ours)} | {_spread(self.theirs)} | {self._outcome()} | "
            f"{bars} | {self.verdict} | {noise} |"
        )

    def _outcome(self) -> str:
        if self.goal.kind == "ratio":
            return f"x {self.outcome:.3f}"
        return f"{self.outcome:+.1f}" if self.goal.kind == "difference" else f"{self.outcome:.1f}"


def table(figures: Sequence[Figure]) -> str:
    """All figures as a Markdown table."""
    head = (
        "| measured | threads | Hypnos | llama-server | Hypnos to llama-server | bar | met | cores of others |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(figure.line() for figure in figures)


def _spread(values: Sequence[float]) -> str:
    """Median, least and most."""
    if not values:
        return "-"
    digits = 0 if max(map(abs, values)) >= 1000 else 1
    median, least, most = statistics.median(values), min(values), max(values)
    return f"{median:.{digits}f} ({least:.{digits}f}-{most:.{digits}f})"
