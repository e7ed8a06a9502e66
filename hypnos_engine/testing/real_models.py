"""Which real models the planner is held against; their sizes are the published ones, their files' sizes exact.

A file's size differs from that of the sparse one only by the vocabulary's strings: a wrong dimension would show.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from hypnos_engine.testing.real_families import (
    Gemma4,
    Sizes,
    bert,
    gemma4,
    glm_flash,
    gpt_oss,
    lfm2,
    modern_bert,
    nemotron,
    phi4_mini,
    plain,
    qwen3moe,
    qwen35,
)
from hypnos_engine.testing.sparse_gguf import KeyValue, SparseModel


@dataclass(frozen=True, slots=True)
class RealModel:
    """A model and, if published, the exact size of its file in bytes (0 = not published)."""

    build: Callable[[], SparseModel]
    file_bytes: int = 0


def _plain(
    architecture: str, quantisation: str, file_bytes: int, sizes: Sizes, embedding_type: str = "", **keys: KeyValue
) -> RealModel:
    build = partial(plain, "model", architecture, quantisation, sizes, embedding_type=embedding_type, **keys)
    return RealModel(build, file_bytes)


def _gemma4(quantisation: str, file_bytes: int, shape: Gemma4) -> RealModel:
    return RealModel(partial(gemma4, "gemma 4", quantisation, shape), file_bytes)


def _qwen35(quantisation: str, file_bytes: int, value_heads: int, sizes: Sizes) -> RealModel:
    return RealModel(partial(qwen35, "Qwen3.5", quantisation, sizes, value_heads), file_bytes)


def _lfm2(
    quantisation: str, file_bytes: int, attending: tuple[int, ...], sizes: Sizes, *, window: int = 0, dense: int = -1
) -> RealModel:
    return RealModel(
        partial(lfm2, "LFM2", quantisation, sizes, attending, window=window, dense_layers=dense), file_bytes
    )


_LFM2_16 = (2, 5, 8, 10, 12, 14)

REAL_MODELS: dict[str, RealModel] = {
    "smollm2-360m": _plain("llama", "q8_0", 386404992, Sizes(32, 960, 15, 5, 64, 2560, 49152, context=8192)),
    "smollm2-1.7b": _plain("llama", "q4_K_M", 1055609536, Sizes(24, 2048, 32, 32, 64, 8192, 49152, context=8192)),
    "llama-3.2-1b": _plain("llama", "q4_K_M", 807694464, Sizes(16, 2048, 32, 8, 64, 8192, 128256)),
    "voxtral-3b": _plain("llama", "q4_K_M", 0, Sizes(30, 3072, 32, 8, 128, 8192, 131072, tied=False)),
    "qwen2.5-omni-3b": _plain(
        "qwen2vl", "q4_K_M", 2104931648, Sizes(36, 2048, 16, 2, 128, 11008, 151936, tied=False, context=32768),
        rope__dimension_sections=(16, 24, 24, 0),
    ),
    "qwen3-0.6b": _plain("qwen3", "q8_0", 639446688, Sizes(28, 1024, 16, 8, 128, 3072, 151936, context=40960)),
    "qwen3-4b": _plain("qwen3", "q4_K_M", 2497280256, Sizes(36, 2560, 32, 8, 128, 9728, 151936, context=40960)),
    "qwen3-vl-2b": _plain(
        "qwen3vl", "q8_0", 1834427424, Sizes(28, 2048, 16, 8, 128, 6144, 151936, context=262144),
        n_deepstack_layers=3, rope__dimension_sections=(24, 20, 20, 0),
    ),
    "qwen3-coder-30b-a3b": RealModel(qwen3moe, 32483935392),
    "gemma3-270m": _plain(
        "gemma3", "q4_0", 241410624, Sizes(18, 640, 4, 1, 256, 2048, 262144, context=32768),
        attention__sliding_window=512,
    ),
    "gemma3-1b": _plain(
        "gemma3", "q4_0", 720425600, Sizes(26, 1152, 4, 1, 256, 6912, 262144, context=32768),
        attention__sliding_window=512,
    ),
    "gemma3-4b": _plain(
        "gemma3", "q4_0", 2526080992, Sizes(34, 2560, 8, 4, 256, 10240, 262208),
        embedding_type="q8_0", attention__sliding_window=1024,
    ),
    "gemma4-e2b": _gemma4(
        "q8_0", 4967494592,
        Gemma4(
            Sizes(35, 1536, 8, 1, 512, 6144, 262144), 512, 5, 1, shared_layers=20, per_layer=256, wide_when_shared=True
        ),
    ),
    "gemma4-e4b": _gemma4(
        "q8_0", 8031240160,
        Gemma4(Sizes(42, 2560, 8, 2, 512, 10240, 262144), 512, 6, 2, shared_layers=18, per_layer=256),
    ),
    "gemma4-12b": _gemma4(
        "q4_0", 6975879296,
        Gemma4(Sizes(48, 3840, 16, 8, 512, 15360, 262144, context=262144), 1024, 6, 1, global_values=False),
    ),
    "gemma4-26b-a4b": _gemma4(
        "q8_0", 26859858464,
        Gemma4(
            Sizes(30, 2816, 16, 8, 512, 2112, 262144, context=262144), 1024, 6, 2,
            experts=128, expert_width=704, global_values=False,
        ),
    ),
    "gemma4-31b": _gemma4(
        "q4_K_M", 18687061792,
        Gemma4(Sizes(60, 5376, 32, 16, 512, 21504, 262144, context=262144), 1024, 6, 4, global_values=False),
    ),
    "lfm2.5-350m": _lfm2("q4_K_M", 229312224, _LFM2_16, Sizes(16, 1024, 16, 8, 64, 4608, 65536)),
    "lfm2.5-1.2b": _lfm2("q4_K_M", 730895168, _LFM2_16, Sizes(16, 2048, 32, 8, 64, 8192, 65536)),
    "lfm2.5-8b-a1b": _lfm2(
        "q4_K_M", 5155564768, (2, 6, 10, 14, 18, 21), Sizes(24, 2048, 32, 8, 64, 7168, 128000), dense=2
    ),
    "lfm2-windowed": _lfm2("q4_K_M", 0, _LFM2_16, Sizes(16, 2048, 32, 8, 64, 8192, 65536), window=256),
    "qwen3.5-0.8b": _qwen35("q8_0", 811843840, 16, Sizes(24, 1024, 8, 2, 256, 3584, 248320, context=262144)),
    "qwen3.5-4b": _qwen35("q8_0", 4482403488, 32, Sizes(32, 2560, 16, 4, 256, 9216, 248320, context=262144)),
    "qwen3.6-27b": _qwen35(
        "q8_0", 28595763424, 48, Sizes(64, 5120, 24, 4, 256, 17408, 248320, tied=False, context=262144)
    ),
    "qwen3.6-35b-a3b": _qwen35(
        "q8_0", 36903140320, 32, Sizes(40, 2048, 16, 2, 256, 0, 248320, tied=False, context=262144)
    ),
    "nemotron-3-nano-30b-a3b": RealModel(nemotron),
    "glm-4.7-flash": RealModel(glm_flash, 31842799232),
    "gpt-oss-20b": RealModel(gpt_oss),
    "phi-4-mini": RealModel(phi4_mini),
    "embeddinggemma-300m": _plain(
        "gemma-embedding", "q8_0", 328577056, Sizes(24, 768, 3, 1, 256, 1152, 262144, context=2048),
        attention__sliding_window=512, pooling_type=1,
    ),
    "nomic-embed-text-v1.5": RealModel(
        partial(bert, "nomic", "nomic-bert", "q8_0", Sizes(12, 768, 12, 12, 64, 3072, 30522, context=2048)), 146146432
    ),
    "modernbert-base": RealModel(
        partial(modern_bert, "modernbert", "q8_0", Sizes(22, 768, 12, 12, 64, 1152, 50368, context=8192))
    ),
    "bge-m3": RealModel(
        partial(bert, "bge-m3", "bert", "f16", Sizes(24, 1024, 16, 16, 64, 4096, 250002, context=8192))
    ),
    "qwen3-embedding-0.6b": _plain(
        "qwen3", "q8_0", 0, Sizes(28, 1024, 16, 8, 128, 3072, 151669, context=32768), pooling_type=3
    ),
    "all-minilm-l6-v2": RealModel(
        partial(bert, "minilm", "bert", "f16", Sizes(6, 384, 12, 12, 32, 1536, 30522, context=512)), 45949216
    ),
}  # fmt: skip
