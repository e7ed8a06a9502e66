"""Turns the texts of a request into tokens, on a thread of its own; what a client wrote is never a control token.

Decides which text is too long. Must never cut a text that the request did not allow to be cut.
"""

import queue
import time
import traceback
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypnos_engine.domain.embedding import MOST_TEXTS
from hypnos_engine.domain.errors import EngineFailed, HypnosError, InvalidRequest
from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.llama.runs import start_reading_thread
from hypnos_engine.workers.llama.vocabulary import Vocabulary

if TYPE_CHECKING:
    from hypnos_engine.workers.channel import Channel


@dataclass(slots=True)
class Text:
    """One text of a request; `done` of its tokens are computed."""

    index: int
    tokens: list[int]
    done: int = 0


@dataclass(eq=False, slots=True)
class EmbedJob:
    """A request inside the worker, from its arrival to its last message."""

    request: m.Embed
    arrived_s: float = field(default_factory=time.monotonic)
    started_s: float | None = None
    """When its first batch began; None before."""
    texts: deque[Text] = field(default_factory=deque)
    """Those whose vectors are still to come, in order."""
    prompt_tokens: tuple[int, ...] = ()
    truncated: tuple[int, ...] = ()
    cancelled: bool = False
    company: int = 1
    """Most requests that shared a batch with this one, itself included."""

    @property
    def id(self) -> int:
        return self.request.id

    def timing(self) -> m.EngineTiming:
        """What was measured, up to now."""
        now_s = time.monotonic()
        started_s = now_s if self.started_s is None else self.started_s
        spent_s = now_s - started_s
        return m.EngineTiming(
            queue_ms=(started_s - self.arrived_s) * 1e3,
            prefill_ms=spent_s * 1e3,
            prefill_tokens_per_s=sum(self.prompt_tokens) / spent_s if spent_s > 0 else None,
            concurrent_slots=self.company,
        )


@dataclass(frozen=True, slots=True)
class TextsRead:
    """A job whose texts are tokens now, or why they are not."""

    job: EmbedJob
    error: HypnosError | None = None


class TextReader:
    """Takes jobs in the order of their arrival and posts each as TextsRead to the channel's inbox."""

    def __init__(self, vocabulary: Vocabulary, window: int, channel: "Channel[TextsRead]") -> None:
        self._vocabulary = vocabulary
        self._window = window
        self._channel = channel
        self._jobs: queue.SimpleQueue[EmbedJob] = queue.SimpleQueue()
        start_reading_thread(self._work, "texts")

    def submit(self, job: EmbedJob) -> None:
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            error: HypnosError | None = None
            try:
                self._read(job)
            except HypnosError as refusal:
                error = refusal
            except Exception as failure:
                traceback.print_exc()
                error = EngineFailed(f"The texts could not be read: {type(failure).__name__}: {failure}")
            self._channel.inbox.put(TextsRead(job, error))

    def _read(self, job: EmbedJob) -> None:
        """Set the job's tokens. Raises InvalidRequest that names the text which cannot be used."""
        request = job.request
        if not 1 <= len(request.texts) <= MOST_TEXTS:
            raise InvalidRequest(f"A request has 1 to {MOST_TEXTS} texts, not {len(request.texts)}.")
        texts: list[Text] = []
        counts: list[int] = []
        truncated: list[int] = []
        for index, text in enumerate(request.texts):
            if job.cancelled:
                return
            tokens = self._vocabulary.marked_tokens(text)
            if not tokens:
                raise InvalidRequest(f"The text {index} (counted from 0) is empty: this model makes no token of it.")
            if len(tokens) > self._window:
                if not request.truncate:
                    raise _too_long(index, len(tokens), self._window)
                tokens = self._cut(text, tokens)
                truncated.append(index)
            texts.append(Text(index, tokens))
            counts.append(len(tokens))
        job.texts = deque(texts)
        job.prompt_tokens, job.truncated = tuple(counts), tuple(truncated)

    def _cut(self, text: str, tokens: list[int]) -> list[int]:
        """The beginning of a text that is too long, with the marks that the model wants behind every text."""
        plain = self._vocabulary.tokens(text, parse_control=False)
        before = next((start for start in range(3) if tokens[start : start + len(plain)] == plain), 0)
        marks = tokens[before + len(plain) :][: self._window - 1]
        return tokens[: self._window - len(marks)] + marks


def _too_long(index: int, tokens: int, window: int) -> InvalidRequest:
    return InvalidRequest(
        f"The text {index} (counted from 0) has {tokens} tokens and the model takes {window}: divide it, or allow it "
        "to be cut."
    )
