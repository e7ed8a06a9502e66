"""Bytes and where they are: footprints, placements, devices. Units are bytes and seconds throughout."""

from dataclasses import dataclass, field

from hypnos_engine.domain.kinds import Accelerator, Tier, Topology


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a loaded model takes, by the kind of memory that takes it."""

    file_pages: int = 0
    """Pages of the weight files, mapped; one ledger line however many processes map them."""
    repacked: int = 0
    """Anonymous copies of weights in another layout."""
    anonymous: int = 0
    """Other private host memory of the worker, its interpreter and libraries included."""
    device: int = 0
    """Weights in device memory."""
    device_context: int = 0
    """What opening the device costs before anything is loaded."""
    kv: int = 0
    workspace: int = 0
    projector: int = 0
    peak: int = 0
    """Most bytes in use at once while loading; admission goes by it."""

    @property
    def total(self) -> int:
        """Bytes in use once loaded."""
        return (
            self.file_pages
            + self.repacked
            + self.anonymous
            + self.device
            + self.device_context
            + self.kv
            + self.workspace
            + self.projector
        )


@dataclass(frozen=True, slots=True)
class Placement:
    """Which part of a model is in which tier (contract §18, LayerPlacementPlan)."""

    primary_tier: Tier = Tier.DISK
    gpu_layers: int = 0
    pinned_ram_layers: int = 0
    ssd_layers: int = 0
    vram_weight_bytes: int = 0
    vram_kv_and_workspace_bytes: int = 0
    pinned_ram_bytes: int = 0
    allocated_context_len: int = 0
    """KV cells that the placement funds, across all slots."""
    cpu_expert_layers: int = 0


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator as the inference library sees it."""

    index: int
    """Its place in the library's own list."""
    name: str
    accelerator: Accelerator
    total_bytes: int
    free_bytes: int
    unified: bool
    """True when the device shares the host's memory."""
    library_name: str = ""
    """By which the library is told to use it, such as CUDA0; empty for a made-up one."""
    bus_id: str = ""
    """PCI address, such as 0000:01:00.0; empty where the library does not tell."""


@dataclass(frozen=True, slots=True)
class UnusableDevice:
    """A graphics processor of this machine that this build cannot compute on; never planned with."""

    name: str
    why: str
    mend: str
    """The command that makes it usable."""


@dataclass(frozen=True, slots=True)
class HardwareSnapshot:
    """The machine at one moment. `devices` holds only what this build can use, the best first."""

    topology: Topology
    accelerator: Accelerator
    device_name: str
    host_total_bytes: int
    host_available_bytes: int
    cores: int
    devices: tuple[Device, ...] = field(default=())
    simulated: bool = False
    unusable: tuple[UnusableDevice, ...] = ()
