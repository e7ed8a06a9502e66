"""Closed sets of names: every value is the spelling used on the wire and in `hypnos.toml`."""

from enum import StrEnum


class Tier(StrEnum):
    """Where a model's bytes are (contract §18, MemoryTier)."""

    GPU = "tier1_gpu_vram"
    RAM = "tier2_pinned_ram"
    DISK = "tier3_nvme_ssd"


class Modality(StrEnum):
    """What a model can do (contract §18)."""

    TEXT = "text_generation"
    VISION = "vision"
    SPEECH_TO_TEXT = "speech_to_text"
    TEXT_TO_SPEECH = "text_to_speech"
    EMBEDDINGS = "embeddings"
    IMAGES = "image_generation"
    DOCUMENTS = "document_conversion"
    ENTITIES = "entity_extraction"


class EngineKind(StrEnum):
    """Which library runs a model. `fake` exists for demonstrations and tests and loads no weights."""

    LLAMA = "ggml_llama"
    WHISPER = "ggml_whisper"
    DIFFUSION = "ggml_diffusion"
    ONNX = "onnx_runtime"
    DOCLING = "docling"
    GLINER = "gliner"
    MLX = "mlx"
    DIFFUSERS = "diffusers"
    FAKE = "fake"


class Priority(StrEnum):
    """How much a model is worth to its owner; declared from least to most."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    REALTIME_PINNED = "realtime_pinned"


class MoeOffload(StrEnum):
    """Where a Mixture-of-Experts model's expert tensors run."""

    OFF = "off"
    AUTO = "auto"
    ON = "on"


class LoadMode(StrEnum):
    """How weights reach memory: mapped from the file, or read into anonymous memory."""

    AUTO = "auto"
    MMAP = "mmap"
    READ = "read"


class KvType(StrEnum):
    """Element type of the KV cache."""

    F16 = "f16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"


class Drafts(StrEnum):
    """Where guesses of an answer's next tokens come from, to be checked several at once."""

    OFF = "off"
    NGRAM = "ngram"
    """From what followed the same words earlier in the prompt or in the answer."""


class Residency(StrEnum):
    """Life of a model's worker. A failed load is an event that leads back to `cold`, not a state."""

    COLD = "cold"
    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"


class Pages(StrEnum):
    """Whether a file set's pages are held in host memory without a worker."""

    ABSENT = "absent"
    FILLING = "filling"
    HELD = "held"
    DROPPING = "dropping"


class Accelerator(StrEnum):
    """What computes tier 1."""

    CUDA = "NvidiaCuda"
    METAL = "AppleMetal"
    VULKAN = "Vulkan"
    ROCM = "Rocm"
    CPU = "Cpu"


class Topology(StrEnum):
    """How device memory and host memory relate."""

    DISCRETE = "DiscretePcie"
    UNIFIED = "UnifiedMemory"
    HOST = "HostMemory"


class FinishReason(StrEnum):
    """Why a generation ended (contract §7.2). `error` appears only in a stream that failed midway."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    ERROR = "error"
