"""What the worker tells about its memory: the library's own numbers for its buffers, the system's for the process."""

from dataclasses import dataclass

from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.llama.native import Buffers
from hypnos_engine.workers.memory import anonymous_bytes


@dataclass(frozen=True, slots=True)
class MemoryMeter:
    """Knows what the weights took; the context's part changes with each rebuild."""

    weights_bytes: int
    weights: Buffers

    def report(self, context: Buffers) -> m.MemoryReport:
        """The memory that is held now, with the given buffers of the context."""
        kinds = context.by_kind
        return m.MemoryReport(
            weights_bytes=self.weights_bytes,
            device_bytes=self.weights.device_bytes + context.device_bytes,
            kv_bytes=kinds.get("KV", 0) + kinds.get("RS", 0),
            workspace_bytes=kinds.get("compute", 0) + kinds.get("output", 0),
            repacked_bytes=self.weights.repacked_bytes,
            anonymous_bytes=anonymous_bytes(),
        )
