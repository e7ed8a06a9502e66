"""What the scheduler knows: its own record of models, requests and bytes. Holds facts; decides nothing."""

import math
from collections import OrderedDict
from dataclasses import dataclass, field

from hypnos_engine.domain.errors import HypnosError
from hypnos_engine.domain.kinds import Residency, Tier
from hypnos_engine.domain.memory import Footprint, Placement
from hypnos_engine.domain.model import ModelId, ModelShape, ModelSpec
from hypnos_engine.scheduler.corrections import NO_CORRECTION, Correction, Corrections
from hypnos_engine.scheduler.events import Budgets
from hypnos_engine.scheduler.placement import Plan

RATE_WINDOW_S = 600.0
"""Time constant of the decayed request rate."""
SERVICE_WEIGHT = 0.2
"""Share of the newest sample in the average service time."""
DISK_BYTES_PER_S = 1_500_000_000.0
"""Reading speed assumed for a model that was never loaded here."""


@dataclass(slots=True)
class Waiting:
    """A request in the queue."""

    request: int
    model: ModelId
    arrived_at: float
    deadline_at: float | None
    previous_tier: Tier
    estimate_s: float | None
    loads: int
    """How many loads the model had behind it when the request arrived."""


@dataclass(slots=True)
class Leased:
    """A request that holds a model."""

    request: int
    model: ModelId
    granted_at: float


@dataclass(slots=True)
class ModelState:
    """One model: its worker's life, its bookings, its history."""

    spec: ModelSpec
    shape: ModelShape | None = None
    problem: HypnosError | None = None
    residency: Residency = Residency.COLD
    plan: Plan | None = None
    """Where it is, or where it is being loaded to; None while cold."""
    correction: Correction = NO_CORRECTION
    """What earlier loads taught, as far as it is in `plan`."""
    measured: Footprint | None = None
    waiting: "OrderedDict[int, Waiting]" = field(default_factory=OrderedDict)
    leases: dict[int, Leased] = field(default_factory=dict)
    staged: bool = False
    """Wanted in tier 1 although nobody waits."""
    wanted_cells: int = 0
    """Cells that a later load should provide, learnt from a refused growth."""
    resizing: bool = False
    threads: int = 0
    evicted_for_load: tuple[ModelId, ...] = ()
    loads: int = 0
    """Loads that ended well."""
    load_started_at: float = 0.0
    load_s: float | None = None
    """How long the last load took."""
    last_used_at: float = 0.0
    served: int = 0
    service_s: float | None = None
    rate_per_s: float = 0.0
    rate_at: float = 0.0
    failures: int = 0
    """Loads that failed and workers that died since the last request that ended well."""
    retry_at: float = 0.0
    """No load before this moment."""
    last_failure: HypnosError | None = None

    @property
    def footprint(self) -> Footprint:
        """Bytes booked for the model now: the plan while it loads, what was measured afterwards."""
        if self.plan is None:
            return Footprint()
        return self.measured or self.plan.footprint

    @property
    def placement(self) -> Placement:
        """Where the model is, for the wire."""
        if self.plan is not None and self.residency is Residency.READY:
            return self.plan.placement
        return Placement(primary_tier=Tier.DISK, ssd_layers=len(self.shape.layers) if self.shape else 0)

    @property
    def tier(self) -> Tier:
        """Where the model is served from."""
        return Tier.GPU if self.residency is Residency.READY else Tier.DISK

    @property
    def idle(self) -> bool:
        """True when its worker is up and nobody uses or awaits it."""
        return self.residency is Residency.READY and not self.leases and not self.waiting and not self.resizing

    def reload_s(self) -> float:
        """Seconds that loading takes: as last measured, else guessed from its size."""
        if self.load_s is not None:
            return self.load_s
        return 0.2 + (self.shape.tensor_bytes if self.shape else 0) / DISK_BYTES_PER_S

    def requests_per_minute(self, now: float) -> float:
        """Rate of requests, decayed over RATE_WINDOW_S."""
        return self.rate_per_s * _decay(now - self.rate_at) * 60.0

    def note_request(self, now: float) -> None:
        """Count one request into the rate."""
        self.rate_per_s = self.rate_per_s * _decay(now - self.rate_at) + 1.0 / RATE_WINDOW_S
        self.rate_at = now

    def note_service(self, seconds: float) -> None:
        """Count a lease that ended."""
        old = self.service_s
        self.service_s = seconds if old is None else old + SERVICE_WEIGHT * (seconds - old)
        self.served += 1


@dataclass(slots=True)
class State:
    """Everything that the scheduler remembers between two events."""

    models: dict[ModelId, ModelState]
    max_queue_per_model: int
    max_overtaken_s: float
    budgets: Budgets = field(default_factory=lambda: Budgets(0, 0, 1, device_layers=False))
    host_available_bytes: int = 0
    """Last sample of what the machine has left; the load in flight is not yet in it."""
    device_free_bytes: int = 0
    corrections: Corrections = field(default_factory=Corrections)
    draining: bool = False
    where: dict[int, ModelId] = field(default_factory=dict)
    """The model of every request that is waiting or leased."""


def _decay(elapsed_s: float) -> float:
    return math.exp(-max(0.0, elapsed_s) / RATE_WINDOW_S)
