"""The made-up workers: what is loaded where, who uses it, and what became of the machine's bytes; decides nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from hypnos_engine.domain.kinds import Residency, Tier
from hypnos_engine.domain.memory import Footprint
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler.placement import Plan, kv_bytes
from hypnos_engine.scheduler.simulation.machine import SimMachine, SimModel
from hypnos_engine.scheduler.simulation.memory import Memory, Share, grown
from hypnos_engine.scheduler.simulation.result import Moment
from hypnos_engine.scheduler.simulation.service import Station

_ALL_CACHED = 0.99
"""A file is in tier 2 when so much of it is."""
_POOL = "host"


@dataclass(slots=True, eq=False)
class Worker:
    """One model's life, and what it has cost."""

    model: SimModel
    residency: Residency = Residency.COLD
    plan: Plan | None = None
    cells: int = 0
    share: Share | None = None
    station: Station = field(default_factory=lambda: Station(1.0))
    leases: set[int] = field(default_factory=set)
    load_began: float = 0.0
    loads: int = 0
    failed_loads: int = 0
    evictions: int = 0
    loading_s: float = 0.0
    disk_bytes: int = 0
    device_bytes: int = 0
    seen: Moment | None = None
    """What the timeline last said of it."""


class Workers:
    """All models of one simulation."""

    def __init__(self, models: Sequence[SimModel], machine: SimMachine) -> None:
        self._machine = machine
        self._memory = Memory(machine)
        self._workers = {model.id: Worker(model) for model in models}
        self._by_files: dict[str, list[Worker]] = {}
        for worker in self._workers.values():
            self._by_files.setdefault(worker.model.files, []).append(worker)
        self.timeline: list[Moment] = []
        self.changed = True
        """Whether memory has changed since somebody set this to False."""

    @property
    def host_available_bytes(self) -> int:
        return self._memory.host_available_bytes

    @property
    def device_free_bytes(self) -> tuple[int, ...]:
        return self._memory.device_free_bytes

    def of(self, model: ModelId) -> Worker:
        return self._workers[model]

    def model(self, model: ModelId) -> SimModel:
        return self._workers[model].model

    # --- residency --------------------------------------------------------------------------------------------------

    def start(self, model: ModelId, plan: Plan, now: float) -> float | None:
        """Begin to load; returns when it will be ready, None when the memory for it is not there."""
        worker = self._workers[model]
        assert worker.residency is Residency.COLD, f"{model} is loaded although it is {worker.residency}"
        worker.residency, worker.load_began = Residency.LOADING, now
        share = self._memory.share_of(worker.model, plan)
        if not self._memory.fits(worker.model, share):
            self._note(now, model)
            return None
        worker.plan, worker.share = plan, share
        worker.cells = plan.placement.allocated_context_len
        self._memory.take(worker.model, share)
        end, from_disk, copied = self._memory.load(worker.model, plan, now)
        worker.disk_bytes += from_disk
        worker.device_bytes += copied
        worker.station = self._station(worker.model, plan)
        self._note(now, model)
        return end

    def ready(self, model: ModelId, now: float) -> None:
        """A load has ended well."""
        worker = self._workers[model]
        worker.residency = Residency.READY
        worker.loads += 1
        worker.loading_s += now - worker.load_began
        self._note(now, model)

    def failed(self, model: ModelId, now: float) -> None:
        """A load found no memory."""
        worker = self._workers[model]
        worker.residency = Residency.COLD
        worker.failed_loads += 1
        worker.loading_s += now - worker.load_began
        self._note(now, model)

    def stop(self, model: ModelId, now: float) -> None:
        """Begin to end a worker."""
        worker = self._workers[model]
        assert worker.residency is Residency.READY, f"{model} is unloaded although it is {worker.residency}"
        assert not worker.leases, f"{model} is unloaded although it is in use"
        worker.residency = Residency.UNLOADING
        worker.evictions += 1
        self._note(now, model)

    def gone(self, model: ModelId, now: float) -> None:
        """A worker has ended and its memory is free."""
        worker = self._workers[model]
        worker.residency = Residency.COLD
        if worker.share is not None:
            self._memory.give_back(worker.model, worker.share)
        worker.share = worker.plan = None
        self._note(now, model)

    def resize(self, model: ModelId, cells: int, now: float) -> tuple[int, Footprint]:
        """Rebuild the KV cache, if there is memory for it; returns the cells and bytes that hold from now on."""
        worker = self._workers[model]
        plan, shape, spec = worker.plan, worker.model.shape, worker.model.spec
        if worker.residency is not Residency.READY or plan is None or worker.share is None or shape is None:
            return worker.cells, Footprint() if plan is None else plan.footprint
        extra = kv_bytes(shape, spec.kv_type, cells, spec.slots) - kv_bytes(
            shape, spec.kv_type, worker.cells, spec.slots
        )
        larger = grown(plan, extra)
        share = self._memory.share_of(worker.model, larger)
        self._memory.give_back(worker.model, worker.share)
        if self._memory.fits(worker.model, share):
            worker.share, worker.plan, worker.cells = share, larger, cells
            plan = larger
        self._memory.take(worker.model, worker.share)
        self._note(now, model)
        return worker.cells, plan.footprint

    def _station(self, model: SimModel, plan: Plan) -> Station:
        """How fast the model is where it is now, and with whom it shares that."""
        devices = self._machine.devices
        if not devices or model.shape is None:
            return Station(model.batch_gain, 1.0, (_POOL,))
        share = self._memory.share_of(model, plan)
        places = tuple(f"device {index}" for index, size in enumerate(share.devices) if size)
        layers = len(model.shape.layers)
        on_device = plan.placement.gpu_layers / layers if places and layers else float(bool(places))
        by_experts = plan.placement.cpu_expert_layers / layers if places and layers else 0.0
        if model.shape.tensor_bytes:  # experts away from the device cost by their part of the layers' bytes
            on_device -= by_experts * model.shape.expert_bytes / model.shape.tensor_bytes
        on_device = min(max(on_device, 0.0), 1.0)
        if on_device < 1.0:
            places = (*places, _POOL)
        return Station(model.batch_gain, 1.0 / (on_device + (1.0 - on_device) * self._machine.host_slowdown), places)

    # --- use --------------------------------------------------------------------------------------------------------

    def lease(self, model: ModelId, request: int) -> Station:
        """A request begins to use a model."""
        worker = self._workers[model]
        assert worker.residency is Residency.READY, f"{model} is granted although it is {worker.residency}"
        assert len(worker.leases) < worker.model.slots, f"{model} has no free slot"
        worker.leases.add(request)
        return worker.station

    def release(self, model: ModelId, request: int) -> None:
        """A request has ended."""
        self._workers[model].leases.remove(request)

    # --- pages ------------------------------------------------------------------------------------------------------

    def fill(self, model: ModelId, size_bytes: int, now: float) -> float:
        """Read a file's pages; returns when they are there."""
        worker = self._workers[model]
        end, from_disk = self._memory.fill(worker.model, size_bytes, now)
        worker.disk_bytes += from_disk
        self._note(now)
        return end

    def hold(self, files: str, size_bytes: int, now: float) -> int:
        """Lock a file's pages; returns how many bytes."""
        held = self._memory.hold(files, size_bytes)
        self._note(now)
        return held

    def let_go(self, files: str, now: float) -> None:
        """Unlock a file's pages."""
        self._memory.let_go(files)
        self._note(now)

    def others_use(self, device: int | None, used_bytes: int, now: float) -> None:
        """Other programs have so much of a device (None: of the host) from now on."""
        self._memory.others_use(device, used_bytes)
        self._note(now)

    # --- what is seen -----------------------------------------------------------------------------------------------

    def _note(self, now: float, model: ModelId | None = None) -> None:
        """Write down whose picture has changed: the model's, and of those whose files' pages came or went."""
        self.changed = True
        touched = self._memory.pages.touched
        seen = [self._workers[model]] if model is not None else []
        for files in sorted(touched):
            seen += [worker for worker in self._by_files.get(files, ()) if worker not in seen]
        touched.clear()
        for worker in seen:
            moment = self._picture(worker, now)
            if worker.seen is None or msgspec.structs.replace(worker.seen, at_s=now) != moment:
                worker.seen = moment
                self.timeline.append(moment)

    def _picture(self, worker: Worker, now: float) -> Moment:
        model, share = worker.model, worker.share
        cached = self._memory.pages.cached(model.files)
        tier = Tier.DISK
        if worker.residency in (Residency.READY, Residency.UNLOADING):
            tier = Tier.GPU
        elif model.file_bytes and cached >= _ALL_CACHED * model.file_bytes:
            tier = Tier.RAM
        return Moment(
            now,
            model.id,
            worker.residency,
            tier,
            sum(share.devices) if share else 0,
            share.host_bytes if share else 0,
            cached,
        )
