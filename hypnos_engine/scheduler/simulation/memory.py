"""The made-up machine's memory: who has how much of what, and how long bytes take to get there; decides nothing."""

from dataclasses import dataclass, replace

from hypnos_engine.domain.memory import Footprint
from hypnos_engine.scheduler.placement import Plan
from hypnos_engine.scheduler.simulation.machine import SimMachine, SimModel
from hypnos_engine.scheduler.simulation.pages import PageCache

HELD = "held"
"""The keeper of pages that a policy holds."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker has of the machine."""

    devices: tuple[int, ...]
    """Bytes of each device."""
    private_bytes: int
    """Host memory of its own."""
    mapped_bytes: int
    """Pages of its file that it computes from."""

    @property
    def host_bytes(self) -> int:
        return self.private_bytes + self.mapped_bytes


@dataclass(slots=True)
class _Link:
    """A disk, or the way to a device: one transfer at a time."""

    bytes_per_s: float
    free_at: float = 0.0

    def carry(self, size_bytes: int, ready_at: float) -> float:
        """Take bytes from `ready_at` on; return when the last one has arrived."""
        if not size_bytes:
            return ready_at
        self.free_at = max(ready_at, self.free_at) + size_bytes / self.bytes_per_s
        return self.free_at


class Memory:
    """All bytes of the machine."""

    def __init__(self, machine: SimMachine) -> None:
        self._machine = machine
        self._others = [0] * len(machine.devices)
        self._host_others = 0
        self._used = [0] * len(machine.devices)
        self._private_bytes = 0
        self._held: dict[str, int] = {}
        self._disk = _Link(machine.disk_bytes_per_s)
        self._links = [_Link(machine.device_bytes_per_s) for _ in machine.devices]
        self.pages = PageCache(machine.host_bytes)

    @property
    def host_available_bytes(self) -> int:
        """What an operating system calls available: pages that can be read again count as free, locked ones do not."""
        taken = self._host_others + self._private_bytes + sum(self._held.values())
        return max(0, self._machine.host_bytes - taken)

    @property
    def device_free_bytes(self) -> tuple[int, ...]:
        """What each device reports as free."""
        pairs = zip(self._machine.devices, self._used, self._others, strict=True)
        return tuple(max(0, size - used - others) for size, used, others in pairs)

    def others_use(self, device: int | None, used_bytes: int) -> None:
        """Other programs have so much from now on."""
        if device is None:
            self._host_others = used_bytes
            self._make_way()
        else:
            self._others[device] = used_bytes

    def share_of(self, model: SimModel, plan: Plan) -> Share:
        """What a worker will have by its plan."""
        footprint = plan.footprint
        if self._machine.devices:
            devices = plan.device_shares or (0,) * len(self._machine.devices)
            private = footprint.total - sum(devices) - footprint.file_pages
            return Share(devices, private, footprint.file_pages)
        # On one pool an accelerator works on the file's own pages.
        mapped = footprint.file_pages + (min(footprint.device, model.file_bytes) if self._machine.unified else 0)
        return Share((), footprint.total - mapped, mapped)

    def fits(self, model: SimModel, share: Share) -> bool:
        """Whether the bytes are there now."""
        if any(needed > free for needed, free in zip(share.devices, self.device_free_bytes, strict=True)):
            return False
        kept = self.pages.kept_bytes + max(0, share.mapped_bytes - self.pages.kept(model.files))
        taken = self._host_others + self._private_bytes + share.private_bytes + kept
        return taken <= self._machine.host_bytes

    def take(self, model: SimModel, share: Share) -> None:
        """Book a worker."""
        self._used = [used + more for used, more in zip(self._used, share.devices, strict=True)]
        self._private_bytes += share.private_bytes
        self._make_way()
        self.pages.keep(model.files, model.id, share.mapped_bytes)

    def give_back(self, model: SimModel, share: Share) -> None:
        """A worker has gone; its file's pages stay as long as nobody needs the room."""
        self._used = [used - less for used, less in zip(self._used, share.devices, strict=True)]
        self._private_bytes -= share.private_bytes
        self.pages.keep(model.files, model.id, 0)
        self._make_way()

    def load(self, model: SimModel, plan: Plan, now: float) -> tuple[float, int, int]:
        """Bring a model's bytes to where its plan wants them.

        Returns when the last one is there, how many came from disk, and how many went to devices. Reading and copying
        overlap: the slower one counts. Transfers over the same link come one after the other.
        """
        ready = now + model.start_s
        missing = self.pages.read(model.files, model.file_bytes)
        end = self._disk.carry(missing, ready)
        whole, copied = sum(plan.device_shares), 0
        for link, share in zip(self._links, plan.device_shares, strict=False):
            part = plan.placement.vram_weight_bytes * share // whole if whole else 0
            copied += part
            end = max(end, link.carry(part, ready))
        return end, missing, copied

    def fill(self, model: SimModel, size_bytes: int, now: float) -> tuple[float, int]:
        """Read a file's pages; returns when they are there and how many came from disk."""
        missing = self.pages.read(model.files, size_bytes)
        return self._disk.carry(missing, now), missing

    def hold(self, files: str, size_bytes: int) -> int:
        """Lock as many of a file's pages as are there; returns how many."""
        held = min(size_bytes, self.pages.cached(files))
        self._held[files] = held
        self.pages.keep(files, HELD, held)
        return held

    def let_go(self, files: str) -> None:
        """Unlock a file's pages; they are plain cached pages from now on."""
        self._held.pop(files, None)
        self.pages.keep(files, HELD, 0)

    def _make_way(self) -> None:
        self.pages.resize(self._machine.host_bytes - self._host_others - self._private_bytes)


def grown(plan: Plan, extra_kv_bytes: int) -> Plan:
    """A plan after the KV cache has grown, on the first accelerator that it uses if there is one."""
    footprint = plan.footprint
    values = {name: getattr(footprint, name) for name in Footprint.__dataclass_fields__}
    where = "device" if footprint.device else "kv"
    values |= {where: values[where] + extra_kv_bytes, "peak": footprint.peak + extra_kv_bytes}
    first = min(plan.devices, default=None)
    shares = tuple(
        share + extra_kv_bytes if index == first else share for index, share in enumerate(plan.device_shares)
    )
    return replace(plan, footprint=Footprint(**values), device_shares=shares)
