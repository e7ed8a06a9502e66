"""Machines as recorded: what NVIDIA's library, llama.cpp's probe, the PCI tree and sysctl said on each of them.

`RecordedNvml` passes through the same functions, and raises the same errors, as nvidia-ml-py on that machine.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pynvml

from hypnos_engine.domain.errors import EngineFailed
from hypnos_engine.hardware.discovery import Sources
from hypnos_engine.hardware.machine import HostMemory
from hypnos_engine.hardware.nvidia import Handle
from hypnos_engine.ipc.messages import ProbeReport

FOLDER = Path(__file__).parent / "recordings"
Answers = dict[str, Any]


class RecordedNvml:
    """NVIDIA's library with a recording in place of a driver. A test may change `devices` and `init` meanwhile."""

    NVMLError: type[Exception] = pynvml.NVMLError

    def __init__(self, recording: Answers) -> None:
        self.init: object = recording.get("init")
        self.devices: list[Answers] = recording.get("devices", [])
        self.starts = 0

    def nvmlInit(self) -> None:
        _said(self.init)
        self.starts += 1

    def nvmlShutdown(self) -> None:
        if not self.starts:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        self.starts -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Handle:
        _said(self.devices[index].get("handle"))
        return self.devices[index]

    def nvmlDeviceGetName(self, handle: Handle, /) -> str:
        return str(_said(handle["name"]))

    def nvmlDeviceGetPciInfo(self, handle: Handle, /) -> Any:
        return SimpleNamespace(busId=_said(handle["busId"]).encode())  # ctypes gives bytes

    def nvmlDeviceGetMemoryInfo(self, handle: Handle, /) -> Any:
        return SimpleNamespace(**_said(handle["memory"]))

    def nvmlDeviceGetMigMode(self, handle: Handle, /) -> Any:
        return _said(handle["mig"])

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle, /) -> int:
        return int(_said(handle["max_mig"]))

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Handle, index: int, /) -> Handle:
        instances = handle["instances"]
        return _said(instances[index] if index < len(instances) else {"error": pynvml.NVML_ERROR_NOT_FOUND})

    def nvmlDeviceGetUtilizationRates(self, handle: Handle, /) -> Any:
        return SimpleNamespace(**_said(handle["utilization"]))

    def nvmlDeviceGetTemperature(self, handle: Handle, sensor: int, /) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return int(_said(handle["temperature"]))

    def nvmlDeviceGetPowerUsage(self, handle: Handle, /) -> int:
        return int(_said(handle["power"]))

    def nvmlDeviceGetClockInfo(self, handle: Handle, clock: int, /) -> int:
        assert clock == pynvml.NVML_CLOCK_SM
        return int(_said(handle["clock"]))

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Handle, /) -> int:
        return int(_said(handle["event_reasons"]))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Handle, /) -> int:
        return int(_said(handle.get("throttle_reasons", {"error": pynvml.NVML_ERROR_NOT_SUPPORTED})))

    def nvmlDeviceGetTotalEccErrors(self, handle: Handle, kind: int, counter: int, /) -> int:
        assert (kind, counter) == (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        return int(_said(handle["ecc"]))

    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: Handle, /) -> int:
        return int(_said(handle["retired"]))

    def nvmlDeviceGetRemappedRows(self, handle: Handle, /) -> Any:
        return _said(handle["remapped"])

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle, /) -> Any:
        return [SimpleNamespace(**process) for process in _said(handle["compute"])]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Handle, /) -> Any:
        return [SimpleNamespace(**process) for process in _said(handle["graphics"])]


def _said(answer: Any) -> Any:
    if isinstance(answer, dict) and set(answer) == {"error"}:
        raise pynvml.NVMLError(answer["error"])
    return answer


class RecordedProbe:
    """Answers as llama.cpp's probe did; a test may change `report`. None = the library cannot be used."""

    def __init__(self, report: ProbeReport | None) -> None:
        self.report = report
        self.asked = 0
        self.ended = False

    def ask(self) -> ProbeReport:
        self.asked += 1
        if self.report is None:
            raise EngineFailed("The inference library cannot be used: no such file.")
        return self.report

    def end(self) -> None:
        self.ended = True

    async def answer(self) -> ProbeReport:
        return self.ask()


@dataclass(frozen=True, slots=True)
class Machine:
    """One recorded machine."""

    sources: Sources
    probe: RecordedProbe
    nvml: RecordedNvml | None
    pci_folder: Path


def machine(name: str, tmp_path: Path) -> Machine:
    """A machine of `recordings/`, its PCI tree written out under `tmp_path`."""
    said = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    probe = RecordedProbe(msgspec.convert(said["probe"], ProbeReport))
    nvml = None if said.get("nvml") is None else RecordedNvml(said["nvml"])
    folder = tmp_path / "pci"
    for address, files in said.get("pci", {}).items():
        (folder / address).mkdir(parents=True)
        for file, content in files.items():
            (folder / address / file).write_text(f"{content}\n", "utf-8")
    settings = said.get("sysctl", {})
    sources = Sources(
        probe=probe.answer,
        prober=lambda: probe,
        nvml=lambda: nvml,
        pci_folder=folder,
        sysctl=lambda setting: str(settings.get(setting, "")),
        host=lambda: HostMemory(**said["host"]),
        retry_s=(),
    )
    return Machine(sources, probe, nvml, folder)


def names() -> list[str]:
    """Every recorded machine."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))
