"""Translates a plan into the message that starts a load, and a worker's report into booked bytes."""

from hypnos_engine.domain.kinds import EngineKind, Modality
from hypnos_engine.domain.memory import Footprint
from hypnos_engine.domain.model import ModelSpec
from hypnos_engine.ipc import messages as m
from hypnos_engine.scheduler.placement import Plan

ALL_LAYERS = -1
"""llama.cpp's way to say: every layer and the output head."""
DEMO_STEP_DELAY_MS = 5.0
"""Pause of the demonstration engine before each word, so that streaming can be seen."""


def load_request(spec: ModelSpec, weights_path: str, plan: Plan, threads: int) -> m.Load:
    """The message for a worker; `weights_path` is absolute."""
    placement = plan.placement
    return m.Load(
        model=spec.id,
        weights_path=weights_path,
        context_len=placement.allocated_context_len,
        slots=spec.slots,
        kv_type=spec.kv_type.value,
        draft=spec.draft.value,
        gpu_layers=_gpu_layers(plan),
        load_mode=spec.load_mode.value,
        threads=threads,
        cpu_expert_layers=placement.cpu_expert_layers,
        embeddings=spec.modality is Modality.EMBEDDINGS,
        step_delay_ms=DEMO_STEP_DELAY_MS if spec.engine is EngineKind.FAKE else 0.0,
    )


def _gpu_layers(plan: Plan) -> int:
    """Layers to hand to an accelerator: the wire counts resident layers on one pool too, the library must not.

    The library counts the output head as one layer more, and gives it away first.
    """
    if not plan.footprint.device:
        return 0
    return ALL_LAYERS if not plan.placement.pinned_ram_layers else plan.placement.gpu_layers + 1


def measured_footprint(report: m.MemoryReport, load_mode: str) -> Footprint:
    """What the worker holds. Its anonymous memory contains cache and buffers, so those are not added again.

    Weights that were read rather than mapped are anonymous too, and no file's pages.
    """
    mapped = max(0, report.weights_bytes - report.device_bytes) if load_mode == "mmap" else 0
    return Footprint(file_pages=mapped, anonymous=report.anonymous_bytes, device=report.device_bytes)
