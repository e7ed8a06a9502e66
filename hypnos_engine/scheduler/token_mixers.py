"""Which buffers attention takes, and what stands in for it: replayed for one block; sums nothing up.

Each part follows the order of operations of its builder in llama.cpp 0.5 (commit 0c1e57098): src/llama-graph.cpp for
attention, src/models/*.cpp for the rest. An operation may write over its first operand unless that is a view or still
needed; only what takes a buffer of its own is replayed. Norms, rotations in place, scales and sums are therefore not.
"""

from dataclasses import dataclass

from hypnos_engine.domain.model import GraphShape
from hypnos_engine.scheduler.graph_arena import FLOAT_BYTES, Block, Buffers, Weights, columns, rows

_UNKNOWN_PRODUCTS = 3


@dataclass(frozen=True, slots=True)
class Habits:
    """Where an architecture's graph differs from that of Llama."""

    rotates: bool = True
    """False without rotary embeddings: then Q and K need no second buffer."""
    values_after_keys: bool = False
    normalises_values: bool = False
    sums_into_residual: bool = False
    """True where a block's result is added to its input's buffer, not the other way round."""


LLAMA = Habits()
HABITS: dict[str, Habits] = {
    "bert": Habits(rotates=False),
    "gemma3": Habits(values_after_keys=True),
    "gemma-embedding": Habits(values_after_keys=True),
    "gemma4": Habits(values_after_keys=True, normalises_values=True),
    "granitehybrid": Habits(rotates=False),
    "lfm2": Habits(sums_into_residual=True),
    "lfm2moe": Habits(sums_into_residual=True),
    "nemotron_h": Habits(rotates=False),
    "nemotron_h_moe": Habits(rotates=False),
}
"""Read off src/models/<architecture>.cpp; an architecture that is not here computes like Llama."""


class Mixers:
    """Replays the part of a block that mixes tokens, its norm included."""

    def __init__(self, graph: GraphShape, slots: int, buffers: Buffers) -> None:
        self._graph = graph
        self._slots = slots
        self._buffers = buffers
        self._habits = HABITS.get(graph.architecture, LLAMA)
        self._encodes = any(name in graph.architecture for name in ("bert", "embedding"))
        self._normalises_after = any("attn_output_norm" in weights for weights in graph.layers)
        """True where a norm follows each part, so that none takes a buffer before it."""

    def replay(self, layer: int, weights: Weights) -> Block | None:
        """Replay attention or what stands in for it, its norm included; None for a block without."""
        if "attn_k_b" in weights:
            return self._latent_attention(weights)
        if "ssm_alpha" in weights:
            return self._delta_net(layer, weights)
        if "ssm_in" in weights:
            return self._state_space(layer, weights)
        if "shortconv.in_proj" in weights:
            return self._short_convolution(weights)
        if "attn_output" in weights:
            return self._attention(layer, weights)
        return self._unknown(weights)

    def _unknown(self, weights: Weights) -> Block | None:
        """A kind that is not known here: three buffers as wide as its widest product; None for a block without."""
        widest = max((rows(weights, name) for name in weights if not name.startswith("ffn_")), default=0)
        if not widest:
            return None
        blocks = [self.normed(), *(self._buffers.take(widest) for _ in range(_UNKNOWN_PRODUCTS))]
        self._buffers.give(*blocks)
        return self._buffers.take(self._graph.embedding)

    def normed(self) -> Block:
        """The norm before a part of a block; empty where norms follow."""
        return self._buffers.take(0 if self._normalises_after else self._graph.embedding)

    def _attention(self, layer: int, weights: Weights) -> Block:
        attended = columns(weights, "attn_output")
        if "attn_qkv" in weights:
            return self._joint_attention(weights, attended)
        normed = self.normed()
        query, gate = self._buffers.take(rows(weights, "attn_q")), None
        if (
            query.size_bytes > attended * self._buffers.tokens * FLOAT_BYTES
        ):  # the other half is a gate, read after the attention
            gate, query = query, self._buffers.take(attended)
        elif self._habits.rotates:
            query = self._buffers.again(query)
        kept = self._keys_and_values(weights, normed) if self._graph.caching[layer] else []
        if not kept:
            self._buffers.give(normed)
        if self._encodes:
            kept = [self._buffers.half(block) for block in kept]
        else:
            self._buffers.give(*kept)
        result = self._buffers.take(attended)
        self._buffers.give(query)
        if gate:
            opened = self._buffers.take(attended)
            self._buffers.give(gate, result)
            result = opened
        if self._encodes:
            self._buffers.give(*kept)
        out = self._buffers.take(self._graph.embedding)
        self._buffers.give(result)
        return out

    def _keys_and_values(self, weights: Weights, normed: Block) -> list[Block]:
        """K and V in the order in which they are given back; the norm before them is given back with the last one."""
        habits, width = self._habits, rows(weights, "attn_k")
        twice = habits.rotates
        if habits.values_after_keys and "attn_v" not in weights:  # K is V too
            keys = self._buffers.take(width)
            self._buffers.give(normed)
            rotated, values = self._buffers.take(width), self._buffers.take(width)
            self._buffers.give(keys)
            return [rotated, values]
        if habits.values_after_keys:
            keys = self._buffers.again(self._buffers.take(width)) if twice else self._buffers.take(width)
            values = self._buffers.take(rows(weights, "attn_v"))
            self._buffers.give(normed)
            return [keys, self._buffers.again(values) if habits.normalises_values else values]
        values = self._buffers.take(rows(weights, "attn_v"))
        keys = self._buffers.take(width)
        self._buffers.give(normed)
        return [self._buffers.again(keys) if twice else keys, values]

    def _joint_attention(self, weights: Weights, attended: int) -> Block:
        """Q, K and V are views of one product."""
        normed = self.normed()
        joint = self._buffers.take(rows(weights, "attn_qkv"))
        self._buffers.give(normed)
        width = max(rows(weights, "attn_qkv") - attended, 0) // 2
        query, keys = self._buffers.take(attended), self._buffers.take(width)
        if self._encodes:
            keys, values = self._buffers.half(keys), self._buffers.take(width // 2)
            self._buffers.give(joint)
            result = self._buffers.take(attended)
            self._buffers.give(query, keys, values)
        else:
            self._buffers.give(keys, joint)
            result = self._buffers.take(attended)
            self._buffers.give(query)
        out = self._buffers.take(self._graph.embedding)
        self._buffers.give(result)
        return out

    def _latent_attention(self, weights: Weights) -> Block:
        """Multi-head latent attention with its matrices absorbed: one K for all heads."""
        dimensions = weights["attn_k_b"]
        rank, heads = rows(weights, "attn_k_b"), dimensions[2] if len(dimensions) > 2 else 1
        rotated = max(rows(weights, "attn_kv_a_mqa") - rank, 0)
        normed = self.normed()
        low = self._buffers.take(rows(weights, "attn_q_a"))
        query = self._buffers.take(rows(weights, "attn_q_b") or rows(weights, "attn_q"))
        self._buffers.give(low)
        absorbed, turned = self._buffers.take(heads * rank), self._buffers.take(heads * rotated)
        whole = self._buffers.take(heads * (rank + rotated))
        self._buffers.give(query, absorbed, turned)
        latent = self._buffers.take(rank + rotated)
        self._buffers.give(normed)
        compressed, turned = self._buffers.take(rank), self._buffers.take(rotated)
        self._buffers.give(latent)
        keys = self._buffers.take(rank + rotated)
        self._buffers.give(compressed, turned, keys)
        result = self._buffers.take(heads * rank)
        self._buffers.give(whole)
        values = self._buffers.take(heads * rows(weights, "attn_v_b"))
        self._buffers.give(result)
        values = self._buffers.again(values)
        out = self._buffers.take(self._graph.embedding)
        self._buffers.give(values)
        return out

    def _convolved(self, width: int, taps: int, source: Block) -> Block:
        """A causal convolution: the input with the last tokens of each sequence before it, then the result."""
        window = self._buffers.once(width * (self._buffers.tokens + taps * self._slots))
        self._buffers.give(source)
        result = self._buffers.take(width)
        self._buffers.give(window)
        return result

    def _state(self, layer: int, convolved: int, taps: int) -> int:
        """Elements of the state of all sequences without the convolution's part."""
        return max(self._graph.state_bytes[layer] // FLOAT_BYTES - convolved * taps, 0) * self._slots

    def _delta_net(self, layer: int, weights: Weights) -> Block:
        joint, values = rows(weights, "attn_qkv"), rows(weights, "attn_gate")
        taps = max(columns(weights, "ssm_conv1d") - 1, 0)
        keys, heads = max(joint - values, 0) // 2, rows(weights, "ssm_alpha")
        state = self._state(layer, joint, taps)
        normed = self.normed()
        earlier = self._buffers.once(joint * taps * self._slots)
        source = self._buffers.take(joint)
        window = self._buffers.once(joint * (self._buffers.tokens + taps * self._slots))
        self._buffers.give(earlier, source)
        states = self._buffers.once(state)
        mixed = self._buffers.take(joint)
        self._buffers.give(window)
        query, key = self._buffers.take(keys), self._buffers.take(keys)
        decay = self._buffers.again(self._buffers.take(heads))
        beta = self._buffers.again(self._buffers.take(heads))
        result = self._buffers.once(values * self._buffers.tokens + state)
        self._buffers.give(query, key, mixed, decay, beta, states)
        heads_out = self._buffers.take(values)
        self._buffers.give(result)
        gate = self._buffers.take(values)
        self._buffers.give(normed)
        gate = self._buffers.again(gate)
        self._buffers.give(gate)
        out = self._buffers.take(self._graph.embedding)
        self._buffers.give(heads_out)
        return out

    def _state_space(self, layer: int, weights: Weights) -> Block:
        """Mamba 2."""
        convolved, inner = rows(weights, "ssm_conv1d"), columns(weights, "ssm_out")
        taps = max(columns(weights, "ssm_conv1d") - 1, 0)
        normed = self.normed()
        joint = self._buffers.take(rows(weights, "ssm_in"))
        self._buffers.give(normed)
        window = self._buffers.once(convolved * (self._buffers.tokens + taps * self._slots))
        mixed = self._buffers.take(convolved)
        self._buffers.give(window)
        scanned = self._buffers.once(inner * self._buffers.tokens + self._state(layer, convolved, taps))
        gate = self._buffers.take(inner)
        self._buffers.give(joint)
        skipped = self._buffers.take(inner)
        self._buffers.give(mixed, scanned)
        opened = self._buffers.take(inner)
        self._buffers.give(gate, skipped)
        opened = self._buffers.again(opened)
        out = self._buffers.take(self._graph.embedding)
        self._buffers.give(opened)
        return out

    def _short_convolution(self, weights: Weights) -> Block:
        width = self._graph.embedding
        normed = self.normed()
        joint = self._buffers.take(rows(weights, "shortconv.in_proj"))
        self._buffers.give(normed)
        taps = max(columns(weights, "shortconv.conv") - 1, 0)
        mixed = self._convolved(width, taps, self._buffers.take(width))
        self._buffers.give(joint)
        out = self._buffers.take(width)
        self._buffers.give(mixed)
        return out
