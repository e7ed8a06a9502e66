"""Vectors of one request between the engine that makes them and the caller that waits for all of them.

Holds their order and number to be kept, so that a worker which says too much costs no more memory than the request is
worth. Knows no channel and no process.
"""

import asyncio

from hypnos_engine.domain.embedding import FLOAT_BYTES, MOST_DIMENSIONS
from hypnos_engine.domain.errors import HypnosError, error_from_code
from hypnos_engine.engines.base import Embeddings
from hypnos_engine.engines.mailbox import OutOfOrder
from hypnos_engine.ipc import messages as m


class VectorBox:
    """Collects the answer to one Embed. Written and read on one loop, by one reader."""

    def __init__(self, request: m.Embed) -> None:
        self.id = request.id
        """The caller's number."""
        self._texts = len(request.texts)
        self._blocks: list[bytes] = []
        self._made = 0
        self._dimensions = 0
        self._end: m.Embedded | None = None
        self._error: HypnosError | None = None
        self._over = asyncio.Event()

    @property
    def complete(self) -> bool:
        """True once nothing can be added: all vectors are there, or it failed."""
        return self._over.is_set()

    def put(self, vectors: m.Vectors) -> None:
        """Take the next vectors. Raises OutOfOrder for others than these; ignored, as all below, once complete."""
        if self.complete:
            return
        if not 1 <= vectors.dimensions <= MOST_DIMENSIONS or self._dimensions not in (0, vectors.dimensions):
            raise OutOfOrder("sent vectors of an impossible length")
        count, rest = divmod(len(vectors.packed), vectors.dimensions * FLOAT_BYTES)
        if rest or not count or vectors.first != self._made or self._made + count > self._texts:
            raise OutOfOrder("sent other vectors than the next ones")
        self._dimensions = vectors.dimensions
        self._blocks.append(vectors.packed)
        self._made += count

    def finish(self, end: m.Embedded) -> None:
        """The last message. Raises OutOfOrder when vectors or numbers of tokens are missing."""
        if self.complete:
            return
        if self._made != self._texts or len(end.prompt_tokens) != self._texts:
            raise OutOfOrder("ended a request whose vectors it had not sent")
        if any(not 0 <= index < self._texts for index in end.truncated):
            raise OutOfOrder("cut a text that there is not")
        self._end = end
        self._over.set()

    def fail(self, error: HypnosError) -> None:
        """End with an error."""
        if not self.complete:
            # Each reader raises an instance of its own: one shared among tasks would collect all their tracebacks.
            self._error = error_from_code(error.code, error.message)
            self._over.set()

    async def take(self) -> Embeddings:
        """Wait for all vectors. Raises the error that ended the request."""
        await self._over.wait()
        if self._error is not None:
            raise self._error
        assert self._end is not None
        return Embeddings(
            dimensions=self._dimensions,
            packed=b"".join(self._blocks),
            prompt_tokens=self._end.prompt_tokens,
            truncated=self._end.truncated,
            timing=self._end.timing,
        )
