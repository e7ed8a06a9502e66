"""Writes small random models that make vectors of texts, one per way of attending and pooling; none means anything.

An encoder with a table of positions is `tiny_gguf.write_encoder`.
"""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from hypnos_engine.testing.tiny_gguf import Geometry, _Draft, write_encoder

_ENCODER = Geometry(kv_heads=2, context=512)
_ALTERNATING = Geometry(layers=4, kv_heads=2, context=512)
_WINDOWED = Geometry(layers=7, context=512)
_DECODER = Geometry(context=2048)


def write_rotary_encoder(path: Path, geometry: Geometry = _ENCODER, *, seed: int = 0) -> None:
    """Write a nomic-bert: rotated positions, a gated feed-forward part, the first token's vector is the text's."""
    model = _Draft(path, "nomic-bert", geometry, seed)
    model.describe_encoder(gguf.PoolingType.CLS)
    model.weight("token_types", 2, geometry.embedding, dtype=np.float32)
    model.norm("token_embd_norm", biased=True)
    for layer in range(geometry.layers):
        model.weight(f"blk.{layer}.attn_qkv", 3 * geometry.embedding, geometry.embedding)
        model.weight(f"blk.{layer}.attn_output", geometry.embedding, geometry.embedding)
        model.feed_forward(layer)
        model.norm(f"blk.{layer}.attn_output_norm", biased=True)
        model.norm(f"blk.{layer}.layer_output_norm", biased=True)
    model.finish()


def write_alternating_encoder(path: Path, geometry: Geometry = _ALTERNATING, *, seed: int = 0) -> None:
    """Write a modern-bert: the first of three layers attends to everything, the others to a window on both sides."""
    model = _Draft(path, "modern-bert", geometry, seed)
    model.describe_encoder(gguf.PoolingType.MEAN)
    model.writer.add_sliding_window(32)
    model.norm("token_embd_norm")
    model.norm("output_norm")
    for layer in range(geometry.layers):
        model.norms(layer, *(("attn_norm", "ffn_norm") if layer else ("ffn_norm",)))
        model.weight(f"blk.{layer}.attn_qkv", 3 * geometry.embedding, geometry.embedding)
        model.weight(f"blk.{layer}.attn_output", geometry.embedding, geometry.embedding)
        model.weight(f"blk.{layer}.ffn_up", 2 * geometry.feed_forward, geometry.embedding)
        model.weight(f"blk.{layer}.ffn_down", geometry.embedding, geometry.feed_forward)
    model.finish()


def write_windowed_encoder(path: Path, geometry: Geometry = _WINDOWED, *, window: int = 32, seed: int = 0) -> None:
    """Write a gemma-embedding: of every six layers five attend to a window on both sides, the sixth to everything."""
    model = _Draft(path, "gemma-embedding", geometry, seed)
    model.describe(None)
    model.writer.add_add_eos_token(value=True)
    model.writer.add_pooling_type(gguf.PoolingType.MEAN)
    model.writer.add_causal_attention(value=False)
    model.writer.add_sliding_window(window)
    for layer in range(geometry.layers):
        model.norms(layer, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        model.attention(layer, normalised=True)
        model.feed_forward(layer)
    model.finish()


def write_embedding_decoder(
    path: Path,
    geometry: Geometry = _DECODER,
    *,
    pooling: gguf.PoolingType | None = gguf.PoolingType.LAST,
    causal: bool = True,
    seed: int = 0,
) -> None:
    """Write a qwen3 whose last token's vector is the text's, or another pooling; None says nothing about it.

    Unless it is `causal`, every token attends to all others.
    """
    model = _Draft(path, "qwen3", geometry, seed)
    model.describe(None)
    model.writer.add_add_eos_token(value=pooling is gguf.PoolingType.LAST)
    if pooling is not None:
        model.writer.add_pooling_type(pooling)
    if not causal:
        model.writer.add_causal_attention(value=False)
    for layer in range(geometry.layers):
        model.norms(layer, "attn_norm", "ffn_norm")
        model.attention(layer, normalised=True)
        model.feed_forward(layer)
    model.finish()


EMBEDDERS: dict[str, Callable[[Path], None]] = {
    "encoder": write_encoder,
    "rotary": write_rotary_encoder,
    "alternating": write_alternating_encoder,
    "windowed": write_windowed_encoder,
    "decoder": write_embedding_decoder,
}
"""Every kind by name, each with its default sizes."""
