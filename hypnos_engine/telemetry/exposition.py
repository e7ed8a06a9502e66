"""Families of metrics as plain values, and their text as Prometheus reads it; decides no name and counts nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from hypnos_engine.telemetry.distribution import Distribution
from hypnos_engine.telemetry.quantiles import BOUNDS_MS, Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4"
PREFIX: Final = "hypnos_"

Kind = Literal["counter", "gauge", "histogram", "untyped"]
Labels = tuple[str, ...]
Name = TypeVar("Name", bound=str)


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram at one moment."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """Of each bucket by itself, the last one being what is beyond all bounds."""
    sum: float

    @classmethod
    def of(cls, counted: Distribution | Histogram) -> "Buckets":
        """A copy, which nothing changes any more."""
        if isinstance(counted, Histogram):
            return cls(BOUNDS_MS, tuple(counted.counts), counted.sum_ms)
        return cls(counted.bounds, tuple(counted.counts), counted.sum)


@dataclass(frozen=True, slots=True)
class Family:
    """One family: without `hypnos_` before its name, and without `_total` after a counter's."""

    kind: Kind
    name: str
    help: str
    values: Sequence[tuple[Labels, float]] = ()
    """Each with the values of the labels."""
    labels: tuple[str, ...] = ()
    histograms: Sequence[tuple[Labels, Buckets]] = ()
    """In place of `values`, of a histogram."""


def single(kind: Kind, name: str, about: str, value: float) -> Family:
    """A family of one value without labels."""
    return Family(kind, name, about, (((), value),))


def by_name(kind: Kind, name: str, about: str, label: str, values: Mapping[Name, float]) -> Family:
    """A family with one label."""
    return Family(kind, name, about, [((key,), value) for key, value in values.items()], (label,))


def render(families: Sequence[Family]) -> bytes:
    """The text. Takes some milliseconds for hundreds of histograms: not for a loop."""
    # Loading the library takes longer than the start of the server may.
    from prometheus_client.exposition import generate_latest
    from prometheus_client.registry import Collector

    class Present(Collector):
        def collect(self) -> "Iterable[Metric]":
            return [_metric(family) for family in families]

    return generate_latest(Present())


def _metric(family: Family) -> "Metric":
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        UnknownMetricFamily,
    )
    from prometheus_client.utils import floatToGoString

    name = PREFIX + family.name
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(name, family.help, labels=family.labels)
        for labels, buckets in family.histograms:
            bounds = [*map(floatToGoString, buckets.bounds), "+Inf"]
            histogram.add_metric(labels, list(zip(bounds, accumulate(buckets.counts), strict=True)), buckets.sum)
        return histogram
    metric: CounterMetricFamily | GaugeMetricFamily | UnknownMetricFamily
    match family.kind:
        case "counter":
            metric = CounterMetricFamily(name, family.help, labels=family.labels)
        case "gauge":
            metric = GaugeMetricFamily(name, family.help, labels=family.labels)
        case _:
            metric = UnknownMetricFamily(name, family.help, labels=family.labels)
    for labels, value in family.values:
        metric.add_metric(labels, value)
    return metric
