"""The text engine of `hypnos serve --demo`: invents words instead of running a model, and says so in every answer.

Keeps all the promises of a real worker (slots, cancellation, prefix cache, timings); must not import a library.
"""

import hashlib
import queue
import random
import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypnos_engine.domain.errors import Cancelled, EngineFailed, InvalidRequest
from hypnos_engine.domain.kinds import FinishReason
from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.channel import BEAT_S, Channel
from hypnos_engine.workers.fake_vectors import DIMENSIONS, FakeEmbedder
from hypnos_engine.workers.memory import anonymous_bytes
from hypnos_engine.workers.stops import StopFinder
from hypnos_engine.workers.stopwatch import Stopwatch

CONTEXT_TRAIN = 131_072
_LAYERS = 12
_SHORTEST, _LONGEST = 40, 120
"""Words of an answer, unless the last message asks for a number of words."""
_MOST_WORDS = 100_000
_OPENING = "This is a demonstration: no model is loaded, and these words are made up."
_ASKED_LENGTH = re.compile(r"\b(\d{1,6}) words\b")
_SUBJECTS = (
    "The moon",
    "A quiet river",
    "My neighbour",
    "The old clock",
    "A small boat",
    "The baker",
    "An owl",
    "Rain",
)
_VERBS = ("remembers", "carries", "follows", "paints", "borrows", "forgets", "answers", "counts")
_OBJECTS = (
    "the morning",
    "a paper lantern",
    "every window",
    "the long road",
    "a warm stone",
    "two songs",
    "the sea",
    "bread",
)
_ENDINGS = (
    "again",
    "without a sound",
    "before noon",
    "for a friend",
    "in the end",
    "by heart",
    "near the gate",
    "slowly",
)


@dataclass(slots=True)
class _Slot:
    scope: str = ""
    words: list[str] = field(default_factory=list)
    """Words whose state the slot would hold, were there a model."""
    used_s: float = 0.0
    busy: bool = False


@dataclass(slots=True)
class _Run:
    request: m.Generate
    watch: Stopwatch
    prompt: list[str]
    stops: StopFinder
    slot: _Slot | None = None
    window: int = 0
    cached: int = 0
    drawn: int = 0
    words: Iterator[str] = field(default_factory=lambda: iter(()))


def run(channel: Channel[m.ToWorker]) -> int:
    """Serve until Shutdown; return the exit status."""
    return _FakeWorker(channel).run()


class _FakeWorker:
    def __init__(self, channel: Channel[m.ToWorker]) -> None:
        self._channel = channel
        self._load: m.Load | None = None
        self._context_len = 0
        self._slots: list[_Slot] = []
        self._waiting: deque[_Run] = deque()
        self._running: list[_Run] = []
        self._embedder: FakeEmbedder | None = None
        """Instead of all of these, for a model that was loaded to make vectors."""
        self._ending = False
        self._next_step_s = 0.0

    def run(self) -> int:
        while not self._ending:
            self._admit()  # before waiting: a step may have made room for what waits
            self._receive()
            self._admit()
            if self._busy and time.monotonic() >= self._next_step_s:
                self._step()
        return 0

    @property
    def _busy(self) -> bool:
        return bool(self._running) or (self._embedder is not None and self._embedder.busy)

    # --- messages ---------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Take every message that is there; wait for one until the next step is due, or without end when idle."""
        pause_s = min(BEAT_S, max(0.0, self._next_step_s - time.monotonic())) if self._busy else None
        try:
            self._handle(
                self._channel.inbox.get(timeout=pause_s) if pause_s != 0.0 else self._channel.inbox.get_nowait()
            )
            while not self._ending:
                self._handle(self._channel.inbox.get_nowait())
        except queue.Empty:
            if self._busy:
                self._channel.beat()

    def _handle(self, message: m.ToWorker) -> None:
        match message:
            case m.Load() if self._load is None:
                self._start(message)
            case m.Generate():
                self._enqueue(message)
            case m.Embed():
                self._embed(message)
            case m.Cancel():
                self._cancel(message.id)
            case m.ResizeContext():
                self._resize(message.context_len)
            case m.Ping():
                self._channel.send(m.Pong(message.nonce))
            case m.Shutdown():
                self._fail_all(Cancelled("The model is being unloaded."))
                self._ending = True
            case _:
                pass

    def _start(self, load: m.Load) -> None:
        started_s = time.monotonic()
        self._load = load
        self._context_len = max(1, load.context_len)
        self._slots = [_Slot() for _ in range(max(1, load.slots))]
        self._embedder = FakeEmbedder(self._channel, self._context_len) if load.embeddings else None
        for phase in ("weights", "context", "warmup"):
            self._channel.send(m.LoadProgress(phase, 1.0))
        took_ms = (time.monotonic() - started_s) * 1e3
        self._channel.send(
            m.Loaded(
                context_len=self._context_len,
                context_train=CONTEXT_TRAIN,
                layers=_LAYERS,
                gpu_layers=_LAYERS if load.gpu_layers < 0 else min(load.gpu_layers, _LAYERS),
                architecture="fake",
                phases=m.LoadPhases("read" if load.load_mode == "read" else "mmap", 0.0, 0.0, 0.0, took_ms),
                memory=_memory(),
                library="hypnos demonstration engine",
                has_chat_template=not load.embeddings,
                dimensions=DIMENSIONS if load.embeddings else 0,
            )
        )

    def _resize(self, context_len: int) -> None:
        self._context_len = max(self._context_len, context_len)
        self._channel.send(m.ContextResized(self._context_len, 0.0, _memory()))

    # --- requests ---------------------------------------------------------------------------------------------------

    def _enqueue(self, request: m.Generate) -> None:
        if self._load is None:
            self._fail(request.id, EngineFailed("No model is loaded."))
            return
        if self._embedder is not None:
            self._fail(request.id, InvalidRequest("This model makes vectors of texts: use another one."))
            return
        prompt = [word for message in request.messages for word in (message.role, *message.text().split())]
        limit = min(self._context_len, CONTEXT_TRAIN)
        if len(prompt) >= limit:
            self._fail(
                request.id,
                InvalidRequest(
                    f"The prompt has {len(prompt)} tokens and the model's context window {limit}: shorten the "
                    "conversation."
                ),
            )
            return
        asked = request.num_ctx if request.num_ctx is not None and request.num_ctx > len(prompt) else None
        window = min(limit, asked or max(2048, len(prompt) + request.max_tokens))
        self._waiting.append(_Run(request, Stopwatch(), prompt, StopFinder(request.stop), window=window))

    def _embed(self, request: m.Embed) -> None:
        if self._load is None:
            self._fail(request.id, EngineFailed("No model is loaded."))
        elif self._embedder is None:
            self._fail(request.id, InvalidRequest("This model answers conversations: use another one."))
        else:
            if not self._busy:
                self._next_step_s = time.monotonic() + self._delay_s()
            self._embedder.enqueue(request)

    def _admit(self) -> None:
        while self._waiting and (slot := self._choose(self._waiting[0])) is not None:
            run = self._waiting.popleft()
            run.slot = slot
            run.cached = min(_common(slot, run), len(run.prompt) - 1)
            run.words = _words(run.request)
            slot.scope, slot.words, slot.busy = run.request.scope, list(run.prompt), True
            run.watch.grant()
            if not self._running:
                self._next_step_s = time.monotonic() + self._delay_s()
            self._running.append(run)
            self._channel.send(m.Accepted(run.request.id, len(run.prompt), run.cached))

    def _choose(self, run: _Run) -> _Slot | None:
        idle = [slot for slot in self._slots if not slot.busy]
        return max(idle, key=lambda slot: (_common(slot, run), -slot.used_s), default=None)

    def _cancel(self, request_id: int) -> None:
        if self._embedder is not None:
            self._embedder.cancel(request_id)
        for run in [*self._waiting, *self._running]:
            if run.request.id == request_id:
                self._release(run)
                self._fail(request_id, Cancelled("The request was cancelled."))

    def _fail_all(self, error: Cancelled) -> None:
        if self._embedder is not None:
            self._embedder.fail_all(error)
        for run in [*self._waiting, *self._running]:
            self._release(run)
            self._fail(run.request.id, error)

    def _fail(self, request_id: int, error: Cancelled | InvalidRequest | EngineFailed) -> None:
        self._channel.send(m.Failed(request_id, error.code, error.message))

    def _release(self, run: _Run) -> None:
        if run.slot is None:
            self._waiting.remove(run)
            return
        run.slot.busy = False
        run.slot.used_s = time.monotonic()
        self._running.remove(run)

    # --- steps ------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Draw one word for every running request, or make the vectors of one batch."""
        self._next_step_s = time.monotonic() + self._delay_s()
        if self._embedder is not None:
            self._embedder.step()
            return
        deltas: list[m.Delta] = []
        ended: list[m.Finished] = []
        company = len(self._running)
        for run in list(self._running):
            run.watch.share(company)
            text, reason = self._draw(run)
            if text:
                deltas.append(m.Delta(run.request.id, text))
            if reason is not None:
                self._release(run)
                ended.append(_finished(run, reason))
        self._channel.send(*([m.Step(tuple(deltas))] if deltas else []), *ended)

    def _draw(self, run: _Run) -> tuple[str, FinishReason | None]:
        assert run.slot is not None
        word = next(run.words, None)
        run.watch.first_token()
        if word is None:
            return run.stops.finish(), FinishReason.STOP
        run.drawn += 1
        run.slot.words.append(word.strip())
        text = run.stops.feed(word)
        if run.stops.found:
            return text, FinishReason.STOP
        if run.drawn >= run.request.max_tokens or len(run.prompt) + run.drawn >= run.window:
            return text + run.stops.finish(), FinishReason.LENGTH
        return text, None

    def _delay_s(self) -> float:
        return max(0.0, self._load.step_delay_ms) / 1e3 if self._load is not None else 0.0


def _finished(run: _Run, reason: FinishReason) -> m.Finished:
    prompt = len(run.prompt)
    return m.Finished(
        run.request.id, reason, prompt, run.drawn, run.cached, run.watch.timing(prompt, run.cached, run.drawn)
    )


def _common(slot: _Slot, run: _Run) -> int:
    """Words at the beginning of the prompt that the slot has already seen, for the same key."""
    if slot.scope != run.request.scope:
        return 0
    count = 0
    for known, word in zip(slot.words, run.prompt, strict=False):
        if known != word:
            break
        count += 1
    return count


def _words(request: m.Generate) -> Iterator[str]:
    """The words of the answer, each with the blank before it; the same for the same seed and conversation."""
    digest = hashlib.sha256()
    for part in (
        *((message.role, message.text()) for message in request.messages),
        ("seed", str(request.sampling.seed)),
    ):
        digest.update("\0".join(part).encode() + b"\1")
    dice = random.Random(digest.digest())  # noqa: S311 - made-up words need no secrecy
    asked = _ASKED_LENGTH.search(request.messages[-1].text()) if request.messages else None
    length = min(int(asked[1]), _MOST_WORDS) if asked else dice.randint(_SHORTEST, _LONGEST)
    length = max(1, length)
    count = 0
    for word in _OPENING.split()[:length]:
        yield f" {word}" if count else word
        count += 1
    while count < length:
        sentence = " ".join(dice.choice(part) for part in (_SUBJECTS, _VERBS, _OBJECTS, _ENDINGS)) + "."
        for word in sentence.split()[: length - count]:
            yield f" {word}"
            count += 1


def _memory() -> m.MemoryReport:
    return m.MemoryReport(0, 0, 0, 0, 0, anonymous_bytes())
