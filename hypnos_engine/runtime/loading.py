"""Translates a plan into the message that starts a load, and a load's progress into a fraction."""

from hypnos_engine.domain.kinds import EngineKind, Modality
from hypnos_engine.domain.model import ModelSpec
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.accelerators import ALL_LAYERS, NO_ACCELERATORS, Accelerators, measured_footprint
from hypnos_engine.runtime.inspection import Inspection
from hypnos_engine.scheduler.placement import Plan

__all__ = ["ALL_LAYERS", "DEMO_STEP_DELAY_MS", "fraction_of_load", "load_request", "measured_footprint"]

DEMO_STEP_DELAY_MS = 5.0
"""Pause of the demonstration engine before each word, so that streaming can be seen."""

_PARTS_OF_LOAD = {"weights": (0.0, 0.9), "projector": (0.9, 0.93), "context": (0.93, 0.97), "warmup": (0.97, 1.0)}
"""From where to where in the whole of a load each phase goes: nearly all of the time is the weights'."""


def load_request(
    spec: ModelSpec,
    files: Inspection | None,
    plan: Plan,
    threads: int,
    accelerators: Accelerators = NO_ACCELERATORS,
    kv_idle_timeout_s: float | None = None,
) -> m.Load:
    """The message for a worker; `files` are None for an engine that loads none."""
    placement = plan.placement
    onto = accelerators.onto(plan)
    return m.Load(
        model=spec.id,
        weights_path=str(files.path) if files is not None and files.path is not None else "",
        aux_path=str(files.projector) if files is not None and files.projector is not None else None,
        context_len=placement.allocated_context_len,
        slots=spec.slots,
        kv_type=spec.kv_type.value,
        draft=spec.draft.value,
        gpu_layers=onto.gpu_layers,
        devices=onto.devices,
        device_layers=onto.device_layers,
        load_mode=spec.load_mode.value,
        threads=threads,
        cpu_expert_layers=onto.cpu_expert_layers,
        embeddings=spec.modality is Modality.EMBEDDINGS,
        kv_idle_timeout_s=kv_idle_timeout_s,
        step_delay_ms=DEMO_STEP_DELAY_MS if spec.engine is EngineKind.FAKE else 0.0,
    )


def fraction_of_load(progress: m.LoadProgress) -> float:
    """How far a load is, 0 to 1."""
    start, end = _PARTS_OF_LOAD.get(progress.phase, (0.0, 0.0))
    return start + (end - start) * min(max(progress.fraction, 0.0), 1.0)
