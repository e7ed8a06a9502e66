"""Which accelerators a load is told to use, and what a worker's bytes count as; knows the machine, decides nothing.

On a made-up machine workers compute on the processor, and what they hold there counts as if it were where their plan
puts it: the ledger is then about the machine that was described, not about the one that it runs on.
"""

from dataclasses import dataclass

from hypnos_engine.domain.kinds import Residency, Tier
from hypnos_engine.domain.memory import Footprint, HardwareSnapshot
from hypnos_engine.hardware.bandwidths import Transfer
from hypnos_engine.hardware.simulated import Use
from hypnos_engine.ipc import messages as m
from hypnos_engine.scheduler import ledger
from hypnos_engine.scheduler.placement import Plan
from hypnos_engine.scheduler.state import State

ALL_LAYERS = -1
"""llama.cpp's way to say: every layer and the output head."""


@dataclass(frozen=True, slots=True)
class Onto:
    """Where a worker puts a model's layers, as `ipc.messages.Load` has it."""

    gpu_layers: int = 0
    devices: tuple[str, ...] | None = ()
    device_layers: tuple[int, ...] = ()
    cpu_expert_layers: int = 0


@dataclass(frozen=True, slots=True)
class Accelerators:
    """What of the machine loads and bookings depend on."""

    names: tuple[str, ...] = ()
    """By which the library knows them, in the order of the budgets; on one pool the one that shares it."""
    simulated: bool = False

    @classmethod
    def of(cls, hardware: HardwareSnapshot) -> "Accelerators":
        return cls(tuple(device.library_name for device in hardware.devices), hardware.simulated)

    def onto(self, plan: Plan) -> Onto:
        """Where the layers of a plan go.

        1. On a made-up machine, and without bytes for an accelerator: to the processor; no accelerator is opened.
        2. On one pool: to the accelerator that shares it.
        3. To the devices that have a share, in their order.
        """
        placement = plan.placement
        if self.simulated or not plan.footprint.device:  # 1
            return Onto()
        # The library counts the output head as one layer more, and gives it away first.
        layers = ALL_LAYERS if not placement.pinned_ram_layers else placement.gpu_layers + 1
        used = sorted(plan.devices) if plan.device_shares else [0]  # 2, 3
        names = tuple(self.names[device] for device in used if device < len(self.names))
        return Onto(
            layers,
            names or None,
            tuple(plan.device_layers[device] for device in used) if len(used) > 1 else (),
            placement.cpu_expert_layers,
        )

    def booked(self, report: m.MemoryReport, load_mode: str, plan: Plan | None) -> Footprint:
        """What a worker holds, as the ledger counts it."""
        held = measured_footprint(report, load_mode)
        if not self.simulated or plan is None or not plan.footprint.device:
            return held
        return _as_planned(held, report, load_mode, plan)


NO_ACCELERATORS = Accelerators()


def measured_footprint(report: m.MemoryReport, load_mode: str) -> Footprint:
    """What the worker holds. Its anonymous memory contains cache and buffers, so those are not added again.

    Weights that were read rather than mapped are anonymous too, and no file's pages.
    """
    mapped = max(0, report.weights_bytes - report.device_bytes) if load_mode == "mmap" else 0
    return Footprint(file_pages=mapped, anonymous=report.anonymous_bytes, device=report.device_bytes)


def _as_planned(held: Footprint, report: m.MemoryReport, load_mode: str, plan: Plan) -> Footprint:
    """A worker's host memory divided as its plan divides it: weights by bytes, the cache by layers.

    Where the plan leaves nothing to the processor, the buffers are the accelerator's, too. Copies of weights in the
    processor's own layout would not exist.
    """
    placement = plan.placement
    weights = placement.vram_weight_bytes + placement.pinned_ram_bytes
    layers = placement.gpu_layers + placement.pinned_ram_layers
    of_weights = placement.vram_weight_bytes / weights if weights else 1.0
    of_layers = placement.gpu_layers / layers if layers else 1.0
    whole = not placement.pinned_ram_layers and not placement.cpu_expert_layers
    moved_weights = round(report.weights_bytes * of_weights)
    moved_private = round(report.kv_bytes * of_layers) + (report.workspace_bytes if whole else 0)
    if load_mode != "mmap":
        moved_private += moved_weights
    buffers = 0 if whole else report.workspace_bytes
    device = moved_private + buffers + (moved_weights if load_mode == "mmap" else 0)
    gone = moved_private + round(report.repacked_bytes * of_weights)
    return Footprint(
        file_pages=max(0, held.file_pages - moved_weights) if load_mode == "mmap" else 0,
        anonymous=max(0, held.anonymous - gone),
        device=device,
    )


def copied(plan: Plan, phases: m.LoadPhases, source: Tier) -> Transfer:
    """What a load says about the way to the devices: nothing unless its weights were in host memory already."""
    if source is not Tier.RAM or not plan.device_shares or phases.weights_ms <= 0:
        return Transfer(0, 0.0)
    return Transfer(plan.placement.vram_weight_bytes, phases.weights_ms / 1e3)


def use_of(state: State) -> Use:
    """What is held of a made-up machine: by workers that are up, by pages and by parked conversations.

    Mapped pages are not among it: a system calls them available.
    """
    up = [model for model in state.models.values() if model.residency in (Residency.READY, Residency.UNLOADING)]
    host = sum(model.private_bytes for model in up) + ledger.held_bytes(state) + ledger.parked_bytes(state)
    devices = range(len(state.budgets.device_bytes))
    return Use(host, tuple(sum(ledger.share_of(model, device) for model in up) for device in devices))
