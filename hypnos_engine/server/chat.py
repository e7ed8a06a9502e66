"""`POST /v1/chat/completions`: checks the request, holds a lease while the model answers, writes either form of answer.

Never decides whether a request has to wait, and never keeps a lease longer than the answer takes to be sent.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from hypnos_engine.api import sse
from hypnos_engine.api.schemas import chat as wire
from hypnos_engine.api.schemas.telemetry import Telemetry
from hypnos_engine.domain.errors import Cancelled, EngineFailed, HypnosError
from hypnos_engine.domain.kinds import FinishReason
from hypnos_engine.domain.model import ModelId
from hypnos_engine.engines.base import GenerationEvent
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.lease import Ask, Lease
from hypnos_engine.server.answers import json_response
from hypnos_engine.server.bodies import read_json
from hypnos_engine.server.chat_request import ChatCall, check_abilities
from hypnos_engine.server.exchange import OPTIONS, RUNTIME, client_left, exchange_of, new_id
from hypnos_engine.server.middlewares import log
from hypnos_engine.server.models import find_model
from hypnos_engine.server.readings import CHAT
from hypnos_engine.server.streaming import EventStream
from hypnos_engine.server.telemetry import telemetry_of, usage_of

_encode = msgspec.json.Encoder().encode


_PLACE = "-"
"""Stands for the text in the chunk that the others are made from."""


class Chunks:
    """The events of one stream: they share an id, a time and a model, and all but the text is encoded once."""

    def __init__(self, model: str) -> None:
        self._id = new_id("chatcmpl-")
        self._created = int(time.time())
        self._model = model
        self._content = self._around_text(wire.ChunkDelta(content=_PLACE))
        self._reasoning: tuple[bytes, bytes] | None = None

    def first(self) -> bytes:
        return self._event(wire.ChunkChoice(delta=wire.ChunkDelta(role="assistant", content=""), finish_reason=None))

    def text(self, delta: m.Delta) -> bytes:
        if not delta.reasoning:
            before, after = self._content
        elif self._reasoning is None:
            before, after = self._reasoning = self._around_text(wire.ChunkDelta(reasoning_content=_PLACE))
        else:
            before, after = self._reasoning
        return before + _encode(delta.text) + after

    def _around_text(self, delta: wire.ChunkDelta) -> tuple[bytes, bytes]:
        before, _, after = self._event(wire.ChunkChoice(delta=delta, finish_reason=None)).rpartition(_encode(_PLACE))
        return before, after

    def last(self, finished: m.Finished, lease: Lease, inference_s: float) -> bytes:
        return self._event(
            wire.ChunkChoice(delta=wire.ChunkDelta(), finish_reason=finished.finish_reason),
            usage=usage_of(finished),
            telemetry=telemetry_of(lease, finished, inference_s),
        )

    def failed(self, message: str) -> bytes:
        """The last chunk of a stream that cannot go on; its status is long out (contract §7.4)."""
        return self._event(
            wire.ChunkChoice(delta=wire.ChunkDelta(), finish_reason=FinishReason.ERROR), error=wire.StreamError(message)
        )

    def _event(
        self,
        choice: wire.ChunkChoice,
        *,
        usage: wire.Usage | UnsetType = UNSET,
        telemetry: Telemetry | UnsetType = UNSET,
        error: wire.StreamError | UnsetType = UNSET,
    ) -> bytes:
        chunk = wire.ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=(choice,),
            usage=usage,
            hypnos_telemetry=telemetry,
            error=error,
        )
        return sse.event(_encode(chunk))


async def complete_chat(request: web.Request) -> web.StreamResponse:
    """Answer a conversation, as one JSON object or as a stream of chunks."""
    call = await read_json(request, CHAT)
    runtime = request.app[RUNTIME]
    check_abilities(call, find_model(runtime, call.model).spec)
    ask = Ask(
        model=ModelId(call.model),
        key_label=exchange_of(request).key.label,
        deadline_s=_deadline_s(request.headers.get("x-hypnos-deadline-ms")),
    )
    if call.stream:
        return await _stream(request, call, ask)
    async with runtime.lease(ask) as lease:
        exchange_of(request).estimated_wait_ms = lease.switch.estimated_wait_ms
        completion = await _collect(lease, call)
    return json_response(completion)


async def _collect(lease: Lease, call: ChatCall) -> wire.ChatCompletion:
    answer, thoughts = [], []
    started_s = time.perf_counter()
    finished: m.Finished | None = None
    async with _generation(lease, call) as events:
        async for event in events:
            match event:
                case m.Delta(reasoning=True):
                    thoughts.append(event.text)
                case m.Delta():
                    answer.append(event.text)
                case m.Finished():
                    finished = event
    if finished is None:
        raise EngineFailed("The engine ended the answer without saying why. Try again.")
    message = wire.AnswerMessage(content="".join(answer), reasoning_content="".join(thoughts) or UNSET)
    return wire.ChatCompletion(
        id=new_id("chatcmpl-"),
        created=int(time.time()),
        model=call.model,
        choices=(wire.Choice(message=message, finish_reason=finished.finish_reason),),
        usage=usage_of(finished),
        hypnos_telemetry=telemetry_of(lease, finished, time.perf_counter() - started_s),
    )


async def _stream(request: web.Request, call: ChatCall, ask: Ask) -> web.StreamResponse:
    runtime = request.app[RUNTIME]
    stream = EventStream(request, request.app[OPTIONS].stream, estimated_wait_ms=runtime.estimated_wait_ms(ask.model))
    chunks = Chunks(call.model)
    try:
        async with stream, runtime.lease(ask) as lease:
            if not stream.started:
                exchange_of(request).estimated_wait_ms = lease.switch.estimated_wait_ms
            await _relay(lease, call, chunks, stream)
    except (Exception, asyncio.CancelledError) as error:
        cause = _told_in_stream(error, request, stream)
        if cause is None:
            raise
        await stream.send(chunks.failed(cause.message), sse.DONE)
    return await stream.end()


def _told_in_stream(error: BaseException, request: web.Request, stream: EventStream) -> HypnosError | None:
    """What the stream's last chunk says about a failure; None when the failure is to leave the handler instead."""
    exchange = exchange_of(request)
    if not stream.started or client_left(request):
        return None
    if isinstance(error, HypnosError):
        return error
    if isinstance(error, asyncio.CancelledError):
        return Cancelled("The server is shutting down and ended this answer.") if exchange.was_cut() else None
    log.error("%s %s failed while streaming", exchange.id, request.rel_url.raw_path, exc_info=error)
    return EngineFailed(f"Internal error. The server's log has the details under {exchange.id}.")


async def _relay(lease: Lease, call: ChatCall, chunks: Chunks, stream: EventStream) -> None:
    """Pass a generation on as contract §7.4 orders it. The status goes out when the prompt is accepted."""
    started_s = time.perf_counter()
    async with _generation(lease, call) as events:
        async for event in events:
            match event:
                case m.Accepted():
                    await stream.send(chunks.first())
                case m.Delta() if event.text:
                    await stream.send(chunks.text(event))
                case m.Finished():
                    last = chunks.last(event, lease, time.perf_counter() - started_s)
                    await stream.send(last, sse.DONE)
                    return
    raise EngineFailed("The engine ended the answer without saying why. Try again.")


def _generation(lease: Lease, call: ChatCall) -> aclosing[AsyncGenerator[GenerationEvent, None]]:
    """The model's events; leaving the block stops the generation, wherever it was."""
    return aclosing(
        lease.generate(
            call.messages,
            max_tokens=call.max_tokens,
            num_ctx=call.num_ctx,
            sampling=call.sampling,
            stop=call.stop,
            thinking=call.thinking,
        )
    )


def _deadline_s(header: str | None) -> float | None:
    """The longest wait before the start; a malformed value is as if it were not sent."""
    try:
        wait_ms = float(header or "")
    except ValueError:
        return None
    return wait_ms / 1000 if 0 <= wait_ms < float("inf") else None
