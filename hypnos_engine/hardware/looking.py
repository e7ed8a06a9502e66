"""One look at every accelerator: which driver to ask about which, and whether the library still sees them all.

Blocks, and a broken driver may hang: runs on the monitor's thread only.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hypnos_engine.domain.errors import EngineFailed
from hypnos_engine.domain.kinds import Accelerator
from hypnos_engine.domain.memory import Device
from hypnos_engine.hardware.monitor import Reading
from hypnos_engine.hardware.nvidia import NvidiaCards
from hypnos_engine.hardware.system import PCI_FOLDER, vram_free_bytes
from hypnos_engine.ipc.messages import ProbeReport

PROBE_EVERY_S = 30.0
"""How often the library itself is asked what a device has left that no driver tells about: each time is a process."""
FIRST_AGAIN_S, LAST_AGAIN_S = 2.0, 60.0
"""After how long it is asked again whether a device that it did not see is back: twice as long each time."""


class Probe(Protocol):
    """The question to the inference library, see `ggml.Prober`."""

    def ask(self) -> ProbeReport: ...
    def end(self) -> None: ...


@dataclass(slots=True)
class DriversLook:
    """Implements `monitor.Look` for the devices of a snapshot."""

    devices: Sequence[Device]
    nvidia: NvidiaCards | None
    """None where NVIDIA's driver does not tell anything."""
    probe: Probe
    pci_folder: Path = PCI_FOLDER
    clock: Callable[[], float] = time.monotonic
    _amd: frozenset[str] | None = None
    """Addresses of cards whose amdgpu tells; None before the first look."""
    _free: dict[str, int] = field(init=False)
    """What the library last said to be free, by its own names; a device that it did not list is absent."""
    _asked_at: float = field(init=False)
    _again_s: float = FIRST_AGAIN_S
    _why: str = ""
    """Why nothing is known about what the library sees; empty when it answered."""

    def __post_init__(self) -> None:
        self._free = {device.library_name: device.free_bytes for device in self.devices}
        self._asked_at = self.clock()

    def __call__(self, *, slept: bool) -> tuple[Reading, ...]:
        if self._amd is None:
            names = (device.bus_id for device in self.devices if device.bus_id)
            self._amd = frozenset(name for name in names if vram_free_bytes(name, self.pci_folder) is not None)
        if slept or self._is_due():
            self._ask_library()
        return tuple(self._read(device) for device in self.devices)

    def stop(self) -> None:
        self.probe.end()

    # --- drivers ----------------------------------------------------------------------------------------------------

    def _read(self, device: Device) -> Reading:
        """What is known of a device.

        1. A device that the library does not see cannot be used, whatever its driver says: after sleep, NVIDIA's
           answers long before anything can be computed again.
        2. NVIDIA's driver, 3. amdgpu, 4. the library's own last word.
        """
        if device.library_name not in self._free:  # 1
            return Reading(None, self._why or "llama.cpp does not see it any more")
        if self.nvidia is not None and _is_nvidia(device):  # 2
            return self.nvidia.read(device)
        if device.bus_id in (self._amd or ()):  # 3
            free_bytes = vram_free_bytes(device.bus_id, self.pci_folder)
            return Reading(free_bytes, "amdgpu does not list it any more" if free_bytes is None else "")
        return Reading(self._free[device.library_name])  # 4

    def _has_driver(self, device: Device) -> bool:
        """Whether anybody but the library tells of it."""
        return (self.nvidia is not None and _is_nvidia(device)) or device.bus_id in (self._amd or ())

    # --- the library ------------------------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        since_s = self.clock() - self._asked_at
        if any(device.library_name not in self._free for device in self.devices):
            return since_s >= self._again_s
        return since_s >= PROBE_EVERY_S and not all(self._has_driver(device) for device in self.devices)

    def _ask_library(self) -> None:
        try:
            report = self.probe.ask()
        except EngineFailed as error:
            self._free, self._why = {}, f"llama.cpp does not answer ({error.message})"
        else:
            self._free = {device.name: device.free_bytes for device in report.devices}
            self._why = ""
        self._asked_at = self.clock()
        missing = any(device.library_name not in self._free for device in self.devices)
        self._again_s = min(2 * self._again_s, LAST_AGAIN_S) if missing else FIRST_AGAIN_S


def _is_nvidia(device: Device) -> bool:
    return device.accelerator is Accelerator.CUDA or "nvidia" in device.name.lower()
