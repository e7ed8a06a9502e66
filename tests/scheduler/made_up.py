"""The made-up models of the scheduler's tests: their settings, their files, and what their workers report."""

from hypnos_engine.domain.kinds import EngineKind, Modality, Priority
from hypnos_engine.domain.memory import Footprint
from hypnos_engine.domain.model import LayerShape, ModelId, ModelShape, ModelSpec

GIB = 2**30
PINNED = Priority.REALTIME_PINNED


def spec(name: str, **changes: object) -> ModelSpec:
    """A text model with two slots."""
    settings: dict[str, object] = {
        "id": ModelId(name),
        "modality": Modality.TEXT,
        "engine": EngineKind.LLAMA,
        "weights_path": f"{name}.gguf",
        "slots": 2,
        "context_len": 1024,
        **changes,
    }
    return ModelSpec(**settings)  # type: ignore[arg-type]  # the keys are the field names


def shape(weight_bytes: int) -> ModelShape:
    """A model of four layers and `weight_bytes` in all."""
    quarter = LayerShape(weight_bytes // 4, 0, 64, 64, 0, 0)
    return ModelShape(
        architecture="llama",
        name="made up",
        file_bytes=weight_bytes,
        tensor_bytes=weight_bytes,
        layers=(quarter,) * 4,
        non_layer_bytes=0,
        context_train=8192,
        embedding_length=64,
        vocabulary_size=1000,
        expert_count=0,
        expert_used_count=0,
        has_chat_template=True,
        is_encoder=False,
    )


def as_reported(footprint: Footprint) -> Footprint:
    """What a worker says that holds exactly what was planned: its private memory is one line."""
    private = footprint.total - footprint.file_pages - footprint.device - footprint.device_context
    return Footprint(file_pages=footprint.file_pages, anonymous=private, device=footprint.device)
