"""The vectors of the demonstration engine: texts that share words point the same way, and that is all they mean.

Keeps all the promises of a real worker (turns, order, limits, cancellation, timings); must not import a library.
"""

import hashlib
import math
import time
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypnos_engine.domain.embedding import MOST_TEXTS, TEXTS_AT_ONCE
from hypnos_engine.domain.errors import Cancelled, HypnosError, InvalidRequest
from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.channel import Channel

DIMENSIONS = 768
_MARKS = 2
"""Tokens beside the words of a text, as encoders have them."""


@dataclass(eq=False, slots=True)
class _Job:
    request: m.Embed
    texts: deque[tuple[int, list[str]]]
    """Those without a vector, each with its place in the request."""
    prompt_tokens: tuple[int, ...]
    truncated: tuple[int, ...]
    arrived_s: float = field(default_factory=time.monotonic)
    started_s: float | None = None
    company: int = 1


class FakeEmbedder:
    """Makes vectors of texts of up to `window` tokens."""

    def __init__(self, channel: Channel[m.ToWorker], window: int) -> None:
        self._channel = channel
        self._window = window
        self._jobs: list[_Job] = []

    @property
    def busy(self) -> bool:
        """True while a request is unfinished."""
        return bool(self._jobs)

    def enqueue(self, request: m.Embed) -> None:
        """Take a request, or refuse it at once."""
        try:
            self._jobs.append(self._read(request))
        except InvalidRequest as error:
            self._channel.send(m.Failed(request.id, error.code, error.message))

    def cancel(self, number: int) -> None:
        """Fail a request that is unfinished; others are unknown here."""
        for job in [job for job in self._jobs if job.request.id == number]:
            self._fail(job, Cancelled("The request was cancelled."))

    def fail_all(self, error: HypnosError) -> None:
        for job in list(self._jobs):
            self._fail(job, error)

    def step(self) -> None:
        """Make the vectors of one batch; requests take turns, text by text."""
        shares: dict[int, list[tuple[int, list[str]]]] = {}
        now_s, company = time.monotonic(), len(self._jobs)
        for job in self._turns():
            job.started_s = now_s if job.started_s is None else job.started_s
            job.company = max(job.company, company)
            shares.setdefault(job.request.id, []).append(job.texts.popleft())
        for job in [job for job in self._jobs if job.request.id in shares]:
            self._deliver(job, shares[job.request.id])
        self._jobs.sort(key=lambda job: job.request.id in shares)  # whoever got nothing begins the next batch

    def _turns(self) -> Iterator[_Job]:
        ring, left = deque(self._jobs), TEXTS_AT_ONCE
        while ring and left:
            job = ring.popleft()
            if job.texts:
                left -= 1
                ring.append(job)
                yield job

    def _deliver(self, job: _Job, texts: list[tuple[int, list[str]]]) -> None:
        rows = array("f")
        for _, words in texts:
            rows.extend(vector(words, normalise=job.request.normalise))
        end: list[m.Message] = []
        if not job.texts:
            self._jobs.remove(job)
            end = [m.Embedded(job.request.id, job.prompt_tokens, _timing(job), job.truncated)]
        self._channel.send(m.Vectors(job.request.id, texts[0][0], DIMENSIONS, rows.tobytes()), *end)

    def _read(self, request: m.Embed) -> _Job:
        if not 1 <= len(request.texts) <= MOST_TEXTS:
            raise InvalidRequest(f"A request has 1 to {MOST_TEXTS} texts, not {len(request.texts)}.")
        room = max(self._window - _MARKS, 0)
        read = [text.split() for text in request.texts]
        long = tuple(index for index, words in enumerate(read) if len(words) > room)
        if long and not request.truncate:
            raise InvalidRequest(
                f"The text {long[0]} (counted from 0) has {len(read[long[0]]) + _MARKS} tokens and the model takes "
                f"{self._window}: divide it, or allow it to be cut."
            )
        kept = [words[:room] for words in read]
        return _Job(request, deque(enumerate(kept)), tuple(len(words) + _MARKS for words in kept), long)

    def _fail(self, job: _Job, error: HypnosError) -> None:
        self._jobs.remove(job)
        self._channel.send(m.Failed(job.request.id, error.code, error.message))


def vector(words: list[str], *, normalise: bool) -> list[float]:
    """Count each word in a place of its own, chosen by its hash."""
    values = [0.0] * DIMENSIONS
    values[0] = 1.0  # a text without words has a direction too
    for word in words:
        digest = hashlib.sha256(word.lower().encode()).digest()
        values[int.from_bytes(digest[:4], "little") % DIMENSIONS] += 1.0 if digest[4] % 2 else -1.0
    length = math.sqrt(sum(value * value for value in values)) if normalise else 1.0
    return [value / (length or 1.0) for value in values]


def _timing(job: _Job) -> m.EngineTiming:
    now_s = time.monotonic()
    started_s = now_s if job.started_s is None else job.started_s
    spent_s = now_s - started_s
    return m.EngineTiming(
        queue_ms=(started_s - job.arrived_s) * 1e3,
        prefill_ms=spent_s * 1e3,
        prefill_tokens_per_s=sum(job.prompt_tokens) / spent_s if spent_s > 0 else None,
        concurrent_slots=job.company,
    )
