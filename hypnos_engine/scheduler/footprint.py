"""How many bytes the parts of a model take, by layer; decides no placement and asks for no memory.

The rules are those of llama.cpp 0.5 with one KV pool for all slots and windows kept apart, as the worker sets it up.
"""

from dataclasses import dataclass
from itertools import accumulate

from hypnos_engine.domain import embedding
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


@dataclass(frozen=True, slots=True)
class Step:
    """How much a worker computes at once, and what for."""

    tokens: int = MICRO_BATCH
    embeds: bool = False
    """True for vectors of texts: every token is an output then."""


GENERATING = Step()


def embedding_step(shape: ModelShape, cells: int) -> Step:
    """The step of a model that makes vectors of texts of up to `cells` tokens."""
    return Step(embedding.micro_batch(cells, in_parts=shape.embeds_in_parts), embeds=True)


def worker_bytes(shape: ModelShape) -> int:
    """Private memory of a worker that has loaded a model, but for the model's weights, cache and buffers."""
    return WORKER_BYTES + TOKEN_BYTES * shape.vocabulary_size


def pad_cells(cells: int) -> int:
    """Round a number of cells up as llama.cpp does."""
    return -(-cells // CONTEXT_PAD) * CONTEXT_PAD


def window_cells(window: int, cells: int, slots: int, step: Step = GENERATING) -> int:
    """Cells that are kept for layers with a sliding window, out of `cells` for the others."""
    return min(pad_cells(cells), pad_cells(window * slots + step.tokens))


def layer_kv_bytes(layer: LayerShape, kv_type: KvType, cells: int, slots: int, step: Step = GENERATING) -> int:
    """Bytes of one layer's cache of `cells` cells and of its recurrent states of `slots` sequences."""
    kept = window_cells(layer.sliding_window, cells, slots, step) if layer.sliding_window else pad_cells(cells)
    elements = layer.k_elements_per_cell + layer.v_elements_per_cell
    return kept * elements * _KV_BYTES_PER_32[kv_type] // 32 + layer.recurrent_state_bytes * slots


def kv_bytes(shape: ModelShape, kv_type: KvType, cells: int, slots: int) -> int:
    """Bytes of the KV cache of `cells` cells and of the recurrent states of `slots` sequences (llama.cpp's layout)."""
    return sum(layer_kv_bytes(layer, kv_type, cells, slots) for layer in shape.layers)


def mask_bytes(shape: ModelShape, cells: int, slots: int, step: Step = GENERATING) -> int:
    """Attention masks of one micro-batch: one for the layers that attend to everything, one for those with a window."""
    if shape.is_encoder:
        masks = 1 + any(layer.sliding_window for layer in shape.layers)
        return masks * step.tokens * step.tokens * _MASK_BYTES
    attending = [layer for layer in shape.layers if layer.k_elements_per_cell]
    kept = {layer.sliding_window for layer in attending}
    columns = sum(window_cells(window, cells, slots, step) if window else pad_cells(cells) for window in kept)
    return step.tokens * columns * _MASK_BYTES


def compute_bytes(shape: ModelShape, cells: int, slots: int, rows: int | None = None, step: Step = GENERATING) -> int:
    """The compute buffer of one micro-batch, all of it on one backend; `rows` as in `output_bytes`."""
    masks = mask_bytes(shape, cells, slots, step)
    if shape.graph is None:
        body = step.tokens * shape.embedding_length * _FLOAT_BYTES * _GUESSED_ACTIVATIONS
    else:
        body = graph_bytes(shape.graph, slots, rows, tokens=step.tokens, head=not step.embeds)
    if not step.embeds or shape.is_encoder:
        return body + masks
    # A decoder ends with the logits of every token. What was used before them is free, but in too small pieces.
    return max(body, step.tokens * (shape.vocabulary_size + 2 * shape.embedding_length) * _FLOAT_BYTES) + masks


def output_bytes(shape: ModelShape, slots: int, rows: int | None = None, step: Step = GENERATING) -> int:
    """Logits of `rows` tokens, None = of one a slot, in host memory wherever the model is.

    Where vectors are made every token has a row, of the logits and of what the vectors are pooled from.
    """
    if step.embeds:
        return max(slots, step.tokens) * (shape.vocabulary_size + shape.embedding_length) * _FLOAT_BYTES
    return max(slots, rows or 1, 1) * shape.vocabulary_size * _FLOAT_BYTES


def workspace_bytes(shape: ModelShape, cells: int, slots: int) -> int:
    """Compute buffers and logits."""
    return compute_bytes(shape, cells, slots) + output_bytes(shape, slots)


def input_bytes(shape: ModelShape, cells: int, slots: int, rows: int | None = None, step: Step = GENERATING) -> int:
    """Host buffers of a model that computes on an accelerator: what is prepared there for each micro-batch."""
    width = shape.graph.input_width if shape.graph else shape.embedding_length
    embeddings = 2 * step.tokens * width * _FLOAT_BYTES
    return embeddings + mask_bytes(shape, cells, slots, step) + output_bytes(shape, slots, rows, step)


@dataclass(frozen=True, slots=True)
class Split:
    """Which layers an accelerator gets: the last `gpu_layers`, without the experts of the last `cpu_expert_layers`.

    The output head goes with any layer; the tables of embeddings never go.
    """

    gpu_layers: int
    cpu_expert_layers: int = 0


class Parts:
    """The bytes of one model with one context, ready to be divided in many ways."""

    def __init__(
        self,
        shape: ModelShape,
        kv_type: KvType,
        load_mode: LoadMode,
        slots: int,
        cells: int,
        rows: int | None = None,
        *,
        embeds: bool = False,
    ) -> None:
        """`rows` as in `output_bytes`. With `embeds` the context is one for texts of up to `cells` tokens."""
        self.shape = shape
        self._reads = load_mode is LoadMode.READ
        self._step = GENERATING
        if embeds:
            cells, slots = embedding.window(cells, shape.context_train), embedding.TEXTS_AT_ONCE
            self._step = embedding_step(shape, cells)
        self._slots, self._cells, self._rows = slots, cells, rows
        layers = shape.layers[::-1]
        kv = [layer_kv_bytes(layer, kv_type, cells, slots, self._step) for layer in layers]
        self._weights = tuple(accumulate((layer.weight_bytes for layer in layers), initial=0))
        self._experts = tuple(accumulate((layer.expert_bytes for layer in layers), initial=0))
        self._kv = tuple(accumulate(kv, initial=0))
        self._compute = compute_bytes(shape, cells, slots, rows, self._step)
        self.head_bytes = shape.non_layer_bytes - shape.input_bytes + shape.tied_head_bytes

    @property
    def maps(self) -> bool:
        """True when weights stay pages of their file."""
        return not self._reads

    @property
    def kv(self) -> int:
        return self._kv[-1]

    @property
    def workspace(self) -> int:
        return self._compute + self._output - self._transient

    @property
    def _output(self) -> int:
        return output_bytes(self.shape, self._slots, self._rows, self._step)

    @property
    def _transient(self) -> int:
        """Host memory that a load takes and gives back: rows of logits that an encoder has and never writes."""
        return self._output if self._step.embeds and self.shape.is_encoder else 0

    def device_weight_bytes(self, split: Split) -> int:
        """Weights in device memory, the head's included."""
        kept = min(split.cpu_expert_layers, split.gpu_layers)
        experts = self._experts[split.gpu_layers] - self._experts[kept]
        return self._weights[split.gpu_layers] + experts + self.head_bytes

    def device_bytes(self, split: Split) -> int:
        """All that a split takes of the device, but for the cost of opening it."""
        fixed = self._compute + self.shape.projector_bytes
        return self.device_weight_bytes(split) + self._kv[split.gpu_layers] + fixed

    def spread(self, free_bytes: list[int]) -> tuple[int, ...] | None:
        """Give all layers to several devices, the first ones first and each as many as it holds; None if too many.

        Each device computes its part with a buffer of its own. The head is on the last device in use, a projector on
        the first.
        """
        total = len(self.shape.layers)
        counts: list[int] = []
        done = 0
        for index, free in enumerate(free_bytes):
            first = self.shape.projector_bytes if index == 0 else 0
            rest = total - done
            # Bytes grow with the layers: the most that fit are found by halving.
            low, high = 0, rest
            while low < high:
                middle = (low + high + 1) // 2
                if first + self._range_bytes(done, middle) <= free:
                    low = middle
                else:
                    high = middle - 1
            counts.append(low)
            done += low
        return tuple(counts) if done == total else None

    def spread_bytes(self, layers_of: list[int]) -> list[int]:
        """Bytes of each of several devices in use, for a spread of all layers."""
        shares: list[int] = []
        done = 0
        for index, count in enumerate(layers_of):
            first = self.shape.projector_bytes if index == 0 else 0
            shares.append(first + self._range_bytes(done, count))
            done += count
        return shares

    def _range_bytes(self, start: int, count: int) -> int:
        """Weights, cache and compute buffer of `count` layers from `start` on, the head with the last layer."""
        if not count:
            return 0
        total = len(self.shape.layers)
        # The sums run over the layers from the last to the first.
        low, high = total - start - count, total - start
        weights = self._weights[high] - self._weights[low] + self._experts[high] - self._experts[low]
        head = self.head_bytes if start + count == total else 0
        return weights + self._kv[high] - self._kv[low] + self._compute + head

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
            transient=self._transient,
        )

    def divided(self, split: Split, *, context_bytes: int, devices: int = 1) -> Footprint:
        """Layers on accelerators (all of theirs is in `device`), the rest computed by the processor."""
        shape = self.shape
        whole = split.gpu_layers == len(shape.layers) and not split.cpu_expert_layers
        host_workspace = self.workspace + self._transient  # beside an accelerator nothing is given back
        if whole:
            host_workspace = input_bytes(shape, self._cells, self._slots, self._rows, self._step)
        return self._host(
            weights=shape.tensor_bytes + shape.tied_head_bytes - self.device_weight_bytes(split),
            repacked=0,
            kv=self.kv - self._kv[split.gpu_layers],
            workspace=host_workspace,
            projector=0,
            device=self.device_bytes(split) + self._compute * (devices - 1),
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
        transient: int = 0,
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
        return with_peak(lines, transient)


def with_peak(footprint: Footprint, transient_bytes: int = 0) -> Footprint:
    """Set the peak: what is kept and what is given back. Weights need nothing more on their way to their place."""
    values = {name: getattr(footprint, name) for name in Footprint.__dataclass_fields__}
    return Footprint(**{**values, "peak": footprint.total + transient_bytes})
