"""What a simulation showed: every request's end, every load, memory over time; and the numbers people compare."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from hypnos_engine.domain.kinds import Residency, Tier
from hypnos_engine.domain.model import ModelId


class Outcome(StrEnum):
    """How a request ended; every one has exactly one."""

    SERVED = "served"
    REFUSED = "refused"
    """The policy refused it."""
    TIMED_OUT = "timed_out"
    """Its caller gave up waiting."""
    SKIPPED = "skipped"
    """It never arrived, because one that it comes after was not served."""
    STRANDED = "stranded"
    """It still waited when nothing was left to happen."""


class RequestResult(msgspec.Struct, frozen=True):
    """One request. Moments are seconds from the beginning; None where it did not come to that."""

    id: str
    model: ModelId
    outcome: Outcome
    arrived_s: float | None
    granted_s: float | None
    finished_s: float | None
    """When it was served, refused or given up."""
    alone_s: float
    """What its service takes alone on the accelerator."""
    key: str = ""
    workflow: str = ""
    run: str = ""
    late: bool = False
    """True when it was granted after its deadline, or not served at all although it had one."""
    error: str = ""
    """Code of the error that it was refused with."""

    @property
    def wait_s(self) -> float | None:
        """From arrival to grant."""
        return None if self.granted_s is None or self.arrived_s is None else self.granted_s - self.arrived_s

    @property
    def service_s(self) -> float | None:
        """From grant to the last byte."""
        if self.outcome is not Outcome.SERVED or self.granted_s is None or self.finished_s is None:
            return None
        return self.finished_s - self.granted_s


@dataclass(frozen=True, slots=True)
class ModelResult:
    """One model over the whole time."""

    model: ModelId
    loads: int
    """Loads that ended well."""
    failed_loads: int
    evictions: int
    """Workers that were ended."""
    loading_s: float
    disk_bytes: int
    """Read from disk for it, by loads and by filling pages."""
    device_bytes: int
    """Copied to devices for it."""
    served: int


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of a workflow: from the arrival of its first request to the end of its last one."""

    workflow: str
    run: str
    requests: int
    complete: bool
    """False when a request of it was not served."""
    duration_s: float


class Moment(msgspec.Struct, frozen=True):
    """A model's memory changed."""

    at_s: float
    model: ModelId
    residency: Residency
    tier: Tier
    """Tier 1 when it is ready; tier 2 when its file's pages are in host memory, whoever holds them."""
    device_bytes: int
    host_bytes: int
    """Of its worker; its file's pages among them where the worker computes from them."""
    cached_bytes: int
    """Pages of its file in host memory, the system's page cache included."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds of many requests."""

    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    worst_s: float


@dataclass(frozen=True, slots=True)
class SimResult:
    """All that one policy did with one trace on one machine."""

    requests: tuple[RequestResult, ...]
    """In the order of the trace."""
    models: tuple[ModelResult, ...]
    """In the order they were given."""
    runs: tuple[RunResult, ...]
    """By the first arrival."""
    timeline: tuple[Moment, ...]
    end_s: float
    """When the last request ended."""
    events: int
    """Events that the policy was given."""

    def count(self, outcome: Outcome) -> int:
        """Requests that ended so."""
        return sum(1 for request in self.requests if request.outcome is outcome)

    @property
    def waits(self) -> tuple[float, ...]:
        """Seconds from arrival to grant, of every request that was served."""
        return tuple(
            request.granted_s - request.arrived_s
            for request in self.requests
            if request.outcome is Outcome.SERVED and request.granted_s is not None and request.arrived_s is not None
        )

    @property
    def wait(self) -> Spread:
        return spread(self.waits)

    @property
    def loads(self) -> int:
        return sum(model.loads for model in self.models)

    @property
    def loading_s(self) -> float:
        return sum(model.loading_s for model in self.models)

    @property
    def disk_bytes(self) -> int:
        return sum(model.disk_bytes for model in self.models)

    @property
    def device_bytes(self) -> int:
        return sum(model.device_bytes for model in self.models)

    @property
    def late(self) -> int:
        """Requests with a deadline that it was too late for."""
        return sum(1 for request in self.requests if request.late)


def spread(seconds: Iterable[float]) -> Spread:
    """Mean and quantiles (the nearest rank: a value that occurred); zeros without any."""
    ordered = sorted(seconds)
    if not ordered:
        return Spread(0.0, 0.0, 0.0, 0.0, 0.0)
    return Spread(
        sum(ordered) / len(ordered),
        quantile(ordered, 0.50),
        quantile(ordered, 0.95),
        quantile(ordered, 0.99),
        ordered[-1],
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest of sorted values that at least `share` of them do not exceed."""
    rank = math.ceil(share * len(ordered) - 1e-9)  # 0.95 of 20 are 19, whatever floating point makes of it
    return ordered[min(max(rank, 1), len(ordered)) - 1]
