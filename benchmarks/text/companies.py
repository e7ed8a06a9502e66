"""Computes a token's likelihood in llama.cpp itself, in several companies, for places that llama-server does not show.

It tells nothing about the first token of a character that takes several. Must share nothing with the worker but its way
to fill a batch.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import llama_cpp.llama_cpp as lib
import numpy as np

from hypnos_engine.workers.llama import native
from hypnos_engine.workers.llama.context import Batch
from hypnos_engine.workers.llama.vocabulary import Vocabulary

_CELLS, _BATCH, _SLOTS = 4096, 512, 4
_STRANGER = " ".join(f"Line {number} is about something else." for number in range(9))


class Companies:
    """A model and one context of four sequences."""

    def __init__(self, model: native.Pointer, context: native.Pointer) -> None:
        self._context = context
        self._memory = lib.llama_get_memory(context)
        self._batch = Batch(_BATCH)
        self._vocabulary = Vocabulary(lib.llama_model_get_vocab(model))

    def free(self) -> None:
        self._batch.free()

    def gaps(self, prompt: str, common: str, rest: str) -> list[float]:
        """How much likelier the likeliest token is than the one with which `rest` begins, after `prompt` and `common`.

        `prompt` is a rendered one, `common` what was answered so far. One value for each company.
        """
        read = self._vocabulary.tokens(prompt, parse_control=True)
        said = self._vocabulary.tokens(common, parse_control=False)
        wanted = self._vocabulary.tokens(rest, parse_control=False)[0]
        cuts = (len(read), 64, 24, 8, len(read) - 1)
        return [self._gap(read, said, cut, idle, wanted) for cut in cuts for idle in range(_SLOTS)]

    def _gap(self, read: Sequence[int], said: Sequence[int], cut: int, idle: int, wanted: int) -> float:
        lib.llama_memory_clear(self._memory, False)
        for sequence in range(idle):
            self._decode(1 + sequence, self._vocabulary.tokens(_STRANGER * (1 + sequence), parse_control=False), 0)
        row = 0
        for begin in range(0, len(read), cut):
            row = self._decode(0, read[begin : begin + cut], begin)
        for position, token in enumerate(said, len(read)):
            row = self._decode(0, [token], position)
        logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(self._context, row), (self._vocabulary.size,))
        return float(logits.max() - logits[wanted])

    def _decode(self, sequence: int, tokens: Sequence[int], position: int) -> int:
        self._batch.clear()
        row = self._batch.add(sequence, list(tokens), position, want_logits=True)
        if lib.llama_decode(self._context, self._batch.native) != 0:
            raise RuntimeError("llama.cpp could not compute a batch")
        return row


@contextmanager
def companies(model_path: Path) -> Iterator[Companies]:
    """Load the model into this process, on one thread."""
    native.start()
    model = lib.llama_model_load_from_file(str(model_path).encode(), lib.llama_model_default_params())
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_seq_max, params.n_outputs_max = _CELLS, _SLOTS, _SLOTS
    params.n_batch = params.n_ubatch = _BATCH
    params.n_threads = params.n_threads_batch = 1
    params.kv_unified = True
    context = lib.llama_init_from_model(model, params)
    held = Companies(model, context)
    try:
        yield held
    finally:
        held.free()
        lib.llama_free(context)
        lib.llama_model_free(model)
