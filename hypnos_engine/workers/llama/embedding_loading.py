"""One load of a model that makes vectors: weights, context, a first vector. Leaves an engine or a typed failure."""

import time

import numpy as np

from hypnos_engine.domain.errors import Cancelled, LoadFailed
from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.channel import Channel
from hypnos_engine.workers.llama import binding, native, steps
from hypnos_engine.workers.llama import model as weights
from hypnos_engine.workers.llama.embedding import EmbeddingEngine
from hypnos_engine.workers.llama.embedding_context import EmbeddingContext, EmbeddingShape, Piece
from hypnos_engine.workers.llama.embedding_texts import TextReader, TextsRead
from hypnos_engine.workers.llama.report import MemoryMeter
from hypnos_engine.workers.llama.vocabulary import Vocabulary


def bring_up(channel: Channel[TextsRead], request: m.Load) -> EmbeddingEngine:
    """Load, say so, and return the engine. Raises LoadFailed, or Cancelled when a Shutdown came meanwhile."""
    started_s = time.monotonic()

    def report(fraction: float) -> bool:
        channel.send(m.LoadProgress("weights", min(1.0, max(0.0, fraction))))
        return not channel.shutdown_seen

    model = weights.load(request, report)
    weights_s = time.monotonic() - started_s
    meter = MemoryMeter(model.weights_bytes, native.log.buffers())
    gpu_layers = native.log.offloaded_layers()
    vocabulary = Vocabulary(model.vocab)
    channel.send(m.LoadProgress("context", 0.0))
    context_started_s = time.monotonic()
    context = EmbeddingContext(model, EmbeddingShape(request.context_len, request.kv_type, request.threads))
    context_s = time.monotonic() - context_started_s
    channel.send(m.LoadProgress("context", 1.0), m.LoadProgress("warmup", 0.0))
    token_s = _warm_up(request, context, vocabulary)
    channel.send(m.LoadProgress("warmup", 1.0))
    if channel.shutdown_seen:
        raise Cancelled("The load was given up.")
    phases = m.LoadPhases(
        load_mode="mmap" if meter.weights.mapped else "read",
        weights_ms=weights_s * 1e3,
        projector_ms=0.0,
        context_ms=context_s * 1e3,
        total_ms=(time.monotonic() - started_s) * 1e3,
    )
    reader = TextReader(vocabulary, context.window, channel)
    engine = EmbeddingEngine(channel, context, reader, meter, steps.Pace(token_s))
    channel.send(
        m.Loaded(
            context_len=context.window,
            context_train=model.context_train,
            layers=model.layers,
            gpu_layers=min(gpu_layers, model.layers),
            architecture=model.architecture,
            phases=phases,
            memory=meter.report(context.buffers),
            library=f"llama-cpp-python {binding.version()} (llama.cpp {native.version()})",
            has_chat_template=False,
            dimensions=context.dimensions,
        )
    )
    return engine


def _warm_up(request: m.Load, context: EmbeddingContext, vocabulary: Vocabulary) -> float:
    """Make a first vector and return the time of one of its tokens in seconds. Raises LoadFailed for no numbers.

    The library loads damaged weights without a word; they show only in what the model computes.
    """
    started_s = time.monotonic()
    # More than one token, so that the time of one is not that of reading the weights for the first time.
    tokens = (vocabulary.marked_tokens("hello") or [0])[: context.window]
    if not context.compute([Piece(0, tokens, 0)]):
        raise weights.refusal(request, f"a first text cannot be computed: {native.log.reason('not enough memory')}")
    finite = bool(np.isfinite(context.vector(0)).all())
    context.clear()
    if not finite:
        raise LoadFailed(
            f"The weights of '{request.model}' in '{request.weights_path}' are damaged: what the model computes are no "
            "numbers. Download the file again."
        )
    return (time.monotonic() - started_s) / len(tokens)
