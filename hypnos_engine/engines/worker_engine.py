"""An engine that lives in a worker process: the protocol's supervisor side, from the first hello to the reaping.

Everything after the start happens in callbacks on the loop, so no task has to survive for a worker to be noticed dead.
Never starts a worker again and never raises out of a callback: a worker that misbehaves ends alone.
"""

import asyncio
import errno
import logging
import os
from collections.abc import AsyncGenerator, Callable

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
from hypnos_engine.engines.base import ContextSink, Exit, GenerationEvent, ProgressSink
from hypnos_engine.engines.channel import Channel, ChannelFull
from hypnos_engine.engines.last_words import cause_of_death
from hypnos_engine.engines.mailbox import Mailbox, OutOfOrder
from hypnos_engine.engines.process import DEFAULT_TRANSPORT, Transport, WorkerProcess
from hypnos_engine.engines.progress import ProgressThrottle
from hypnos_engine.engines.runtimes import WorkerRuntime, environment_of
from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.framing import FrameError

log = logging.getLogger(__name__)

HELLO_WITHIN_S = 30.0
"""A worker says hello before it imports its library; only a machine that thrashes takes longer."""
SILENT_LOAD_S = 180.0
"""A load reports each tensor; only compiling a device's kernels is silent for long, a minute or so at most."""
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
        silent_load_s: float = SILENT_LOAD_S,
        transport: Transport = DEFAULT_TRANSPORT,
    ) -> None:
        self.kind = kind
        self._model = model
        self._runtime = runtime
        self._hello_within_s = hello_within_s
        self._silent_load_s = silent_load_s
        self._transport = transport
        self._request: m.Load | None = None
        self._loading: asyncio.Future[m.Loaded] | None = None
        self._progress: ProgressThrottle | None = None
        self._on_context: ContextSink | None = None
        self._greeted = False
        self._heard_s = 0.0
        """When the load last said how far it is."""
        self._ready = False
        self._process: WorkerProcess | None = None
        self._channel: Channel | None = None
        self._frame_error: FrameError | None = None
        self._status: int | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._running: dict[int, Mailbox] = {}
        """Unfinished requests by the worker's number; the caller's numbers may come again, these do not."""
        self._cancelled: set[int] = set()
        """Numbers that were given up and whose last message is still to come."""
        self._next_number = 1
        self._ending = False
        self._ended = asyncio.Event()
        self._exit: Exit | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the worker while there is one."""
        return self._process.pid if self._process is not None and self._exit is None else None

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
        number, mailbox = self._submit(request)
        try:
            while True:
                event = await mailbox.take()
                yield event
                if isinstance(event, m.Finished):
                    return
        finally:
            self._give_up(number)

    def send(self, message: m.ResizeContext | m.DenyContext | m.SetThreads) -> None:
        """As Engine.send."""
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
        loop = asyncio.get_running_loop()
        self._heard_s = loop.time()

        def look() -> None:
            silent_s = loop.time() - self._heard_s
            if not self._is_loading():
                return
            if silent_s < self._silent_load_s:
                self._after(self._silent_load_s - silent_s, look)
                return
            self._fail_load(
                EngineTimeout(
                    f"Loading '{self._model}' made no progress for {self._silent_load_s:g} s and was given up. Its "
                    "disk or its driver may hang; look at them, then try again."
                )
            )

        self._after(self._silent_load_s, look)

    def _tell_load(self) -> None:
        assert self._request is not None
        self._tell(self._request)

    def _fail_load(self, error: HypnosError) -> None:
        if self._loading is not None and not self._loading.done():
            self._loading.set_exception(error)

    # --- messages ---------------------------------------------------------------------------------------------------

    def _on_message(self, message: m.FromWorker) -> None:
        match message:
            case m.Step():
                for delta in message.deltas:
                    self._on_delta(delta)
            case m.Accepted() | m.Finished() | m.Failed():
                self._on_request_message(message)
            case m.Hello() if not self._greeted:
                self._greet(message)
            case m.Loaded() if self._is_loading():
                assert self._loading is not None
                self._ready = True
                self._loading.set_result(message)
            case m.LoadFailed() if self._is_loading():
                error = error_from_code(message.code, message.message)
                self._fail_load(LoadFailed(error.message) if type(error) is EngineFailed else error)
            case m.LoadProgress() if self._is_loading():
                assert self._progress is not None
                self._heard_s = asyncio.get_running_loop().time()
                self._progress.put(message)
            case m.ContextWanted() | m.ContextResized() if self._ready and not self._ending:
                self._pass_context(message)
            case m.Pong() | m.ProbeReport():
                pass
            case _:
                if not self._greeted:
                    self._fail_load(LoadFailed(f"The worker program of the engine '{self.kind}' did not say hello."))
                log.debug("worker of %s: a %s out of place is ignored", self._model, type(message).__name__)

    def _is_loading(self) -> bool:
        return self._greeted and self._loading is not None and not self._loading.done()

    def _pass_context(self, message: m.ContextWanted | m.ContextResized) -> None:
        assert self._on_context is not None
        try:
            self._on_context(message)
        except Exception:
            log.exception("worker of %s: the receiver of %s failed", self._model, type(message).__name__)

    def _on_delta(self, delta: m.Delta) -> None:
        mailbox = self._running.get(delta.id)
        if mailbox is None:
            return  # given up, or never asked for
        try:
            mailbox.add(delta.text, reasoning=delta.reasoning)
        except OutOfOrder as error:
            self._violated(delta.id, mailbox, error)

    def _on_request_message(self, message: m.Accepted | m.Finished | m.Failed) -> None:
        last = not isinstance(message, m.Accepted)
        mailbox = self._running.get(message.id)
        if mailbox is None:
            if last and message.id not in self._cancelled:
                log.warning("worker of %s: ended a request that was not running", self._model)
            if last:
                self._cancelled.discard(message.id)
            return
        try:
            match message:
                case m.Accepted():
                    mailbox.accept(message.prompt_tokens, message.cached_tokens)
                case m.Finished():
                    mailbox.finish(message)
                case m.Failed():
                    mailbox.fail(error_from_code(message.code, message.message))
        except OutOfOrder as error:
            self._violated(message.id, mailbox, error)
        if last:
            self._running.pop(message.id, None)
            self._cancelled.discard(message.id)

    def _violated(self, number: int, mailbox: Mailbox, error: OutOfOrder) -> None:
        log.warning("worker of %s: %s", self._model, error)
        mailbox.fail(EngineFailed(f"The engine of '{self._model}' broke its protocol: it {error}."))
        self._give_up(number)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _submit(self, request: m.Generate) -> tuple[int, Mailbox]:
        if self._ending:
            raise self._unloaded()
        if self._exit is not None:
            raise self._death()
        if not self._ready or self._channel is None:
            raise EngineFailed(f"The model '{self._model}' is not loaded.")
        if any(mailbox.id == request.id for mailbox in self._running.values()):
            raise ValueError(f"request {request.id} is still running")
        number = self._next_number
        try:
            self._channel.send(msgspec.structs.replace(request, id=number))
        except FrameError as error:
            raise InvalidRequest(
                f"The request is too large for the model's worker: {error}. Send less text."
            ) from error
        except ChannelFull:
            raise ModelBusy(f"The worker of '{self._model}' has its hands full; try again shortly.") from None
        self._next_number += 1
        mailbox = self._running[number] = Mailbox(request)
        return number, mailbox

    def _give_up(self, number: int) -> None:
        """Cancel a request unless it has ended; told to the worker once."""
        if self._running.pop(number, None) is not None:
            self._cancelled.add(number)
            self._tell(m.Cancel(number))

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
            self._fail_running(self._unloaded())
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
        if self._frame_error is not None:
            reason = f"The worker of '{self._model}' was ended because it sent what is no message: {self._frame_error}."
            return Exit(False, WorkerDied(reason))
        assert self._process is not None
        error = cause_of_death(self._model, status, self._process.stderr.lines())
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
        if self._channel is not None:
            self._channel.close()
        if verdict.error is not None:
            self._fail_load(verdict.error)
            self._fail_running(verdict.error)
        self._cancelled.clear()
        self._ended.set()

    def _fail_running(self, error: HypnosError) -> None:
        for number, mailbox in self._running.items():
            mailbox.fail(error)
            self._cancelled.add(number)
        self._running.clear()

    def _unloaded(self) -> Cancelled:
        return Cancelled(f"The model '{self._model}' was unloaded.")

    def _death(self) -> HypnosError:
        assert self._exit is not None
        error = self._exit.error or self._unloaded()
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
