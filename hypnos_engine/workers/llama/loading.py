"""One load, phase by phase: weights, context, a first decode. Must leave either a working engine or a typed failure."""

import time

from hypnos_engine.domain.drafting import output_rows
from hypnos_engine.domain.errors import Cancelled, LoadFailed
from hypnos_engine.domain.kinds import Drafts
from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.beside import SMALL_STACK_BYTES, Beside
from hypnos_engine.workers.channel import Channel
from hypnos_engine.workers.llama import binding, native, steps
from hypnos_engine.workers.llama import model as weights
from hypnos_engine.workers.llama.context import MOST_BATCH, Context, ContextShape, Outcome
from hypnos_engine.workers.llama.drafter import Drafter
from hypnos_engine.workers.llama.engine import TextEngine
from hypnos_engine.workers.llama.parking import Parking
from hypnos_engine.workers.llama.parking_identity import Files
from hypnos_engine.workers.llama.preparing import Preparation, Prepared
from hypnos_engine.workers.llama.prompt import Limits, PromptWriter
from hypnos_engine.workers.llama.report import MemoryMeter
from hypnos_engine.workers.llama.slots import CPU_BLOCK, SlotTable
from hypnos_engine.workers.llama.template_process import Renderer
from hypnos_engine.workers.llama.vocabulary import Vocabulary

_LOGIT_BYTES = 4


def bring_up(channel: Channel[Prepared], request: m.Load, renderer: Renderer | None = None) -> TextEngine:
    """Load, say so, and return the engine; `renderer` is one that was started ahead.

    Raises LoadFailed, or Cancelled when a Shutdown came meanwhile.
    """
    started_s = time.monotonic()

    def report(fraction: float) -> bool:
        channel.send(m.LoadProgress("weights", min(1.0, max(0.0, fraction))))
        return not channel.shutdown_seen

    files = Files.of(request)
    model = weights.load(request, report)
    weights_s = time.monotonic() - started_s
    gpu_layers = native.log.offloaded_layers()
    placed = native.log.buffers()
    # The library clears a whole cache meanwhile.
    reading = Beside(lambda: Vocabulary(model.vocab), "vocabulary", SMALL_STACK_BYTES)
    drafts = Drafts.OFF if model.recurrent else Drafts(request.draft)
    rows = output_rows(request.slots, drafts)
    channel.send(m.LoadProgress("context", 0.0))
    context_started_s = time.monotonic()
    context = Context(model, ContextShape(request.context_len, request.slots, request.kv_type, request.threads, rows))
    context_s = time.monotonic() - context_started_s
    vocabulary = reading.result()
    guessed_bytes = (rows - output_rows(request.slots, Drafts.OFF)) * vocabulary.size * _LOGIT_BYTES
    meter = MemoryMeter(model.weights_bytes, placed, model.experts, guessed_bytes)
    channel.send(m.LoadProgress("context", 1.0), m.LoadProgress("warmup", 0.0))
    token_s = _warm_up(request, context, vocabulary)
    drafter = Drafter(vocabulary.ends, request.threads) if drafts is not Drafts.OFF and _can_be_cut(context) else None
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
    writer = PromptWriter(vocabulary, model.chat_template, Limits(request.model, model.context_train), renderer)
    # An accelerator may choose its kernels by the size of a batch; there, only whole batches repeat bit by bit.
    block = min(MOST_BATCH, context.batch.capacity) if gpu_layers else CPU_BLOCK
    engine = TextEngine(
        channel,
        SlotTable(context, block, vocabulary.control, request.kv_idle_timeout_s),
        vocabulary,
        Preparation(writer, channel),
        meter,
        steps.Pace(token_s),
        Parking(files, channel.handles_fd),
        drafter,
    )
    channel.send(
        m.Loaded(
            context_len=context.cells,
            context_train=model.context_train,
            layers=model.layers,
            gpu_layers=min(gpu_layers, model.layers),
            architecture=model.architecture,
            phases=phases,
            memory=meter.report(context.buffers),
            library=f"llama-cpp-python {binding.version()} (llama.cpp {native.version()})",
            has_chat_template=model.chat_template is not None,
        )
    )
    return engine


def _warm_up(request: m.Load, context: Context, vocabulary: Vocabulary) -> float:
    """Compute one token and return its time in seconds. Raises LoadFailed when the numbers are no numbers.

    The library loads damaged weights without a word; they show only in what the model computes.
    """
    started_s = time.monotonic()
    token = next((token for token in (vocabulary.bos, vocabulary.eos) if 0 <= token < vocabulary.size), 0)
    context.batch.clear()
    row = context.batch.add(0, [token], 0, want_logits=True)
    if context.decode() is not Outcome.DONE:
        raise weights.refusal(request, f"a first token cannot be computed: {native.log.reason('not enough memory')}")
    finite = context.has_numbers(row)
    context.clear()
    if not finite:
        raise LoadFailed(
            f"The weights of '{request.model}' in '{request.weights_path}' are damaged: what the model computes are no "
            "numbers. Download the file again."
        )
    return time.monotonic() - started_s


def _can_be_cut(context: Context) -> bool:
    """Try whether the cache gives up a token behind others, whatever the library says about its kind."""
    context.batch.clear()
    context.batch.add(0, [0, 0], 0, want_logits=True)
    cut = context.decode() is Outcome.DONE and context.shorten(0, 1)
    context.clear()
    return cut
