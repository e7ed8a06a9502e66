"""The planner: how many bytes a model needs where, and whether they are there. The only formula for footprints."""

from dataclasses import dataclass

from hypnos_engine.domain.kinds import EngineKind, KvType, Tier
from hypnos_engine.domain.memory import Footprint, Placement
from hypnos_engine.domain.model import ModelShape, ModelSpec

MIB = 1024 * 1024
CONTEXT_PAD = 256
"""llama.cpp rounds a context up to this many cells."""
MICRO_BATCH = 512
"""Tokens that a worker computes at once; fixes the size of the compute buffers."""
DEFAULT_CONTEXT = 8192
"""KV cells of a model whose settings do not say and which was trained for at least as many."""
WORKER_BYTES = 96 * MIB
"""Private memory of a worker before a model is in it: interpreter, binding, numpy (measured, see benchmarks)."""

_KV_BYTES_PER_32 = {KvType.F16: 64, KvType.Q8_0: 34, KvType.Q4_0: 18}


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


def kv_bytes(shape: ModelShape, kv_type: KvType, cells: int, slots: int) -> int:
    """Bytes of the KV cache of `cells` cells and of the recurrent states of `slots` sequences (llama.cpp's layout)."""
    per_32 = _KV_BYTES_PER_32[kv_type]
    total = 0
    padded = pad_cells(cells)
    for layer in shape.layers:
        layer_cells = padded
        if layer.sliding_window:
            layer_cells = min(padded, pad_cells(layer.sliding_window * slots + MICRO_BATCH))
        elements = layer.k_elements_per_cell + layer.v_elements_per_cell
        total += layer_cells * elements * per_32 // 32 + layer.recurrent_state_bytes * slots
    return total


def pad_cells(cells: int) -> int:
    """Round a number of cells up as llama.cpp does."""
    return -(-cells // CONTEXT_PAD) * CONTEXT_PAD


def context_cells(spec: ModelSpec, shape: ModelShape | None) -> int:
    """KV cells that a model gets when it is loaded without a larger wish."""
    if spec.context_len is not None:
        return spec.context_len
    if shape is None or not shape.context_train:
        return DEFAULT_CONTEXT
    return min(shape.context_train, DEFAULT_CONTEXT)


def workspace_bytes(shape: ModelShape, cells: int, slots: int) -> int:
    """Compute buffers: activations of one micro-batch, its attention mask, the logits of one token a slot."""
    activations = MICRO_BATCH * shape.embedding_length * 4 * 8
    mask = MICRO_BATCH * pad_cells(cells) * 2
    logits = max(slots, 1) * shape.vocabulary_size * 4
    return activations + mask + logits


def plan(spec: ModelSpec, shape: ModelShape | None, cells: int, free: Free) -> Plan | Shortage:
    """Place a model into what is free.

    1. Without a shape (an engine that loads no weights) only the worker itself is counted.
    2. Whole on the device when it fits.
    3. Else as many layers as fit, down to `min_gpu_layer_ratio`.
    4. Else on the host, when no accelerator was asked to hold a share of it.
    """
    if shape is None or spec.engine is EngineKind.FAKE:  # 1
        return _fits(_worker_only(cells), free)
    layers = len(shape.layers)
    if free.device_layers:
        for gpu_layers in range(layers + 1, 0, -1):  # 2, 3; the output head counts as one layer more
            if gpu_layers <= layers and gpu_layers < spec.min_gpu_layer_ratio * layers:
                break
            candidate = _fits(_place(spec, shape, cells, gpu_layers, unified=free.unified), free)
            if isinstance(candidate, Plan):
                return candidate
        if spec.min_gpu_layer_ratio > 0:
            return Shortage(_least_device_bytes(spec, shape, cells), free.device_bytes)
    return _fits(_place(spec, shape, cells, 0, unified=free.unified), free)  # 4


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


def _least_device_bytes(spec: ModelSpec, shape: ModelShape, cells: int) -> int:
    least = max(1, round(spec.min_gpu_layer_ratio * len(shape.layers)))
    return _place(spec, shape, cells, least, unified=False).device_peak_bytes


def _place(spec: ModelSpec, shape: ModelShape, cells: int, gpu_layers: int, *, unified: bool) -> Plan:
    """Footprint of a split; layers go to the device from the last one backwards, the output head first."""
    layers = len(shape.layers)
    on_device = shape.layers[layers - min(gpu_layers, layers) :] if gpu_layers else ()
    head = shape.non_layer_bytes if gpu_layers > layers else 0
    device_weights = sum(layer.weight_bytes + layer.expert_bytes for layer in on_device) + head
    kv = kv_bytes(shape, spec.kv_type, cells, spec.slots)
    workspace = workspace_bytes(shape, cells, spec.slots)
    device_kv = kv * len(on_device) // layers if layers else 0
    host_weights = shape.tensor_bytes - device_weights
    device = device_weights + device_kv + (workspace if gpu_layers else 0)
    host = host_weights + (kv - device_kv) + (0 if gpu_layers else workspace) + WORKER_BYTES
    footprint = Footprint(
        file_pages=host_weights,
        anonymous=WORKER_BYTES,
        device=device,
        kv=kv - device_kv,
        workspace=0 if gpu_layers else workspace,
        peak=device + host,
    )
    one_pool = unified or not gpu_layers
    placement = Placement(
        primary_tier=Tier.GPU,
        gpu_layers=layers if one_pool else min(gpu_layers, layers),
        pinned_ram_layers=0 if one_pool else layers - min(gpu_layers, layers),
        vram_weight_bytes=shape.tensor_bytes if one_pool else device_weights,
        vram_kv_and_workspace_bytes=kv + workspace if one_pool else device - device_weights,
        pinned_ram_bytes=0 if one_pool else host_weights,
        allocated_context_len=cells,
    )
    return Plan(placement, footprint)
