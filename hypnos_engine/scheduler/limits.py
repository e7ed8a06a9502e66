"""What the scheduler is told about the machine and the settings; plain values without a decision in them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budgets:
    """Bytes that models may take, per kind of memory, and what the machine can do with them."""

    device_bytes: tuple[int, ...]
    """Budget of each accelerator with memory of its own, the best first; empty where there is none."""
    host_bytes: int
    """Budget of host memory for workers and held pages together."""
    cores: int
    device_layers: bool
    """True when layers can be given to an accelerator, whoever owns its memory."""
    tier2_bytes: int = 0
    """How much of the host's budget may be pages that are held for models without a worker; 0 = none are held."""
    park_bytes: int = 0
    """How much of the host's budget may be parked conversations; 0 = none are parked."""
    process_cap_bytes: int | None = None
    """How much host memory workers and held pages may take so that the program stays below its cap; None = no cap."""
    disk_bytes_per_s: float = 1.5e9
    """From tier 3 to tier 2."""
    device_bytes_per_s: float = 1.0e10
    """From tier 2 to tier 1; on one pool nothing is copied."""

    @property
    def one_pool(self) -> bool:
        """True when tier 1 is host memory."""
        return not self.device_bytes


NO_BUDGETS = Budgets((), 0, 1, device_layers=False)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long queues and waits may become."""

    max_queue_per_model: int = 8
    """Requests of one model that may wait or run."""
    max_overtakes: int = 32
    """Later requests that may be served before a waiting one."""
    max_overtaken_s: float = 60.0
    """Seconds for which later requests may be served before a waiting one."""
    shed_s: float | None = None
    """Deadline of requests that bring none; None = they wait."""
    hold_uses_cpu: bool = False
    """Whether models are loaded for the processor while the accelerator is on hold; else requests are refused."""
