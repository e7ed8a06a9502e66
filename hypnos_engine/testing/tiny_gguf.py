"""Writes small random GGUF models, one per kind of attention, that llama.cpp really loads; never meant to say anything.

Every file carries its own vocabulary (256 bytes, a few merges, the ChatML control tokens), so none needs a source model
and each stays below 1 MB. Weights are drawn small: larger ones overflow half precision and every logit becomes NaN.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import quants

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""The first three tokens; `<|im_end|>` ends a turn, `<|endoftext|>` begins and pads."""

_MERGES = ("Ġ t", "h e", "i n", "e r", "a n", "Ġ a", "o n", "r e", "Ġt he", "Ġ s", "l l", "o u", "in g", "e n", "Ġan d")
_SPREAD = 0.05
_QUANTISED = gguf.GGMLQuantizationType.Q5_1
"""llama.cpp has one way to multiply it on a CPU, for one token and for many, whereas half precision has several."""
_MLA_RANK = 32


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of a transformer. `head_size` is a multiple of 32, so that the cache can be kept as q8_0 and q4_0 too."""

    layers: int = 2
    embedding: int = 64
    heads: int = 2
    kv_heads: int = 1
    head_size: int = 32
    feed_forward: int = 128
    context: int = 4096
    spread: float = _SPREAD
    """Standard deviation of the weights but the embeddings'. At 0.2 what was read long ago decides the next token."""
    quantised: bool = False
    """Weights as Q5_1. With a quantised cache too, a CPU then computes the same bits however a text is divided."""


@dataclass(frozen=True, slots=True)
class MixtureGeometry:
    """Sizes of the expert layers of a Mixture-of-Experts model."""

    experts: int = 4
    used: int = 2
    feed_forward: int = 32


def write_llama(
    path: Path,
    geometry: Geometry | None = None,
    *,
    chat_template: str | None = CHATML,
    seed: int = 0,
    tensors_per_file: int = 0,
) -> None:
    """Write a plain llama; with `tensors_per_file` as shards beside `path`, named `<stem>-00001-of-0000N.gguf`."""
    model = _Draft(path, "llama", geometry or Geometry(), seed, tensors_per_file)
    model.describe(chat_template)
    for layer in range(model.geometry.layers):
        model.norms(layer, "attn_norm", "ffn_norm")
        model.attention(layer)
        model.feed_forward(layer)
    model.finish()


def write_sliding_window(
    path: Path,
    geometry: Geometry | None = None,
    *,
    window: int = 64,
    chat_template: str | None = CHATML,
    seed: int = 0,
) -> None:
    """Write a gemma3: of every six layers five attend to the last `window` tokens, the sixth to all."""
    model = _Draft(path, "gemma3", geometry or Geometry(layers=7), seed)
    model.describe(chat_template)
    model.writer.add_sliding_window(window)
    for layer in range(model.geometry.layers):
        model.norms(layer, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        model.attention(layer, normalised=True)
        model.feed_forward(layer)
    model.finish()


def write_hybrid(
    path: Path,
    geometry: Geometry | None = None,
    *,
    attention_layers: Sequence[int] = (2,),
    chat_template: str | None = CHATML,
    seed: int = 0,
) -> None:
    """Write an lfm2: short convolutions with a recurrent state, attention with a KV cache in `attention_layers`."""
    model = _Draft(path, "lfm2", geometry or Geometry(layers=4), seed)
    sizes = model.geometry
    model.describe(chat_template, output_norm="token_embd_norm", per_layer_heads=False)
    model.writer.add_head_count_kv([sizes.kv_heads if i in attention_layers else 0 for i in range(sizes.layers)])
    model.writer.add_shortconv_l_cache(3)
    for layer in range(sizes.layers):
        model.norms(layer, "attn_norm", "ffn_norm")
        model.feed_forward(layer)
        if layer in attention_layers:
            model.attention(layer, normalised=True)
        else:
            model.weight(f"blk.{layer}.shortconv.conv", sizes.embedding, 3, dtype=np.float32)
            model.weight(f"blk.{layer}.shortconv.in_proj", 3 * sizes.embedding, sizes.embedding)
            model.weight(f"blk.{layer}.shortconv.out_proj", sizes.embedding, sizes.embedding)
    model.finish()


def write_delta_net(
    path: Path,
    geometry: Geometry | None = None,
    *,
    attention_every: int = 2,
    chat_template: str | None = CHATML,
    seed: int = 0,
) -> None:
    """Write a qwen35: gated delta nets with a recurrent state, full attention in every `attention_every`-th layer."""
    model = _Draft(path, "qwen35", geometry or Geometry(layers=4), seed)
    sizes = model.geometry
    state, key_heads, value_heads, kernel = 32, 1, 2, 4
    model.describe(chat_template)
    writer = model.writer
    writer.add_rope_dimension_sections([sizes.head_size // 2, 0, 0, 0])
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_state_size(state)
    writer.add_ssm_group_count(key_heads)
    writer.add_ssm_time_step_rank(value_heads)
    writer.add_ssm_inner_size(value_heads * state)
    writer.add_full_attention_interval(attention_every)
    for layer in range(sizes.layers):
        prefix = f"blk.{layer}."
        model.norms(layer, "attn_norm", "post_attention_norm")
        model.feed_forward(layer)
        if (layer + 1) % attention_every == 0:
            model.attention(layer, normalised=True, gated=True)
            continue
        channels = (2 * key_heads + value_heads) * state
        model.weight(prefix + "attn_qkv", channels, sizes.embedding)
        model.weight(prefix + "attn_gate", value_heads * state, sizes.embedding)
        model.weight(prefix + "ssm_conv1d", channels, kernel, dtype=np.float32)
        model.weight(prefix + "ssm_alpha", value_heads, sizes.embedding)
        model.weight(prefix + "ssm_beta", value_heads, sizes.embedding)
        model.weight(prefix + "ssm_out", sizes.embedding, value_heads * state)
        model.norm(prefix + "ssm_norm", state)
        model.tensor(prefix + "ssm_dt.bias", np.zeros(value_heads, np.float32))
        model.tensor(prefix + "ssm_a", np.full(value_heads, -1.0, np.float32))
    model.finish()


def write_recurrent(path: Path, geometry: Geometry | None = None, *, seed: int = 0) -> None:
    """Write a mamba: every layer has a recurrent state and none has a cache."""
    model = _Draft(path, "mamba", geometry or Geometry(), seed)
    sizes = model.geometry
    state, inner, rank, kernel = 16, 2 * sizes.embedding, 8, 4
    model.describe(CHATML, per_layer_heads=False)
    model.writer.add_head_count_kv(0)
    model.writer.add_ssm_conv_kernel(kernel)
    model.writer.add_ssm_inner_size(inner)
    model.writer.add_ssm_state_size(state)
    model.writer.add_ssm_time_step_rank(rank)
    for layer in range(sizes.layers):
        prefix = f"blk.{layer}."
        model.norms(layer, "attn_norm")
        model.weight(prefix + "ssm_in", 2 * inner, sizes.embedding)
        model.weight(prefix + "ssm_conv1d", inner, kernel, dtype=np.float32)
        model.weight(prefix + "ssm_x", rank + 2 * state, inner)
        model.weight(prefix + "ssm_dt", inner, rank)
        model.weight(prefix + "ssm_out", sizes.embedding, inner)
        model.tensor(prefix + "ssm_conv1d.bias", np.full(inner, 0.5, np.float32))
        model.tensor(prefix + "ssm_dt.bias", np.full(inner, 0.5, np.float32))
        model.tensor(prefix + "ssm_d", np.full(inner, 0.1, np.float32))
        # The state halves in some 140 tokens: what was read long ago still shows.
        model.tensor(prefix + "ssm_a", np.full((inner, state), -0.005, np.float32))
    model.finish()


def write_moe(
    path: Path,
    geometry: Geometry | None = None,
    mixture: MixtureGeometry | None = None,
    *,
    chat_template: str | None = CHATML,
    seed: int = 0,
    tensors_per_file: int = 0,
) -> None:
    """Write a qwen3moe: plain attention, every layer's feed-forward part a mixture of experts."""
    model = _Draft(path, "qwen3moe", geometry or Geometry(), seed, tensors_per_file)
    mixture = mixture or MixtureGeometry()
    model.describe(chat_template)
    model.mixture_keys(mixture)
    for layer in range(model.geometry.layers):
        model.norms(layer, "attn_norm", "ffn_norm")
        model.attention(layer, normalised=True)
        model.experts(layer, mixture)
    model.finish()


def write_mla(
    path: Path,
    geometry: Geometry | None = None,
    *,
    chat_template: str | None = CHATML,
    seed: int = 0,
) -> None:
    """Write a deepseek2 with multi-head latent attention: its cache holds one compressed K per token and no V.

    Half of each head is rotated: heads of 64 give a cache that can be kept as q8_0 and q4_0 too.
    """
    model = _Draft(path, "deepseek2", replace(geometry or Geometry(layers=3), kv_heads=1), seed)
    sizes, mixture = model.geometry, MixtureGeometry()
    model.describe(chat_template, per_layer_heads=False)
    writer = model.writer
    writer.add_head_count_kv(1)
    writer.add_key_length(_MLA_RANK + sizes.head_size // 2)
    writer.add_value_length(_MLA_RANK)
    writer.add_key_length_mla(sizes.head_size)
    writer.add_value_length_mla(sizes.head_size)
    writer.add_kv_lora_rank(_MLA_RANK)
    writer.add_q_lora_rank(_MLA_RANK)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_shared_count(1)
    writer.add_expert_weights_scale(1.0)
    model.mixture_keys(mixture)
    for layer in range(sizes.layers):
        model.norms(layer, "attn_norm", "ffn_norm")
        model.latent_attention(layer)
        if layer == 0:
            model.feed_forward(layer)
            continue
        model.experts(layer, mixture)
        model.feed_forward(layer, part="_shexp", width=mixture.feed_forward)
    model.finish()


def write_shared_kv(
    path: Path,
    geometry: Geometry | None = None,
    *,
    window: int = 64,
    shared_layers: int = 2,
    chat_template: str | None = CHATML,
    seed: int = 0,
) -> None:
    """Write a gemma4: every second layer slides, and the last `shared_layers` read the cache of earlier ones."""
    model = _Draft(path, "gemma4", geometry or Geometry(layers=6), seed)
    sizes = model.geometry
    model.describe(chat_template)
    writer = model.writer
    writer.add_sliding_window(window)
    writer.add_sliding_window_pattern([layer % 2 == 0 for layer in range(sizes.layers)])
    writer.add_shared_kv_layers(shared_layers)
    writer.add_embedding_length_per_layer_input(0)
    writer.add_key_length_swa(sizes.head_size // 2)
    writer.add_value_length_swa(sizes.head_size // 2)
    writer.add_rope_dimension_count_swa(sizes.head_size // 2)
    model.tensor("rope_freqs.weight", np.ones(sizes.head_size // 2, np.float32))
    for layer in range(sizes.layers):
        model.norms(layer, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        model.attention(layer, normalised=True, head_size=sizes.head_size // (2 if layer % 2 == 0 else 1))
        model.feed_forward(layer)
    model.finish()


def write_encoder(path: Path, geometry: Geometry | None = None, *, seed: int = 0) -> None:
    """Write a bert: a text becomes one vector, the mean of its tokens; WordPiece vocabulary, no chat template."""
    model = _Draft(path, "bert", replace(geometry or Geometry(), kv_heads=2, context=512), seed)
    sizes = model.geometry
    model.describe_encoder(gguf.PoolingType.MEAN)
    model.weight("token_types", 2, sizes.embedding, dtype=np.float32)
    model.weight("position_embd", sizes.context, sizes.embedding, dtype=np.float32)
    model.norm("token_embd_norm", biased=True)
    for layer in range(sizes.layers):
        model.attention(layer)
        model.weight(f"blk.{layer}.ffn_up", sizes.feed_forward, sizes.embedding)
        model.weight(f"blk.{layer}.ffn_down", sizes.embedding, sizes.feed_forward)
        model.norm(f"blk.{layer}.attn_output_norm", biased=True)
        model.norm(f"blk.{layer}.layer_output_norm", biased=True)
    model.finish()


WRITERS: dict[str, Callable[[Path], None]] = {
    "llama": write_llama,
    "sliding_window": write_sliding_window,
    "hybrid": write_hybrid,
    "delta_net": write_delta_net,
    "moe": write_moe,
    "mla": write_mla,
    "shared_kv": write_shared_kv,
    "encoder": write_encoder,
}
"""Every kind by name, each with its default sizes."""


class _Draft:
    """One file being written: keys first, tensors in any order, `finish` last."""

    def __init__(self, path: Path, architecture: str, geometry: Geometry, seed: int, tensors_per_file: int = 0) -> None:
        self.writer = gguf.GGUFWriter(path, architecture, split_max_tensors=tensors_per_file)
        self.geometry = geometry
        self._draw = np.random.default_rng(seed)
        self.writer.add_name(f"tiny {architecture}")

    def sizes(self) -> None:
        """The keys that every architecture asks for."""
        sizes = self.geometry
        self.writer.add_block_count(sizes.layers)
        self.writer.add_context_length(sizes.context)
        self.writer.add_embedding_length(sizes.embedding)
        self.writer.add_feed_forward_length(sizes.feed_forward)
        self.writer.add_head_count(sizes.heads)

    def describe(self, template: str | None, output_norm: str = "output_norm", *, per_layer_heads: bool = True) -> None:
        """Keys, vocabulary and embeddings of a decoder. Without `per_layer_heads` the caller adds the K and V sizes."""
        sizes = self.geometry
        self.sizes()
        self.writer.add_layer_norm_rms_eps(1e-6)
        if per_layer_heads:
            self.writer.add_head_count_kv(sizes.kv_heads)
            self.writer.add_key_length(sizes.head_size)
            self.writer.add_value_length(sizes.head_size)
        self.writer.add_rope_dimension_count(sizes.head_size // (2 if self.writer.arch == "deepseek2" else 1))
        tokens, types = _byte_vocabulary()
        self.writer.add_vocab_size(len(tokens))
        self.writer.add_tokenizer_model("gpt2")
        self.writer.add_tokenizer_pre("gpt-2")
        self.writer.add_token_list(tokens)
        self.writer.add_token_types(types)
        self.writer.add_token_merges(list(_MERGES))
        self.writer.add_bos_token_id(0)
        self.writer.add_eos_token_id(2)
        self.writer.add_pad_token_id(0)
        self.writer.add_add_bos_token(value=False)
        if template is not None:
            self.writer.add_chat_template(template)
        self.weight("token_embd", len(tokens), sizes.embedding)
        self.norm(output_norm)

    def describe_encoder(self, pooling: gguf.PoolingType) -> None:
        """Keys, WordPiece vocabulary and embeddings of a model that makes vectors."""
        writer = self.writer
        self.sizes()
        tokens, types = _wordpiece_vocabulary()
        writer.add_tokenizer_model("bert")
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        writer.add_token_type_count(2)
        writer.add_pad_token_id(0)
        writer.add_unk_token_id(1)
        writer.add_bos_token_id(2)
        writer.add_sep_token_id(3)
        writer.add_eos_token_id(3)
        writer.add_mask_token_id(4)
        writer.add_vocab_size(len(tokens))
        writer.add_causal_attention(value=False)
        writer.add_pooling_type(pooling)
        writer.add_layer_norm_eps(1e-6)
        self.weight("token_embd", len(tokens), self.geometry.embedding)

    def mixture_keys(self, mixture: MixtureGeometry) -> None:
        self.writer.add_expert_count(mixture.experts)
        self.writer.add_expert_used_count(mixture.used)
        self.writer.add_expert_feed_forward_length(mixture.feed_forward)

    def tensor(self, name: str, values: "np.ndarray[Any, Any]") -> None:
        self.writer.add_tensor(name, values)

    def weight(self, name: str, *shape: int, dtype: type = np.float16) -> None:
        spread = _SPREAD if "_embd" in name else self.geometry.spread
        values: np.ndarray[Any, Any] = (self._draw.standard_normal(shape) * spread).astype(dtype)
        if self.geometry.quantised and dtype is np.float16 and shape[-1] % 32 == 0:
            packed = quants.quantize(values.astype(np.float32), _QUANTISED)
            self.writer.add_tensor(f"{name}.weight", packed, raw_dtype=_QUANTISED)
        else:
            self.tensor(f"{name}.weight", values)

    def norm(self, name: str, length: int = 0, *, biased: bool = False) -> None:
        length = length or self.geometry.embedding
        self.tensor(f"{name}.weight", np.ones(length, np.float32))
        if biased:
            self.tensor(f"{name}.bias", np.zeros(length, np.float32))

    def norms(self, layer: int, *names: str) -> None:
        for name in names:
            self.norm(f"blk.{layer}.{name}")

    def attention(self, layer: int, *, normalised: bool = False, gated: bool = False, head_size: int = 0) -> None:
        """Q, K, V and output; with norms on the heads of Q and K, and a gate beside Q, if the architecture has them."""
        sizes, prefix = self.geometry, f"blk.{layer}.attn_"
        head_size = head_size or sizes.head_size
        self.weight(prefix + "q", sizes.heads * head_size * (2 if gated else 1), sizes.embedding)
        self.weight(prefix + "k", sizes.kv_heads * head_size, sizes.embedding)
        self.weight(prefix + "v", sizes.kv_heads * head_size, sizes.embedding)
        self.weight(prefix + "output", sizes.embedding, sizes.heads * head_size)
        if normalised:
            # Normalised heads attend more sharply by the size of their norms alone.
            sharp = np.full(head_size, sizes.spread / _SPREAD, np.float32)
            self.tensor(prefix + "q_norm.weight", sharp)
            self.norm(prefix + "k_norm", head_size)

    def latent_attention(self, layer: int) -> None:
        sizes, prefix = self.geometry, f"blk.{layer}.attn_"
        self.weight(prefix + "q_a", _MLA_RANK, sizes.embedding)
        self.norm(prefix + "q_a_norm", _MLA_RANK)
        self.weight(prefix + "q_b", sizes.heads * sizes.head_size, _MLA_RANK)
        self.weight(prefix + "kv_a_mqa", _MLA_RANK + sizes.head_size // 2, sizes.embedding)
        self.norm(prefix + "kv_a_norm", _MLA_RANK)
        self.weight(prefix + "k_b", sizes.heads, _MLA_RANK, sizes.head_size // 2)
        self.weight(prefix + "v_b", sizes.heads, sizes.head_size, _MLA_RANK)
        self.weight(prefix + "output", sizes.embedding, sizes.heads * sizes.head_size)

    def feed_forward(self, layer: int, *, part: str = "", width: int = 0) -> None:
        sizes, width = self.geometry, width or self.geometry.feed_forward
        self.weight(f"blk.{layer}.ffn_gate{part}", width, sizes.embedding)
        self.weight(f"blk.{layer}.ffn_up{part}", width, sizes.embedding)
        self.weight(f"blk.{layer}.ffn_down{part}", sizes.embedding, width)

    def experts(self, layer: int, mixture: MixtureGeometry) -> None:
        sizes, prefix = self.geometry, f"blk.{layer}.ffn_"
        self.weight(prefix + "gate_inp", mixture.experts, sizes.embedding, dtype=np.float32)
        self.weight(prefix + "gate_exps", mixture.experts, mixture.feed_forward, sizes.embedding)
        self.weight(prefix + "up_exps", mixture.experts, mixture.feed_forward, sizes.embedding)
        self.weight(prefix + "down_exps", mixture.experts, sizes.embedding, mixture.feed_forward)

    def finish(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def _byte_vocabulary() -> tuple[list[str], list[int]]:
    """Tokens and their types for a byte-level BPE: any text can be written, and English a little shorter."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    normal = [*letters, *("".join(pair.split(" ")) for pair in _MERGES)]
    types = [gguf.TokenType.CONTROL] * len(CONTROL_TOKENS) + [gguf.TokenType.NORMAL] * len(normal)
    return [*CONTROL_TOKENS, *normal], [int(kind) for kind in types]


def _wordpiece_vocabulary() -> tuple[list[str], list[int]]:
    """Tokens and types of a WordPiece vocabulary of single letters; a word's first piece begins with U+2581."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(c) for c in range(ord("!"), ord("~") + 1) if not chr(c).isupper()]
    pieces = [f"▁{letter}" for letter in letters] + [letter for letter in letters if letter.isalnum()]
    types = [gguf.TokenType.CONTROL] * len(specials) + [gguf.TokenType.NORMAL] * len(pieces)
    return [*specials, *pieces], [int(kind) for kind in types]
