"""What the scheduler knows: its own record of models, requests, files and bytes. Holds facts; decides nothing."""

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypnos_engine.domain.errors import HypnosError
from hypnos_engine.domain.kinds import EngineKind, Modality, Pages, Priority, Residency, Tier
from hypnos_engine.domain.memory import Footprint, Placement
from hypnos_engine.domain.model import ModelId, ModelShape, ModelSpec
from hypnos_engine.scheduler.corrections import NO_CORRECTION, Correction, Corrections
from hypnos_engine.scheduler.events import ModelRemoved, ModelReplaced, MoveRequested, Workflow
from hypnos_engine.scheduler.limits import NO_BUDGETS, Budgets, Limits
from hypnos_engine.scheduler.placement import Plan, Shortage
from hypnos_engine.scheduler.shares import Shares
from hypnos_engine.scheduler.workflows import Workflows

RATE_WINDOW_S = 600.0
"""Time constant of the decayed request rate."""
LEAST_KNOWN_S = 60.0
"""One request says no more than that there is about one in such a time."""
SERVICE_WEIGHT = 0.2
"""Share of the newest sample in the average service time."""
START_S = 0.4
"""What starting a worker takes besides its bytes, for a model that was never loaded here."""
FIXED_THREADS = frozenset({EngineKind.ONNX, EngineKind.DOCLING, EngineKind.GLINER, EngineKind.DIFFUSERS})
"""Engines that keep the number of threads they were loaded with."""
_BATCH = frozenset({Modality.IMAGES, Modality.DOCUMENTS})


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
    key: str = ""
    weight: float = 1.0
    workflow: Workflow | None = None
    next_model: ModelId | None = None
    overtaken: int = 0
    """Later requests that were served first."""
    overtaken_s: float = 0.0
    """What serving them takes, as estimated when they were granted."""
    crowded_s: float = 0.0
    """What later requests to other models take that were served while its own model was ready and full."""
    returned: bool = False
    """True once it has lost a lease without having been sent anything."""


@dataclass(slots=True)
class Leased:
    """A request that holds a model."""

    request: int
    waiting: Waiting
    granted_at: float
    charged_s: float
    """What its key was charged in advance."""


@dataclass(slots=True)
class Closing:
    """Why a model takes no new leases and goes as soon as the old ones have ended."""

    reason: str
    to_tier: Tier


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
    announced_at: float | None = None
    """When somebody last said, or was seen to mean, that this model will be asked next."""
    made_room_at: float | None = None
    """The announcement for which others have left: once is enough."""
    skipped_version: int = -1
    """The version of the memory with which it was found that nothing can be loaded ahead of time."""
    skipped_at: float | None = None
    """The announcement for which it was found, and said, that nothing can be loaded ahead of time."""
    move: MoveRequested | None = None
    closing: Closing | None = None
    change: ModelReplaced | ModelRemoved | None = None
    driven_away: bool = False
    """It was in tier 1 when a hold began."""
    wanted_cells: int = 0
    """Cells that a later load should provide, learnt from a refused growth or asked for by a request or a person."""
    resizing: bool = False
    threads: int = 0
    evicted_for_load: tuple[ModelId, ...] = ()
    loads: int = 0
    """Loads that ended well."""
    load_started_at: float = 0.0
    load_fraction: float = 0.0
    load_s: dict[Tier, float] = field(default_factory=dict)
    """How long the last load from each tier took."""
    loading_from: Tier = Tier.DISK
    last_used_at: float = 0.0
    served: int = 0
    service_s: float | None = None
    rate_per_s: float = 0.0
    rate_at: float = 0.0
    first_asked_at: float | None = None
    failures: int = 0
    """Loads that failed and workers that died since the last request that ended well."""
    retry_at: float = 0.0
    """No load before this moment."""
    last_failure: HypnosError | None = None
    promised: bool = False
    """Others have left for it: nobody else takes that room."""
    waits_since: tuple[int, frozenset[ModelId]] | None = None
    """The version of the memory, and the models closed for it, with which it was found that it has to wait."""
    best: tuple[int, Plan | Shortage] | None = None
    """The best place that it could have if everything that may leave had left, for a version of the memory."""
    baseline_bytes: int = 0
    """Private memory of its worker as it was after the load, or after the last growth of its context."""
    grown: bool = False
    """Its worker has taken far more memory since: it is started anew when nobody uses it."""
    out_of_memory: bool = False
    """The last load failed for want of device memory and is tried once more."""
    parked_bytes: int = 0

    @property
    def footprint(self) -> Footprint:
        """Bytes booked for the model now: the plan while it loads, what was measured afterwards."""
        if self.plan is None:
            return _NOTHING
        return self.measured or self.plan.footprint

    @property
    def placement(self) -> Placement:
        """Where the model is, for the wire."""
        if self.plan is not None and self.residency is Residency.READY:
            return self.plan.placement
        return Placement(primary_tier=Tier.DISK, ssd_layers=len(self.shape.layers) if self.shape else 0)

    @property
    def idle(self) -> bool:
        """True when its worker is up and nobody uses or awaits it."""
        return self.residency is Residency.READY and not self.leases and not self.waiting and not self.resizing

    @property
    def may_leave(self) -> bool:
        """Whether the model may ever be evicted."""
        return self.spec.priority is not Priority.REALTIME_PINNED

    @property
    def is_batch(self) -> bool:
        """Work that nobody sits in front of: it leaves a core to others."""
        return self.spec.priority is Priority.LOW or self.spec.modality in _BATCH

    @property
    def wishes(self) -> bool:
        """True when the model is wanted in tier 1 although nobody may wait for it."""
        return self.staged or self.promoted or self.announced_at is not None

    @property
    def promoted(self) -> bool:
        """True when a person waits for the model to come to tier 1."""
        return self.move is not None and self.move.tier is Tier.GPU

    @property
    def files(self) -> str:
        """The file set that the model is loaded from."""
        return self.spec.weights_path

    @property
    def device_bytes(self) -> int:
        """Booked of accelerators' own memory."""
        return self.footprint.device + self.footprint.device_context

    @property
    def mapped_bytes(self) -> int:
        """Booked pages of files, each once: on one pool the accelerator's weights are such pages, too."""
        if self.plan is None or self.measured is None:
            return 0 if self.plan is None else self.plan.mapped_bytes
        on_accelerator = self.plan.mapped_bytes - self.plan.footprint.file_pages
        return self.measured.file_pages + min(max(on_accelerator, 0), self.measured.device)

    @property
    def private_bytes(self) -> int:
        """Booked of host memory, pages of files aside."""
        elsewhere = self.device_bytes if self.plan is not None and self.plan.device_shares else 0
        return self.footprint.total - self.mapped_bytes - elsewhere

    def oldest(self) -> Waiting:
        """The waiter that came first; there must be one."""
        return next(iter(self.waiting.values()))

    def requests_per_minute(self, now: float) -> float:
        """Rate of requests, decayed over RATE_WINDOW_S; for a new model over the time since its first request."""
        if self.first_asked_at is None:
            return 0.0
        known_s = max(now - self.first_asked_at, LEAST_KNOWN_S)
        return self.rate_per_s * _decay(now - self.rate_at) * 60.0 / (1.0 - math.exp(-known_s / RATE_WINDOW_S))

    def note_request(self, now: float) -> None:
        """Count one request into the rate."""
        self.rate_per_s = self.rate_per_s * _decay(now - self.rate_at) + 1.0 / RATE_WINDOW_S
        self.rate_at = now
        if self.first_asked_at is None:
            self.first_asked_at = now

    def note_service(self, seconds: float) -> None:
        """Count a lease that ended."""
        old = self.service_s
        self.service_s = seconds if old is None else old + SERVICE_WEIGHT * (seconds - old)
        self.served += 1

    def cool(self) -> None:
        """Forget the worker."""
        self.residency = Residency.COLD
        self.plan = None
        self.measured = None
        self.resizing = False
        self.grown = False
        self.threads = 0
        self.load_fraction = 0.0
        self.evicted_for_load = ()


@dataclass(slots=True)
class FileSet:
    """The files of one or more models, and how much of them is held in host memory without a worker."""

    path: str
    pages: Pages = Pages.ABSENT
    held_bytes: int = 0
    """Booked: what is to be held while filling, what is held afterwards, what is not yet free while dropping."""
    left_for: ModelId | None = None
    """For whose sake they were dropped the last time."""


@dataclass(slots=True)
class Hold:
    """Somebody else has the accelerator."""

    until: float | None


@dataclass(slots=True)
class State:
    """Everything that the scheduler remembers between two events."""

    models: dict[ModelId, ModelState]
    limits: Limits = field(default_factory=Limits)
    budgets: Budgets = NO_BUDGETS
    host_available_bytes: int = 0
    """Last sample of what the machine has left; the load in flight is not yet in it."""
    device_free_bytes: tuple[int, ...] = ()
    doubted_bytes: dict[int, int] = field(default_factory=dict)
    """What each accelerator is believed to have less than it says, since an allocation failed there."""
    lost_devices: set[int] = field(default_factory=set)
    files: dict[str, FileSet] = field(default_factory=dict)
    taken_files: frozenset[str] = frozenset()
    """File sets that are being changed on disk: nobody may have them open."""
    wanted_pages: dict[str, ModelId] = field(default_factory=dict)
    """File sets to be held as soon as there is room, each with a model that uses it."""
    corrections: Corrections = field(default_factory=Corrections)
    shares: Shares = field(default_factory=Shares)
    workflows: Workflows = field(default_factory=Workflows)
    hold: Hold | None = None
    memory_version: int = 0
    """Raised whenever room may have been gained; what was found impossible before need not be tried again earlier."""
    announced_by: "OrderedDict[str, ModelId]" = field(default_factory=OrderedDict)
    """The model that each caller is expected to ask next."""
    wishing: set[ModelId] = field(default_factory=set)
    """Models that may be wanted in tier 1 although nobody waits for them."""
    unsettled: bool = True
    """Something may have to be done about models that nobody waits for."""
    shrinking: bool = False
    """The budget became smaller, and what is booked may exceed it."""
    draining: bool = False
    where: dict[int, ModelId] = field(default_factory=dict)
    """The model of every request that is waiting or leased."""

    def freed(self) -> None:
        """Note that memory may have become free, or somebody idle."""
        self.memory_version += 1

    def stage(self, model: ModelState) -> None:
        """Want a model in tier 1 although nobody waits for it; one that is switched off is not wanted anywhere."""
        if model.spec.enabled:
            model.staged = True
            self.wishing.add(model.spec.id)

    def users(self, path: str) -> Iterator[ModelState]:
        """The models that are loaded from these files."""
        return (model for model in self.models.values() if model.spec.weights_path == path)

    def is_taken(self, model: ModelState) -> bool:
        """Whether the model's files are being changed on disk."""
        return model.files in self.taken_files

    def is_read(self, path: str) -> bool:
        """Whether a worker is being loaded from these files."""
        return any(user.residency is Residency.LOADING for user in self.users(path))

    def tier(self, model: ModelState) -> Tier:
        """Where a model is served from."""
        if model.residency is Residency.READY:
            return Tier.GPU
        files = self.files.get(model.spec.weights_path)
        return Tier.RAM if files is not None and files.pages is Pages.HELD else Tier.DISK

    def reload_s(self, model: ModelState, tier: Tier | None = None) -> float:
        """Seconds of a load from a tier (default: where the model is): as last measured, else guessed from its size."""
        source = self.tier(model) if tier is None else tier
        if source is Tier.GPU:
            # Where an eviction would move it to: pages that a worker maps stay held if that is how it is kept.
            files = self.files.get(model.spec.weights_path)
            source = Tier.RAM if files is not None and files.pages is Pages.HELD else Tier.DISK
        known = model.load_s.get(source)
        if known is not None:
            return known
        size = model.shape.tensor_bytes if model.shape else 0
        if source is Tier.DISK:
            return START_S + size / self.budgets.disk_bytes_per_s
        return START_S + (0.0 if self.budgets.one_pool else size / self.budgets.device_bytes_per_s)


_NOTHING = Footprint()


def _decay(elapsed_s: float) -> float:
    return math.exp(-max(0.0, elapsed_s) / RATE_WINDOW_S)
