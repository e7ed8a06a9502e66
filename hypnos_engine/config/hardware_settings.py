"""The `[hardware]` table and the made-up machine; declares, checks nothing across settings, touches no device."""

from dataclasses import dataclass

from hypnos_engine.config.choices import AUTO, Auto, Backend, HoldPolicy
from hypnos_engine.config.kinds import MIB, AutoOr, Choice, Number, Size, Switch, Whole
from hypnos_engine.config.names import TITLE
from hypnos_engine.config.setting import Table, required, setting, settings_of
from hypnos_engine.domain.kinds import Accelerator, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedDevice:
    """`[[hardware.simulate.devices]]`."""

    total_bytes: int = required(Size(MIB), "Memory of the device.", unit="bytes", effective=True)
    name: str = setting(TITLE, "Simulated device", "Name that the device reports.", effective=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherPrograms:
    """`[[hardware.simulate.others]]`."""

    used_bytes: int = required(
        Size(), "Device memory that other programs hold from then on.", unit="bytes", effective=True
    )
    after_secs: float = setting(
        Number(0, 10**9), 0.0, "Time since the start from which it holds.", unit="seconds", effective=True
    )
    device: int = setting(Whole(0, 63), 0, "Number of the device, from 0 in the order of the file.", effective=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMachine:
    """`[hardware.simulate]`."""

    host_bytes: int = required(Size(MIB), "Memory of the host.", unit="bytes", effective=True)
    topology: Topology = setting(
        Choice(Topology),
        Topology.DISCRETE,
        "How device memory and host memory relate; `DiscretePcie` needs devices.",
        effective=True,
    )
    accelerator: Accelerator = setting(Choice(Accelerator), Accelerator.CUDA, "What computes tier 1.", effective=True)
    cores: int = setting(Whole(1, 4096), 8, "CPU cores.", effective=True)
    tier3_to_tier2_bytes_per_s: int = setting(
        Size(1), 3_000_000_000, "Speed of the disk.", unit="bytes per second", effective=True
    )
    tier2_to_tier1_bytes_per_s: int = setting(
        Size(1), 16_000_000_000, "Speed from host memory to the device.", unit="bytes per second", effective=True
    )
    devices: tuple[SimulatedDevice, ...] = ()
    others: tuple[OtherPrograms, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSettings:
    """`[hardware]`."""

    backend: Backend = setting(
        Choice(Backend),
        Backend.AUTO,
        "What computes tier 1; `auto` is the best that this build offers.",
        effective=True,
    )
    max_process_memory_bytes: int | None = setting(
        Size(64 * MIB),
        None,
        "Most memory of Hypnos and its workers together, file pages counted once; beyond it a load is answered 507.",
        unit="bytes",
        unset="no cap",
        effective=True,
    )
    tier1_bytes: int | None = setting(
        Size(),
        None,
        "Memory of each device that Hypnos may use; where there is no device, host memory for loaded models.",
        unit="bytes",
        unset="derived from the machine",
        effective=True,
    )
    tier2_bytes: int | None = setting(
        Size(),
        None,
        "Host memory in which weights and conversations are kept warm.",
        unit="bytes",
        unset="derived from the machine",
        effective=True,
    )
    os_reserve_bytes: int | None = setting(
        Size(),
        None,
        "Host memory that is left to the system and other programs.",
        unit="bytes",
        unset="derived from the machine",
        effective=True,
    )
    kv_park: bool = setting(
        Switch(), False, "Whether conversations of a model that leaves tier 1 are kept in host memory.", effective=True
    )
    kv_park_max_bytes: int | None = setting(
        Size(),
        None,
        "Host memory of parked conversations; the oldest go first.",
        unit="bytes",
        unset="as much as tier 2",
        effective=True,
    )
    spare_workers: int | Auto = setting(
        AutoOr(Whole(0, 16)), AUTO, "Workers started ahead, with their library imported and no model.", effective=True
    )
    threads: int | Auto = setting(
        AutoOr(Whole(1, 1024)),
        AUTO,
        "CPU threads of all workers together.",
        unset="one per physical core",
        effective=True,
    )
    hold_policy: HoldPolicy = setting(
        Choice(HoldPolicy),
        HoldPolicy.REFUSE,
        "While the GPU is held for its owner, requests are refused or run on the CPU.",
        effective=True,
    )
    simulate: SimulatedMachine | None = None


SIMULATE = Table(
    path="hardware.simulate",
    help="A made-up machine in place of the real one, to try a configuration out.",
    build=SimulatedMachine,
    settings=settings_of(SimulatedMachine),
    tables=(
        Table(
            path="hardware.simulate.devices",
            help="One accelerator of the made-up machine.",
            repeated=True,
            build=SimulatedDevice,
            settings=settings_of(SimulatedDevice),
        ),
        Table(
            path="hardware.simulate.others",
            help="What other programs hold of a device of the made-up machine, from some time on.",
            repeated=True,
            build=OtherPrograms,
            settings=settings_of(OtherPrograms),
        ),
    ),
)

HARDWARE = Table(
    path="hardware",
    help="What of the machine Hypnos may use.",
    build=HardwareSettings,
    settings=settings_of(HardwareSettings),
    tables=(SIMULATE,),
)
