"""Builds the tensor tables of families of models from their sizes; decides no bytes and knows no planner."""

from dataclasses import dataclass

from hypnos_engine.testing.sparse_gguf import KeyValue, SparseModel


@dataclass(frozen=True, slots=True)
class Sizes:
    """What nearly every architecture has. `tied` models use their token embeddings as output head."""

    layers: int
    embedding: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    tied: bool = True
    context: int = 131072


class _Table:
    """Builds one model's tensor table, layer by layer."""

    def __init__(self, name: str, architecture: str, quantisation: str, sizes: Sizes, **keys: KeyValue) -> None:
        self.sizes = sizes
        every: dict[str, KeyValue] = {
            "block_count": sizes.layers,
            "context_length": sizes.context,
            "embedding_length": sizes.embedding,
            "attention.head_count": sizes.heads,
            "attention.layer_norm_rms_epsilon": 1e-6,
        }
        if sizes.feed_forward:
            every["feed_forward_length"] = sizes.feed_forward
        if sizes.kv_heads:
            every["attention.head_count_kv"] = sizes.kv_heads
        if sizes.head_size:  # 0: llama.cpp divides the embedding by the heads, or the builder says otherwise
            every["attention.key_length"] = every["attention.value_length"] = sizes.head_size
        every.update({key.replace("__", "."): value for key, value in keys.items()})
        self.model = SparseModel(name, architecture, quantisation, sizes.vocabulary, every)
        self.layer = -1

    def ends(self, output_norm: str = "output_norm") -> None:
        """Token embeddings, the last norm and the output head."""
        sizes = self.sizes
        if not sizes.tied:
            self.whole("output", sizes.embedding, sizes.vocabulary)
        self.whole("token_embd", sizes.embedding, sizes.vocabulary)
        self.whole(output_norm, sizes.embedding)

    def whole(self, name: str, *dimensions: int, suffix: str = ".weight") -> None:
        self.model.add(name + suffix, *dimensions)

    def add(self, name: str, *dimensions: int, suffix: str = ".weight") -> None:
        """A tensor of the present layer."""
        full = f"blk.{self.layer}.{name}{suffix}"
        self.model.add(full, *dimensions, layer=self.layer, layers=self.sizes.layers)

    def norms(self, *names: str) -> None:
        for name in names:
            self.add(name, self.sizes.embedding)

    def attention(self, *, head_norms: bool = False, biased: bool = False, gated: bool = False) -> None:
        sizes = self.sizes
        head = sizes.head_size or sizes.embedding // sizes.heads
        widths = {"q": sizes.heads * head * (2 if gated else 1), "k": sizes.kv_heads * head, "v": sizes.kv_heads * head}
        for name, width in widths.items():
            self.add(f"attn_{name}", sizes.embedding, width)
            if biased:
                self.add(f"attn_{name}", width, suffix=".bias")
        self.add("attn_output", sizes.heads * head, sizes.embedding)
        if head_norms:
            self.add("attn_q_norm", head)
            self.add("attn_k_norm", head)

    def dense(self, width: int = 0, part: str = "", *, gated: bool = True) -> None:
        sizes, width = self.sizes, width or self.sizes.feed_forward
        if gated:
            self.add(f"ffn_gate{part}", sizes.embedding, width)
        self.add(f"ffn_up{part}", sizes.embedding, width)
        self.add(f"ffn_down{part}", width, sizes.embedding)

    def experts(self, count: int, width: int, *, fused: bool = False, gated: bool = True) -> None:
        sizes = self.sizes
        self.add("ffn_gate_inp", sizes.embedding, count)
        if fused:
            self.add("ffn_gate_up_exps", sizes.embedding, 2 * width, count)
        else:
            if gated:
                self.add("ffn_gate_exps", sizes.embedding, width, count)
            self.add("ffn_up_exps", sizes.embedding, width, count)
        self.add("ffn_down_exps", width, sizes.embedding, count)


def plain(
    name: str, architecture: str, quantisation: str, sizes: Sizes, *, embedding_type: str = "", **keys: KeyValue
) -> SparseModel:
    """Attention and a gated feed-forward in every layer: Llama, Qwen 2 and 3, Gemma 3."""
    table = _Table(name, architecture, quantisation, sizes, **keys)
    table.model.embedding_type = embedding_type
    table.ends()
    if architecture == "llama" and sizes.vocabulary == 128256:
        table.whole("rope_freqs", (sizes.head_size or sizes.embedding // sizes.heads) // 2)
    gemma = architecture.startswith("gemma")
    for table.layer in range(sizes.layers):
        table.norms("attn_norm", "ffn_norm")
        if gemma:
            table.norms("post_attention_norm", "post_ffw_norm")
        table.attention(head_norms=gemma or architecture.startswith("qwen3"), biased=architecture == "qwen2vl")
        table.dense()
    return table.model


def phi4_mini() -> SparseModel:
    """Q, K and V are one tensor, and so are the two halves of the gated feed-forward."""
    sizes = Sizes(32, 3072, 24, 8, 0, 8192, 200064)
    table = _Table("Phi-4 mini", "phi3", "q8_0", sizes, rope__dimension_count=96)
    table.ends()
    for table.layer in range(sizes.layers):
        table.norms("attn_norm", "ffn_norm")
        table.add("attn_qkv", sizes.embedding, (24 + 2 * 8) * 128)
        table.add("attn_output", sizes.embedding, sizes.embedding)
        table.add("ffn_up", sizes.embedding, 2 * sizes.feed_forward)
        table.add("ffn_down", sizes.feed_forward, sizes.embedding)
    return table.model


def qwen3moe() -> SparseModel:
    sizes = Sizes(48, 2048, 32, 4, 128, 6144, 151936, tied=False, context=262144)
    table = _Table(
        "Qwen3-Coder 30B-A3B", "qwen3moe", "q8_0", sizes,
        expert_count=128, expert_used_count=8, expert_feed_forward_length=768,
    )  # fmt: skip
    table.ends()
    for table.layer in range(sizes.layers):
        table.norms("attn_norm", "ffn_norm")
        table.attention(head_norms=True)
        table.experts(128, 768)
    return table.model


def gpt_oss() -> SparseModel:
    sizes = Sizes(24, 2880, 64, 8, 64, 2880, 201088, tied=False)
    table = _Table(
        "gpt-oss 20B", "gpt-oss", "q8_0", sizes,
        attention__sliding_window=128, expert_count=32, expert_used_count=4, expert_feed_forward_length=2880,
    )  # fmt: skip
    table.ends()
    for table.layer in range(sizes.layers):
        table.norms("attn_norm", "post_attention_norm")
        table.attention(biased=True)
        table.add("attn_output", sizes.embedding, suffix=".bias")
        table.add("attn_sinks", sizes.heads)
        table.experts(32, 2880)
        table.add("ffn_gate_inp", 32, suffix=".bias")
        for part in ("gate", "up", "down"):
            table.add(f"ffn_{part}_exps", 2880, 32, suffix=".bias")
    return table.model


@dataclass(frozen=True, slots=True)
class Gemma4:
    sizes: Sizes
    window: int
    period: int
    global_kv_heads: int
    shared_layers: int = 0
    per_layer: int = 0
    experts: int = 0
    expert_width: int = 0
    wide_when_shared: bool = False
    global_values: bool = True
    """False where the layers that attend to everything use their keys as values."""


def gemma4(name: str, quantisation: str, shape: Gemma4) -> SparseModel:
    sizes = shape.sizes
    slides = tuple((layer + 1) % shape.period != 0 for layer in range(sizes.layers))
    kv_heads = tuple(sizes.kv_heads if sliding else shape.global_kv_heads for sliding in slides)
    owners = sizes.layers - shape.shared_layers
    widths = tuple(
        sizes.feed_forward * (2 if shape.wide_when_shared and layer >= owners else 1) for layer in range(sizes.layers)
    )
    keys: dict[str, KeyValue] = {"expert_count": shape.experts, "expert_used_count": 8} if shape.experts else {}
    if shape.experts:
        keys["expert_feed_forward_length"] = shape.expert_width
    table = _Table(
        name, "gemma4", quantisation, sizes,
        attention__head_count_kv=kv_heads, feed_forward_length=widths,
        attention__key_length=512, attention__value_length=512,
        attention__key_length_swa=256, attention__value_length_swa=256,
        rope__dimension_count=512, rope__dimension_count_swa=256,
        attention__sliding_window=shape.window, attention__sliding_window_pattern=slides,
        attention__shared_kv_layers=shape.shared_layers, embedding_length_per_layer_input=shape.per_layer,
        final_logit_softcapping=30.0, **keys,
    )  # fmt: skip
    table.ends()
    table.whole("rope_freqs", 256)
    if shape.per_layer:
        table.whole("per_layer_token_embd", shape.per_layer * sizes.layers, sizes.vocabulary)
        table.whole("per_layer_model_proj", sizes.embedding, shape.per_layer * sizes.layers)
        table.whole("per_layer_proj_norm", shape.per_layer)
    for table.layer in range(sizes.layers):
        head = 256 if slides[table.layer] else 512
        table.norms("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        table.add("attn_q", sizes.embedding, sizes.heads * head)
        table.add("attn_output", sizes.heads * head, sizes.embedding)
        table.add("attn_q_norm", head)
        # Files hold K and V also for the layers that read the cache of earlier ones.
        table.add("attn_k", sizes.embedding, kv_heads[table.layer] * head)
        table.add("attn_k_norm", head)
        if slides[table.layer] or shape.global_values:
            table.add("attn_v", sizes.embedding, kv_heads[table.layer] * head)
        table.add("layer_output_scale", 1)
        table.dense(widths[table.layer])
        if shape.experts:
            table.experts(shape.experts, shape.expert_width, fused=True)
            table.add("ffn_gate_inp", sizes.embedding, suffix=".scale")
            table.add("ffn_down_exps", shape.experts, suffix=".scale")
            table.norms("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2")
        if shape.per_layer:
            table.add("inp_gate", sizes.embedding, shape.per_layer)
            table.add("proj", shape.per_layer, sizes.embedding)
            table.norms("post_norm")
    return table.model


def lfm2(
    name: str, quantisation: str, sizes: Sizes, attending: tuple[int, ...], *, window: int = 0, dense_layers: int = -1
) -> SparseModel:
    """Short convolutions with some attention between; with `dense_layers` the layers after those are mixtures."""
    moe = dense_layers >= 0
    kv_heads = tuple(sizes.kv_heads if layer in attending else 0 for layer in range(sizes.layers))
    keys: dict[str, KeyValue] = {"attention.sliding_window": window} if window else {}
    if moe:
        keys |= {
            "leading_dense_block_count": dense_layers, "expert_count": 32, "expert_used_count": 4,
            "expert_feed_forward_length": 1792, "expert_gating_func": 2,
        }  # fmt: skip
    table = _Table(
        name, "lfm2moe" if moe else "lfm2", quantisation, sizes,
        attention__head_count_kv=kv_heads, shortconv__l_cache=3, **keys,
    )  # fmt: skip
    table.ends("token_embd_norm")
    for table.layer in range(sizes.layers):
        table.norms("attn_norm", "ffn_norm")
        if table.layer in attending:
            table.attention(head_norms=True)
        else:
            table.add("shortconv.conv", 3, sizes.embedding)
            table.add("shortconv.in_proj", sizes.embedding, 3 * sizes.embedding)
            table.add("shortconv.out_proj", sizes.embedding, sizes.embedding)
        if moe and table.layer >= dense_layers:
            table.experts(32, 1792)
            table.add("exp_probs_b", 32, suffix=".bias")
        else:
            table.dense()
    return table.model


def qwen35(name: str, quantisation: str, sizes: Sizes, value_heads: int, *, key_heads: int = 16) -> SparseModel:
    """Three layers of gated delta net, one of gated attention; 256 experts where the feed-forward width is 0."""
    moe = sizes.feed_forward == 0
    keys: dict[str, KeyValue] = {}
    if moe:
        keys = {
            "expert_count": 256, "expert_used_count": 8,
            "expert_feed_forward_length": 512, "expert_shared_feed_forward_length": 512,
        }  # fmt: skip
    key_width, value_width = 128 * key_heads, 128 * value_heads
    table = _Table(
        name, "qwen35moe" if moe else "qwen35", quantisation, sizes,
        rope__dimension_count=64, rope__dimension_sections=(11, 11, 10, 0), full_attention_interval=4,
        ssm__conv_kernel=4, ssm__state_size=128, ssm__group_count=key_heads, ssm__time_step_rank=value_heads,
        ssm__inner_size=value_width, **keys,
    )  # fmt: skip
    table.ends()
    for table.layer in range(sizes.layers):
        table.norms("attn_norm", "post_attention_norm")
        if (table.layer + 1) % 4 == 0:
            table.attention(head_norms=True, gated=True)
        else:
            table.add("attn_qkv", sizes.embedding, 2 * key_width + value_width)
            table.add("attn_gate", sizes.embedding, value_width)
            table.add("ssm_conv1d", 4, 2 * key_width + value_width)
            table.add("ssm_dt", value_heads, suffix=".bias")
            table.add("ssm_a", value_heads, suffix="")
            table.add("ssm_beta", sizes.embedding, value_heads)
            table.add("ssm_alpha", sizes.embedding, value_heads)
            table.add("ssm_norm", 128)
            table.add("ssm_out", value_width, sizes.embedding)
        if moe:
            table.experts(256, 512)
            table.add("ffn_gate_inp_shexp", sizes.embedding)
            table.dense(512, "_shexp")
        else:
            table.dense()
    return table.model


def nemotron() -> SparseModel:
    pattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    sizes = Sizes(52, 2688, 32, 2, 128, 0, 131072, tied=False, context=262144)
    table = _Table(
        "Nemotron 3 Nano 30B-A3B", "nemotron_h_moe", "q8_0", sizes,
        attention__head_count_kv=tuple(2 if kind == "*" else 0 for kind in pattern),
        feed_forward_length=tuple(1856 if kind == "E" else 0 for kind in pattern),
        attention__layer_norm_epsilon=1e-5,
        ssm__conv_kernel=4, ssm__inner_size=4096, ssm__state_size=128, ssm__group_count=8, ssm__time_step_rank=64,
        expert_count=128, expert_used_count=6, expert_feed_forward_length=1856,
        expert_shared_feed_forward_length=3712, expert_shared_count=1, expert_weights_norm=True,
        expert_weights_scale=2.5, rope__dimension_count=84,
    )  # fmt: skip
    table.ends()
    convolved = 4096 + 2 * 8 * 128
    for table.layer, kind in enumerate(pattern):
        table.norms("attn_norm")
        if kind == "M":
            table.add("ssm_in", sizes.embedding, 4096 + convolved + 64)
            table.add("ssm_conv1d", 4, convolved)
            table.add("ssm_conv1d", convolved, suffix=".bias")
            table.add("ssm_dt", 64, suffix=".bias")
            table.add("ssm_a", 1, 64, suffix="")
            table.add("ssm_d", 1, 64, suffix="")
            table.add("ssm_norm", 512, 8)
            table.add("ssm_out", 4096, sizes.embedding)
        elif kind == "*":
            table.attention()
        else:
            table.experts(128, 1856, gated=False)
            table.add("exp_probs_b", 128, suffix=".bias")
            table.dense(3712, "_shexp", gated=False)
    return table.model


def glm_flash() -> SparseModel:
    rank, rope, nope, value = 512, 64, 192, 256
    sizes = Sizes(47, 2048, 20, 1, 0, 10240, 154880, tied=False, context=202752)
    table = _Table(
        "GLM-4.7-Flash", "deepseek2", "q8_0", sizes,
        attention__key_length=rank + rope, attention__value_length=rank,
        attention__key_length_mla=nope + rope, attention__value_length_mla=value,
        attention__q_lora_rank=768, attention__kv_lora_rank=rank, rope__dimension_count=rope,
        leading_dense_block_count=1, expert_count=64, expert_used_count=4, expert_shared_count=1,
        expert_feed_forward_length=1536, expert_weights_scale=1.8, expert_weights_norm=True, expert_gating_func=2,
    )  # fmt: skip
    table.ends()
    for table.layer in range(sizes.layers):
        table.norms("attn_norm", "ffn_norm")
        table.add("attn_q_a", sizes.embedding, 768)
        table.add("attn_q_a_norm", 768)
        table.add("attn_q_b", 768, sizes.heads * (nope + rope))
        table.add("attn_kv_a_mqa", sizes.embedding, rank + rope)
        table.add("attn_kv_a_norm", rank)
        table.add("attn_k_b", nope, rank, sizes.heads)
        table.add("attn_v_b", rank, value, sizes.heads)
        table.add("attn_output", sizes.heads * value, sizes.embedding)
        if table.layer == 0:
            table.dense()
        else:
            table.experts(64, 1536)
            table.add("exp_probs_b", 64, suffix=".bias")
            table.dense(1536, "_shexp")
    return table.model


def modern_bert(name: str, quantisation: str, sizes: Sizes) -> SparseModel:
    """Norms before each part, Q, K and V as one tensor, both halves of the gated feed-forward as another."""
    table = _Table(
        name, "modern-bert", quantisation, sizes,
        attention__causal=False, attention__layer_norm_epsilon=1e-5, attention__sliding_window=128, pooling_type=2,
    )  # fmt: skip
    table.whole("token_embd", sizes.embedding, sizes.vocabulary)
    table.whole("token_embd_norm", sizes.embedding)
    table.whole("output_norm", sizes.embedding)
    for table.layer in range(sizes.layers):
        table.norms(*(("attn_norm", "ffn_norm") if table.layer else ("ffn_norm",)))
        table.add("attn_qkv", sizes.embedding, 3 * sizes.embedding)
        table.add("attn_output", sizes.embedding, sizes.embedding)
        table.add("ffn_up", sizes.embedding, 2 * sizes.feed_forward)
        table.add("ffn_down", sizes.feed_forward, sizes.embedding)
    return table.model


def bert(name: str, architecture: str, quantisation: str, sizes: Sizes) -> SparseModel:
    table = _Table(
        name, architecture, quantisation, sizes,
        attention__causal=False, attention__layer_norm_epsilon=1e-12, pooling_type=1,
    )  # fmt: skip
    nomic = architecture == "nomic-bert"
    table.model.tokenizer = "bert"
    table.whole("token_embd", sizes.embedding, sizes.vocabulary)
    table.whole("token_types", sizes.embedding, 2)
    if not nomic:
        table.whole("position_embd", sizes.embedding, sizes.context)
    ends = (".weight", ".bias")
    for suffix in ends:
        table.whole("token_embd_norm", sizes.embedding, suffix=suffix)
    for table.layer in range(sizes.layers):
        if nomic:
            table.add("attn_qkv", sizes.embedding, 3 * sizes.embedding)
            table.add("attn_output", sizes.embedding, sizes.embedding)
        else:
            table.attention(biased=True)
            table.add("attn_output", sizes.embedding, suffix=".bias")
            table.add("ffn_up", sizes.feed_forward, suffix=".bias")
            table.add("ffn_down", sizes.embedding, suffix=".bias")
        table.dense(gated=nomic)
        for suffix in ends:
            table.add("attn_output_norm", sizes.embedding, suffix=suffix)
            table.add("layer_output_norm", sizes.embedding, suffix=suffix)
    return table.model
