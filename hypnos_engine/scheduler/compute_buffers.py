"""How large the buffers of one computation become: replays what llama.cpp takes and gives back, block by block.

The feed-forward part follows build_ffn and build_moe_ffn of llama.cpp 0.5 (src/llama-graph.cpp) in its order. Nothing
here measures or allocates; what mixes tokens is replayed by token_mixers.
"""

from functools import lru_cache

from hypnos_engine.domain.model import GraphShape
from hypnos_engine.scheduler.graph_arena import MICRO_BATCH, Block, Buffers, Weights, columns, rows
from hypnos_engine.scheduler.token_mixers import HABITS, LLAMA, Mixers

__all__ = ["MICRO_BATCH", "graph_bytes"]

_KEPT_REPLAYS = 512


@lru_cache(maxsize=_KEPT_REPLAYS)
def graph_bytes(
    graph: GraphShape, slots: int, rows: int | None = None, *, tokens: int = MICRO_BATCH, head: bool = True
) -> int:
    """Return the bytes of the buffers for one micro-batch of `slots` sequences, attention masks excepted.

    `rows` tokens of it have logits; None = one of each sequence. Without `head` the graph ends at its last norm.
    """
    return _Replay(graph, max(slots, 1), max(slots, rows or 1, 1), tokens).run(head=head)


class _Replay:
    """The buffers in use while one graph is computed."""

    def __init__(self, graph: GraphShape, slots: int, rows: int, tokens: int) -> None:
        self._graph = graph
        self._rows = rows
        self._buffers = Buffers(tokens)
        self._mixers = Mixers(graph, slots, self._buffers)
        self._sums_into_residual = HABITS.get(graph.architecture, LLAMA).sums_into_residual
        self._per_layer: Block | None = None
        self._first_input: Block | None = None
        """The embeddings, as long as the per-layer ones still have to be made of them."""

    def run(self, *, head: bool) -> int:
        graph = self._graph
        self._buffers.take(graph.input_width)  # embeddings from outside have a buffer although tokens are given
        residual: Block | None = self._buffers.take(graph.embedding)
        if residual and graph.input_width > graph.embedding:
            self._buffers.take(graph.input_width)
            self._buffers.give(residual)
            residual = None
        if graph.per_layer_width:
            self._per_layer = self._buffers.again(self._buffers.take(graph.per_layer_width))
            self._first_input, residual = residual, None
        for layer, weights in enumerate(graph.layers):
            if "nextn.eh_proj" in weights:  # drafts tokens; not part of this graph
                continue
            mixed = self._mixers.replay(layer, weights)
            into_residual = self._sums_into_residual or "ssm_alpha" in weights
            residual = self._add(residual, mixed, into=into_residual)
            residual = self._feed_forward(weights, residual)
            self._enter_per_layer(weights)
        if head:
            self._buffers.once(graph.embedding * self._rows)
            self._buffers.once(graph.vocabulary * self._rows)
        return self._buffers.peak_bytes

    def _add(self, residual: Block | None, result: Block | None, *, into: bool) -> Block | None:
        if residual is None or result is None:
            return result or residual
        self._buffers.give(result if into else residual)
        return residual if into else result

    def _feed_forward(self, weights: Weights, residual: Block | None) -> Block | None:
        width = rows(weights, "ffn_up")
        if "ffn_down_exps" in weights and width:
            result = self._dense_beside_experts(weights, width)
        elif "ffn_down_exps" in weights:
            result = self._mixture(weights)
        elif width:
            halved = 0 < columns(weights, "ffn_down") < width  # gate and product are one tensor
            result = self._dense(width, self._mixers.normed(), gated="ffn_gate" in weights, halved=halved)
        else:
            return residual
        return self._add(residual, result, into=self._sums_into_residual)

    def _dense(self, width: int, normed: Block, *, gated: bool, kept: bool = False, halved: bool = False) -> Block:
        """`kept`: the input is needed once more afterwards, and the caller gives it back."""
        inner = self._buffers.take(width)
        gate = self._buffers.take(width) if gated else None
        if not kept:
            self._buffers.give(normed)
        if gate or halved:
            product = self._buffers.take(width // 2 if halved else width)
            self._buffers.give(inner, *((gate,) if gate else ()))
            inner = product
        out = self._buffers.take(self._graph.embedding)
        self._buffers.give(inner)
        return out

    def _mixture(self, weights: Weights) -> Block:
        """Experts, and those that every token passes."""
        normed = self._mixers.normed()
        shared = rows(weights, "ffn_up_shexp")
        result = self._experts(weights, None if shared else normed, self._route(weights, None))
        if shared:
            gated_at_last = "ffn_gate_inp_shexp" in weights
            out = self._dense(shared, normed, gated="ffn_gate_shexp" in weights, kept=gated_at_last)
            self._buffers.give(*((normed, out) if gated_at_last else (out,)))
        return result

    def _dense_beside_experts(self, weights: Weights, width: int) -> Block:
        chosen = self._route(weights, self._mixers.normed())
        mixture = self._experts(weights, self._mixers.normed(), chosen)
        result = self._dense(width, self._mixers.normed(), gated="ffn_gate" in weights)
        self._buffers.give(mixture)
        return result

    def _route(self, weights: Weights, scaled: Block | None) -> tuple[Block, Block]:
        """The order of the experts and the weights of the chosen ones, per token."""
        graph = self._graph
        scores = self._buffers.take(graph.experts)
        if scaled:
            self._buffers.give(scaled)
        biased = self._buffers.take(graph.experts) if "exp_probs_b.bias" in weights else None
        order = self._buffers.take(graph.experts)
        if biased:
            self._buffers.give(biased)
        chosen = self._buffers.take(graph.experts_used)
        self._buffers.give(scores)
        total = self._buffers.take(1)
        normalised = self._buffers.take(graph.experts_used)
        self._buffers.give(chosen, total)
        return order, normalised

    def _experts(self, weights: Weights, normed: Block | None, chosen: tuple[Block, Block]) -> Block:
        used = self._graph.experts_used
        if "ffn_gate_up_exps" in weights:
            width = used * rows(weights, "ffn_gate_up_exps")
            pair = [self._buffers.take(width)]
            width //= 2
        else:
            width = used * rows(weights, "ffn_up_exps")
            pair = [self._buffers.take(width)] + ([self._buffers.take(width)] if "ffn_gate_exps" in weights else [])
        if normed:
            self._buffers.give(normed)
        inner = pair[0]
        if len(pair) > 1 or "ffn_gate_up_exps" in weights:
            inner = self._buffers.take(width)
            self._buffers.give(*pair)
        down = self._buffers.take(used * self._graph.embedding)
        self._buffers.give(inner, *chosen)
        result = self._buffers.take(self._graph.embedding)
        self._buffers.give(down)
        return result

    def _enter_per_layer(self, weights: Weights) -> None:
        """Add a block's own embeddings; the first block brings those of all blocks into order before."""
        if self._per_layer is None:
            return
        gate = self._buffers.take(rows(weights, "inp_gate"))
        if self._first_input:
            projected = self._buffers.again(self._buffers.take(self._graph.per_layer_width))
            self._buffers.give(self._first_input, self._per_layer)
            self._first_input, self._per_layer = None, self._buffers.again(projected)
        out = self._buffers.take(self._graph.embedding)
        self._buffers.give(gate, out)
