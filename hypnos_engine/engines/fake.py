"""An engine without a process that does exactly what its script says; for tests of whatever stands above engines.

Deterministic: it never sleeps, and waits only for the gates of its script. `hypnos serve --demo` does not use it.
"""

import asyncio
import itertools
import math
from array import array
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from dataclasses import dataclass, field

import msgspec

from hypnos_engine.domain.embedding import MOST_TEXTS
from hypnos_engine.domain.errors import (
    Cancelled,
    EngineFailed,
    HypnosError,
    InvalidRequest,
    WorkerDied,
    error_from_code,
)
from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.engines.base import ContextSink, Embeddings, Exit, GenerationEvent, ProgressSink
from hypnos_engine.engines.embedding import VectorBox
from hypnos_engine.engines.mailbox import Mailbox
from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.blocks import Block

NO_MEMORY = m.MemoryReport(
    weights_bytes=0, device_bytes=0, kv_bytes=0, workspace_bytes=0, repacked_bytes=0, anonymous_bytes=0
)


def echo(request: m.Generate) -> Iterable[str]:
    """The words of the last message, one a token."""
    words = request.messages[-1].text().split() if request.messages else []
    return [word if index == 0 else f" {word}" for index, word in enumerate(words)]


def counting(request: m.Generate) -> Iterable[str]:
    """0 1 2 … without an end: only `max_tokens` or a cancellation stops it."""
    return (f"{number} " for number in itertools.count())


def letters(text: str) -> tuple[float, ...]:
    """How many letters, blanks and other characters a text has, and a constant: four elements."""
    alphabetic, blank = sum(map(str.isalpha, text)), sum(map(str.isspace, text))
    return (float(alphabetic), float(blank), float(len(text) - alphabetic - blank), 1.0)


PARKED_TOKEN_BYTES = 1024
_PARKED_LIST_BYTES = 4096


def _parked_bytes(conversations: tuple[int, ...]) -> int:
    return _PARKED_LIST_BYTES + sum(conversations) * PARKED_TOKEN_BYTES


@dataclass(slots=True)
class FakeScript:
    """What a FakeEngine does. A gate that is None is open."""

    load_gate: asyncio.Event | None = None
    """`load` waits for it after its progress."""
    load_error: HypnosError | None = None
    progress: tuple[m.LoadProgress, ...] = ()
    reply: Callable[[m.Generate], Iterable[str]] = echo
    """The tokens of an answer."""
    vector: Callable[[str], tuple[float, ...]] = letters
    """The vector of a text, before it is scaled; of one length for all texts."""
    token_gate: asyncio.Semaphore | None = None
    """Each token of any request takes one permit; each text, where vectors are made of texts."""
    fail_after: int | None = None
    """Tokens (or texts) after which each request fails with EngineFailed."""
    die_after: int | None = None
    """Tokens (or texts), of all requests together, after which the engine dies."""
    conversations: tuple[int, ...] = ()
    """Tokens of the conversations that idle slots hold from the start; answers add none."""
    park_gate: asyncio.Event | None = None
    """`park` and `restore` wait for it, or for the end of the engine."""
    park_error: HypnosError | None = None
    unload_gate: asyncio.Event | None = None
    """`unload` waits for it before the engine is gone."""
    memory: m.MemoryReport = NO_MEMORY
    gpu_layers: int | None = None
    """Layers reported as being on the device; None = as many as asked for."""
    layers: int = 4
    context_train: int = 8192


@dataclass(slots=True)
class _Run:
    request: m.Generate
    mailbox: Mailbox
    task: asyncio.Task[None] | None = field(default=None)


@dataclass(slots=True)
class _VectorRun:
    request: m.Embed
    mailbox: VectorBox
    task: asyncio.Task[None] | None = field(default=None)


class _Block(msgspec.Struct, frozen=True):
    """What a fake engine writes into a block."""

    context_len: int
    conversations: tuple[int, ...]


class FakeEngine:
    """Implements Engine, Embeds and ParksKv.

    `loads`, `requests`, `embeds` and `sent` keep what it was asked, oldest first.
    """

    def __init__(self, model: str, script: FakeScript | None = None) -> None:
        self.kind = EngineKind.FAKE
        self.script = script or FakeScript()
        self.loads: list[m.Load] = []
        self.requests: list[m.Generate] = []
        self.embeds: list[m.Embed] = []
        self.sent: list[m.ResizeContext | m.DenyContext | m.SetThreads] = []
        self._model = model
        self._running: dict[int, _Run | _VectorRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(1)
        self._busy = 0
        self._tokens = 0
        self._on_context: ContextSink | None = None
        self._ready = False
        self._ending = asyncio.Event()
        self._ended = asyncio.Event()
        self._exit: Exit | None = None
        self.conversations = self.script.conversations
        """Tokens of the conversations that idle slots hold."""

    # --- Engine -----------------------------------------------------------------------------------------------------

    async def load(self, request: m.Load, on_progress: ProgressSink, on_context: ContextSink) -> m.Loaded:
        """As Engine.load. Raises Cancelled when `unload` was called before or meanwhile."""
        if self.loads:
            raise RuntimeError("an engine is loaded once")
        self.loads.append(request)
        self._on_context = on_context
        try:
            return await self._load(request, on_progress)
        except BaseException:
            self._conclude(Exit(True, None))
            raise

    async def generate(self, request: m.Generate) -> AsyncGenerator[GenerationEvent, None]:
        """As Engine.generate."""
        run = self._submit(request)
        try:
            while True:
                event = await run.mailbox.take()
                yield event
                if isinstance(event, m.Finished):
                    return
        finally:
            self._leave(run)

    async def embed(self, request: m.Embed) -> Embeddings:
        """As Embeds.embed."""
        self._check(request.id, embeddings=True)
        self.embeds.append(request)
        run = _VectorRun(request, VectorBox(request))
        self._enter(run, self._produce(run))
        try:
            return await run.mailbox.take()
        finally:
            self._leave(run)

    async def park(self, block: Block) -> m.Parked:
        """As ParksKv.park; each token takes PARKED_TOKEN_BYTES."""
        await self._park_gate()
        fitting: tuple[int, ...] = ()
        for tokens in self.conversations:
            if _parked_bytes((*fitting, tokens)) <= block.size_bytes:
                fitting = (*fitting, tokens)
        if not fitting:
            return m.Parked(0, 0, 0, 0, self.loads[0].context_len, 0.0)
        size_bytes = _parked_bytes(fitting)
        content = msgspec.msgpack.encode(_Block(self.loads[0].context_len, fitting))
        with block.view as view:
            view[:size_bytes] = (len(content).to_bytes(4, "little") + content).ljust(size_bytes, b"\0")
        return m.Parked(0, len(fitting), sum(fitting), size_bytes, self.loads[0].context_len, 0.0)

    async def restore(self, block: Block) -> m.Restored:
        """As ParksKv.restore."""
        await self._park_gate()
        try:
            with block.view as view:
                end = 4 + int.from_bytes(view[:4], "little")
                found = msgspec.msgpack.decode(bytes(view[4:end]), type=_Block)
        except msgspec.MsgspecError:
            return m.Restored(0, 0, 0, 0.0, "the block is damaged")
        if found.context_len != self.loads[0].context_len:
            return m.Restored(0, 0, 0, 0.0, "the context has another size")
        self.conversations = found.conversations
        return m.Restored(0, len(found.conversations), sum(found.conversations), 0.0)

    def send(self, message: m.ResizeContext | m.DenyContext | m.SetThreads) -> None:
        """As Engine.send."""
        if self._ready and self._exit is None:
            self.sent.append(message)

    async def unload(self, grace_s: float = 2.0) -> None:
        """As Engine.unload."""
        if self._exit is None:
            self._ending.set()
            self._fail_all(self._unloaded())
            if self.script.unload_gate is not None:
                await self.script.unload_gate.wait()
            self._conclude(Exit(True, None))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def exited(self) -> Exit:
        """As Engine.exited."""
        await self._ended.wait()
        assert self._exit is not None
        return self._exit

    # --- what a test does to it -------------------------------------------------------------------------------------

    def die(self, error: HypnosError | None = None) -> None:
        """End as a crashed worker does."""
        error = error or WorkerDied(f"The worker of '{self._model}' was ended by signal SIGABRT.")
        self._fail_all(error)
        self._conclude(Exit(False, error))

    def report_context(self, message: m.ContextWanted | m.ContextResized) -> None:
        """Tell the caller of `load` about the context, as a worker would."""
        assert self._on_context is not None
        self._on_context(message)

    @property
    def is_serving(self) -> bool:
        """Loaded, and neither dead nor about to end."""
        return self._ready and self._exit is None and not self._ending.is_set()

    @property
    def running(self) -> int:
        """Requests that have neither ended nor been given up."""
        return len(self._running)

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _load(self, request: m.Load, on_progress: ProgressSink) -> m.Loaded:
        if self._ending.is_set():
            raise self._unloaded()
        for progress in self.script.progress:
            on_progress(progress)
        if self.script.load_gate is not None:
            await self._gate_or_end(self.script.load_gate)
        if self._exit is not None and self._exit.error is not None:
            raise self._exit.error
        if self._ending.is_set():
            raise self._unloaded()
        if self.script.load_error is not None:
            raise self.script.load_error
        self._slots = asyncio.Semaphore(request.slots)
        self._ready = True
        phases = m.LoadPhases(
            load_mode="read" if request.load_mode == "read" else "mmap",
            weights_ms=0.0,
            projector_ms=0.0,
            context_ms=0.0,
            total_ms=0.0,
        )
        return m.Loaded(
            context_len=request.context_len,
            context_train=self.script.context_train,
            layers=self.script.layers,
            gpu_layers=request.gpu_layers if self.script.gpu_layers is None else self.script.gpu_layers,
            architecture="fake",
            phases=phases,
            memory=self.script.memory,
            library="fake 1",
            has_chat_template=not request.embeddings,
            dimensions=len(self.script.vector("")) if request.embeddings else 0,
        )

    async def _park_gate(self) -> None:
        """Wait as the script says, then raise what there is to raise."""
        self._check_serving()
        if self.script.park_gate is not None:
            await self._gate_or_end(self.script.park_gate)
        else:
            await asyncio.sleep(0)
        self._check_serving()
        if self.script.park_error is not None:
            raise self.script.park_error

    async def _gate_or_end(self, gate: asyncio.Event) -> None:
        waits = {asyncio.ensure_future(event.wait()) for event in (gate, self._ending, self._ended)}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _submit(self, request: m.Generate) -> _Run:
        self._check(request.id, embeddings=False)
        request = msgspec.structs.replace(request, messages=m.unpacked(request.messages))
        self.requests.append(request)
        run = _Run(request, Mailbox(request))
        self._enter(run, self._produce(run))
        return run

    def _check_serving(self) -> None:
        if self._exit is not None and self._exit.error is not None:
            raise error_from_code(self._exit.error.code, self._exit.error.message)
        if self._ending.is_set() or self._exit is not None:
            raise self._unloaded()
        if not self._ready:
            raise EngineFailed(f"The model '{self._model}' is not loaded.")

    def _check(self, number: int, *, embeddings: bool) -> None:
        self._check_serving()
        if number in self._running:
            raise ValueError(f"request {number} is still running")
        if self.loads[0].embeddings is not embeddings:
            raise InvalidRequest(f"The model '{self._model}' was loaded for requests of another kind.")

    def _enter(self, run: _Run | _VectorRun, produce: Coroutine[None, None, None]) -> None:
        self._running[run.request.id] = run
        run.task = asyncio.get_running_loop().create_task(produce, name=f"fake request {run.request.id}")
        self._tasks.add(run.task)
        run.task.add_done_callback(self._tasks.discard)

    def _leave(self, run: _Run | _VectorRun) -> None:
        if self._running.get(run.request.id) is run:
            del self._running[run.request.id]
        assert run.task is not None
        run.task.cancel()

    async def _produce(self, run: _Run | _VectorRun) -> None:
        clock = asyncio.get_running_loop().time
        arrived_s = clock()
        async with self._slots:
            self._busy += 1
            try:
                queue_ms = (clock() - arrived_s) * 1e3
                if isinstance(run, _VectorRun):
                    await self._make_vectors(run, queue_ms)
                else:
                    await self._answer(run, queue_ms=queue_ms)
            except HypnosError as error:
                run.mailbox.fail(error)
            finally:
                self._busy -= 1
                if run.mailbox.complete and self._running.get(run.request.id) is run:
                    del self._running[run.request.id]

    async def _answer(self, run: _Run, queue_ms: float) -> None:
        request, clock = run.request, asyncio.get_running_loop().time
        prompt_tokens = sum(len(message.text().split()) for message in request.messages)
        if prompt_tokens > self.loads[0].context_len:
            raise InvalidRequest(
                f"The prompt has {prompt_tokens} tokens, the context window {self.loads[0].context_len}: shorten it."
            )
        run.mailbox.accept(prompt_tokens, 0)
        began_s = clock()
        first_s: float | None = None
        count, reason, concurrent = 0, "stop", self._busy
        for token in self.script.reply(request):
            if count == request.max_tokens:
                reason = "length"
                break
            await self._next_token(count)
            first_s = first_s or clock()
            run.mailbox.add(token)
            count += 1
            concurrent = max(concurrent, self._busy)
        timing = m.EngineTiming(
            queue_ms=queue_ms,
            prefill_ms=0.0,
            decode_ms=(clock() - began_s) * 1e3,
            ttft_ms=queue_ms + ((first_s or began_s) - began_s) * 1e3,
            cached_tokens=0,
            concurrent_slots=concurrent,
        )
        run.mailbox.finish(m.Finished(request.id, reason, prompt_tokens, count, 0, timing))

    async def _make_vectors(self, run: _VectorRun, queue_ms: float) -> None:
        request, window = run.request, self.loads[0].context_len
        counts = [len(text.split()) + 1 for text in request.texts]
        long = tuple(index for index, count in enumerate(counts) if count > window)
        if not 1 <= len(request.texts) <= MOST_TEXTS:
            raise InvalidRequest(f"A request has 1 to {MOST_TEXTS} texts, not {len(request.texts)}.")
        if long and not request.truncate:
            raise InvalidRequest(f"The text {long[0]} has {counts[long[0]]} tokens and the model takes {window}.")
        concurrent = self._busy
        for index, text in enumerate(request.texts):
            await self._next_token(index)
            values = self.script.vector(" ".join(text.split()[: window - 1]) if index in long else text)
            length = math.sqrt(sum(value * value for value in values)) if request.normalise else 1.0
            packed = array("f", [value / (length or 1.0) for value in values]).tobytes()
            run.mailbox.put(m.Vectors(request.id, index, len(values), packed))
            concurrent = max(concurrent, self._busy)
        timing = m.EngineTiming(queue_ms=queue_ms, prefill_ms=0.0, concurrent_slots=concurrent)
        run.mailbox.finish(m.Embedded(request.id, tuple(min(count, window) for count in counts), timing, long))

    async def _next_token(self, count: int) -> None:
        if self.script.token_gate is None:
            await asyncio.sleep(0)
        else:
            await self.script.token_gate.acquire()
        if count == self.script.fail_after:
            raise EngineFailed(f"The engine of '{self._model}' failed as its script says.")
        if self._tokens == self.script.die_after:
            self.die()
        self._tokens += 1

    def _fail_all(self, error: HypnosError) -> None:
        for run in self._running.values():
            run.mailbox.fail(error)
        self._running.clear()
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()

    def _conclude(self, verdict: Exit) -> None:
        if self._exit is None:
            self._exit = verdict
            self._ended.set()

    def _unloaded(self) -> Cancelled:
        return Cancelled(f"The model '{self._model}' was unloaded.")
