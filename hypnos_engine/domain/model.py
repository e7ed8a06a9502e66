"""A configured model and what a file says about itself; plain values that every room reads."""

from dataclasses import dataclass
from typing import NewType

from hypnos_engine.domain.kinds import EngineKind, KvType, LoadMode, Modality, MoeOffload, Priority, Tier

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

    @property
    def expert_bytes(self) -> int:
        """Bytes of all expert tensors; 0 for a dense model."""
        return sum(layer.expert_bytes for layer in self.layers)
