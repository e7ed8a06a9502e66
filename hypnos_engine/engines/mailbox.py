"""One generation between the engine that produces it and the consumer that reads it at its own pace.

Holds the order Accepted, Delta*, Finished to be kept and joins text that waits, so that neither a slow reader nor a
worker that says too much costs more memory than the request is worth. Knows no channel and no process.
"""

import asyncio
import collections

import msgspec

from hypnos_engine.domain.errors import HypnosError, error_from_code
from hypnos_engine.engines.base import GenerationEvent
from hypnos_engine.ipc import messages as m

_CHARACTERS_PER_TOKEN = 512
"""Longer than any token of the vocabularies in use."""
_CHARACTERS_AT_LEAST = 64 * 1024


class OutOfOrder(Exception):
    """An engine said something that the protocol does not allow at this point of a generation."""


class Mailbox:
    """Events of one request. Written and read on one loop, by one reader."""

    def __init__(self, request: m.Generate) -> None:
        self.id = request.id
        """The caller's number, which every event carries."""
        self._waiting: collections.deque[m.Accepted | m.Finished | _Text] = collections.deque()
        self._characters_left = _CHARACTERS_AT_LEAST + _CHARACTERS_PER_TOKEN * max(0, request.max_tokens)
        self._accepted = False
        self._finished = False
        self._error: HypnosError | None = None
        self._news = asyncio.Event()

    @property
    def complete(self) -> bool:
        """True once nothing can be added: it finished or failed."""
        return self._finished or self._error is not None

    def accept(self, prompt_tokens: int, cached_tokens: int) -> None:
        """The first event. Raises OutOfOrder when it is not; ignored, as all below, once complete."""
        if self.complete:
            return
        if self._accepted:
            raise OutOfOrder("accepted a request twice")
        self._accepted = True
        self._put(m.Accepted(self.id, prompt_tokens, cached_tokens))

    def add(self, text: str, *, reasoning: bool = False) -> None:
        """Append text. Raises OutOfOrder before `accept` and for more text than the request's tokens can be."""
        if self.complete:
            return
        if not self._accepted:
            raise OutOfOrder("sent text for a request that it had not accepted")
        self._characters_left -= len(text)
        if self._characters_left < 0:
            raise OutOfOrder("sent more text than the request asked for")
        if not text:
            return
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, _Text) and last.reasoning == reasoning:
            last.pieces.append(text)
        else:
            self._put(_Text(text, reasoning))

    def finish(self, finished: m.Finished) -> None:
        """The last event. Raises OutOfOrder before `accept`."""
        if self.complete:
            return
        if not self._accepted:
            raise OutOfOrder("finished a request that it had not accepted")
        self._finished = True
        self._put(msgspec.structs.replace(finished, id=self.id))

    def fail(self, error: HypnosError) -> None:
        """End with an error, which the reader gets after the text that came before it."""
        if not self.complete:
            # Each reader raises an instance of its own: one shared among tasks would collect all their tracebacks.
            self._error = error_from_code(error.code, error.message)
            self._news.set()

    async def take(self) -> GenerationEvent:
        """Wait for the next event; text that waited comes joined. Raises the error once everything else was taken."""
        while not self._waiting:
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()
        event = self._waiting.popleft()
        if isinstance(event, _Text):
            return m.Delta(self.id, "".join(event.pieces), event.reasoning)
        return event

    def _put(self, event: "m.Accepted | m.Finished | _Text") -> None:
        self._waiting.append(event)
        self._news.set()


class _Text:
    __slots__ = ("pieces", "reasoning")

    def __init__(self, text: str, reasoning: bool) -> None:
        self.pieces = [text]
        self.reasoning = reasoning
