"""The main loop of the text worker: messages in, one decode step for all requests, messages out.

All calls into the context are made on this thread. A request's failure never ends another one.
"""

import queue
import sys
import time
import traceback
from collections import deque
from dataclasses import replace

from hypnos_engine.domain.errors import Cancelled, EngineFailed, HypnosError, InvalidRequest, LoadFailed
from hypnos_engine.domain.kinds import FinishReason
from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.channel import Channel
from hypnos_engine.workers.llama import sampler, steps
from hypnos_engine.workers.llama.context import Context, NoNumbers, Outcome
from hypnos_engine.workers.llama.drafter import Drafter, check
from hypnos_engine.workers.llama.job import Job, Wish
from hypnos_engine.workers.llama.output import Output
from hypnos_engine.workers.llama.parking import Parking
from hypnos_engine.workers.llama.preparing import Preparation, Prepared
from hypnos_engine.workers.llama.report import MemoryMeter
from hypnos_engine.workers.llama.slots import Slot, SlotTable
from hypnos_engine.workers.llama.vocabulary import Vocabulary

_FAILURES_IN_A_ROW = 3
"""Steps that may fail one after the other before the process is given up."""


class _Lost(Exception):
    """There is no context any more and no way to make one, or no weights to be trusted."""


class TextEngine:
    """Serves a loaded model until Shutdown."""

    def __init__(
        self,
        channel: Channel[Prepared],
        table: SlotTable,
        vocabulary: Vocabulary,
        preparation: Preparation,
        meter: MemoryMeter,
        pace: steps.Pace,
        parking: Parking,
        drafter: Drafter | None = None,
    ) -> None:
        self._channel = channel
        self._table = table
        self._vocabulary = vocabulary
        self._preparation = preparation
        self._meter = meter
        self._pace = pace
        self._parking = parking
        self._drafter = drafter
        self._jobs: dict[int, Job] = {}
        """Unfinished requests by number."""
        self._waiting: deque[Job] = deque()
        """Prompts that are written and have no slot, oldest first."""
        self._asking = False
        """True while the supervisor owes an answer to ContextWanted."""
        self._ending = False
        self._turn = 0
        self._failures = 0
        self._spoils = 0
        """Answers in a row that ended because the model computed no numbers."""
        self._deltas: list[m.Delta] = []
        self._ends: list[m.Finished | m.Failed] = []

    @property
    def _context(self) -> Context:
        return self._table.context

    def run(self) -> int:
        """Serve; return the exit status of the process."""
        while not self._ending:
            try:
                self._table.clear_idle()
                self._admit()  # before waiting: a step may have made room for what waits
                self._receive()
                self._admit()
                if self._table.active:
                    self._step()
            except _Lost:
                traceback.print_exc()
                return 1
            except Exception as error:
                self._recover(error)
                if self._failures >= _FAILURES_IN_A_ROW:
                    return 1
        return 0

    # --- messages ---------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Take every message that is there; wait for one when nothing runs."""
        if not self._table.active:
            message = self._wait()
            if message is None:
                return
            self._handle(message)
        while not self._ending:
            try:
                message = self._channel.inbox.get_nowait()
            except queue.Empty:
                return
            self._handle(message)

    def _wait(self) -> m.ToWorker | Prepared | None:
        """The next message; None when a conversation has been idle for too long before one came."""
        due_s = self._table.next_idle_s()
        if due_s is None or self._jobs:
            return self._channel.next_message(busy=bool(self._jobs))
        try:
            return self._channel.inbox.get(timeout=max(0.0, due_s - time.monotonic()))
        except queue.Empty:
            return None

    def _handle(self, message: m.ToWorker | Prepared) -> None:
        match message:
            case m.Generate():
                self._enqueue(message)
            case m.Embed():
                refusal = InvalidRequest("This model answers conversations and makes no vectors: use another one.")
                self._channel.send(m.Failed(message.id, refusal.code, refusal.message))
            case Prepared():
                self._take_prompt(message)
            case m.Cancel():
                self._cancel(message.id)
            case m.ResizeContext():
                self._resize(message.context_len)
            case m.DenyContext():
                self._answered()
            case m.SetThreads():
                self._context.set_threads(message.threads)
                if self._drafter is not None:
                    self._drafter.set_threads(message.threads)
            case m.ParkKv():
                self._table.clear_idle()
                self._channel.send(self._parking.park(message, self._table))
            case m.RestoreKv():
                self._channel.send(self._parking.restore(message, self._table))
            case m.Ping():
                self._channel.send(m.Pong(message.nonce))
            case m.Shutdown():
                self._fail_all(Cancelled("The model is being unloaded."))
                self._ending = True
            case m.Load():
                sys.stderr.write("a second load is ignored\n")

    def _enqueue(self, request: m.Generate) -> None:
        job = Job(request)
        self._jobs[job.id] = job
        try:
            sampler.check(request.sampling)
            if request.max_tokens < 1:
                raise InvalidRequest("'max_tokens' must be at least 1.")
        except InvalidRequest as error:
            self._fail(job, error)
            return
        self._preparation.submit(job)

    def _take_prompt(self, prepared: Prepared) -> None:
        job = prepared.job
        if job.cancelled:
            return
        try:
            if prepared.error is not None:
                raise prepared.error
            job.set_prompt(prepared.tokens, self._context.model.context_train)
        except HypnosError as error:
            self._fail(job, error)
            return
        self._waiting.append(job)

    def _cancel(self, number: int) -> None:
        job = self._jobs.get(number)
        if job is not None:
            self._fail(job, Cancelled("The request was cancelled."))

    # --- ends of requests -------------------------------------------------------------------------------------------

    def _fail(self, job: Job, error: HypnosError) -> None:
        self._flush()
        self._forget(job)
        self._channel.send(m.Failed(job.id, error.code, error.message))

    def _fail_all(self, error: HypnosError) -> None:
        for job in list(self._jobs.values()):
            self._fail(job, error)

    def _forget(self, job: Job) -> None:
        """Take a request out of wherever it is."""
        job.cancelled = True
        self._jobs.pop(job.id, None)
        if job in self._waiting:
            self._waiting.remove(job)
        for slot in self._table.active:
            if slot.job is job:
                self._table.release(slot)
        job.free()

    def _recover(self, error: Exception) -> None:
        """A step went wrong in a way that nobody foresaw: what runs fails, what waits goes on with an empty cache."""
        traceback.print_exc()
        self._failures += 1
        self._flush()
        reason = error if isinstance(error, EngineFailed) else EngineFailed(f"The text engine failed: {error!r}")
        for slot in self._table.active:
            if slot.job is not None:
                self._fail(slot.job, reason)
        self._table.forget_all()
        if self._failures >= _FAILURES_IN_A_ROW:
            self._fail_all(reason)

    # --- admission --------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Give slots to waiting requests in their order, until one has to wait."""
        while self._waiting:
            job = self._waiting[0]
            try:
                if not self._fits_cache(job):
                    return
                slot = self._table.grant(job)
                if slot is None:
                    return
                self._waiting.popleft()
                job.chain = sampler.Chain(job.request.sampling)
                job.output = Output(self._vocabulary, job.request.stop)
                job.draft = self._drafter.begin(job) if self._drafter is not None else None
            except HypnosError as error:
                self._fail(job, error)
                continue
            job.watch.grant()
            self._channel.send(m.Accepted(job.id, len(job.prompt), job.cached))

    def _fits_cache(self, job: Job) -> bool:
        """True when the cache can hold the request. Raises InvalidRequest when it never will.

        1 it fits; 2 a larger cache was denied: the request makes do with this one; 3 it is asked for once.
        """
        if job.wanted <= self._context.cells:
            return True
        if job.wish is Wish.DENIED:
            job.limit_window(self._context.cells)
            return True
        if job.wish is Wish.NONE and not self._asking:
            job.wish, job.asked_s = Wish.ASKED, time.monotonic()
            self._asking = True
            self._channel.send(m.ContextWanted(self._size_for(job.wanted)))
        return False

    def _size_for(self, cells: int) -> int:
        """The next power of two, but not more than the model can attend to unless the request needs it."""
        size = 1 << (cells - 1).bit_length()
        trained = self._context.model.context_train
        return trained if cells <= trained < size else size

    def _answered(self) -> None:
        """The supervisor answered: whoever asked knows its cells now, whoever did not may ask."""
        self._asking = False
        for job in self._waiting:
            if job.wish is Wish.ASKED:
                job.watch.context_s += time.monotonic() - job.asked_s
                job.wish = Wish.DENIED

    def _resize(self, cells: int) -> None:
        started_s = time.monotonic()
        if cells > self._context.cells:
            self._rebuild(cells)
        rebuild_ms = (time.monotonic() - started_s) * 1e3
        self._answered()
        self._channel.send(m.ContextResized(self._context.cells, rebuild_ms, self._meter.report(self._context.buffers)))

    def _rebuild(self, cells: int) -> None:
        """Replace the context by a larger one; by one of the old size where the memory is not there."""
        old = self._context
        states = self._table.save_all()
        old.free()
        try:
            context = Context(old.model, replace(old.shape, cells=cells))
        except LoadFailed as error:
            sys.stderr.write(f"{error.message}\n")
            context = self._old_again(old)
        self._table.move_to(context, states)

    def _old_again(self, old: Context) -> Context:
        try:
            return Context(old.model, old.shape)
        except LoadFailed as error:
            self._fail_all(EngineFailed(f"The context could not be rebuilt: {error.message}"))
            raise _Lost from error

    # --- steps ------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        started_s = time.monotonic()
        pieces = steps.plan(self._table, self._pace, self._turn)
        self._turn += 1
        for piece in pieces:
            if piece.slot.job is not None:
                piece.slot.job.watch.share(len(pieces))
        if self._drafter is not None:
            pieces = self._drafter.widen(pieces)
        self._decode(pieces)
        took_s = time.monotonic() - started_s
        if not any(piece.guessed for piece in pieces):
            self._pace.learn(sum(len(piece.tokens) for piece in pieces), took_s)
        if self._drafter is not None:
            self._drafter.learn(pieces, took_s)
        self._flush()
        if len(pieces) == 1 and (job := pieces[0].slot.job) is not None and job.drawn == 1:
            self._table.tidy(pieces[0].slot)
        self._channel.beat()
        self._failures = 0

    def _decode(self, pieces: list[steps.Piece]) -> None:
        """Compute the pieces and draw what follows from them. Raises EngineFailed when nothing is to be trusted."""
        batch = self._context.batch
        batch.clear()
        rows = [
            batch.add(
                piece.slot.number,
                piece.tokens,
                len(piece.slot.cached),
                want_logits=piece.last,
                guessed=piece.guessed,
            )
            for piece in pieces
        ]
        match self._context.decode():
            case Outcome.DONE:
                for piece, row in zip(pieces, rows, strict=True):
                    self._checked(piece, row) if piece.guessed else self._computed(piece, row)
            case Outcome.FULL:
                self._make_do(pieces)
            case _:
                raise EngineFailed("llama.cpp could not compute the next tokens: the device may be out of memory.")

    def _computed(self, piece: steps.Piece, row: int) -> None:
        slot = piece.slot
        if len(piece.tokens) % self._table.block == 0 and steps.is_canonical(self._table, slot):
            slot.canonical += len(piece.tokens)
        slot.cached += piece.tokens
        slot.pending = slot.pending[len(piece.tokens) :]
        self._table.advanced(slot)
        if piece.last and slot.job is not None and slot.job.chain is not None:
            try:
                token = self._context.sample(slot.job.chain.pointer, row)
            except NoNumbers:
                self._spoilt(slot, slot.job)
                return
            self._spoils = 0
            self._drawn(slot, slot.job, token)

    def _checked(self, piece: steps.Piece, row: int) -> None:
        """Draw as many tokens as the guesses that came true allow; one Delta for all of them."""
        slot, job = piece.slot, piece.slot.job
        assert job is not None
        told = len(self._deltas)
        try:
            drawn = check(self._context, piece, row, self._vocabulary.ends)
        except NoNumbers:
            self._spoilt(slot, job)
            return
        self._spoils = 0
        for token in drawn:
            if slot.job is job:  # the answer may end before all of them
                self._drawn(slot, job, token)
        texts = [delta.text for delta in self._deltas[told:]]
        self._deltas[told:] = [m.Delta(job.id, "".join(texts))] if texts else []

    def _spoilt(self, slot: Slot, job: Job) -> None:
        """Fail the request alone; but weights that spoil one after the other have to be loaded, and checked, again."""
        error = EngineFailed(
            "The model computes what are no numbers: its file was damaged or replaced while in use, or its device "
            "fails. Look at the file; then try again."
        )
        self._fail(job, error)
        self._table.drop(slot)
        self._spoils += 1
        if self._spoils >= _FAILURES_IN_A_ROW:
            self._fail_all(error)
            raise _Lost(error.message)

    def _make_do(self, pieces: list[steps.Piece]) -> None:
        """No room although the ledger says so.

        1 without guesses; 2 drop idle prefixes; 3 try smaller batches; 4 fail the one request.
        """
        if any(piece.guessed for piece in pieces):
            self._decode([piece.without_guesses() for piece in pieces])
        elif self._table.drop_idle():
            self._decode(pieces)
        elif len(pieces) > 1:
            for piece in pieces:
                self._decode([piece])
        elif len(pieces[0].tokens) > 1:
            piece, half = pieces[0], len(pieces[0].tokens) // 2
            self._decode([steps.Piece(piece.slot, piece.tokens[:half], False)])
            if piece.slot.job is not None:
                self._decode([steps.Piece(piece.slot, piece.tokens[half:], piece.last)])
        elif (job := pieces[0].slot.job) is not None:
            self._fail(job, EngineFailed("The context has no room for the next token; try again with less context."))
            self._table.drop(pieces[0].slot)

    def _drawn(self, slot: Slot, job: Job, token: int) -> None:
        assert job.output is not None
        job.watch.first_token()
        reason: FinishReason | None = FinishReason.STOP
        text = ""
        if token not in self._vocabulary.ends:
            job.drawn += 1
            text = job.output.feed(token)
            reason = job.finish_reason()
        if reason is not None:
            text += job.output.finish()
        if text:
            self._deltas.append(m.Delta(job.id, text))
        if reason is None:
            slot.pending = [token]
            if job.draft is not None:
                job.draft.drawn(token)
            return
        self._ends.append(job.finished(reason))
        self._forget(job)

    def _flush(self) -> None:
        """Send what the step produced: one Step for all texts, then the ends."""
        step = [m.Step(tuple(self._deltas))] if self._deltas else []
        ends, self._deltas, self._ends = self._ends, [], []
        self._channel.send(*step, *ends)
