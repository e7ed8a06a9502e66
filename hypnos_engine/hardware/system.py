"""Lists the graphics processors that the operating system sees, whether or not anything here can compute on them.

Reads Linux' PCI tree and nothing else: no driver is asked, and elsewhere the list is empty.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

PCI_FOLDER = Path("/sys/bus/pci/devices")

_DISPLAY = "0x03"
"""PCI's class of display controllers, 3D controllers without an output included."""
_CARD_BYTES = 3 * 1024**3
"""An AMD processor with less memory of its own is a part of the CPU with a piece of RAM carved out for it."""


class Vendor(StrEnum):
    """Whose graphics processors compute; management controllers and virtual screens do not."""

    NVIDIA = "NVIDIA"
    AMD = "AMD"
    INTEL = "Intel"


_VENDORS = {"0x10de": Vendor.NVIDIA, "0x1002": Vendor.AMD, "0x8086": Vendor.INTEL}


@dataclass(frozen=True, slots=True)
class Adapter:
    """One graphics processor on the bus."""

    bus_id: str
    vendor: Vendor
    model: str
    """PCI's number of it, or its name where the driver tells."""
    discrete: bool
    """Whether it seems to be a card of its own."""

    @property
    def name(self) -> str:
        return f"{self.vendor} {self.model}" if self.vendor not in self.model else self.model


def adapters(folder: Path = PCI_FOLDER) -> tuple[Adapter, ...]:
    """All graphics processors, in the order of their addresses. A few small reads."""
    with contextlib.suppress(OSError):
        return tuple(_adapters(sorted(folder.iterdir())))
    return ()


def _adapters(devices: list[Path]) -> Iterator[Adapter]:
    for device in devices:
        vendor = _VENDORS.get(_read(device / "vendor"))
        if vendor is None or not _read(device / "class").startswith(_DISPLAY):
            continue
        number = _read(device / "device").removeprefix("0x")
        model = _read(device / "product_name") or f"graphics processor {number}"
        yield Adapter(device.name.lower(), vendor, model, _is_card(device, vendor))


def _is_card(device: Path, vendor: Vendor) -> bool:
    if vendor is Vendor.AMD:
        return vram_total_bytes(device) >= _CARD_BYTES
    # What is soldered to the first bus of an Intel machine is a part of its processor.
    return vendor is Vendor.NVIDIA or device.name.split(":")[1] != "00"


def vram_total_bytes(device: Path) -> int:
    """Memory of its own of a card driven by amdgpu; 0 for any other."""
    return _number(_read(device / "mem_info_vram_total")) or 0


def vram_free_bytes(bus_id: str, folder: Path = PCI_FOLDER) -> int | None:
    """What such a card has left; None for any other, and for one that is not there any more."""
    device = folder / bus_id
    total, used = (_number(_read(device / f"mem_info_vram_{what}")) for what in ("total", "used"))
    return None if not total or used is None else max(0, total - used)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
