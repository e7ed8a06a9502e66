"""Says which graphics processors of a machine its build cannot compute on, why, and what mends it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypnos_engine.domain.kinds import Accelerator
from hypnos_engine.domain.memory import UnusableDevice
from hypnos_engine.hardware.machine import accelerator_of
from hypnos_engine.hardware.nvidia import Card
from hypnos_engine.hardware.system import Adapter, Vendor
from hypnos_engine.ipc import programs
from hypnos_engine.ipc.messages import Device, ProbeReport

SETUP = "in a clone of Hypnos: ./run.sh setup" if programs.is_packaged() else "./run.sh setup"
_DRIVER = f"install NVIDIA's driver (Ubuntu: sudo ubuntu-drivers install), restart, then {SETUP} --backend cuda"


@dataclass(frozen=True, slots=True)
class NvidiaDriver:
    """What NVIDIA's driver said at the start."""

    cards: tuple[Card, ...] = ()
    problem: str = ""
    """Why it said nothing, as a sentence without its end; empty when it answered."""


def unusable(report: ProbeReport | None, adapters: Sequence[Adapter], driver: NvidiaDriver) -> list[UnusableDevice]:
    """The graphics processors that the inference library does not list.

    Parts of a CPU are left out beside a device that can be used: nobody would want them.
    """
    seen = [device for device in report.devices if device.kind in ("gpu", "igpu")] if report is not None else []
    if report is not None and not report.gpu_offload:
        seen = []
    found = [
        UnusableDevice(card.name, *_nvidia(report, card, driver))
        for card in driver.cards
        if not _is_card_seen(card, seen)
    ]
    listed = {card.bus_id for card in driver.cards}
    for adapter in adapters:
        if adapter.bus_id in listed or _is_adapter_seen(adapter, seen) or (seen and not adapter.discrete):
            continue
        if adapter.vendor is Vendor.NVIDIA:
            found.append(UnusableDevice(adapter.name, *_nvidia(report, None, driver)))
        else:
            found.append(UnusableDevice(adapter.name, _why(report), f"{SETUP} --backend vulkan" if report else SETUP))
    return found


def _nvidia(report: ProbeReport | None, card: Card | None, driver: NvidiaDriver) -> tuple[str, str]:
    """Why, and what mends it.

    1. The driver does not work: nothing else can.
    2. The card is divided into instances, and there is none.
    3. The build, or the way from it to the driver.
    """
    if card is None:
        return driver.problem or "NVIDIA's driver does not list it", _DRIVER  # 1
    if card.divided and not card.instances:
        return (
            "MIG is on and no instance is made: nothing can compute on it",
            f"sudo nvidia-smi -i {card.bus_id} -mig 0",
        )  # 2
    return _why(report), f"{SETUP} --backend cuda" if report else SETUP  # 3


def _why(report: ProbeReport | None) -> str:
    if report is None:
        return "llama.cpp cannot be used"
    if not report.gpu_offload:
        return "this llama.cpp was built for the processor alone"
    return "this llama.cpp was built for other accelerators, or its driver cannot be used"


def _is_card_seen(card: Card, seen: Sequence[Device]) -> bool:
    return any(device.bus_id == card.bus_id if device.bus_id else device.description == card.name for device in seen)


def _is_adapter_seen(adapter: Adapter, seen: Sequence[Device]) -> bool:
    """A device without an address may be any of its maker's; better say nothing than something wrong."""
    return any(device.bus_id == adapter.bus_id if device.bus_id else _fits(device, adapter) for device in seen)


def _fits(device: Device, adapter: Adapter) -> bool:
    kind = accelerator_of(device.name)
    if kind is Accelerator.CUDA:
        return adapter.vendor is Vendor.NVIDIA
    return adapter.vendor is Vendor.AMD if kind is Accelerator.ROCM else adapter.vendor in device.description
