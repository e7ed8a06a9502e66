"""Four machines as people have them, and what each one's owner has configured; sizes are those of real files.

Sizes of weights are the catalog's, projectors included. Speeds follow from two figures of a machine: how fast its
accelerator reads memory, which bounds one reply's tokens, and how fast it computes, which bounds reading a prompt. No
machine can hold its whole lineup at once; every one can hold each model wholly.
"""

from dataclasses import dataclass

from hypnos_engine.domain.kinds import EngineKind, Modality
from hypnos_engine.scheduler.simulation.generators import Lineup
from hypnos_engine.scheduler.simulation.machine import SimMachine
from hypnos_engine.scheduler.simulation.trace import TraceModel

_GIB = 2**30
_DECODE_SHARE = 0.6
"""Of the memory's bandwidth that decoding reaches."""
_FASTEST_PREFILL = 20_000.0
_FASTEST_DECODE = 160.0


@dataclass(frozen=True, slots=True)
class Owned:
    """A machine with its lineup."""

    name: str
    machine: SimMachine
    lineup: Lineup


@dataclass(frozen=True, slots=True)
class _Speed:
    memory_bytes_per_s: float
    flops: float
    """What reading a prompt reaches, not what a data sheet says."""

    def text(
        self,
        name: str,
        weight_bytes: int,
        parameters: float,
        *,
        active: float | None = None,
        layers: int = 32,
        kv_bytes: int = 32_768,
        width: int = 4096,
        context: int = 16_384,
        modality: Modality = Modality.TEXT,
    ) -> TraceModel:
        """A language model. `active`: parameters that one token uses, where they are fewer."""
        active = parameters if active is None else active
        # A token of a mixture reads about twice the bytes of its active weights: routing, attention, small kernels.
        read_bytes = weight_bytes if active == parameters else 2 * weight_bytes * active / parameters
        return TraceModel(
            id=name,
            weight_bytes=weight_bytes,
            layers=layers,
            kv_bytes_per_cell=kv_bytes,
            embedding_length=width,
            context_len=context,
            slots=4,
            modality=modality,
            min_gpu_layer_ratio=1.0,
            prefill_tokens_per_s=round(min(self.flops / (2 * active), _FASTEST_PREFILL)),
            decode_tokens_per_s=round(min(_DECODE_SHARE * self.memory_bytes_per_s / read_bytes, _FASTEST_DECODE), 1),
            batch_gain=4.0,
            start_s=1.0,
        )

    def embedder(self, name: str, weight_bytes: int, parameters: float) -> TraceModel:
        """A model that only reads."""
        return self.text(
            name,
            weight_bytes,
            parameters,
            layers=24,
            kv_bytes=0,
            width=768,
            context=2048,
            modality=Modality.EMBEDDINGS,
        )


def _other(name: str, weight_bytes: int, engine: EngineKind, modality: Modality, start_s: float) -> TraceModel:
    """A model that is no language model: one request at a time, its time given by the request."""
    return TraceModel(
        id=name,
        weight_bytes=weight_bytes,
        layers=16,
        kv_bytes_per_cell=0,
        embedding_length=1024,
        vocabulary_size=0,
        modality=modality,
        engine=engine,
        slots=1,
        context_len=512,
        min_gpu_layer_ratio=1.0,
        batch_gain=1.0,
        start_s=start_s,
    )


def _ears(name: str, weight_bytes: int) -> TraceModel:
    return _other(name, weight_bytes, EngineKind.WHISPER, Modality.SPEECH_TO_TEXT, 0.6)


def _voice() -> TraceModel:
    return _other("kokoro", 325_532_232, EngineKind.ONNX, Modality.TEXT_TO_SPEECH, 1.5)


def _images(name: str, weight_bytes: int) -> TraceModel:
    return _other(name, weight_bytes, EngineKind.DIFFUSION, Modality.IMAGES, 1.0)


def _documents() -> TraceModel:
    return _other("docling", 554_000_000, EngineKind.DOCLING, Modality.DOCUMENTS, 3.0)


def _small_card() -> Owned:
    speed = _Speed(272e9, 25e12)
    return Owned(
        "card-8",
        SimMachine(32 * _GIB, (8 * _GIB,), disk_bytes_per_s=2.5e9, device_bytes_per_s=11e9),
        Lineup(
            chat=speed.text("qwen3.5-9b-q4", 5_680_522_464, 9.0e9),
            coder=speed.text("lfm2.5-8b-a1b-q4", 5_155_564_768, 8.3e9, active=1.5e9, kv_bytes=12_288, width=2048),
            small=speed.text("qwen3.5-2b-q4", 1_280_835_840, 2.0e9, layers=24, kv_bytes=12_288, width=2048),
            vision=speed.text(
                "qwen3-vl-2b-q8",
                1_834_427_424 + 445_000_000,
                2.1e9,
                layers=28,
                kv_bytes=114_688,
                width=2048,
                context=4096,
                modality=Modality.VISION,
            ),
            embeddings=speed.embedder("embeddinggemma-2-q8", 309_855_456, 0.3e9),
            ears=_ears("whisper-turbo-q8", 874_188_075),
            voice=_voice(),
            images=_images("flux2-klein-q4", 2_460_378_560 + 2_497_281_312 + 336_211_292),
            documents=_documents(),
        ),
    )


def _large_card() -> Owned:
    speed = _Speed(1008e9, 100e12)
    return Owned(
        "card-24",
        SimMachine(64 * _GIB, (24 * _GIB,), disk_bytes_per_s=3.5e9, device_bytes_per_s=20e9),
        Lineup(
            chat=speed.text(
                "gemma4-26b-q4",
                14_439_363_584 + 1_194_828_160,
                25.2e9,
                active=3.8e9,
                layers=30,
                kv_bytes=81_920,
                width=2816,
            ),
            coder=speed.text(
                "qwen3-coder-30b-q4", 18_556_689_568, 30.5e9, active=3.3e9, layers=48, kv_bytes=98_304, width=2048
            ),
            small=speed.text(
                "gemma4-e4b-q4", 5_154_941_280, 8.0e9, active=4.0e9, layers=42, kv_bytes=28_672, width=2560
            ),
            vision=speed.text("qwen3.5-9b-q4", 5_680_522_464 + 918_166_080, 9.0e9, modality=Modality.VISION),
            embeddings=speed.embedder("embeddinggemma-2-q8", 309_855_456, 0.3e9),
            ears=_ears("whisper-turbo-f16", 1_624_555_275),
            voice=_voice(),
            images=_images("flux1-schnell-q4", 6_783_943_712 + 4_893_934_904 + 335_304_388 + 246_000_000),
            documents=_documents(),
        ),
    )


def _workstation() -> Owned:
    speed = _Speed(864e9, 120e12)
    return Owned(
        "card-48",
        SimMachine(128 * _GIB, (48 * _GIB,), disk_bytes_per_s=5e9, device_bytes_per_s=22e9),
        Lineup(
            chat=speed.text(
                "qwen3.6-35b-q6",
                29_308_320_736 + 902_822_624,
                35.0e9,
                active=3.0e9,
                layers=40,
                kv_bytes=20_480,
                width=2048,
            ),
            coder=speed.text(
                "qwen3.8-27b-q4", 18_973_870_432 + 629_247_008, 27.0e9, layers=64, kv_bytes=65_536, width=5120
            ),
            small=speed.text(
                "gemma4-12b-q4", 6_975_879_296 + 175_115_616, 12.0e9, layers=48, kv_bytes=65_536, width=3840
            ),
            vision=speed.text("qwen3.5-9b-q8", 9_527_502_048 + 918_166_080, 9.0e9, modality=Modality.VISION),
            embeddings=speed.embedder("embeddinggemma-2-q8", 309_855_456, 0.3e9),
            ears=_ears("whisper-turbo-f16", 1_624_555_275),
            voice=_voice(),
            images=_images("flux1-schnell-q4", 6_783_943_712 + 4_893_934_904 + 335_304_388 + 246_000_000),
            documents=_documents(),
        ),
    )


def _unified() -> Owned:
    speed = _Speed(273e9, 8e12)
    return Owned(
        "unified-32",
        SimMachine(32 * _GIB, unified=True, disk_bytes_per_s=5e9, host_reserve_bytes=8 * _GIB),
        Lineup(
            chat=speed.text(
                "gemma4-26b-q4",
                14_439_363_584 + 1_194_828_160,
                25.2e9,
                active=3.8e9,
                layers=30,
                kv_bytes=81_920,
                width=2816,
            ),
            coder=speed.text("qwen3.5-9b-q4", 5_680_522_464, 9.0e9),
            small=speed.text("qwen3.5-2b-q4", 1_280_835_840, 2.0e9, layers=24, kv_bytes=12_288, width=2048),
            vision=speed.text(
                "gemma4-e4b-q4",
                5_154_941_280 + 991_552_256,
                8.0e9,
                active=4.0e9,
                layers=42,
                kv_bytes=28_672,
                width=2560,
                modality=Modality.VISION,
            ),
            embeddings=speed.embedder("embeddinggemma-2-q8", 309_855_456, 0.3e9),
            ears=_ears("whisper-turbo-q8", 874_188_075),
            voice=_voice(),
            images=_images("flux2-klein-q8", 4_300_629_440 + 3_306_261_792 + 336_211_292),
            documents=_documents(),
        ),
    )


MACHINES: dict[str, Owned] = {owned.name: owned for owned in (_small_card(), _large_card(), _workstation(), _unified())}
