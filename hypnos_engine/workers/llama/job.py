"""One request inside the worker, from its arrival to its last message; knows nothing of the context."""

from dataclasses import dataclass, field
from enum import Enum, auto

import msgspec

from hypnos_engine.domain.errors import InvalidRequest
from hypnos_engine.domain.kinds import FinishReason
from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.llama import sampler
from hypnos_engine.workers.llama.gain import Draft
from hypnos_engine.workers.llama.output import Output
from hypnos_engine.workers.stopwatch import Stopwatch

LEAST_WINDOW = 2048
"""Cells that a request without `num_ctx` may count on (contract §7.1)."""


class Wish(Enum):
    """How far a request that is larger than the whole cache has come."""

    NONE = auto()
    ASKED = auto()
    """The supervisor was asked for a larger cache and has not answered."""
    DENIED = auto()
    """The cache at hand is all there is for this request."""


@dataclass(eq=False, slots=True)
class Job:
    """A request. `prompt` is empty until the prompt is written."""

    request: m.Generate
    watch: Stopwatch = field(default_factory=Stopwatch)
    prompt: list[int] = field(default_factory=list)
    window: int = 0
    """Prompt and answer together end here."""
    wish: Wish = Wish.NONE
    asked_s: float = 0.0
    cancelled: bool = False
    cached: int = 0
    """Prompt tokens whose state was there already."""
    drawn: int = 0
    output: Output | None = None
    chain: sampler.Chain | None = None
    draft: Draft | None = None
    """Guesses of what is drawn next; None where none are made."""

    @property
    def id(self) -> int:
        return self.request.id

    @property
    def cells(self) -> int:
        """Cells that the request may come to hold."""
        return min(self.window, len(self.prompt) + self.request.max_tokens)

    @property
    def wanted(self) -> int:
        """Cells that the cache should have for this request: an explicit window counts in full (contract §7.1)."""
        asked = self.request.num_ctx
        return max(self.cells, self.window) if asked is not None and asked >= self.window else self.cells

    @property
    def reproducible(self) -> bool:
        """True when the same request has to give the same text (contract §7.1): it costs reuse of the last answer.

        A temperature of 0 alone does not ask for it: agents send it on every turn and wait for each.
        """
        return self.request.sampling.seed is not None

    def set_prompt(self, tokens: list[int], context_train: int) -> None:
        """Take the written prompt. Raises InvalidRequest when no window of this model holds it."""
        if context_train and len(tokens) >= context_train:
            raise too_long(len(tokens), context_train)
        asked = self.request.num_ctx
        if asked is None or asked <= len(tokens):
            asked = max(LEAST_WINDOW, len(tokens) + self.request.max_tokens)
        self.prompt = tokens
        self.window = min(asked, context_train) if context_train else asked

    def limit_window(self, cells: int) -> None:
        """Make do with `cells`. Raises InvalidRequest when the prompt alone does not fit."""
        if len(self.prompt) >= cells:
            raise too_long(len(self.prompt), cells)
        self.window = min(self.window, cells)

    def finish_reason(self) -> FinishReason | None:
        """Why the answer ends after the token drawn last; None when it goes on."""
        assert self.output is not None
        if self.output.stopped:
            return FinishReason.STOP
        if self.drawn >= self.request.max_tokens or len(self.prompt) + self.drawn >= self.window:
            return FinishReason.LENGTH
        return None

    def finished(self, reason: FinishReason) -> m.Finished:
        """The last message of an answer."""
        prompt = len(self.prompt)
        timing = self.watch.timing(prompt, self.cached, self.drawn)
        if self.draft is not None:
            guessed, came_true = self.draft.tokens, self.draft.came_true
            timing = msgspec.structs.replace(timing, drafted_tokens=guessed, accepted_tokens=came_true)
        return m.Finished(self.id, reason, prompt, self.drawn, self.cached, timing)

    def free(self) -> None:
        """Give native memory back; harmless when done before."""
        chain, self.chain = self.chain, None
        if chain is not None:
            chain.free()


def too_long(prompt_tokens: int, window: int) -> InvalidRequest:
    """The error for a prompt that no window holds; nothing is ever cut silently."""
    return InvalidRequest(
        f"The prompt has {prompt_tokens} tokens and the model's context window is {window}: shorten the conversation."
    )
