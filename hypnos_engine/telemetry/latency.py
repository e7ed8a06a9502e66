"""End-to-end times by route and by workflow, since the start of the server.

Decides how many names are kept: whatever clients call their workflows, the memory stays bounded.
"""

from collections.abc import Mapping
from typing import Final

from hypnos_engine.telemetry.quantiles import Histogram

MOST_ROUTES: Final = 256
MOST_WORKFLOWS: Final = 64
OTHERS: Final = "other"
"""Counts what comes under a further name."""


class Latencies:
    """Two families of histograms. Used on one loop."""

    def __init__(self) -> None:
        self._routes: dict[str, Histogram] = {}
        self._workflows: dict[str, Histogram] = {}

    @property
    def routes(self) -> Mapping[str, Histogram]:
        """By route; those that answered something."""
        return self._routes

    @property
    def workflows(self) -> Mapping[str, Histogram]:
        """By name of the workflow; those that ended."""
        return self._workflows

    def request_ended(self, route: str, duration_s: float) -> None:
        """Count an answer, from its request's head to its last byte."""
        _of(self._routes, route, MOST_ROUTES).record(duration_s * 1e3)

    def workflow_ended(self, name: str, duration_s: float) -> None:
        """Count a workflow, from its first request to the last byte of its last answer."""
        _of(self._workflows, name, MOST_WORKFLOWS).record(duration_s * 1e3)


def _of(family: dict[str, Histogram], name: str, most: int) -> Histogram:
    found = family.get(name)
    if found is not None:
        return found
    # One place is kept for all the others.
    label = name if len(family) < most - 1 else OTHERS
    return family.setdefault(label, Histogram())
