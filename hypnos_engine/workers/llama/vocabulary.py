"""Text to tokens and back for one model. Thread-safe; must never pass the library a token id outside its vocabulary."""

import ctypes

import llama_cpp.llama_cpp as lib

from hypnos_engine.workers.llama import native

_PIECE_BYTES = 256


class Vocabulary:
    """The tokens of a model, read once."""

    def __init__(self, vocab: native.Pointer) -> None:
        self._vocab = vocab
        self.size = int(lib.llama_vocab_n_tokens(vocab))
        self.control_texts, self.ends, self.longest_bytes = self._survey()
        self.bos = int(lib.llama_vocab_bos(vocab))
        self.eos = int(lib.llama_vocab_eos(vocab))
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

    def tokens(self, text: str, *, parse_control: bool) -> list[int]:
        """Tokens of a text. Without `parse_control`, what looks like a control token is spelled out."""
        raw = text.encode()
        if not raw:
            return []
        room = len(raw) + 16
        buffer = (lib.llama_token * room)()
        count = int(lib.llama_tokenize(self._vocab, raw, len(raw), buffer, room, False, parse_control))
        if count < 0:
            buffer = (lib.llama_token * -count)()
            count = int(lib.llama_tokenize(self._vocab, raw, len(raw), buffer, -count, False, parse_control))
        return list(buffer[: max(0, count)])

    def _survey(self) -> tuple[frozenset[str], frozenset[int], int]:
        """Texts of all control tokens, ids of the tokens that end an answer, and the longest token in bytes."""
        special = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN
        texts: set[str] = set()
        ends: set[int] = set()
        longest = 1
        for token in range(self.size):
            is_end = lib.llama_vocab_is_eog(self._vocab, token)
            raw = lib.llama_vocab_get_text(self._vocab, token) or b""
            longest = max(longest, len(raw))
            if is_end:
                ends.add(token)
            if is_end or lib.llama_vocab_get_attr(self._vocab, token) & special:
                texts.add(raw.decode("utf-8", "replace"))
        texts.discard("")
        return frozenset(texts), frozenset(ends), longest
