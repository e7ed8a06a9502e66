"""The planner: where a model's bytes go, and whether they are there. The only way to a footprint; changes nothing."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from hypnos_engine.domain.kinds import EngineKind, KvType, LoadMode, MoeOffload, Tier
from hypnos_engine.domain.memory import Footprint, Placement
from hypnos_engine.domain.model import GraphShape, ModelShape, ModelSpec
from hypnos_engine.scheduler.compute_buffers import MICRO_BATCH
from hypnos_engine.scheduler.corrections import NO_CORRECTION, Correction, corrected
from hypnos_engine.scheduler.footprint import (
    CONTEXT_PAD,
    DEVICE_CONTEXT_BYTES,
    WORKER_BYTES,
    Parts,
    Split,
    kv_bytes,
    pad_cells,
    workspace_bytes,
)

__all__ = [
    "CONTEXT_PAD",
    "DEFAULT_CONTEXT",
    "DEVICE_CONTEXT_BYTES",
    "MICRO_BATCH",
    "WORKER_BYTES",
    "Free",
    "Plan",
    "Shortage",
    "context_cells",
    "kv_bytes",
    "pad_cells",
    "plan",
    "workspace_bytes",
]

DEFAULT_CONTEXT = 8192
"""KV cells of a model whose settings do not say and which was trained for at least as many."""
_KEPT_PARTS = 256
_ROUNDING = 1e-9
"""0.1 of 30 layers are 3 and not, as floating point has it, a little more."""


@dataclass(frozen=True, slots=True)
class Free:
    """Bytes that a plan may use."""

    host_bytes: int
    device_bytes: int
    device_layers: bool
    """Whether layers can go to an accelerator at all."""
    unified: bool
    """True when device bytes are host bytes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a model's bytes will be."""

    placement: Placement
    footprint: Footprint

    @property
    def host_peak_bytes(self) -> int:
        """Host memory needed while loading."""
        return self.footprint.peak - self.device_peak_bytes

    @property
    def device_peak_bytes(self) -> int:
        """Device memory needed while loading."""
        return self.footprint.device + self.footprint.device_context


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a plan is not possible now: what it takes at the least and what there is."""

    needed_bytes: int
    free_bytes: int


def context_cells(spec: ModelSpec, shape: ModelShape | None) -> int:
    """KV cells that a model gets when it is loaded without a larger wish."""
    if spec.context_len is not None:
        return spec.context_len
    if shape is None or not shape.context_train:
        return DEFAULT_CONTEXT
    return min(shape.context_train, DEFAULT_CONTEXT)


def plan(
    spec: ModelSpec, shape: ModelShape | None, cells: int, free: Free, correction: Correction = NO_CORRECTION
) -> Plan | Shortage:
    """Place a model with `cells` KV cells into what is free.

    1. Without a shape (an engine that loads no weights) only the worker itself is counted.
    2. Whole on the device when it fits, unless the experts are told to stay with the processor.
    3. Else with the experts of as few layers as needed computed by the processor, if that is allowed.
    4. Else as many of the last layers as fit, down to `min_gpu_layer_ratio`; experts as the settings say.
    5. Else all of it by the processor, when no accelerator was asked to hold a share of it.
    6. Else a shortage: what the last of these takes, and what there is of the memory that it lacks.
    """
    if shape is None or spec.engine is EngineKind.FAKE:  # 1
        return _fits(_worker_only(cells), free)
    parts = _parts(shape, shape.graph, spec.kv_type, spec.load_mode, spec.slots, cells)
    last: Split | None = None
    for last in _ladder(spec, shape, free):  # 2 to 5
        if last is not None and not free.unified:
            device = max(parts.device_bytes(last) + correction.device_bytes, 0)
            if device + DEVICE_CONTEXT_BYTES > free.device_bytes:  # asked first: it is a hundred times cheaper
                continue
        answer = _fits(_place(parts, last, cells, free, correction), free)
        if isinstance(answer, Plan):
            return answer
    return _fits(_place(parts, last, cells, free, correction), free)  # 6


@lru_cache(maxsize=_KEPT_PARTS)
def _parts(
    shape: ModelShape, _graph: GraphShape | None, kv_type: KvType, load_mode: LoadMode, slots: int, cells: int
) -> Parts:
    """The graph is part of what is remembered although shapes are compared without it."""
    return Parts(shape, kv_type, load_mode, slots, cells)


def _ladder(spec: ModelSpec, shape: ModelShape, free: Free) -> Iterator[Split | None]:
    """Yield ever smaller shares for the device; None is no share at all. At least one."""
    layers = len(shape.layers)
    if free.device_layers:
        offloads = shape.expert_bytes > 0 and spec.moe_offload is not MoeOffload.OFF and not free.unified
        if not offloads or spec.moe_offload is MoeOffload.AUTO:
            yield Split(layers)  # 2
        if offloads:
            first = layers if spec.moe_offload is MoeOffload.ON else 1
            yield from (Split(layers, experts) for experts in range(first, layers + 1))  # 3
        # On one pool a share for the processor would free nothing.
        least = layers if free.unified else max(1, math.ceil(spec.min_gpu_layer_ratio * layers - _ROUNDING))
        experts = layers if offloads else 0
        yield from (Split(count, experts) for count in range(layers - 1, least - 1, -1))  # 4
    if not free.device_layers or spec.min_gpu_layer_ratio <= 0:
        yield None  # 5


def _fits(candidate: Plan, free: Free) -> Plan | Shortage:
    device, host = candidate.device_peak_bytes, candidate.host_peak_bytes
    if free.unified or not free.device_layers:
        return candidate if device + host <= free.host_bytes else Shortage(device + host, free.host_bytes)
    if device > free.device_bytes:
        return Shortage(device, free.device_bytes)
    return candidate if host <= free.host_bytes else Shortage(host, free.host_bytes)


def _worker_only(cells: int) -> Plan:
    footprint = Footprint(anonymous=WORKER_BYTES, peak=WORKER_BYTES)
    return Plan(Placement(primary_tier=Tier.GPU, allocated_context_len=cells), footprint)


def _place(parts: Parts, split: Split | None, cells: int, free: Free, error: Correction) -> Plan:
    shape, layers = parts.shape, len(parts.shape.layers)
    if split is None:
        footprint = corrected(parts.on_host(repacks=not free.device_layers), error)
    else:
        opening = 0 if free.unified else DEVICE_CONTEXT_BYTES
        footprint = corrected(parts.divided(split, context_bytes=opening), error)
    if split is None or free.unified:
        placement = Placement(
            primary_tier=Tier.GPU,
            gpu_layers=layers,
            vram_weight_bytes=shape.tensor_bytes,
            vram_kv_and_workspace_bytes=parts.kv + parts.workspace,
            allocated_context_len=cells,
        )
        return Plan(placement, footprint)
    weights = parts.device_weight_bytes(split)
    placement = Placement(
        primary_tier=Tier.GPU,
        gpu_layers=split.gpu_layers,
        pinned_ram_layers=layers - split.gpu_layers,
        vram_weight_bytes=weights,
        vram_kv_and_workspace_bytes=footprint.device - weights,
        pinned_ram_bytes=shape.tensor_bytes + shape.tied_head_bytes - weights,
        allocated_context_len=cells,
        cpu_expert_layers=split.cpu_expert_layers,
    )
    return Plan(placement, footprint)
