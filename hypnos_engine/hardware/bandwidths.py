"""How fast weights come from disk and reach a device: measured once, remembered in a small file, refined by loads.

Reads past the page cache and never more than a bounded part of one file; knows no model and plans nothing.
"""

import contextlib
import mmap
import os
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

FILE_NAME = "bandwidths.json"
MEASURED_BYTES = 256 * 1024**2
"""Of a file's head, what is read at most."""
LEAST_BYTES = 32 * 1024**2
"""A smaller read says more about the start of a transfer than about its speed."""
LONGEST_S = 2.0
"""A slow disk is not kept busy for longer."""
_STEP_BYTES = 4 * 1024**2
_F_NOCACHE = 48
"""macOS: what is read through this descriptor is not kept in memory."""
_NEWEST_WEIGHS = 0.5
"""How much of a remembered speed a new measurement replaces."""


class Known(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is remembered: speeds in bytes per second, and of what."""

    disk: dict[str, float] = {}
    """By the number of the file system's device."""
    device: dict[str, float] = {}
    """By the devices' names."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One measured transfer."""

    size_bytes: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        return self.size_bytes / self.seconds

    @property
    def tells(self) -> bool:
        """Whether it was long enough to say anything."""
        return self.size_bytes >= LEAST_BYTES and self.seconds > 0


class Speeds(Protocol):
    """How fast bytes move; None where that is not known, or nothing is copied. Bytes per second."""

    @property
    def disk_bytes_per_s(self) -> float | None:
        """From tier 3 to tier 2."""
        ...

    @property
    def device_bytes_per_s(self) -> float | None:
        """From tier 2 to tier 1."""
        ...


@dataclass(frozen=True, slots=True)
class StatedSpeeds:
    """Speeds that somebody said, such as those of a made-up machine."""

    disk_bytes_per_s: float | None = None
    device_bytes_per_s: float | None = None


class Bandwidths:
    """The two speeds of this machine, None while not measured. `file` may be absent, damaged or not writable."""

    def __init__(self, file: Path, device_names: str = "") -> None:
        self._file = file
        self._devices = device_names
        self._known = _read(file)
        self._disk = ""
        """The disk that the models lie on; empty until it is known."""

    @property
    def disk_bytes_per_s(self) -> float | None:
        """From tier 3 to tier 2."""
        return self._known.disk.get(self._disk)

    @property
    def device_bytes_per_s(self) -> float | None:
        """From tier 2 to tier 1; None where nothing is copied."""
        return self._known.device.get(self._devices) if self._devices else None

    def copies_to(self, device_names: str) -> None:
        """Say which devices weights are copied to."""
        self._devices = device_names

    def lies_on(self, weights: Path) -> None:
        """Say where the models are. Ignores a file that is not there."""
        with contextlib.suppress(OSError):
            self._disk = disk_of(weights)

    def measured_disk(self, transfer: Transfer) -> None:
        """Take a measurement of the models' disk in, and remember it. Blocks for a small write."""
        if transfer.tells and self._disk:
            known = {**self._known.disk, self._disk: _mixed(self.disk_bytes_per_s, transfer)}
            self._remember(msgspec.structs.replace(self._known, disk=known))

    def measured_device(self, transfer: Transfer) -> None:
        """The same for copies to the devices."""
        if transfer.tells and self._devices:
            known = {**self._known.device, self._devices: _mixed(self.device_bytes_per_s, transfer)}
            self._remember(msgspec.structs.replace(self._known, device=known))

    def _remember(self, known: Known) -> None:
        self._known = known
        draft = self._file.with_name(f".{self._file.name}.{secrets.token_hex(4)}")
        with contextlib.suppress(OSError):  # it is measured again next time
            try:
                draft.touch(mode=0o600)
                draft.write_bytes(msgspec.json.encode(known))
                draft.replace(self._file)
            finally:
                draft.unlink(missing_ok=True)


def disk_of(file: Path) -> str:
    """Names the file system that a file lies on. Raises OSError."""
    return str(file.stat().st_dev)


def measure_disk(
    file: Path, size_bytes: int = MEASURED_BYTES, *, clock: Callable[[], float] = time.perf_counter
) -> Transfer:
    """Read the head of a file from its disk, past what memory holds of it. Blocks for LONGEST_S at most.

    Returns one that tells nothing when the file cannot be read so, as on Windows.
    """
    try:
        return _measured(file, size_bytes, clock)
    except (OSError, ValueError):
        return Transfer(0, 0.0)


def _measured(file: Path, size_bytes: int, clock: Callable[[], float]) -> Transfer:
    if sys.platform == "win32":
        raise OSError("no way past the cache")
    descriptor = _open_past_cache(file)
    try:
        with mmap.mmap(-1, _STEP_BYTES) as room:  # aligned to pages, as direct reads have to be
            done, began = 0, clock()
            while done < size_bytes and clock() - began < LONGEST_S:
                got = os.preadv(descriptor, [room], done)
                if got < _STEP_BYTES:
                    break  # the rest of the file; a part of a block cannot be read directly
                done += got
            return Transfer(done, clock() - began)
    finally:
        os.close(descriptor)


def _open_past_cache(file: Path) -> int:
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a file system in memory, for one, has nothing to go past
            return os.open(file, flags | os.O_DIRECT)
        descriptor = os.open(file, flags)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return descriptor
    descriptor = os.open(file, flags)
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(descriptor, _F_NOCACHE, 1)
    return descriptor


def _mixed(known: float | None, transfer: Transfer) -> float:
    if known is None:
        return transfer.bytes_per_s
    return known + _NEWEST_WEIGHS * (transfer.bytes_per_s - known)


def _read(file: Path) -> Known:
    try:
        known = msgspec.json.decode(file.read_bytes(), type=Known)
    except (OSError, msgspec.DecodeError):
        return Known()
    speeds = (*known.disk.values(), *known.device.values())
    return known if all(0 < speed < float("inf") for speed in speeds) else Known()
