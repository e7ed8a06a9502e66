"""Text to tokens and back for one model. Thread-safe; must never pass the library a token id outside its vocabulary."""

import ctypes
import re
from functools import cached_property
from itertools import compress, repeat

import llama_cpp.llama_cpp as lib

from hypnos_engine.workers.llama import native, runs

_PIECE_BYTES = 256


class Vocabulary:
    """The tokens of a model, read once."""

    def __init__(self, vocab: native.Pointer) -> None:
        self._vocab = vocab
        self.size = int(lib.llama_vocab_n_tokens(vocab))
        self.control, self.control_texts, self.ends = self._survey()
        self.bos = int(lib.llama_vocab_bos(vocab))
        self.eos = int(lib.llama_vocab_eos(vocab))
        self._by_regex = lib.llama_vocab_type(vocab) == lib.LLAMA_VOCAB_TYPE_BPE
        self._control = re.compile("|".join(map(re.escape, self.control_texts))) if self.control_texts else None
        self.adds_bos = bool(lib.llama_vocab_get_add_bos(vocab)) and self.bos >= 0

    def text_of(self, token: int) -> str:
        """How a token is written, control tokens included; empty for an id that is none."""
        if not 0 <= token < self.size:
            return ""
        return bytes(lib.llama_vocab_get_text(self._vocab, token) or b"").decode("utf-8", "replace")

    def piece(self, token: int) -> bytes:
        """The bytes that a token adds to a text: part of a character perhaps, nothing for a control token."""
        if not 0 <= token < self.size:
            return b""
        size = _PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = int(lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, False))
            if length >= 0:
                return buffer.raw[:length]
            size = -length

    def marked_tokens(self, text: str) -> list[int]:
        """Tokens of a text with the marks that the model wants around it; nothing in the text is a control token."""
        return self._tokens(text, marks=True, parse_control=False)

    def tokens(self, text: str, *, parse_control: bool) -> list[int]:
        """Tokens of a text. Without `parse_control`, what looks like a control token is spelled out."""
        return self._tokens(text, marks=False, parse_control=parse_control) if text else []

    def _tokens(self, text: str, *, marks: bool, parse_control: bool) -> list[int]:
        first, *others = runs.parts(text, self._control if parse_control else None) if self._by_regex else (text,)
        tokens = self._read(first, marks=marks, parse_control=parse_control)
        if others:
            behind = self._marks_behind(first, tokens) if marks else []
            tokens = tokens[: len(tokens) - len(behind)]
            for part in others:
                tokens += self._read(part, marks=False, parse_control=parse_control)
            tokens += behind
        return tokens

    def _marks_behind(self, text: str, tokens: list[int]) -> list[int]:
        """The end of the text's marked `tokens` that is not of the text."""
        plain = self._read(text, marks=False, parse_control=False)
        before = next((start for start in range(3) if tokens[start : start + len(plain)] == plain), 0)
        return tokens[before + len(plain) :]

    def _read(self, text: str, *, marks: bool, parse_control: bool) -> list[int]:
        raw = text.encode()
        room = len(raw) + 16
        buffer = (lib.llama_token * room)()
        count = int(lib.llama_tokenize(self._vocab, raw, len(raw), buffer, room, marks, parse_control))
        if count < 0:
            buffer = (lib.llama_token * -count)()
            count = int(lib.llama_tokenize(self._vocab, raw, len(raw), buffer, -count, marks, parse_control))
        return list(buffer[: max(0, count)])

    @cached_property
    def longest_bytes(self) -> int:
        """Length of the longest token; found out when it is first asked for."""
        return max(map(len, map(lib.llama_vocab_get_text, repeat(self._vocab), range(self.size))), default=1) or 1

    def _survey(self) -> tuple[frozenset[int], frozenset[str], frozenset[int]]:
        """Ids and texts of all control tokens, and ids of those that end an answer."""
        # Without a line of Python per token: a load waits for this, and a vocabulary may have 262144 tokens. The
        # library's functions are taken afresh, since the binding's own convert their arguments for as long again.
        ids, vocab = range(self.size), repeat(ctypes.c_void_p(self._vocab))
        is_end, attributes = lib._lib["llama_vocab_is_eog"], lib._lib["llama_vocab_get_attr"]
        is_end.restype, attributes.restype = ctypes.c_bool, ctypes.c_int
        special = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN
        ends = frozenset(compress(ids, map(is_end, vocab, ids)))
        control = ends.union(compress(ids, map(special.__and__, map(attributes, vocab, ids))))
        return control, frozenset(map(self.text_of, control)) - {""}, ends
