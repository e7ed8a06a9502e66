"""The KV cache and the decode call of one model; one owner thread. Must never make a call that aborts the process.

llama.cpp aborts on a batch above `n_batch`, on more outputs than declared and on sequence ids it was not made for;
the checks before each call are here.
"""

import ctypes
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
from numpy.typing import NDArray

from hypnos_engine.domain.errors import LoadFailed
from hypnos_engine.workers.llama import native
from hypnos_engine.workers.llama.model import Model

MOST_SLOTS = 256
MOST_CELLS = 2**31
MOST_BATCH = 512
_GGML_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}
_AUTO_FLASH_ATTENTION = -1

_PARTIAL = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY

State = NDArray[np.uint8]
"""The saved state of one sequence, or the part of it that cannot be cut."""


class NoNumbers(Exception):
    """The logits of one sequence are NaN or infinite; other sequences may be well."""


class Outcome(IntEnum):
    """What `llama_decode` returns, as far as it matters here."""

    DONE = 0
    FULL = 1
    """No room in the cache; nothing was changed."""
    FAILED = 2
    """The batch was refused or computing failed; the cache is not to be trusted any more."""


@dataclass(frozen=True, slots=True)
class ContextShape:
    """How a context is made."""

    cells: int
    slots: int
    kv_type: str
    threads: int
    rows: int = 0
    """Tokens of one step whose logits are kept; at least one for each slot."""

    @property
    def outputs(self) -> int:
        return max(self.slots, self.rows)


class Batch:
    """A llama_batch that is filled through array views; rows are added in the order of their positions."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self.outputs = 0
        self._batch = lib.llama_batch_init(capacity, 0, 1)
        view = np.ctypeslib.as_array
        self._tokens: NDArray[Any] = view(self._batch.token, (capacity,))
        self._positions: NDArray[Any] = view(self._batch.pos, (capacity,))
        self._logits: NDArray[Any] = view(self._batch.logits, (capacity,))
        view(self._batch.n_seq_id, (capacity,))[:] = 1
        self._sequences = self._batch.seq_id

    def clear(self) -> None:
        self.size = self.outputs = 0

    def add(self, sequence: int, tokens: list[int], position: int, *, want_logits: bool, guessed: int = 0) -> int:
        """Append consecutive tokens of a sequence; returns the row of the last one, whose logits may be wanted.

        With logits of the last one go those of the `guessed` ones before it.
        """
        start, end = self.size, self.size + len(tokens)
        if end > self.capacity:
            raise ValueError(f"{end} tokens exceed a batch of {self.capacity}")
        self._tokens[start:end] = tokens
        self._positions[start:end] = range(position, position + len(tokens))
        self._logits[start:end] = 0
        for row in range(start, end):
            self._sequences[row][0] = sequence
        if want_logits:
            self._logits[end - 1 - guessed : end] = 1
            self.outputs += 1 + guessed
        self.size = end
        return end - 1

    @property
    def native(self) -> Any:
        self._batch.n_tokens = self.size
        return self._batch

    def free(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            lib.llama_batch_free(batch)


class Context:
    """One KV cache of `cells` cells that `slots` sequences share."""

    def __init__(self, model: Model, shape: ContextShape) -> None:
        """Raises LoadFailed with the library's reason when the memory or the cache type is refused."""
        if not 1 <= shape.slots <= MOST_SLOTS or not 1 <= shape.cells < MOST_CELLS:
            raise LoadFailed(f"'slots' must be 1 to {MOST_SLOTS} and 'context_len' at least 1: ask for other values.")
        self.model = model
        self.shape = shape
        params = lib.llama_context_default_params()
        params.n_ctx = shape.cells
        params.n_seq_max, params.n_outputs_max = shape.slots, shape.outputs
        params.n_batch = params.n_ubatch = max(MOST_BATCH, shape.slots)
        params.n_threads = params.n_threads_batch = max(1, shape.threads)
        params.type_k = params.type_v = _GGML_TYPES[shape.kv_type]
        params.flash_attn_type = _AUTO_FLASH_ATTENTION
        # One pool for all slots: any of them may use all of it, and saved states fit another number of slots.
        params.kv_unified = True
        params.swa_full = False
        native.log.mark()
        self._pointer: native.Pointer = lib.llama_init_from_model(model.pointer, params)
        self.buffers = native.log.buffers()
        self.flash_attention = native.log.flash_attention()
        """It decides how values lie in the cache, and in a saved state."""
        if not self._pointer:
            raise LoadFailed(
                f"A context of {shape.cells} tokens ({shape.kv_type}) for '{model.path}' cannot be made: "
                f"{native.log.reason('not enough memory')}. Ask for less context, or for another 'kv_type'."
            )
        self._memory = lib.llama_get_memory(self._pointer)
        if not self._memory:
            self.free()
            raise LoadFailed(
                f"The model in '{model.path}' ({model.architecture}) has no KV cache: it does not generate text."
            )
        self.cells = int(lib.llama_n_ctx(self._pointer))
        self.batch = Batch(int(lib.llama_n_batch(self._pointer)))
        self._vocabulary_size = int(lib.llama_vocab_n_tokens(model.vocab))

    # --- decoding ---------------------------------------------------------------------------------------------------

    def decode(self) -> Outcome:
        """Compute the batch. Blocks for the whole computation."""
        if self.batch.outputs > self.shape.outputs:
            raise ValueError("more outputs than the context was made for")
        status = int(lib.llama_decode(self._pointer, self.batch.native))
        return Outcome(status) if status in (0, 1) else Outcome.FAILED

    def sample(self, chain: native.Pointer, row: int) -> int:
        """Draw a token from the logits of a row of the last batch that asked for them; without a chain, the likeliest.

        Raises NoNumbers.
        """
        if chain is None:
            return self.likeliest(row)
        if not self.has_numbers(row):
            raise NoNumbers
        return int(lib.llama_sampler_sample(chain, self._pointer, row))

    def likeliest(self, row: int) -> int:
        """The token with the largest logit of a row, the first of equals, as the library's greedy sampler takes it.

        That one copies all logits into a list of candidates first, which takes 80 microseconds more. Raises NoNumbers.
        """
        logits = self._logits(row)
        token = int(logits.argmax())  # of a NaN, if there is one
        if not np.isfinite(logits[token]):
            raise NoNumbers
        return token

    def has_numbers(self, row: int) -> bool:
        """Whether a token can be drawn from the logits of a row.

        Their maximum tells: NaN spreads through it, while a model may well rule tokens out with -inf. It takes 9
        microseconds for 49,000 logits and 25 for 262,000, the way to them included.
        """
        return bool(np.isfinite(self._logits(row).max()))

    def logits(self, row: int) -> NDArray[np.float32]:
        """A copy of the logits of a row."""
        return np.array(self._logits(row), dtype=np.float32)

    def _logits(self, row: int) -> NDArray[np.float32]:
        """The logits of a row where the library keeps them, until the next decode."""
        pointer = lib.llama_get_logits_ith(self._pointer, row)
        if not pointer:
            raise ValueError(f"row {row} has no logits")
        return np.ctypeslib.as_array(pointer, (self._vocabulary_size,))

    def set_threads(self, threads: int) -> None:
        self.shape = replace(self.shape, threads=max(1, threads))  # a context that takes this one's place begins so
        lib.llama_set_n_threads(self._pointer, self.shape.threads, self.shape.threads)

    # --- sequences --------------------------------------------------------------------------------------------------

    def can_shorten(self, sequence: int, length: int, *, untouched: bool = False) -> bool:
        """True when `shorten` will succeed; asks, and changes nothing.

        A recurrent state cannot be cut, and a sliding window that has moved on cannot be had back. With `untouched`,
        no cell may have been used twice either, so that the sequence lies in the cache as if it were computed anew.
        """
        end = self._end(sequence)
        if length in (0, end):
            return True
        if end < length or self.model.recurrent:
            return False
        first = int(lib.llama_memory_seq_pos_min(self._memory, sequence))
        return 0 <= first <= (0 if untouched else max(0, length - self.model.window))

    def shorten(self, sequence: int, length: int) -> bool:
        """Keep the first `length` cells of a sequence; False when the model cannot, and then all are kept."""
        if not self.can_shorten(sequence, length):
            return False
        return bool(lib.llama_memory_seq_rm(self._memory, sequence, length, -1)) and self._end(sequence) == length

    def truncate(self, sequence: int, length: int) -> bool:
        """Keep the first `length` cells of a sequence; False when the model cannot, and then nothing is kept."""
        if length > 0 and self.shorten(sequence, length):
            return True
        lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return length == 0

    def clear(self) -> None:
        """Empty every sequence; the next cells are taken from the beginning."""
        lib.llama_memory_clear(self._memory, False)

    def save(self, sequence: int) -> State | None:
        """Copy a sequence's state; None when the library cannot, or there is no memory for it."""
        state = _room(self.state_bytes(sequence))
        return state if state is not None and self.save_into(sequence, state) else None

    def save_into(self, sequence: int, room: State) -> bool:
        """Copy a sequence's state to where `room` lies, of exactly `state_bytes`; False when the library cannot."""
        copied = lib.llama_state_seq_get_data(self._pointer, _bytes(room), room.nbytes, sequence)
        return bool(copied == room.nbytes)

    def state_bytes(self, sequence: int) -> int:
        """Size of what `save` would copy."""
        return int(lib.llama_state_seq_get_size(self._pointer, sequence))

    def restore(self, sequence: int, state: State, length: int) -> bool:
        """Put a saved state of `length` tokens into an empty sequence; False leaves it empty."""
        size = lib.llama_state_seq_set_data(self._pointer, _bytes(state), state.nbytes, sequence)
        if size == state.nbytes and self._end(sequence) == length:
            return True
        lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return False

    # --- the part of a state that cannot be cut ---------------------------------------------------------------------

    def uncuttable_bytes(self, sequence: int) -> int:
        """Size of what `save_uncuttable` would copy."""
        return int(lib.llama_state_seq_get_size_ext(self._pointer, sequence, _PARTIAL))

    def save_uncuttable(self, sequence: int) -> State | None:
        """Copy the windows and recurrent states of a sequence as they are now; None when that cannot be."""
        state = _room(self.uncuttable_bytes(sequence))
        if state is None:
            return None
        copied = lib.llama_state_seq_get_data_ext(self._pointer, _bytes(state), state.nbytes, sequence, _PARTIAL)
        return state if copied == state.nbytes else None

    def go_back(self, sequence: int, state: State, length: int) -> bool:
        """Return to the first `length` cells, for which `state` was saved; False leaves the sequence empty.

        The sequence has to hold these cells still. The state comes first and the cut second: the other way round, the
        library leaves the attention one token short without a word.
        """
        size = lib.llama_state_seq_set_data_ext(self._pointer, _bytes(state), state.nbytes, sequence, _PARTIAL)
        if (
            size == state.nbytes
            and lib.llama_memory_seq_rm(self._memory, sequence, length, -1)
            and self._end(sequence) == length
        ):
            return True
        lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return False

    def free(self) -> None:
        """Give the memory back; harmless when done before."""
        pointer, self._pointer = self._pointer, None
        if pointer:
            lib.llama_free(pointer)
        batch = getattr(self, "batch", None)
        if batch is not None:
            batch.free()

    def _end(self, sequence: int) -> int:
        return int(lib.llama_memory_seq_pos_max(self._memory, sequence)) + 1


def _room(size: int) -> State | None:
    """Memory for a state; None for one of no bytes and where memory is short."""
    try:
        return np.empty(size, np.uint8) if size else None
    except MemoryError:
        return None


def _bytes(state: State) -> Any:
    return state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
