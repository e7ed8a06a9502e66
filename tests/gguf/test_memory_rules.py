"""The rules of architectures of which no tiny model exists, worked out by hand from llama.cpp's loader."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from hypnos_engine.domain.errors import LoadFailed
from hypnos_engine.gguf import read_shape

Forge = Callable[..., bytes]
Keys = Mapping[str, int | list[int] | list[bool]]
U32, BOOL, STRING, ARRAY = 4, 7, 8, 9
EMBEDDING, HEADS, KV_HEADS, HEAD = 64, 4, 2, 16
PLAIN = (32, 32, 0, 0)
"""K, V, window and state of a layer with plain attention: two heads of 16."""


def _entry(name: str, value: int | list[int] | list[bool]) -> tuple[str, int, object]:
    if isinstance(value, int):
        return name, U32, value
    return name, ARRAY, (BOOL if isinstance(value[0], bool) else U32, value)


def _read(path: Path, forge: Forge, architecture: str, layers: int, keys: Keys) -> list[tuple[int, int, int, int]]:
    every: Keys = {
        "block_count": layers,
        "context_length": 8192,
        "embedding_length": EMBEDDING,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        **keys,
    }
    metadata: list[tuple[str, int, object]] = [("general.architecture", STRING, architecture)]
    metadata += [_entry(f"{architecture}.{name}", value) for name, value in every.items()]
    path.write_bytes(forge(metadata))
    return [
        (layer.k_elements_per_cell, layer.v_elements_per_cell, layer.sliding_window, layer.recurrent_state_bytes)
        for layer in read_shape(path).layers
    ]


def _sliding(window: int) -> tuple[int, int, int, int]:
    return 32, 32, window, 0


def _state(elements: int) -> tuple[int, int, int, int]:
    return 0, 0, 0, elements * 4


SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 128, "ssm.state_size": 16, "ssm.group_count": 2}
SSM_STATE = 3 * (128 + 2 * 2 * 16) + 16 * 128
DELTA = {"ssm.conv_kernel": 4, "kda.head_dim": 8}
DELTA_STATE = 3 * 3 * HEADS * 8 + 8 * 8 * HEADS
LATENT = {
    "attention.key_length": 48,
    "attention.value_length": 32,
    "attention.key_length_mla": 24,
    "attention.value_length_mla": 16,
}

RULES: list[tuple[str, int, Keys, list[tuple[int, int, int, int]]]] = [
    ("no such thing", 2, {"attention.sliding_window": 9}, [PLAIN] * 2),
    ("phi3", 2, {"attention.sliding_window": 9}, [PLAIN] * 2),
    ("llama", 2, {"attention.head_count_kv": [0, 2]}, [(0, 0, 0, 0), PLAIN]),
    ("llama", 2, {"attention.key_length": 8, "attention.value_length": 4}, [(16, 8, 0, 0)] * 2),
    ("llama", 2, {"attention.key_length_mla": 8, "attention.value_length_mla": 4}, [PLAIN] * 2),
    ("gemma2", 3, {}, [_sliding(4096), PLAIN, _sliding(4096)]),
    ("gemma2", 2, {"attention.sliding_window": 9}, [_sliding(9), PLAIN]),
    ("gpt-oss", 4, {"attention.sliding_window": 128}, [_sliding(128), PLAIN] * 2),
    ("gemma3", 2, {}, [PLAIN] * 2),
    ("gemma3", 2, {"attention.sliding_window": 9, "attention.sliding_window_pattern": 0}, [_sliding(9)] * 2),
    ("cohere2moe", 5, {"attention.sliding_window": 9}, [PLAIN, *[_sliding(9)] * 3, PLAIN]),
    ("laguna", 2, {"attention.sliding_window": 0}, [PLAIN] * 2),
    ("llama4", 4, {}, [*[_sliding(8192)] * 3, PLAIN]),
    ("llama4", 4, {"attention.sliding_window": 9}, [*[_sliding(8192)] * 3, PLAIN]),
    ("llama4", 4, {"attention.sliding_window": 0}, [PLAIN] * 4),
    ("smallthinker", 4, {"attention.sliding_window": 9}, [PLAIN, *[_sliding(4096)] * 3]),
    ("exaone4", 30, {"attention.sliding_window": 9}, [PLAIN] * 30),
    ("exaone4", 64, {"attention.sliding_window": 9}, [*[_sliding(9)] * 3, PLAIN] * 16),
    (
        "step35",
        3,
        {"attention.sliding_window": 9, "attention.sliding_window_pattern": [True]},
        [_sliding(9), PLAIN, PLAIN],
    ),
    (
        "mimo2",
        2,
        {
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": [0, 1],
            "attention.head_count_kv": [1, 3],
            "attention.key_length_swa": 8,
            "attention.value_length_swa": 4,
        },
        [(16, 16, 0, 0), (24, 12, 9, 0)],
    ),
    ("gemma3n", 25, {"attention.sliding_window": 9}, [*[_sliding(9)] * 4, PLAIN] * 4 + [(0, 0, 0, 0)] * 5),
    ("lfm2", 3, {"attention.head_count_kv": [0, 2, 0], "shortconv.l_cache": 3}, [_state(128), PLAIN, _state(128)]),
    (
        "lfm2",
        2,
        {"attention.head_count_kv": [0, 2], "shortconv.l_cache": 3, "attention.sliding_window": 9},
        [_state(128), _sliding(9)],
    ),
    ("mamba", 2, SSM, [_state(3 * 128 + 16 * 128)] * 2),
    ("mamba2", 2, SSM, [_state(SSM_STATE)] * 2),
    ("rwkv7", 2, {"wkv.head_size": 8}, [_state(EMBEDDING * (2 + 8))] * 2),
    ("rwkv6qwen2", 2, {"wkv.head_size": 8, "token_shift_count": 1}, [_state(EMBEDDING * (1 + 8))] * 2),
    ("jamba", 2, {**SSM, "attention.head_count_kv": [0, 2]}, [_state(3 * 128 + 16 * 128), PLAIN]),
    ("granitehybrid", 2, {**SSM, "attention.head_count_kv": [0, 2]}, [_state(SSM_STATE), PLAIN]),
    ("falcon-h1", 2, SSM, [(32, 32, 0, SSM_STATE * 4)] * 2),
    (
        "nemotron_h",
        3,
        {**SSM, "attention.head_count_kv": [0, 0, 2], "feed_forward_length": [0, 99, 0]},
        [_state(SSM_STATE), (0, 0, 0, 0), PLAIN],
    ),
    ("qwen3next", 4, SSM, [*[_state(SSM_STATE)] * 3, PLAIN]),
    (
        "qwen35",
        3,
        {**SSM, "nextn_predict_layers": 1, "full_attention_interval": 2},
        [_state(SSM_STATE), PLAIN, (0, 0, 0, 0)],
    ),
    ("qwen35moe", 2, {**SSM, "attention.recurrent_layers": [False, True]}, [PLAIN, _state(SSM_STATE)]),
    ("minimax-01", 8, {}, [*[_state(HEADS * HEAD * HEAD)] * 7, PLAIN]),
    (
        "kimi-linear",
        2,
        {**LATENT, **DELTA, "attention.head_count_kv": [0, 1]},
        [_state(DELTA_STATE), (48, 0, 0, 0)],
    ),
    ("deepseek2", 1, {**LATENT, "attention.head_count_kv": 1}, [(48, 0, 0, 0)]),
    ("deepseek2", 1, {"attention.key_length": 24, "attention.value_length": 16}, [(48, 32, 0, 0)]),
    ("deepseek32", 1, {**LATENT, "attention.head_count_kv": 1, "attention.indexer.key_length": 8}, [(56, 0, 0, 0)]),
    (
        "minimax-m3",
        2,
        {"leading_dense_block_count": 1, "attention.indexer.key_length": 8},
        [PLAIN, (32 + 8, 32 + HEAD, 0, 0)],
    ),
    ("hy_v4", 1, {**LATENT, "attention.head_count_kv": 1, "attention.indexer.key_length": 8}, [(48, 0, 0, 0)]),
    ("glm4moe", 3, {"nextn_predict_layers": 1}, [PLAIN, PLAIN, (0, 0, 0, 0)]),
    ("nanbeige", 2, {"num_loops": 3}, [(96, 96, 0, 0)] * 2),
    ("graniteswitch", 2, {}, [PLAIN, (48, 48, 0, 0)]),
    ("gemma-embedding", 2, {"attention.sliding_window": 9}, [(0, 0, 9, 0)] * 2),
    ("modern-bert", 2, {}, [(0, 0, 0, 0)] * 2),
    ("mamba", 1, {**SSM, "attention.head_count": 0, "attention.head_count_kv": 0}, [_state(3 * 128 + 16 * 128)]),
]


@pytest.mark.parametrize(("architecture", "layers", "keys", "expected"), RULES)
def test_what_a_layer_keeps(
    tmp_path: Path,
    forge: Forge,
    architecture: str,
    layers: int,
    keys: Keys,
    expected: list[tuple[int, int, int, int]],
) -> None:
    assert _read(tmp_path / "model.gguf", forge, architecture, layers, keys) == expected


def test_loops_beyond_the_layers_that_llama_allows_are_refused(tmp_path: Path, forge: Forge) -> None:
    with pytest.raises(LoadFailed, match="run 2 times are more"):
        _read(tmp_path / "model.gguf", forge, "nanbeige", 257, {"num_loops": 2})
