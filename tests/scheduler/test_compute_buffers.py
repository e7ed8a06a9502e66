"""The replay of llama.cpp's graph allocator: against recorded sizes of every real model, and part by part."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.domain.model import GraphShape
from hypnos_engine.gguf import read_shape
from hypnos_engine.scheduler.compute_buffers import graph_bytes
from hypnos_engine.scheduler.footprint import compute_bytes
from hypnos_engine.scheduler.graph_arena import ALIGNMENT, FLOAT_BYTES, MICRO_BATCH, Arena, Block
from hypnos_engine.testing.real_models import REAL_MODELS
from hypnos_engine.testing.sparse_gguf import write

MIB = 2**20
RECORDED: dict[str, tuple[float, float]] = {
    "all-minilm-l6-v2": (5.76, 5.76),
    "bge-m3": (14.51, 14.51),
    "embeddinggemma-300m": (12.26, 12.26),
    "gemma3-1b": (54.27, 67.77),
    "gemma3-270m": (22.77, 36.27),
    "gemma3-4b": (84.52, 99.52),
    "gemma4-12b": (134.02, 149.02),
    "gemma4-26b-a4b": (101.52, 116.52),
    "gemma4-31b": (179.02, 194.02),
    "gemma4-e2b": (114.52, 128.02),
    "gemma4-e4b": (117.02, 130.52),
    "glm-4.7-flash": (86.01, 98.01),
    "gpt-oss-20b": (97.14, 109.39),
    "lfm2-windowed": (60.78, 61.57),
    "lfm2.5-1.2b": (64.03, 76.07),
    "lfm2.5-350m": (37.02, 49.04),
    "lfm2.5-8b-a1b": (58.20, 70.20),
    "llama-3.2-1b": (68.01, 80.01),
    "modernbert-base": (12.26, 12.26),
    "nemotron-3-nano-30b-a3b": (81.01, 97.70),
    "nomic-embed-text-v1.5": (23.01, 23.01),
    "phi-4-mini": (70.01, 82.01),
    "qwen2.5-omni-3b": (84.52, 96.52),
    "qwen3-0.6b": (30.01, 42.01),
    "qwen3-4b": (84.01, 96.01),
    "qwen3-coder-30b-a3b": (92.01, 104.01),
    "qwen3-embedding-0.6b": (30.01, 42.01),
    "qwen3-vl-2b": (80.02, 92.02),
    "qwen3.5-0.8b": (46.16, 58.58),
    "qwen3.5-4b": (73.02, 85.02),
    "qwen3.6-27b": (136.02, 148.02),
    "qwen3.6-35b-a3b": (76.02, 88.02),
    "smollm2-1.7b": (68.01, 80.01),
    "smollm2-360m": (26.51, 38.51),
    "voxtral-3b": (78.01, 90.01),
}
"""Compute buffers in MiB that llama.cpp announced: 4096 cells for one slot, 16384 for four, f16 cache."""
ALLOWED_MIB = 2.0


def test_every_real_model_is_recorded() -> None:
    assert set(RECORDED) == set(REAL_MODELS)


@pytest.mark.parametrize("name", RECORDED)
def test_buffers_are_as_large_as_recorded(tmp_path: Path, name: str) -> None:
    model = REAL_MODELS[name].build()
    model.vocabulary_size = 16  # the tokens' texts take most of the time and change nothing here
    write(tmp_path / "model.gguf", model)
    shape = read_shape(tmp_path / "model.gguf")
    small, large = RECORDED[name]
    assert compute_bytes(shape, 4096, 1) / MIB == pytest.approx(small, abs=ALLOWED_MIB)
    assert compute_bytes(shape, 16_384, 4) / MIB == pytest.approx(large, abs=ALLOWED_MIB)


EMBEDDING = 256
DENSE = {"ffn_up": (EMBEDDING, 512), "ffn_down": (512, EMBEDDING)}
ATTENTION = {
    "attn_q": (EMBEDDING, EMBEDDING),
    "attn_k": (EMBEDDING, 64),
    "attn_v": (EMBEDDING, 64),
    "attn_output": (EMBEDDING, EMBEDDING),
}


def graph(*layers: Mapping[str, tuple[int, ...]], architecture: str = "llama", caches: bool = True) -> GraphShape:
    return GraphShape(
        architecture=architecture,
        layers=layers,
        caching=(caches,) * len(layers),
        state_bytes=(0,) * len(layers),
        embedding=EMBEDDING,
        input_width=EMBEDDING,
        per_layer_width=0,
        vocabulary=1000,
        experts=8,
        experts_used=2,
    )


def row(width: int) -> int:
    return width * MICRO_BATCH * FLOAT_BYTES


def test_a_model_without_blocks_needs_its_input_and_its_output() -> None:
    assert graph_bytes(graph(), 4) == 2 * row(EMBEDDING) + 4 * (EMBEDDING + 1000) * FLOAT_BYTES


def test_a_block_without_attention_or_feed_forward_takes_nothing() -> None:
    assert graph_bytes(graph({"attn_norm": (EMBEDDING,)}), 1) == graph_bytes(graph(), 1)


def test_blocks_that_draft_tokens_are_not_computed() -> None:
    drafting = {**ATTENTION, **DENSE, "nextn.eh_proj": (2 * EMBEDDING, EMBEDDING)}
    assert graph_bytes(graph(drafting), 1) == graph_bytes(graph(), 1)


def test_a_feed_forward_is_live_beside_input_and_residual() -> None:
    # The first input, the residual, its norm and one wide product.
    assert graph_bytes(graph(DENSE), 1) == 3 * row(EMBEDDING) + row(512)


def test_the_result_of_attention_stands_beside_the_queries() -> None:
    # Input, residual, norm, the product and its rotation, and the values behind them.
    assert graph_bytes(graph(ATTENTION), 1) == 5 * row(EMBEDDING)
    joint = {"attn_qkv": (EMBEDDING, EMBEDDING + 128), "attn_output": (EMBEDDING, EMBEDDING)}
    assert graph_bytes(graph(joint), 1) > 4 * row(EMBEDDING) + row(128)


def test_reading_another_blocks_cache_takes_no_more_than_writing_one() -> None:
    assert graph_bytes(graph(ATTENTION, caches=False), 1) <= graph_bytes(graph(ATTENTION), 1)


def test_latent_attention_with_whole_queries() -> None:
    absorbed = {
        "attn_q": (EMBEDDING, 4 * 96),
        "attn_kv_a_mqa": (EMBEDDING, 128 + 32),
        "attn_k_b": (64, 128, 4),
        "attn_v_b": (128, 64, 4),
        "attn_output": (256, EMBEDDING),
    }
    whole = graph_bytes(graph(absorbed, architecture="deepseek2"), 1)
    low_rank = {**absorbed, "attn_q_a": (EMBEDDING, 48), "attn_q_b": (48, 4 * 96)}
    assert whole <= graph_bytes(graph(low_rank, architecture="deepseek2"), 1)
    assert whole > 3 * row(EMBEDDING) + row(4 * 160)
    flat = {**absorbed, "attn_k_b": (64, 128)}
    assert graph_bytes(graph(flat, architecture="deepseek2"), 1) < whole


def test_a_tensor_table_without_the_expected_dimensions_is_no_reason_to_fail() -> None:
    strange = {"attn_output": (), "attn_q": (7,), "ffn_up": (3,), "ssm_in": (1,), "ffn_down_exps": (5, 5, 5)}
    assert graph_bytes(graph(strange), 1) >= graph_bytes(graph(), 1)


def test_an_unknown_kind_is_guessed_from_its_widest_product() -> None:
    unknown = {"time_mix_key": (EMBEDDING, 640), "time_mix_output": (EMBEDDING, EMBEDDING)}
    assert graph_bytes(graph(unknown), 1) == 3 * row(EMBEDDING) + 3 * row(640)


def test_no_slot_counts_as_one() -> None:
    one = graph(DENSE)
    assert graph_bytes(one, 0) == graph_bytes(one, 1)


def test_the_state_of_every_sequence_is_counted() -> None:
    mamba = {
        "ssm_in": (EMBEDDING, 2 * 512 + 2 * 16 + 8),
        "ssm_conv1d": (4, 512 + 32),
        "ssm_out": (512, EMBEDDING),
    }
    recurrent = replace(graph(mamba, architecture="nemotron_h"), state_bytes=(4 * (3 * 544 + 512 * 16),))
    few, many = graph_bytes(recurrent, 1), graph_bytes(recurrent, 65)
    assert many - few >= 64 * 512 * 16 * FLOAT_BYTES


def test_a_hole_is_taken_by_what_fits_best() -> None:
    arena = Arena()
    large, keep, small, last = (arena.take(size * ALIGNMENT) for size in (4, 1, 2, 1))
    arena.give(large)
    arena.give(small)
    assert arena.take(2 * ALIGNMENT).offset == small.offset
    assert arena.take(3 * ALIGNMENT).offset == large.offset
    assert arena.take(ALIGNMENT).offset == large.offset + 3 * ALIGNMENT
    assert arena.take(ALIGNMENT).offset == last.end
    assert keep.size_bytes == ALIGNMENT


@given(st.lists(st.tuples(st.integers(1, 500), st.booleans(), st.integers(0, 30)), max_size=60))
def test_buffers_in_use_never_overlap_and_holes_are_joined(steps: list[tuple[int, bool, int]]) -> None:
    arena, used = Arena(), list[Block]()
    for size, gives, which in steps:
        if gives and used:
            arena.give(used.pop(which % len(used)))
        else:
            used.append(arena.take(size))
        ordered = sorted(used, key=lambda block: block.offset)
        assert all(one.end <= other.offset for one, other in itertools.pairwise(ordered))
        assert arena.peak_bytes >= max((block.end for block in used), default=0)
    for block in used:
        arena.give(block)
    assert arena.take(arena.peak_bytes + ALIGNMENT).offset == 0
