"""How many texts and tokens are computed together when a model makes vectors of texts; planner and worker go by it.

Must stay arithmetic on sizes: what a model is and what memory there is, is decided elsewhere.
"""

TEXTS_AT_ONCE = 32
"""Texts that share one computation, each a sequence of its own."""
TOKENS_AT_ONCE = 512
"""Tokens that share one computation, unless a single text has more and cannot be divided."""
DECODER_TOKENS_AT_ONCE = 256
"""The same for a text that may be divided. Less, because a decoder computes the logits of every token beside the
vector, which nobody asked for: their size is twice this number times the vocabulary."""
MOST_TEXTS = 2048
"""Texts of one request."""
MOST_DIMENSIONS = 1 << 16
"""Elements of a vector; no model has as many."""
FLOAT_BYTES = 4
_PAD = 256
"""The library rounds a context up to this many tokens."""


def padded(cells: int) -> int:
    """Cells of a context for texts of up to `cells` tokens."""
    return -(-cells // _PAD) * _PAD


def micro_batch(cells: int, *, in_parts: bool) -> int:
    """Tokens that one computation may have at the most, for texts of up to `cells` tokens.

    `in_parts` says that a text may be computed part by part; else the longest text has to fit whole.
    """
    return min(padded(cells), DECODER_TOKENS_AT_ONCE) if in_parts else padded(cells)


def window(cells: int, context_train: int) -> int:
    """Tokens of the longest text: what there is room for, and no more than the model was made for (0 = unknown).

    Tables of positions end where the training did, and reading behind their end ends the process.
    """
    return min(cells, context_train) if context_train else cells
