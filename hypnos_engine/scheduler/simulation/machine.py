"""What a simulation runs on: models with their speed, and a machine with its memory and bandwidths; plain values."""

from collections.abc import Iterable
from dataclasses import dataclass

from hypnos_engine.domain.model import LayerShape, ModelId, ModelShape, ModelSpec
from hypnos_engine.scheduler.limits import Budgets
from hypnos_engine.scheduler.simulation.trace import TraceModel

DEVICE_RESERVE_BYTES = 512 * 1024**2
HOST_RESERVE_BYTES = 4 * 1024**3


@dataclass(frozen=True, slots=True)
class SimModel:
    """One model and how fast it is."""

    spec: ModelSpec
    shape: ModelShape | None
    """What its file says; None for an engine that loads no weights."""
    prefill_tokens_per_s: float = 2000.0
    """Of one request alone, wholly on the accelerator; where there is none, on the processor."""
    decode_tokens_per_s: float = 60.0
    batch_gain: float = 4.0
    """n requests at once get `gain * n / (gain + n - 1)` times the work of one done: never more than the gain."""
    start_s: float = 1.0
    """From the order to load until the first byte is read: process, libraries, header."""

    @property
    def id(self) -> ModelId:
        return self.spec.id

    @property
    def slots(self) -> int:
        """Requests that run at once."""
        return self.spec.slots

    @property
    def files(self) -> str:
        """Names its pages: models with the same weights file share them."""
        return self.spec.weights_path

    @property
    def file_bytes(self) -> int:
        return 0 if self.shape is None else self.shape.file_bytes

    def service_s(self, prompt_tokens: int, output_tokens: int) -> float:
        """Seconds that a request takes alone, wholly on the accelerator."""
        return prompt_tokens / self.prefill_tokens_per_s + output_tokens / self.decode_tokens_per_s


@dataclass(frozen=True, slots=True)
class OtherUse:
    """What other programs hold from a moment on, until the next one for the same memory."""

    at_s: float
    used_bytes: int
    device: int | None = None
    """Number of the device; None = host memory."""


@dataclass(frozen=True, slots=True)
class SimMachine:
    """One computer."""

    host_bytes: int
    devices: tuple[int, ...] = ()
    """Bytes of each accelerator with memory of its own, the best first."""
    unified: bool = False
    """True when an accelerator works in host memory; then there are no devices."""
    cores: int = 8
    disk_bytes_per_s: float = 3.0e9
    """From tier 3 to tier 2."""
    device_bytes_per_s: float = 16.0e9
    """From tier 2 to tier 1, each device; on one pool nothing is copied."""
    stop_s: float = 0.5
    """From the order to end a worker until its memory is free again."""
    host_slowdown: float = 8.0
    """How many times longer a layer takes on the processor when the rest of its model is on an accelerator."""
    others: tuple[OtherUse, ...] = ()
    device_reserve_bytes: int = DEVICE_RESERVE_BYTES
    """Left free on every device."""
    host_reserve_bytes: int = HOST_RESERVE_BYTES
    """Left to the system and its other programs, but never more than half of host memory."""
    tier1_bytes: int | None = None
    """Budget of each device, of host memory where there is none; None = what the reserves leave."""
    tier2_bytes: int | None = None
    """Budget of held pages; None = half of host memory, and all of the budget on one pool."""

    @property
    def budgets(self) -> Budgets:
        """What models may take of it: the same for every policy."""
        host = max(self.host_bytes - self.host_reserve_bytes, self.host_bytes // 2)
        device = tuple(max(0, size - self.device_reserve_bytes) for size in self.devices)
        tier2 = self.host_bytes // 2
        if self.devices:
            device = tuple(min(size, self.tier1_bytes) if self.tier1_bytes is not None else size for size in device)
        else:
            host = host if self.tier1_bytes is None else min(host, self.tier1_bytes)
            tier2 = host
        return Budgets(
            device_bytes=device,
            host_bytes=host,
            cores=self.cores,
            device_layers=bool(self.devices) or self.unified,
            tier2_bytes=min(tier2 if self.tier2_bytes is None else self.tier2_bytes, host),
            disk_bytes_per_s=self.disk_bytes_per_s,
            device_bytes_per_s=self.device_bytes_per_s,
        )


def made_up_shape(model: TraceModel) -> ModelShape:
    """A shape of equal layers for a model whose file is not at hand: a tenth of its weights belongs to no layer."""
    outside = (model.weight_bytes - model.expert_bytes) // 10
    dense = (model.weight_bytes - model.expert_bytes - outside) // model.layers
    halves = model.kv_bytes_per_cell // model.layers // 4  # K and V, two bytes each
    layer = LayerShape(dense, model.expert_bytes // model.layers, halves, halves, 0, 0)
    return ModelShape(
        architecture="made up",
        name=model.id,
        file_bytes=model.weight_bytes,
        tensor_bytes=model.weight_bytes,
        layers=(layer,) * model.layers,
        non_layer_bytes=model.weight_bytes - (dense + layer.expert_bytes) * model.layers,
        context_train=model.context_len,
        embedding_length=model.embedding_length,
        vocabulary_size=model.vocabulary_size,
        expert_count=8 if model.expert_bytes else 0,
        expert_used_count=2 if model.expert_bytes else 0,
        has_chat_template=True,
        is_encoder=False,
    )


def models_of(table: Iterable[TraceModel]) -> tuple[SimModel, ...]:
    """The models of a trace's own table."""
    return tuple(
        SimModel(
            ModelSpec(
                id=ModelId(model.id),
                modality=model.modality,
                engine=model.engine,
                weights_path=model.id,
                context_len=model.context_len,
                slots=model.slots,
                priority=model.priority,
                min_gpu_layer_ratio=model.min_gpu_layer_ratio,
            ),
            made_up_shape(model),
            prefill_tokens_per_s=model.prefill_tokens_per_s,
            decode_tokens_per_s=model.decode_tokens_per_s,
            batch_gain=model.batch_gain,
            start_s=model.start_s,
        )
        for model in table
    )
