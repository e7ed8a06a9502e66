"""What the worker tells about its memory: the library's own numbers for its buffers, the system's for the process."""

from dataclasses import dataclass

from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.llama.model import NONE_MOVED, Moved
from hypnos_engine.workers.llama.native import Buffers
from hypnos_engine.workers.memory import anonymous_bytes


@dataclass(frozen=True, slots=True)
class MemoryMeter:
    """Knows what the weights took; the context's part changes with each rebuild."""

    weights_bytes: int
    weights: Buffers
    experts: Moved = NONE_MOVED
    later_bytes: int = 0
    """Logits of guesses: the library makes room for them only when it first computes some."""

    def report(self, context: Buffers) -> m.MemoryReport:
        """The memory that is held now, with the given buffers of the context, and what is taken later in any case."""
        kinds = context.by_kind
        return m.MemoryReport(
            weights_bytes=self.weights_bytes,
            device_bytes=self.weights.device_bytes + context.device_bytes,
            kv_bytes=kinds.get("KV", 0) + kinds.get("RS", 0),
            workspace_bytes=kinds.get("compute", 0) + kinds.get("output", 0) + self.later_bytes,
            repacked_bytes=self.weights.repacked_bytes,
            anonymous_bytes=anonymous_bytes() + self.later_bytes,
            host_expert_tensors=self.experts.tensors,
            host_expert_bytes=self.experts.bytes,
        )
