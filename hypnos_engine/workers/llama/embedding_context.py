"""The context of a model that makes vectors: one decode call for several texts. Must never make a call that aborts.

llama.cpp aborts on a text that needs all of its tokens at once and has more than the micro-batch, on a batch above
`n_batch`, and on a position behind a model's table of positions; the limits of all three are set and checked here.
"""

import ctypes
import mmap
import sys
from dataclasses import dataclass, replace
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
from numpy.typing import NDArray

from hypnos_engine.domain import embedding
from hypnos_engine.domain.errors import LoadFailed
from hypnos_engine.workers.llama import native
from hypnos_engine.workers.llama.model import Model

Vector = NDArray[np.float32]

_UNSPECIFIED, _NONE, _MEAN, _LAST, _RANK = -1, 0, 1, 3, 4
_GGML_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}

_AUTO_FLASH_ATTENTION = -1
_GIVEN_UP = 2
"""What `llama_decode` returns for a computation that was stopped."""
_KEPT_PIECES = 1 << 20
"""Below, giving memory back costs more than it gains."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive tokens of one text that go into a batch, the first of them at `position`."""

    sequence: int
    tokens: list[int]
    position: int


@dataclass(frozen=True, slots=True)
class EmbeddingShape:
    """How a context for vectors is made. `cells` bounds the longest text."""

    cells: int
    kv_type: str
    threads: int


class EmbeddingContext:
    """Computes texts, each in a sequence of its own."""

    def __init__(self, model: Model, shape: EmbeddingShape) -> None:
        """Raises LoadFailed with the library's reason, and for a model that ranks instead of making vectors."""
        self.model = model
        self._shape = shape
        self.window = embedding.window(shape.cells, model.context_train)
        """Tokens of the longest text."""
        self._pooling = _pooling(model)
        self.in_parts = self._pooling == _LAST and model.meta(f"{model.architecture}.attention.causal") != "false"
        """True when a text may be computed part by part: only its last token counts, and tokens only look back."""
        self._pointer: native.Pointer = None
        self._memory: native.Pointer = None
        self._batch: Any = None
        self.buffers = native.Buffers({}, 0, 0, mapped=False)
        self.cells = 0
        """Tokens that the cache of a decoder holds, of all texts together."""
        self.most_tokens = 0
        """Tokens of one batch; the longest text too, unless it may be computed in parts."""
        self._open()
        if self.in_parts and not self._memory:  # nothing would be left of the first part
            self.free()
            self.in_parts = False
            self._open()
        self.dimensions = int(lib.llama_model_n_embd_out(model.pointer))
        self._provide()

    @property
    def remembers(self) -> bool:
        """True for a decoder: its cache holds the texts under way."""
        return bool(self._memory)

    # --- computing --------------------------------------------------------------------------------------------------

    def compute(self, pieces: list[Piece]) -> bool:
        """Compute a batch; False when the library could not, and then nothing that was computed is to be trusted.

        Raises ValueError for more tokens than `most_tokens`. Blocks for the whole computation.
        """
        self._fill(pieces)
        return int(lib.llama_decode(self._pointer, self._batch)) == 0

    def vector(self, sequence: int) -> Vector:
        """A copy of the vector of a text whose last piece was in the last batch."""
        pointer = lib.llama_get_embeddings_seq(self._pointer, sequence)
        if not pointer:
            raise ValueError(f"sequence {sequence} has no vector")
        return np.array(np.ctypeslib.as_array(pointer, (self.dimensions,)), dtype=np.float32)

    def forget(self, sequence: int) -> None:
        """Free the cells of a text."""
        if self._memory:
            lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def clear(self) -> None:
        """Free the cells of all texts."""
        if self._memory:
            lib.llama_memory_clear(self._memory, False)

    def set_threads(self, threads: int) -> None:
        lib.llama_set_n_threads(self._pointer, max(1, threads), max(1, threads))

    def free(self) -> None:
        """Give the memory back; harmless when done before."""
        pointer, self._pointer = self._pointer, None
        if pointer:
            lib.llama_free(pointer)
        batch, self._batch = self._batch, None
        if batch is not None:
            lib.llama_batch_free(batch)

    # --- making -----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        model, shape = self.model, self._shape
        if not 1 <= self.window < 2**31:
            raise LoadFailed("'context_len' must be at least 1: ask for another value.")
        params = lib.llama_context_default_params()
        params.embeddings = True
        # Rounded up here: the library does so too late for its own limits, and asserts that they hold 32 sequences.
        params.n_ctx = embedding.padded(self.window)
        params.n_batch = params.n_ubatch = embedding.micro_batch(self.window, in_parts=self.in_parts)
        params.n_seq_max = embedding.TEXTS_AT_ONCE
        params.n_threads = params.n_threads_batch = max(1, shape.threads)
        params.pooling_type = _UNSPECIFIED if self._pooling == _own_pooling(model) else self._pooling
        params.type_k = params.type_v = _GGML_TYPES[shape.kv_type]
        params.flash_attn_type = _AUTO_FLASH_ATTENTION
        params.kv_unified = True
        params.swa_full = False
        native.log.mark()
        self._pointer = lib.llama_init_from_model(model.pointer, params)
        self.buffers = native.log.buffers()
        if not self._pointer:
            raise LoadFailed(
                f"A context for texts of {self.window} tokens for '{model.path}' cannot be made: "
                f"{native.log.reason('not enough memory')}. Ask for less with 'context_len'."
            )
        self._memory = lib.llama_get_memory(self._pointer)
        self.cells = int(lib.llama_n_ctx(self._pointer))
        most = min(int(lib.llama_n_batch(self._pointer)), int(lib.llama_n_ubatch(self._pointer)))
        self.most_tokens = min(most, self.window * embedding.TEXTS_AT_ONCE)
        self._batch = lib.llama_batch_init(self.most_tokens, 0, 1)
        view = np.ctypeslib.as_array
        self._tokens: NDArray[Any] = view(self._batch.token, (self.most_tokens,))
        self._positions: NDArray[Any] = view(self._batch.pos, (self.most_tokens,))
        view(self._batch.n_seq_id, (self.most_tokens,))[:] = 1
        # Every token is an output: what is pooled are the outputs.
        view(self._batch.logits, (self.most_tokens,))[:] = 1

    def _fill(self, pieces: list[Piece]) -> None:
        size = sum(len(piece.tokens) for piece in pieces)
        if not 1 <= size <= self.most_tokens:
            raise ValueError(f"{size} tokens are no batch of at most {self.most_tokens}")
        start, sequences = 0, self._batch.seq_id
        for piece in pieces:
            end = start + len(piece.tokens)
            if piece.position + len(piece.tokens) > self.window:
                raise ValueError("a text is longer than the window")
            self._tokens[start:end] = piece.tokens
            self._positions[start:end] = range(piece.position, piece.position + len(piece.tokens))
            for row in range(start, end):
                sequences[row][0] = piece.sequence
            start = end
        self._batch.n_tokens = size

    def _provide(self) -> None:
        """Let the library make its buffer for outputs as large as it will ever be, and take back what nobody writes.

        It reserves a row of logits for every token of the largest batch so far and fills it with zeros, also for a
        model without an output head: 2 GiB for 2048 tokens of a vocabulary of 262144. Done now, while the load is
        accounted for, this cannot surprise a machine later; without an output head the rows stay empty for ever, so
        their pages go back to the system. A processor gives the computation itself up before its first operation.
        """
        whole, rest = divmod(self.most_tokens, self.window)
        self._fill([Piece(n, [0] * (self.window if n < whole else rest), 0) for n in range(whole + bool(rest))])
        rows = max(self.most_tokens, embedding.TEXTS_AT_ONCE)
        lib.llama_set_abort_callback(self._pointer, _GIVE_UP, None)
        lib.llama_log_set(_SILENCE, None)
        try:
            status = int(lib.llama_decode(self._pointer, self._batch))
        finally:
            native.log.install()
            lib.llama_set_abort_callback(self._pointer, _GO_ON, None)
        width = int(lib.llama_vocab_n_tokens(self.model.vocab)) + self.dimensions
        size = rows * width * embedding.FLOAT_BYTES
        if status not in (0, _GIVEN_UP):
            self.free()
            raise LoadFailed(
                f"There is not enough memory to load '{self.model.path}' for texts of {self.window} tokens: their "
                f"buffers take {size // 2**20} MiB for a moment. Ask for less with 'context_len', or free memory."
            )
        self.clear()
        if not self._memory and self.buffers.device_bytes == 0 and _release(lib.llama_get_logits(self._pointer), size):
            size = 0
        self.buffers = replace(self.buffers, by_kind={**self.buffers.by_kind, "output": size})


def _own_pooling(model: Model) -> int:
    """What the file says; -1 when it does not."""
    said = model.meta(f"{model.architecture}.pooling_type")
    return int(said) if said is not None and said.lstrip("-").isdigit() else _UNSPECIFIED


def _pooling(model: Model) -> int:
    """How a model's tokens become one vector.

    A file that does not say, or says that they do not, gets the mean: without one vector for a text there is nothing to
    answer with, and the mean is what such models are made for when nothing else is written down.
    """
    own = _own_pooling(model)
    if own == _RANK:
        raise LoadFailed(
            f"The model in '{model.path}' ranks answers to a question: it makes no vectors of texts. Use an embedding "
            "model."
        )
    if not _UNSPECIFIED <= own <= _RANK:  # the library ends the process when it comes to pooling
        raise LoadFailed(f"The model in '{model.path}' pools its tokens in a way that is not known here ({own}).")
    return _MEAN if own in (_UNSPECIFIED, _NONE) else own


def _release(pointer: Any, size_bytes: int) -> bool:
    """Give the pages of a buffer back that was never written; False where the system has no way, or it is small."""
    if sys.platform != "linux" or not pointer or size_bytes < _KEPT_PIECES:
        return False
    address = ctypes.cast(pointer, ctypes.c_void_p).value or 0
    first, end = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE, (address + size_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    length = ctypes.c_size_t(end - first)
    # Private memory reads as zeros afterwards, as it does now.
    return end > first and libc.madvise(ctypes.c_void_p(first), length, mmap.MADV_DONTNEED) == 0


_GO_ON: Any = lib.ggml_abort_callback()
_GIVE_UP: Any = lib.ggml_abort_callback(lambda _: True)
_SILENCE: Any = lib.llama_log_callback(lambda *_: None)
