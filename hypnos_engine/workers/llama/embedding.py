"""The main loop of a worker that makes vectors: messages in, one batch of texts of all requests, vectors out.

All calls into the context are made on this thread. Requests take turns, text by text; a request's failure never ends
another one.
"""

import queue
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hypnos_engine.domain import embedding
from hypnos_engine.domain.errors import Cancelled, EngineFailed, HypnosError, InvalidRequest
from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.channel import Channel
from hypnos_engine.workers.llama.embedding_context import EmbeddingContext, Piece, Vector
from hypnos_engine.workers.llama.embedding_texts import EmbedJob, Text, TextReader, TextsRead
from hypnos_engine.workers.llama.report import MemoryMeter
from hypnos_engine.workers.llama.steps import STEP_ALONE_S, Pace

_FAILURES_IN_A_ROW = 3
"""Texts that may fail one after the other, each in a batch of its own, before the process is given up."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a batch computes of one text."""

    job: EmbedJob
    text: Text
    sequence: int
    tokens: int

    @property
    def last(self) -> bool:
        """True when the text has its vector afterwards."""
        return self.text.done + self.tokens == len(self.text.tokens)

    @property
    def piece(self) -> Piece:
        start = self.text.done
        return Piece(self.sequence, self.text.tokens[start : start + self.tokens], start)


class EmbeddingEngine:
    """Serves a loaded model until Shutdown."""

    def __init__(
        self,
        channel: Channel[TextsRead],
        context: EmbeddingContext,
        reader: TextReader,
        meter: MemoryMeter,
        pace: Pace,
    ) -> None:
        self._channel = channel
        self._context = context
        self._reader = reader
        self._meter = meter
        self._pace = pace
        self._jobs: dict[int, EmbedJob] = {}
        """Unfinished requests by number."""
        self._ready: list[EmbedJob] = []
        """Those whose texts are tokens, in the order of their arrival."""
        self._long: Share | None = None
        """The text that is computed in parts, as of its last part; it keeps its sequence and its cells."""
        self._turn = 0
        self._failures = 0
        self._ending = False

    def run(self) -> int:
        """Serve; return the exit status of the process."""
        while not self._ending:
            self._receive()
            if not self._ready or self._ending:
                continue
            shares = self._plan()
            try:
                self._step(shares)
            except Exception as error:
                traceback.print_exc()
                self._failures += 1
                self._start_over()
                reason = EngineFailed(f"The embedding engine failed: {error!r}")
                self._fail_all(reason, [share.job for share in shares])
            if self._failures >= _FAILURES_IN_A_ROW:
                self._fail_all(EngineFailed("The embedding engine failed repeatedly and starts anew."))
                return 1
        return 0

    # --- messages ---------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Take every message that is there; wait for one when there is nothing to compute."""
        if self._ready:
            self._channel.beat()
        else:
            self._handle(self._channel.next_message(busy=bool(self._jobs)))
        while not self._ending:
            try:
                message = self._channel.inbox.get_nowait()
            except queue.Empty:
                return
            self._handle(message)

    def _handle(self, message: m.ToWorker | TextsRead) -> None:
        match message:
            case m.Embed():
                job = self._jobs[message.id] = EmbedJob(message)
                self._reader.submit(job)
            case TextsRead():
                self._take_texts(message)
            case m.Cancel():
                if (job_or_none := self._jobs.get(message.id)) is not None:
                    self._fail(job_or_none, Cancelled("The request was cancelled."))
            case m.Generate():
                refusal = InvalidRequest("This model makes vectors of texts: use another one.")
                self._channel.send(m.Failed(message.id, refusal.code, refusal.message))
            case m.ResizeContext():
                # The longest text was settled when the model was loaded.
                report = self._meter.report(self._context.buffers)
                self._channel.send(m.ContextResized(self._context.window, 0.0, report))
            case m.SetThreads():
                self._context.set_threads(message.threads)
            case m.Ping():
                self._channel.send(m.Pong(message.nonce))
            case m.Shutdown():
                self._fail_all(Cancelled("The model is being unloaded."))
                self._ending = True
            case m.Load():
                sys.stderr.write("a second load is ignored\n")
            case _:
                pass

    def _take_texts(self, read: TextsRead) -> None:
        job = read.job
        if job.cancelled:
            return
        if read.error is not None:
            self._fail(job, read.error)
            return
        self._ready.append(job)

    # --- ends of requests -------------------------------------------------------------------------------------------

    def _fail(self, job: EmbedJob, error: HypnosError) -> None:
        self._forget(job)
        self._channel.send(m.Failed(job.id, error.code, error.message))

    def _fail_all(self, error: HypnosError, jobs: list[EmbedJob] | None = None) -> None:
        for job in list(self._jobs.values() if jobs is None else jobs):
            if not job.cancelled:
                self._fail(job, error)

    def _forget(self, job: EmbedJob) -> None:
        """Take a request out of wherever it is."""
        job.cancelled = True
        self._jobs.pop(job.id, None)
        if job in self._ready:
            self._ready.remove(job)
        if self._long is not None and self._long.job is job:
            self._context.forget(self._long.sequence)
            self._long = None

    # --- batches ----------------------------------------------------------------------------------------------------

    def _plan(self) -> list[Share]:
        """Return what the next batch computes; at least one token while any request is ready.

        1. A long text that is under way takes every second batch, or each when nobody else can use it.
        2. Requests take turns, one text each, until the tokens, the sequences or the cells are used up; those that
           were left out begin the next one. A text that does not fit any more waits, and with it those behind it in its
           request.
        3. A text that needs more than a batch is begun alone, and one such at a time.
        """
        self._turn += 1
        if self._long is not None and (self._turn % 2 or len(self._ready) == 1):  # 1
            return [self._next_part(self._long)]
        shares = list(self._take_turns())
        if not shares:
            assert self._long is not None
            return [self._next_part(self._long)]
        served = {share.job.id for share in shares}
        self._ready.sort(key=lambda job: job.id in served)  # whoever got nothing begins the next batch
        return shares

    def _take_turns(self) -> Iterator[Share]:
        context, long = self._context, self._long
        ring = [job for job in self._ready if long is None or job is not long.job]
        upcoming = {job.id: iter(job.texts) for job in ring}
        room = min(context.most_tokens, embedding.TOKENS_AT_ONCE, self._pace.tokens_in(STEP_ALONE_S))
        cells = context.cells - (len(long.text.tokens) if long is not None else 0)
        taken = {long.sequence} if long is not None else set[int]()
        free = (number for number in range(embedding.TEXTS_AT_ONCE) if number not in taken)
        begun = False
        while ring:
            job = ring.pop(0)
            text = next(upcoming[job.id], None)
            if text is None:
                continue
            size = len(text.tokens)
            fits = size <= room or (not begun and size <= context.most_tokens)
            if fits and (not context.remembers or size <= cells):  # 2
                if (sequence := next(free, None)) is None:
                    return
                begun = True
                room, cells = room - size, cells - size
                ring.append(job)
                yield Share(job, text, sequence, size)
            elif size > context.most_tokens and not begun and long is None:  # 3
                yield self._next_part(Share(job, text, next(free), 0))
                return

    def _next_part(self, of: Share) -> Share:
        """The next tokens of a long text: as many each time, so that its vector does not depend on the machine."""
        left = len(of.text.tokens) - of.text.done
        return Share(of.job, of.text, of.sequence, min(self._context.most_tokens, left))

    def _step(self, shares: list[Share]) -> None:
        started_s = time.monotonic()
        company = len({share.job.id for share in shares})
        for share in shares:
            job = share.job
            job.started_s = started_s if job.started_s is None else job.started_s
            job.company = max(job.company, company)
        if not self._context.compute([share.piece for share in shares]):
            self._divide(shares)
            return
        vectors = [(share, self._context.vector(share.sequence)) for share in shares if share.last]
        self._pace.learn(sum(share.tokens for share in shares), time.monotonic() - started_s)
        self._failures = 0
        for share in shares:
            if share.last:
                self._context.forget(share.sequence)
                self._long = None if self._long is not None and self._long.text is share.text else self._long
            else:
                share.text.done += share.tokens
                self._long = share
        self._deliver(vectors)

    def _divide(self, shares: list[Share]) -> None:
        """A batch could not be computed: each of its texts is tried alone, and the one that fails alone fails."""
        self._start_over()
        if len(shares) > 1:
            for share in shares:
                if not share.job.cancelled:
                    self._step([share])
            return
        self._failures += 1
        index = shares[0].text.index
        reason = f"The text {index} (counted from 0) cannot be computed; the device may be out of memory."
        self._fail(shares[0].job, EngineFailed(reason))

    def _start_over(self) -> None:
        """Nothing in the cache is to be trusted: what was computed of a long text is computed again."""
        self._context.clear()
        if self._long is not None:
            self._long.text.done = 0
            self._long = None

    def _deliver(self, vectors: list[tuple[Share, Vector]]) -> None:
        """Send the vectors of each request in one message, and its end when all are there."""
        by_job: dict[int, list[tuple[Share, Vector]]] = {}
        for share, vector in vectors:
            by_job.setdefault(share.job.id, []).append((share, vector))
        for pairs in by_job.values():
            job = pairs[0][0].job
            bad = next((share for share, vector in pairs if not np.isfinite(vector).all()), None)
            if bad is not None:
                self._fail(job, EngineFailed(f"What the model computed of the text {bad.text.index} are no numbers."))
                continue
            block = np.stack([vector for _, vector in pairs])
            packed = (normalised(block) if job.request.normalise else block).astype("<f4").tobytes()
            ending: list[m.Message] = []
            for _ in pairs:
                job.texts.popleft()
            if not job.texts:
                self._forget(job)
                ending = [m.Embedded(job.id, job.prompt_tokens, job.timing(), job.truncated)]
            first = pairs[0][0].text.index
            self._channel.send(m.Vectors(job.id, first, self._context.dimensions, packed), *ending)


def normalised(rows: Vector) -> Vector:
    """Each row scaled to the length 1; one of zeros stays."""
    wide = rows.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=-1, keepdims=True)
    scaled: Vector = (wide / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
    return scaled
