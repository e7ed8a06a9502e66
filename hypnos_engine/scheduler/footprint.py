"""How many bytes the parts of a model take, by layer; decides no placement and asks for no memory.

The rules are those of llama.cpp 0.5 with one KV pool for all slots and windows kept apart, as the worker sets it up.
"""

from dataclasses import dataclass
from itertools import accumulate

from hypnos_engine.domain.kinds import KvType, LoadMode
from hypnos_engine.domain.memory import Footprint
from hypnos_engine.domain.model import LayerShape, ModelShape
from hypnos_engine.scheduler.compute_buffers import MICRO_BATCH, graph_bytes

MIB = 1024 * 1024
CONTEXT_PAD = 256
"""llama.cpp rounds a context up to this many cells."""
WORKER_BYTES = 32 * MIB
"""Private memory of a worker before a model is in it: interpreter, binding, numpy (27 MiB on Linux, rounded up)."""
TOKEN_BYTES = 344
"""What the library keeps for each token of a vocabulary with its merges (16.3 MiB for 49152, as measured)."""
DEVICE_CONTEXT_BYTES = 320 * MIB
"""What a process takes of a discrete accelerator before it allocates anything there."""

_KV_BYTES_PER_32 = {KvType.F16: 64, KvType.Q8_0: 34, KvType.Q4_0: 18}
_MASK_BYTES = 2
_FLOAT_BYTES = 4
_GUESSED_ACTIVATIONS = 8
"""Buffers as wide as the embedding, for a shape that says nothing about its weights."""


def worker_bytes(shape: ModelShape) -> int:
    """Private memory of a worker that has loaded a model, but for the model's weights, cache and buffers."""
    return WORKER_BYTES + TOKEN_BYTES * shape.vocabulary_size


def pad_cells(cells: int) -> int:
    """Round a number of cells up as llama.cpp does."""
    return -(-cells // CONTEXT_PAD) * CONTEXT_PAD


def window_cells(window: int, cells: int, slots: int) -> int:
    """Cells that are kept for layers with a sliding window, out of `cells` for the others."""
    return min(pad_cells(cells), pad_cells(window * slots + MICRO_BATCH))


def layer_kv_bytes(layer: LayerShape, kv_type: KvType, cells: int, slots: int) -> int:
    """Bytes of one layer's cache of `cells` cells and of its recurrent states of `slots` sequences."""
    kept = window_cells(layer.sliding_window, cells, slots) if layer.sliding_window else pad_cells(cells)
    elements = layer.k_elements_per_cell + layer.v_elements_per_cell
    return kept * elements * _KV_BYTES_PER_32[kv_type] // 32 + layer.recurrent_state_bytes * slots


def kv_bytes(shape: ModelShape, kv_type: KvType, cells: int, slots: int) -> int:
    """Bytes of the KV cache of `cells` cells and of the recurrent states of `slots` sequences (llama.cpp's layout)."""
    return sum(layer_kv_bytes(layer, kv_type, cells, slots) for layer in shape.layers)


def mask_bytes(shape: ModelShape, cells: int, slots: int) -> int:
    """Attention masks of one micro-batch: one for the layers that attend to everything, one for those with a window."""
    if shape.is_encoder:
        return MICRO_BATCH * MICRO_BATCH * _MASK_BYTES
    attending = [layer for layer in shape.layers if layer.k_elements_per_cell]
    kept = {layer.sliding_window for layer in attending}
    columns = sum(window_cells(window, cells, slots) if window else pad_cells(cells) for window in kept)
    return MICRO_BATCH * columns * _MASK_BYTES


def compute_bytes(shape: ModelShape, cells: int, slots: int) -> int:
    """The compute buffer of one micro-batch, all of it on one backend."""
    if shape.graph is None:
        guessed = MICRO_BATCH * shape.embedding_length * _FLOAT_BYTES * _GUESSED_ACTIVATIONS
        return guessed + mask_bytes(shape, cells, slots)
    return graph_bytes(shape.graph, slots) + mask_bytes(shape, cells, slots)


def output_bytes(shape: ModelShape, slots: int) -> int:
    """Logits of one token a slot, in host memory wherever the model is."""
    return max(slots, 1) * shape.vocabulary_size * _FLOAT_BYTES


def workspace_bytes(shape: ModelShape, cells: int, slots: int) -> int:
    """Compute buffers and logits."""
    return compute_bytes(shape, cells, slots) + output_bytes(shape, slots)


def input_bytes(shape: ModelShape, cells: int, slots: int) -> int:
    """Host buffers of a model that computes on an accelerator: what is prepared there for each micro-batch."""
    width = shape.graph.input_width if shape.graph else shape.embedding_length
    embeddings = 2 * MICRO_BATCH * width * _FLOAT_BYTES
    return embeddings + mask_bytes(shape, cells, slots) + output_bytes(shape, slots)


@dataclass(frozen=True, slots=True)
class Split:
    """Which layers an accelerator gets: the last `gpu_layers`, without the experts of the first `cpu_expert_layers`.

    The output head goes with any layer; the tables of embeddings never go.
    """

    gpu_layers: int
    cpu_expert_layers: int = 0


class Parts:
    """The bytes of one model with one context, ready to be divided in many ways."""

    def __init__(self, shape: ModelShape, kv_type: KvType, load_mode: LoadMode, slots: int, cells: int) -> None:
        self.shape = shape
        self._reads = load_mode is LoadMode.READ
        self._slots, self._cells = slots, cells
        layers = shape.layers[::-1]
        kv = [layer_kv_bytes(layer, kv_type, cells, slots) for layer in layers]
        self._weights = tuple(accumulate((layer.weight_bytes for layer in layers), initial=0))
        self._experts = tuple(accumulate((layer.expert_bytes for layer in layers), initial=0))
        self._kv = tuple(accumulate(kv, initial=0))
        self._compute = compute_bytes(shape, cells, slots)
        self.head_bytes = shape.non_layer_bytes - shape.input_bytes + shape.tied_head_bytes

    @property
    def kv(self) -> int:
        return self._kv[-1]

    @property
    def workspace(self) -> int:
        return self._compute + output_bytes(self.shape, self._slots)

    def device_weight_bytes(self, split: Split) -> int:
        """Weights in device memory, the head's included."""
        layers = len(self.shape.layers)
        with_experts = min(split.gpu_layers, layers - split.cpu_expert_layers)
        return self._weights[split.gpu_layers] + self._experts[max(with_experts, 0)] + self.head_bytes

    def device_bytes(self, split: Split) -> int:
        """All that a split takes of the device, but for the cost of opening it."""
        fixed = self._compute + self.shape.projector_bytes
        return self.device_weight_bytes(split) + self._kv[split.gpu_layers] + fixed

    def on_host(self, *, repacks: bool) -> Footprint:
        """Everything computed by the processor, which makes copies of some weights in another layout."""
        shape = self.shape
        repacked = sum(layer.repackable_bytes + layer.repackable_expert_bytes for layer in shape.layers)
        repacked = repacked + shape.repackable_head_bytes if repacks else 0
        return self._host(
            weights=shape.tensor_bytes,
            repacked=repacked,
            kv=self.kv,
            workspace=self.workspace,
            projector=shape.projector_bytes,
        )

    def divided(self, split: Split, *, context_bytes: int) -> Footprint:
        """Layers on an accelerator (all of theirs is in `device`), the rest computed by the processor."""
        shape = self.shape
        whole = split.gpu_layers == len(shape.layers) and not split.cpu_expert_layers
        host_workspace = input_bytes(shape, self._cells, self._slots) if whole else self.workspace
        return self._host(
            weights=shape.tensor_bytes + shape.tied_head_bytes - self.device_weight_bytes(split),
            repacked=0,
            kv=self.kv - self._kv[split.gpu_layers],
            workspace=host_workspace,
            projector=0,
            device=self.device_bytes(split),
            context_bytes=context_bytes,
        )

    def _host(
        self,
        *,
        weights: int,
        repacked: int,
        kv: int,
        workspace: int,
        projector: int,
        device: int = 0,
        context_bytes: int = 0,
    ) -> Footprint:
        """Weights are pages of their file, or private when they are read: then the repacked ones exist only once."""
        private = max(weights - repacked, 0) if self._reads else 0
        lines = Footprint(
            file_pages=0 if self._reads else weights,
            repacked=repacked,
            anonymous=worker_bytes(self.shape) + private,
            device=device,
            device_context=context_bytes,
            kv=kv,
            workspace=workspace,
            projector=projector,
        )
        return with_peak(lines)


def with_peak(footprint: Footprint) -> Footprint:
    """Set the peak: nothing is needed while loading that is not kept, for weights go from file pages to their place."""
    values = {name: getattr(footprint, name) for name in Footprint.__dataclass_fields__}
    return Footprint(**{**values, "peak": footprint.total})
