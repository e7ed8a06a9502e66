"""Turns of a conversation with models of every kind of memory, such that rounding cannot change the answers."""

from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.llama import model as weights
from hypnos_engine.workers.llama.context import Context, ContextShape, Outcome
from hypnos_engine.workers.llama.prompt import Limits, PromptWriter
from hypnos_engine.workers.llama.vocabulary import Vocabulary
from tests.workers.driver import chat
from tests.workers.memory_kinds import KV_TYPE, WINDOWED

LONG = " ".join(f"Sentence {number} of the text is here." for number in range(36))
"""A thousand tokens: the cells of the sliding windows are used twice."""
SHORT = LONG[:400]
DRAWN, DRAWN_DECISIVELY = 24, 3
"""Tokens of an answer; fewer where each has to be beyond doubt."""
DECISIVE = 0.06
"""The two likeliest tokens are twice as far apart as rounding can move both (see `test_llama_memory_states`)."""
Texts = tuple[str, ...]


class Conversation:
    """Turns about a long text, the fifth with another one.

    Where rounding cannot be ruled out, the questions are such that it cannot change the answers.
    """

    def __init__(self, path: Path, *, careful: bool) -> None:
        model = weights.load(m.Load("tiny", str(path)), lambda _: True)
        self._context = Context(model, ContextShape(4096, 2, KV_TYPE, 1))
        self._writer = PromptWriter(Vocabulary(model.vocab), model.chat_template, Limits("tiny", model.context_train))
        self._careful = careful
        text = LONG if self._careful else SHORT
        first = self._decisive(lambda number: (f"{text} Part {number}?",))
        second = self._decisive(lambda number: (*first, "An answer.", f"And what else, {number}?"))
        edited = self._decisive(lambda number: (*first, "An answer.", f"Is it {number}?"))
        third = self._decisive(lambda number: (*edited, "Well.", f"{text} Say {number}."))
        back = self._decisive(lambda number: (*edited, "Well.", f"Or {number}?"))
        self.turns: tuple[Texts, ...] = (first, second, second, edited, third, back)
        self._context.free()
        model.free()

    def _decisive(self, write: Callable[[int], Texts]) -> Texts:
        if not self._careful:
            return write(0)
        one, other = (self._writer.tokens(chat(1, *write(number))) for number in (0, 1))
        shared = next(index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        self._context.clear()
        self._read(one[:shared], 0)
        beginning = self._context.save(0)
        assert beginning is not None
        for number in count():
            self._context.clear()
            assert self._context.restore(0, beginning, shared)
            if self._is_decisive(self._writer.tokens(chat(1, *write(number))), shared):
                return write(number)
        raise AssertionError

    def _is_decisive(self, tokens: list[int], position: int) -> bool:
        for _ in range(DRAWN_DECISIVELY):
            logits = self._read(tokens[position:], position)
            second, first = np.sort(logits)[-2:]
            if first - second < DECISIVE:
                return False
            position = len(tokens)
            tokens.append(int(logits.argmax()))
        return True

    def _read(self, tokens: list[int], position: int) -> NDArray[np.float32]:
        row = -1
        for start in range(0, len(tokens), 256):
            self._context.batch.clear()
            row = self._context.batch.add(0, tokens[start : start + 256], position + start, want_logits=True)
            assert self._context.decode() is Outcome.DONE
        return self._context.logits(row)


def drawn(kind: str) -> int:
    """Tokens of an answer that can be compared."""
    return DRAWN_DECISIVELY if kind in WINDOWED else DRAWN


@cache
def conversation(path: Path, kind: str, *, careful: bool = False) -> tuple[Texts, ...]:
    """The turns; an answer to any of them may be compared as far as `drawn` says, with `careful` three tokens of it."""
    return Conversation(path, careful=careful or kind in WINDOWED).turns
