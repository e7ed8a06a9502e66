"""A configured model and what a file says about itself; plain values that every room reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NewType

from hypnos_engine.domain.kinds import Drafts, EngineKind, KvType, LoadMode, Modality, MoeOffload, Priority, Tier

ModelId = NewType("ModelId", str)


@dataclass(frozen=True, slots=True)
class ImageDefaults:
    """`[models.image]`: what an image model does when the request does not say."""

    steps: int | None = None
    cfg_scale: float | None = None
    edit: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One `[[models]]` block. Paths are as written: relative ones belong to the models folders."""

    id: ModelId
    modality: Modality
    engine: EngineKind
    weights_path: str
    name: str = ""
    additional_modalities: tuple[Modality, ...] = ()
    aux_path: str | None = None
    text_encoder_path: str | None = None
    tokenizer_path: str | None = None
    voices_path: str | None = None
    context_len: int | None = None
    """KV cells across all slots; None = chosen from the model and the machine."""
    slots: int = 4
    kv_type: KvType = KvType.F16
    draft: Drafts = Drafts.OFF
    initial_tier: Tier = Tier.DISK
    priority: Priority = Priority.NORMAL
    keep_warm_in_ram: bool = False
    moe_offload: MoeOffload = MoeOffload.OFF
    min_gpu_layer_ratio: float = 0.0
    load_mode: LoadMode = LoadMode.AUTO
    share_worker: bool = False
    allow_untested: bool = False
    enabled: bool = True
    arch: tuple[tuple[str, int | float | str], ...] = ()
    """`[models.arch]`: numbers that stand in for what the file does not say, as sorted pairs."""
    image: ImageDefaults | None = None

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """All modalities, the primary one first, each once."""
        return tuple(dict.fromkeys((self.modality, *self.additional_modalities)))


@dataclass(frozen=True, slots=True, eq=False)
class GraphShape:
    """What decides how large a model's computation is: the dimensions of its weights. Compared by identity."""

    architecture: str
    layers: tuple[Mapping[str, tuple[int, ...]], ...]
    """For each block the dimensions of its weights, row length first, by what follows `blk.N.` in their names."""
    caching: tuple[bool, ...]
    """For each block whether it computes K and V of its own; not if it reads the cache of an earlier one."""
    state_bytes: tuple[int, ...]
    """For each block the recurrent state of one sequence."""
    embedding: int
    """Elements of one token between the blocks."""
    input_width: int
    """Elements of one token at the input; more than `embedding` where pictures enter at several blocks."""
    per_layer_width: int
    """Elements of one token's per-layer embeddings, all blocks together; 0 without them."""
    vocabulary: int
    experts: int
    experts_used: int


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One transformer block, in bytes and elements, as the file's tensor table gives it."""

    weight_bytes: int
    """Bytes of the block's tensors without its experts."""
    expert_bytes: int
    k_elements_per_cell: int
    """Elements of K kept per token in this block's cache; 0 for a recurrent block."""
    v_elements_per_cell: int
    """Elements of V kept per token; 0 for a recurrent or an MLA block."""
    sliding_window: int
    """Tokens that this block attends to; 0 = all."""
    recurrent_state_bytes: int
    """State per sequence of a recurrent block (float32); 0 for attention."""
    repackable_bytes: int = 0
    """Bytes of the block's tensors, without its experts, of which a processor makes a copy in another layout."""
    repackable_expert_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a weights file says about its model, read from its header alone."""

    architecture: str
    name: str
    file_bytes: int
    """Size of all files of the model on disk."""
    tensor_bytes: int
    """Sum of the tensors' sizes, without padding."""
    layers: tuple[LayerShape, ...]
    non_layer_bytes: int
    """Embeddings, output head and whatever belongs to no block."""
    context_train: int
    """Tokens that the model was trained to attend to."""
    embedding_length: int
    vocabulary_size: int
    expert_count: int
    expert_used_count: int
    has_chat_template: bool
    is_encoder: bool
    """True for models without a KV cache (BERT and its kin)."""
    embeds_in_parts: bool = False
    """True when a text's vector is that of its last token, and tokens only look back: parts of it can be computed one
    after the other. Otherwise a text of which a vector is made has to be computed at once."""
    input_bytes: int = 0
    """The part of `non_layer_bytes` that stays in host memory whatever the placement: tables of embeddings."""
    tied_head_bytes: int = 0
    """Bytes of the embeddings that an accelerator gets a copy of because they are the output head too."""
    repackable_head_bytes: int = 0
    """Bytes of an output head that a processor copies into another layout."""
    projector_bytes: int = 0
    """Tensors of the file that turns pictures or sound into embeddings; 0 without one."""
    graph: GraphShape | None = field(default=None, compare=False, repr=False)
    """None for a shape that was not read from a file."""

    @property
    def expert_bytes(self) -> int:
        """Bytes of all expert tensors; 0 for a dense model."""
        return sum(layer.expert_bytes for layer in self.layers)
