"""What llama.cpp 0.5 (commit 0c1e57098) keeps per token and per sequence, by architecture; decides nothing about bytes.

Each rule below is one that its loader applies. An architecture that is in no table has plain attention in every layer,
which never counts too little. Combinations that end llama.cpp's process while it makes its caches are refused here.
"""

from dataclasses import dataclass, replace

from hypnos_engine.gguf.keys import ArchitectureKeys

ENCODERS = frozenset(
    {
        "bert",
        "jina-bert-v2",
        "jina-bert-v3",
        "nomic-bert",
        "nomic-bert-moe",
        "neo-bert",
        "eurobert",
        "modern-bert",
        "gemma-embedding",
        "wavtokenizer-dec",
        "dream",
        "llada",
        "llada-moe",
        "rnd1",
    }
)
"""Architectures that get no cache at all."""
_WINDOWED_ENCODERS = frozenset({"gemma-embedding", "modern-bert"})
"""Those of them some of whose layers attend to a window on both sides."""

_MOST_HEADS = 1 << 16
_LONGEST_HEAD = 1 << 20
_LARGEST_STATE = 1 << 24
_FLOAT32_BYTES = 4

_LATENT = frozenset(
    {
        "deepseek2",
        "mistral4",
        "deepseek32",
        "glm-dsa",
        "bailingmoe3",
        "glm5-next",
        "hy_v4",
        "kimi-k3",
        "kimi-linear",
        "dots3note",
    }
)
"""Architectures with multi-head latent attention: with both `_mla` lengths in the file they keep K and no V."""

_INDEXED = frozenset({"deepseek32", "glm-dsa", "dots3note", "hy_v4", "glm5-next", "minimax-m3", "qwen4exp"})
"""Architectures with a second cache: one indexer key per token, for choosing what to attend to."""

_RWKV = frozenset({"rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
_RECURRENT = _RWKV | {"mamba", "mamba2"}
_SHORT_CONVOLUTION = frozenset({"lfm2", "lfm2moe"})
_KIMI_DELTA = frozenset({"kimi-linear", "kimi-k3", "bailingmoe3", "glm5-next"})
_RECURRENT_WITHOUT_KV_HEADS = frozenset({"jamba", "plamo2", "granitehybrid"}) | _SHORT_CONVOLUTION | _KIMI_DELTA
_FULL_ATTENTION_EVERY = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}
_NEMOTRON_HYBRID = frozenset({"nemotron_h", "nemotron_h_moe"})
_WITHOUT_STATE_GROUPS = frozenset({"mamba", "jamba"})

_CACHES_PREDICTION_LAYERS = (_RECURRENT_WITHOUT_KV_HEADS - {"glm5-next"}) | _NEMOTRON_HYBRID | {"minimax-m3", "hy_v4"}
"""Where the appended multi-token-prediction layers get a cache although the main graph does not use them."""


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """What one layer keeps: elements per token, the window they are kept for (0 = all), bytes per sequence."""

    k_elements: int = 0
    v_elements: int = 0
    window: int = 0
    recurrent_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Window:
    """How an architecture finds its sliding-window layers."""

    period: int
    """Layers per group of which one attends to everything; 0 = the file has to list the layers."""
    dense_first: bool = False
    """True when the first layer of a group is the one that attends to everything, False when the last is."""
    tokens: int | None = None
    """Window when the file has none; None = the key has to be there, 0 = then there is no window."""
    fixed_tokens: int = 0
    """Window whatever the file says, unless it says 0."""


_WINDOWS: dict[str, _Window] = {
    "afmoe": _Window(4, tokens=0),
    "cohere2": _Window(4),
    "cohere2moe": _Window(4, dense_first=True),
    "dflash": _Window(0, tokens=0),
    "dots3note": _Window(0),
    "exaone-moe": _Window(4),
    "exaone4": _Window(4, tokens=4096),
    "gemma2": _Window(2, tokens=4096),
    "gemma3": _Window(6, tokens=0),
    "gemma3n": _Window(5),
    "gemma4": _Window(0),
    "gemma4-assistant": _Window(0),
    "gpt-oss": _Window(2),
    "granite_swa": _Window(0),
    "laguna": _Window(4, dense_first=True, tokens=0),
    "llama4": _Window(4, tokens=8192, fixed_tokens=8192),
    "maple": _Window(0),
    "mellum": _Window(4, tokens=0),
    "mimo2": _Window(0),
    "muse-glimmer": _Window(4),
    "olmo2": _Window(4, tokens=0),
    "plamo3": _Window(8, tokens=0),
    "smallthinker": _Window(4, dense_first=True, tokens=0, fixed_tokens=4096),
    "spark2_5": _Window(0),
    "step35": _Window(0),
}


@dataclass(frozen=True, slots=True)
class Blocks:
    """Sizes that every rule needs. `trunk` counts the layers without those appended for multi-token prediction."""

    count: int
    trunk: int
    embedding: int


def layer_memory(keys: ArchitectureKeys, blocks: Blocks) -> tuple[LayerMemory, ...]:
    """Return what each layer keeps. Raises LoadFailed for keys that are missing, out of bounds or end llama.cpp."""
    if keys.architecture in ENCODERS:
        window = keys.integer("attention.sliding_window", 0) if keys.architecture in _WINDOWED_ENCODERS else 0
        return (LayerMemory(window=window),) * blocks.count
    heads = keys.per_layer("attention.head_count", 0, blocks.count, high=_MOST_HEADS)
    kv_heads = heads
    if keys.has("attention.head_count_kv"):
        kv_heads = keys.per_layer("attention.head_count_kv", 0, blocks.count, high=_MOST_HEADS)
    recurrent = _recurrent_layers(keys, blocks, kv_heads)
    attending = _attending_layers(keys, blocks, recurrent)
    windows = _windows(keys, blocks, recurrent)
    cached = _cached_elements(keys, blocks, heads[0], kv_heads, windows)
    state_bytes = _state_bytes(keys, blocks, heads[0]) if any(recurrent) else 0
    shared_from = _first_shared_layer(keys, blocks, windows)
    layers: list[LayerMemory] = []
    for layer in range(blocks.count):
        memory = LayerMemory(recurrent_bytes=state_bytes if recurrent[layer] else 0)
        if attending[layer] and layer < shared_from:
            k_elements, v_elements = cached[layer]
            memory = replace(memory, k_elements=k_elements, v_elements=v_elements, window=windows[layer])
        layers.append(memory)
    return tuple(layers)


def _recurrent_layers(keys: ArchitectureKeys, blocks: Blocks, kv_heads: tuple[int, ...]) -> list[bool]:
    """Say for each layer whether it keeps a state per sequence."""
    architecture = keys.architecture
    if architecture in _RECURRENT or architecture == "falcon-h1":
        marked = [True] * blocks.count
    elif architecture in _RECURRENT_WITHOUT_KV_HEADS:
        marked = [count == 0 for count in kv_heads]
    elif architecture in _NEMOTRON_HYBRID:
        widths = keys.per_layer("feed_forward_length", 0, blocks.count)
        marked = [kv_heads[layer] == 0 and widths[layer] == 0 for layer in range(blocks.count)]
    elif architecture in _FULL_ATTENTION_EVERY:
        marked = _recurrent_by_interval(keys, blocks)
    else:
        marked = [False] * blocks.count
    return [marked[layer] and layer < blocks.trunk for layer in range(blocks.count)]


def _recurrent_by_interval(keys: ArchitectureKeys, blocks: Blocks) -> list[bool]:
    if keys.has("attention.recurrent_layers"):
        listed = keys.flags("attention.recurrent_layers", blocks.count)
        if listed is None:
            return [keys.integer("attention.recurrent_layers") != 0] * blocks.count
        return list(listed)
    # Zero would be a division by zero inside llama.cpp.
    every = keys.integer("full_attention_interval", _FULL_ATTENTION_EVERY[keys.architecture], low=1)
    return [(layer + 1) % every != 0 for layer in range(blocks.count)]


def _attending_layers(keys: ArchitectureKeys, blocks: Blocks, recurrent: list[bool]) -> list[bool]:
    """Say for each layer whether it has a KV cache, sharing aside."""
    architecture = keys.architecture
    if architecture in _RECURRENT:
        return [False] * blocks.count
    if architecture == "falcon-h1":
        return [True] * blocks.count
    last = blocks.count if architecture in _CACHES_PREDICTION_LAYERS or blocks.trunk == 0 else blocks.trunk
    attending = [not recurrent[layer] and layer < last for layer in range(blocks.count)]
    if architecture in _NEMOTRON_HYBRID:
        widths = keys.per_layer("feed_forward_length", 0, blocks.count)
        attending = [attending[layer] and widths[layer] == 0 for layer in range(blocks.count)]
    return attending


def _windows(keys: ArchitectureKeys, blocks: Blocks, recurrent: list[bool]) -> list[int]:
    """Return each layer's window in tokens, 0 where it attends to everything."""
    everything = [0] * blocks.count
    if keys.architecture == "lfm2":
        tokens = keys.integer("attention.sliding_window", 0)
        return [0 if recurrent[layer] else tokens for layer in range(blocks.count)]
    rule = _WINDOWS.get(keys.architecture)
    if rule is None or (keys.architecture == "exaone4" and blocks.trunk != 64):
        return everything
    tokens = keys.integer("attention.sliding_window", rule.tokens)
    if tokens == 0:
        return everything
    sliding = _sliding_layers(keys, blocks, rule)
    if not any(sliding) and keys.architecture != "dots3note":
        raise keys.refuse("the file promises sliding-window attention, but no layer has it; llama.cpp would abort.")
    return [(rule.fixed_tokens or tokens) if slides else 0 for slides in sliding]


def _sliding_layers(keys: ArchitectureKeys, blocks: Blocks, rule: _Window) -> list[bool]:
    name = "attention.sliding_window_pattern"
    listed = keys.flags(name, blocks.count)
    if listed is not None:
        return list(listed)
    if rule.period == 0:
        raise keys.refuse(f"the list of sliding-window layers ({keys.architecture}.{name}) is missing.")
    period = keys.integer(name, rule.period)
    if period == 0:
        return [layer < blocks.trunk for layer in range(blocks.count)]
    whole = 0 if rule.dense_first else period - 1
    return [layer < blocks.trunk and layer % period != whole for layer in range(blocks.count)]


def _cached_elements(
    keys: ArchitectureKeys, blocks: Blocks, first_heads: int, kv_heads: tuple[int, ...], windows: list[int]
) -> list[tuple[int, int]]:
    """Return the elements of K and V that each layer keeps per token if it has a cache."""
    k_length = v_length = 0
    if first_heads:
        k_length = keys.integer("attention.key_length", blocks.embedding // first_heads, high=_LONGEST_HEAD)
        v_length = keys.integer("attention.value_length", blocks.embedding // first_heads, high=_LONGEST_HEAD)
    k_sliding = keys.integer("attention.key_length_swa", k_length, high=_LONGEST_HEAD)
    v_sliding = keys.integer("attention.value_length_swa", v_length, high=_LONGEST_HEAD)
    latent = keys.architecture in _LATENT and all(
        keys.integer(f"attention.{part}_length_mla", 0) for part in ("key", "value")
    )
    indexed = _indexed_layers(keys, blocks)
    index_length = keys.integer("attention.indexer.key_length", 0, high=_LONGEST_HEAD) if any(indexed) else 0
    loops = keys.integer("num_loops", 1, low=1, high=512) if keys.architecture == "nanbeige" else 1
    if loops * blocks.count > 512:
        raise keys.refuse(f"{blocks.count} layers run {loops} times are more than llama.cpp allows.")
    elements: list[tuple[int, int]] = []
    for layer in range(blocks.count):
        k_elements = kv_heads[layer] * (k_sliding if windows[layer] else k_length) * loops
        v_elements = 0 if latent else kv_heads[layer] * (v_sliding if windows[layer] else v_length) * loops
        if indexed[layer]:
            k_elements += index_length
            v_elements += 0 if latent or index_length == 0 else v_length
        if keys.architecture == "graniteswitch" and layer == blocks.count - 1:
            # The router is one more layer with a single head, which the file does not count.
            k_elements, v_elements = k_elements + k_length, v_elements + v_length
        elements.append((k_elements, v_elements))
    return elements


def _indexed_layers(keys: ArchitectureKeys, blocks: Blocks) -> list[bool]:
    architecture = keys.architecture
    if architecture not in _INDEXED or (architecture == "hy_v4" and not keys.integer("attention.indexer.top_k", 0)):
        return [False] * blocks.count
    first = keys.integer("leading_dense_block_count", 0) if architecture == "minimax-m3" else 0
    own_indexer = keys.flags("attention.indexer.types", blocks.count) or (True,) * blocks.count
    return [layer >= first and own_indexer[layer] for layer in range(blocks.count)]


def _state_bytes(keys: ArchitectureKeys, blocks: Blocks, first_heads: int) -> int:
    """Return the bytes of one recurrent layer's state for one sequence, kept as float32."""

    def size(name: str, default: int | None = 0) -> int:
        return keys.integer(name, default, high=_LARGEST_STATE)

    architecture = keys.architecture
    if architecture in _RWKV:
        elements = blocks.embedding * (size("token_shift_count", 2) + size("wkv.head_size", None))
    elif architecture in _SHORT_CONVOLUTION:
        elements = blocks.embedding * max(size("shortconv.l_cache", None) - 1, 0)
    elif architecture in _KIMI_DELTA:
        kernel, head = size("ssm.conv_kernel", None), size("kda.head_dim", None)
        elements = first_heads * head * (3 * (kernel - 1 if kernel else 3) + head)
    elif architecture == "minimax-01":
        head = size("attention.key_length", blocks.embedding // max(first_heads, 1))
        elements = first_heads * head * head
    else:
        inner, state = size("ssm.inner_size", None), size("ssm.state_size", None)
        groups = 0 if architecture in _WITHOUT_STATE_GROUPS else size("ssm.group_count")
        convolution = max(size("ssm.conv_kernel", None) - 1, 0) * (inner + 2 * groups * state)
        elements = convolution + state * inner
    return elements * _FLOAT32_BYTES


def _first_shared_layer(keys: ArchitectureKeys, blocks: Blocks, windows: list[int]) -> int:
    """Return the first layer that reads another layer's cache; the number of layers when none does."""
    if keys.architecture == "gemma3n":
        first = 20
    elif keys.architecture == "gemma4":
        first = blocks.count - keys.integer("attention.shared_kv_layers", 0)
    else:
        return blocks.count
    if first < 2:
        raise keys.refuse("fewer than two layers keep a cache of their own; llama.cpp would abort.")
    # Sliding layers read the cache of the last but one owner, the others that of the last.
    for layer in range(first, blocks.count):
        if windows[layer] and not windows[first - 2]:
            raise keys.refuse(f"layer {layer} shares the window of layer {first - 2}, which has none.")
        if not windows[layer] and windows[first - 1]:
            raise keys.refuse(f"layer {layer} shares the whole context of layer {first - 1}, which has a window.")
    return first
