"""The worker's text is that of llama.cpp itself: a bare loop over its C interface, one sequence, the likeliest token.

The loop shares nothing with the worker but the way in which a prompt is cut into calls (see `workers.llama.steps`).
"""

import ctypes
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import llama_cpp.llama_cpp as lib
import pytest
from llama_cpp import _utils

from hypnos_engine.ipc import messages as m
from tests.workers.driver import Worker, chat

pytestmark = pytest.mark.starter

BLOCK = 64
CONTEXT = 4096
TOKENS = 12
SEEDED = m.Sampling(temperature=0.0, seed=1)
"""A seed asks for the arithmetic that does not depend on the company and on the speed of the machine."""

QUESTIONS = (
    "What is the capital of Italy?",
    "Write a list of five rivers. Number them.",
    "Explain tides to a child of six.",
    "Tell a story about a lighthouse and a whale.",
    "What does this print?\n\n```python\nprint([n * n for n in range(5)])\n```",
    "Write an SQL query that counts the rows of the table `trains`.",
    "Was ist der Unterschied zwischen Tee und Kaffee?",
    "Raconte une petite histoire à propos d'un pont, s'il te plaît.",
    "¿Qué sabes sobre las abejas?",
    "雪とは何ですか。",
    "Что такое компас? Ответь коротко.",
    "Emoji please: 🙂👩‍👩‍👧 and an explanation of both.",
    "  What about   blanks,\ttabs\n\n\nand lines?  ",
    'Say {"a": [1, 2, {"b": null}]} in words.',
    "Which is larger, 17 * 23 or 19 * 21? Show your work.",
    "Continue: one, two, three, four,",
)
LONG = " ".join(f"Rule {number}: rule {number - 1} holds on days that {number} divides." for number in range(1, 9))
CONVERSATIONS: tuple[tuple[str, ...], ...] = (
    *((question,) for question in QUESTIONS),
    (LONG,),
    ("Name a river.", "The Rhine.", "Name another one.", "The Nile.", "And a third one?"),
    ("Who are you?", "I am a helpful assistant.", f"Remember this. {LONG} What is rule 7?"),
    ("Hello!", "", "Did you say nothing?"),
)


class Library:
    """The bare loop."""

    def __init__(self, path: Path) -> None:
        self._silence = lib.llama_log_callback(lambda _level, _text, _user: None)
        lib.llama_log_set(self._silence, ctypes.c_void_p(0))
        lib.llama_backend_init()
        self._model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = CONTEXT, 1
        params.n_batch = params.n_ubatch = 512
        # One thread here and in the worker: several split the work, and they spin while other processes want the cores.
        params.n_threads = params.n_threads_batch = 1
        self._context = lib.llama_init_from_model(self._model, params)
        self._vocab = lib.llama_model_get_vocab(self._model)
        self._greedy = lib.llama_sampler_init_greedy()

    def free(self) -> None:
        lib.llama_sampler_free(self._greedy)
        lib.llama_free(self._context)
        lib.llama_model_free(self._model)

    def tokens(self, text: str) -> list[int]:
        raw = text.encode()
        room = len(raw) + 16
        buffer = (lib.llama_token * room)()
        return buffer[: lib.llama_tokenize(self._vocab, raw, len(raw), buffer, room, False, True)]

    def answer(self, prompt: Sequence[int], most: int) -> str:
        """The likeliest continuation, at most `most` tokens of it."""
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        whole = len(prompt) // BLOCK * BLOCK
        for begin in range(0, whole, BLOCK):
            self._decode(prompt[begin : begin + BLOCK])
        if prompt[whole:]:
            self._decode(prompt[whole:])
        answer = b""
        for _ in range(most):
            token = lib.llama_sampler_sample(self._greedy, self._context, -1)
            if lib.llama_vocab_is_eog(self._vocab, token):
                break
            answer += self._piece(token)
            self._decode([token])
        return answer.decode(errors="replace")

    def _decode(self, tokens: Sequence[int]) -> None:
        array = (lib.llama_token * len(tokens))(*tokens)
        assert lib.llama_decode(self._context, lib.llama_batch_get_one(array, len(tokens))) == 0

    def _piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(256)
        size = lib.llama_token_to_piece(self._vocab, token, buffer, 256, 0, False)
        return buffer.raw[:size]


@pytest.fixture(scope="module")
def library(starter: Path) -> Iterator[Library]:
    library = Library(starter)
    yield library
    library.free()
    _utils.outnull_file.close()  # the binding leaves them to the collector, which complains
    _utils.errnull_file.close()


def _written(turns: Sequence[str]) -> str:
    """The starter model's format, spelled out."""
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    roles = itertools.cycle(("user", "assistant"))
    spoken = (f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in zip(roles, turns, strict=False))
    return f"{system}{''.join(spoken)}<|im_start|>assistant\n"


def test_the_likeliest_text_is_the_librarys(starter: Path, library: Library) -> None:
    asked = [
        chat(number, *turns, max_tokens=TOKENS, scope=str(number), sampling=SEEDED)
        for number, turns in enumerate(CONVERSATIONS)
    ]
    with Worker("llama") as worker:
        worker.load(starter, threads=1)
        texts = [worker.ask(request).text for request in asked]
    assert texts == [library.answer(library.tokens(_written(turns)), TOKENS) for turns in CONVERSATIONS]


def test_cached_beginnings_and_a_rebuilt_cache_change_nothing(starter: Path, library: Library) -> None:
    """Second turns reuse the first ones' blocks; in the middle a request asks for a larger cache than there is."""
    with Worker("llama") as worker:
        worker.load(starter, context_len=2048, threads=1)
        texts, reused = [], []
        for number, turns in enumerate(CONVERSATIONS[-3:-1]):
            first = worker.ask(chat(number, *turns, max_tokens=8, scope="same", sampling=SEEDED))
            if number == 0:
                worker.start(chat(99, "Hi", max_tokens=2, num_ctx=CONTEXT, sampling=SEEDED))
                wanted = worker.next_of(m.ContextWanted)
                worker.send(m.ResizeContext(wanted.context_len))
                worker.until_over(99)
            second = worker.ask(
                chat(number, *turns, first.text, "Go on.", max_tokens=TOKENS, scope="same", sampling=SEEDED)
            )
            texts.append((first.text, second.text))
            reused.append(second.end.cached_tokens)
    for turns, (first_text, second_text) in zip(CONVERSATIONS[-3:-1], texts, strict=True):
        assert first_text == library.answer(library.tokens(_written(turns)), 8)
        again = _written((*turns, first_text, "Go on."))
        assert second_text == library.answer(library.tokens(again), TOKENS)
    assert max(reused) >= BLOCK
