"""An engine that lives in a worker process: the protocol's supervisor side, from the first hello to the reaping.

Everything after the start happens in callbacks on the loop, so no task has to survive for a worker to be noticed dead.
Never starts a worker again and never raises out of a callback: a worker that misbehaves ends alone.
"""

import asyncio
import errno
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import nullcontext

import msgspec

from hypnos_engine.domain.errors import (
    Cancelled,
    EngineFailed,
    EngineTimeout,
    HypnosError,
    InvalidRequest,
    LoadFailed,
    ModelBusy,
    WorkerDied,
    error_from_code,
)
from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.engines.allowance import Allowance
from hypnos_engine.engines.base import ContextSink, Embeddings, Exit, GenerationEvent, ProgressSink
from hypnos_engine.engines.channel import Channel, ChannelFull
from hypnos_engine.engines.last_words import cause_of_death, telling_lines
from hypnos_engine.engines.process import DEFAULT_TRANSPORT, Transport, WorkerProcess
from hypnos_engine.engines.progress import ProgressThrottle
from hypnos_engine.engines.requests import Requests
from hypnos_engine.engines.runtimes import WorkerRuntime, environment_of
from hypnos_engine.engines.spares import Spares
from hypnos_engine.engines.transfers import NOTHING_PARKED, NOTHING_RESTORED, Transfers
from hypnos_engine.engines.watch import Patience, Watch
from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.blocks import Block
from hypnos_engine.ipc.framing import FrameError

log = logging.getLogger(__name__)

HELLO_WITHIN_S = 30.0
"""A worker says hello before it imports its library; only a machine that thrashes takes longer."""
LOAD_PATIENCE = Patience(least_s=180.0, slowest_steps=0.0, busy_times=3.0)
"""A load reports each tensor; only compiling a device's kernels is silent for long, a minute or so at most."""
STEP_PATIENCE = Patience()
"""A loaded worker with work in hand says something each second, its own steps aside."""
_LOGGED_LINES = 20
_LAST_MESSAGES_S = 1.0
"""How long after the reaping to wait for the end of the stream, should a stray process hold it open."""
_LAST_BREATH_S = 1.0
"""How long a worker whose channel has closed may take to end by itself, so that its own exit status is seen."""


class WorkerEngine:
    """One worker process; implements Engine. Made cheaply, started by `load`."""

    def __init__(
        self,
        model: str,
        kind: EngineKind,
        runtime: WorkerRuntime,
        *,
        hello_within_s: float = HELLO_WITHIN_S,
        load_patience: Patience = LOAD_PATIENCE,
        step_patience: Patience = STEP_PATIENCE,
        transport: Transport = DEFAULT_TRANSPORT,
        spares: Spares | None = None,
    ) -> None:
        """`spares` may have a worker that is started already."""
        self.kind = kind
        self._model = model
        self._runtime = runtime
        self._hello_within_s = hello_within_s
        self._load_patience = load_patience
        self._step_patience = step_patience
        self._transport = transport
        self._spares = spares
        if spares is not None:
            spares.mind(self)
        self._request: m.Load | None = None
        self._loading: asyncio.Future[m.Loaded] | None = None
        self._progress: ProgressThrottle | None = None
        self._on_context: ContextSink | None = None
        self._greeted = False
        self._watch: Watch | None = None
        """Of the load, then of the steps."""
        self._ready = False
        self._process: WorkerProcess | None = None
        self._channel: Channel | None = None
        self._frame_error: FrameError | None = None
        self._status: int | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._requests = Requests(model, self._tell, self._waste)
        self._transfers = Transfers(model, self._hand_over, self._tell)
        self._useless = Allowance(time.monotonic)
        """For messages that are of no use to anybody."""
        self._context_asked = False
        """True while the worker waits for the answer to its ContextWanted."""
        self._given_up: WorkerDied | None = None
        """Why the worker is being killed, when that was this engine's own decision."""
        self._ending = False
        self._ended = asyncio.Event()
        self._exit: Exit | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the worker while there is one."""
        return self._process.pid if self._process is not None and self._exit is None else None

    @property
    def busy(self) -> bool:
        """Whether the worker owes somebody an answer."""
        return self._requests.outstanding

    # --- Engine -----------------------------------------------------------------------------------------------------

    async def load(self, request: m.Load, on_progress: ProgressSink, on_context: ContextSink) -> m.Loaded:
        """As Engine.load. Raises Cancelled when `unload` was called before or meanwhile."""
        if self._request is not None:
            raise RuntimeError("an engine is loaded once")
        self._request = request
        if self._ending:
            raise self._unloaded()
        loop = asyncio.get_running_loop()
        self._loading = loop.create_future()
        self._progress = ProgressThrottle(loop, on_progress)
        self._on_context = on_context
        try:
            with self._spares.loading() if self._spares is not None else nullcontext():
                if not await self._start_with_spare():
                    self._start(request)
                    self._after(self._hello_within_s, self._miss_hello)
                    await self._open_channel()
                return await self._loading
        except BaseException:
            self._end(0.0)
            await self._until_ended()
            raise
        finally:
            self._progress.close()
            if not self._loading.cancel() and not self._loading.cancelled():
                self._loading.exception()  # seen, also when the caller was cancelled at the same moment

    async def generate(self, request: m.Generate) -> AsyncGenerator[GenerationEvent, None]:
        """As Engine.generate."""
        self._submit(request)
        number, mailbox = self._requests.open(request)
        try:
            while True:
                event = await mailbox.take()
                yield event
                if isinstance(event, m.Finished):
                    return
        finally:
            self._requests.give_up(number)

    async def embed(self, request: m.Embed) -> Embeddings:
        """As Embeds.embed."""
        self._submit(request)
        number, box = self._requests.open_vectors(request)
        try:
            return await box.take()
        finally:
            self._requests.give_up(number)

    async def park(self, block: Block) -> m.Parked:
        """As ParksKv.park."""
        return await self._transfers.park(block) if self._keeps_conversations() else NOTHING_PARKED

    async def restore(self, block: Block) -> m.Restored:
        """As ParksKv.restore."""
        return await self._transfers.restore(block) if self._keeps_conversations() else NOTHING_RESTORED

    def send(self, message: m.ResizeContext | m.DenyContext | m.SetThreads) -> None:
        """As Engine.send."""
        self._context_asked = self._context_asked and isinstance(message, m.SetThreads)
        if self._channel is not None:
            self._channel.send(message, urgent=True)

    async def unload(self, grace_s: float = 2.0) -> None:
        """As Engine.unload. A caller that is cancelled while it waits does not stop the end that it asked for."""
        self._end(grace_s if self._ready else 0.0)
        await self._until_ended()

    async def exited(self) -> Exit:
        """As Engine.exited."""
        await self._ended.wait()
        assert self._exit is not None
        return self._exit

    # --- start ------------------------------------------------------------------------------------------------------

    async def _start_with_spare(self) -> bool:
        """Take over a worker that is started already; False when there is none that is good for this load."""
        spare = await self._spares.take(self._runtime, self.kind) if self._spares is not None else None
        if self._ending:  # meanwhile
            if spare is not None:
                spare.end()
            raise self._unloaded()
        if spare is None:
            return False
        started = spare.pass_on(self._model, self._on_message, self._on_exit)
        self._process, self._channel = started.process, started.channel
        started.channel.closed.add_done_callback(self._on_channel_closed)
        self._greet(started.hello)
        return True

    def _start(self, request: m.Load) -> None:
        command = self._runtime.command(self.kind, os.getpid())
        environment = environment_of(self._runtime, self.kind, request.threads)
        try:
            self._process = WorkerProcess(command, environment, self._model, self._on_exit, transport=self._transport)
        except OSError as error:
            program = command[0]
            if error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
                raise WorkerDied(f"The worker of '{self._model}' could not be started: {error.strerror}.") from error
            raise LoadFailed(
                f"The worker program '{program}' of the engine '{self.kind}' cannot be started ({error.strerror}). "
                "Install Hypnos again, or repair its environment."
            ) from error

    async def _open_channel(self) -> None:
        assert self._process is not None
        channel = await self._process.open_channel(self._on_message)
        self._channel = channel
        channel.closed.add_done_callback(self._on_channel_closed)
        if self._exit is not None:
            channel.close()
        elif self._greeted:  # the hello may come before the opening has returned
            self._tell_load()

    def _miss_hello(self) -> None:
        if not self._greeted:
            self._fail_load(
                EngineTimeout(
                    f"The worker of '{self._model}' did not answer within {self._hello_within_s:g} s of its start. "
                    "The machine may be overloaded; try again."
                )
            )

    def _greet(self, hello: m.Hello) -> None:
        if hello.protocol != m.PROTOCOL_VERSION:
            self._fail_load(
                LoadFailed(
                    f"The worker program of the engine '{self.kind}' speaks protocol {hello.protocol}, this program "
                    f"{m.PROTOCOL_VERSION}: they come from different versions. Install Hypnos or its engine pack again."
                )
            )
        elif hello.kind != self.kind:
            self._fail_load(LoadFailed(f"The worker program runs the engine '{hello.kind}' instead of '{self.kind}'."))
        else:
            self._greeted = True
            self._watch_load()
            if self._channel is not None:
                self._tell_load()

    def _watch_load(self) -> None:
        """Give a load up that says nothing for too long: a hung disk or driver must not hold up every other model."""

        def give_up(silent_s: float, state: str) -> None:
            self._fail_load(
                EngineTimeout(
                    f"Loading '{self._model}' made no progress for {silent_s:.3g} s (its process was {state}) and was "
                    "given up. Its disk or its driver may hang; look at them, then try again."
                )
            )

        assert self._process is not None
        self._watch = Watch(self._process.pid, self._load_patience, self._is_loading, give_up)
        self._watch.start()

    def _watch_steps(self) -> None:
        """From here on, give the worker up that has work and makes no steps."""

        def give_up(silent_s: float, state: str) -> None:
            self._give_worker_up(f"made no step for {silent_s:.3g} s (its process was {state})")

        assert self._process is not None
        if self._watch is not None:
            self._watch.close()
        self._watch = Watch(self._process.pid, self._step_patience, lambda: self._requests.outstanding, give_up)

    def _give_worker_up(self, why: str) -> None:
        """Fail what runs at once, and kill the worker; its end follows when the process is reaped."""
        assert self._process is not None
        if self._given_up is None and self._exit is None:
            words = telling_lines(self._process.stderr.lines())
            said = f" Its last words: {words}" if words else ""
            self._given_up = WorkerDied(f"The worker of '{self._model}' {why} and was ended; try again.{said}")
            self._fail_load(self._given_up)
            self._requests.fail_all(self._given_up)
            self._transfers.fail_all(self._given_up)
            self._process.kill()

    def _tell_load(self) -> None:
        assert self._request is not None
        self._tell(self._request)

    def _fail_load(self, error: HypnosError) -> None:
        if self._loading is not None and not self._loading.done():
            self._loading.set_exception(error)

    # --- messages ---------------------------------------------------------------------------------------------------

    def _on_message(self, message: m.FromWorker) -> None:
        if self._given_up is not None:
            return
        if self._watch is not None and not isinstance(message, m.Pong | m.ProbeReport):
            self._watch.heard()
        match message:
            case m.Step():
                if not message.deltas:
                    self._waste()
                for delta in message.deltas:
                    self._requests.take_text(delta)
            case m.Accepted() | m.Finished() | m.Vectors() | m.Embedded() | m.Failed():
                self._requests.take(message)
            case m.Hello() if not self._greeted:
                self._greet(message)
            case m.Loaded() if self._is_loading():
                assert self._loading is not None
                self._ready = True
                self._loading.set_result(message)
                self._watch_steps()
            case m.LoadFailed() if self._is_loading():
                error = error_from_code(message.code, message.message)
                self._fail_load(LoadFailed(error.message) if type(error) is EngineFailed else error)
            case m.LoadProgress() if self._is_loading():
                assert self._progress is not None
                self._waste()
                self._progress.put(message)
            case m.ContextWanted() if self._ready and not self._ending and not self._context_asked:
                self._context_asked = True
                self._pass_context(message)
            case m.ContextResized() if self._ready and not self._ending:
                self._waste()
                self._pass_context(message)
            case m.Parked() | m.Restored():
                if not self._transfers.take(message):
                    self._waste()
            case m.Beat() | m.Pong() | m.ProbeReport():
                self._waste()
            case _:
                if not self._greeted:
                    self._fail_load(LoadFailed(f"The worker program of the engine '{self.kind}' did not say hello."))
                self._waste()
                log.debug("worker of %s: a %s out of place is ignored", self._model, type(message).__name__)

    def _waste(self) -> None:
        """Count a message that leads to nothing: a worker that floods is ended, or it would hold up all others."""
        if not self._useless.spend():
            self._give_worker_up("flooded its channel with messages of no use")

    def _is_loading(self) -> bool:
        return self._greeted and self._loading is not None and not self._loading.done()

    def _pass_context(self, message: m.ContextWanted | m.ContextResized) -> None:
        assert self._on_context is not None
        try:
            self._on_context(message)
        except Exception:
            log.exception("worker of %s: the receiver of %s failed", self._model, type(message).__name__)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _serving_channel(self) -> Channel:
        """The channel of a worker that is loaded and stays. Raises Cancelled, EngineFailed, or why the worker died."""
        if self._ending:
            raise self._unloaded()
        if self._exit is not None or self._given_up is not None:
            raise self._death()
        if not self._ready or self._channel is None:
            raise EngineFailed(f"The model '{self._model}' is not loaded.")
        return self._channel

    def _keeps_conversations(self) -> bool:
        """Whether the worker has what ParksKv is about. Raises as `_serving_channel`."""
        self._serving_channel()
        return self.kind is EngineKind.LLAMA and self._request is not None and not self._request.embeddings

    def _hand_over(self, block: Block) -> int:
        assert self._process is not None
        return self._process.hand_over(block)

    def _submit(self, request: m.Generate | m.Embed) -> None:
        """Send a request under the number that the next one gets."""
        channel = self._serving_channel()
        if self._requests.is_running(request.id):
            raise ValueError(f"request {request.id} is still running")
        try:
            channel.send(msgspec.structs.replace(request, id=self._requests.next_number))
        except FrameError as error:
            raise InvalidRequest(
                f"The request is too large for the model's worker: {error}. Send less text."
            ) from error
        except ChannelFull:
            raise ModelBusy(f"The worker of '{self._model}' has its hands full; try again shortly.") from None
        if self._watch is not None:
            self._watch.start()

    def _tell(self, message: m.ToWorker) -> None:
        if self._channel is not None:
            self._channel.send(message, urgent=True)

    # --- end --------------------------------------------------------------------------------------------------------

    def _end(self, grace_s: float) -> None:
        """Bring the worker to its end within `grace_s`; a later call can only make it sooner."""
        if self._ended.is_set():
            return
        if not self._ending:
            self._ending = True
            self._fail_load(self._unloaded())
            self._requests.fail_all(self._unloaded())
            self._transfers.fail_all(self._unloaded())
            self._tell(m.Shutdown())
        if self._process is None:
            self._conclude(Exit(True, None))
        elif grace_s <= 0:
            self._process.kill()
        else:
            self._after(grace_s, self._process.kill)

    def _on_exit(self, status: int) -> None:
        self._status = status
        if self._channel is None or self._channel.closed.done():
            self._conclude(self._verdict(status))
        else:
            self._after(_LAST_MESSAGES_S, self._channel.close)

    def _on_channel_closed(self, closed: asyncio.Future[FrameError | None]) -> None:
        assert self._process is not None
        self._frame_error = None if closed.cancelled() else closed.result()
        if self._status is not None:
            self._conclude(self._verdict(self._status))
        elif self._frame_error is not None:
            self._process.kill()
        else:
            self._after(_LAST_BREATH_S, self._process.kill)

    def _verdict(self, status: int) -> Exit:
        if self._ending:
            return Exit(True, None)
        if self._given_up is not None:
            return Exit(False, self._given_up)
        if self._frame_error is not None:
            reason = f"The worker of '{self._model}' was ended because it sent what is no message: {self._frame_error}."
            return Exit(False, WorkerDied(reason))
        assert self._process is not None
        error = cause_of_death(
            self._model, status, self._process.stderr.lines(), memory_ran_out=self._process.memory_ran_out
        )
        if not self._greeted and status > 0:
            error = LoadFailed(f"The worker program of the engine '{self.kind}' does not run. {error.message}")
        return Exit(False, error)

    def _conclude(self, verdict: Exit) -> None:
        if self._exit is not None:
            return
        self._exit = verdict
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if self._watch is not None:
            self._watch.close()
        if self._channel is not None:
            self._channel.close()
        if verdict.error is not None:
            self._log_last_words()
            self._fail_load(verdict.error)
            self._requests.fail_all(verdict.error)
            self._transfers.fail_all(verdict.error)
        self._ended.set()

    def _log_last_words(self) -> None:
        assert self._process is not None
        for line in self._process.stderr.lines()[-_LOGGED_LINES:]:
            log.info("last words of the worker of %s: %s", self._model, line)

    def _unloaded(self) -> Cancelled:
        return Cancelled(f"The model '{self._model}' was unloaded.")

    def _death(self) -> HypnosError:
        error = self._given_up or (self._exit.error if self._exit is not None else None) or self._unloaded()
        return error_from_code(error.code, error.message)

    def _after(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(delay_s, callback))

    async def _until_ended(self) -> None:
        """Wait for the reaping through every cancellation, then let the last of those go on."""
        cancelled: asyncio.CancelledError | None = None
        while not self._ended.is_set():
            try:
                await self._ended.wait()
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
