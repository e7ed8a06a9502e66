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
from hypnos_engine.engines.base import GenerationEvent
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.lease import Ask, Lease
from hypnos_engine.server.accounting import note_grant
from hypnos_engine.server.answers import json_response
from hypnos_engine.server.asking import ask_of
from hypnos_engine.server.bodies import read_json
from hypnos_engine.server.chat_request import ChatCall, check_abilities
from hypnos_engine.server.exchange import OPTIONS, RUNTIME, client_left, exchange_of, new_id
from hypnos_engine.server.middlewares import log
from hypnos_engine.server.models import find_model
from hypnos_engine.server.readings import CHAT
from hypnos_engine.server.streaming import EventStream
from hypnos_engine.server.telemetry import telemetry_of, usage_of
from hypnos_engine.telemetry.calls import Call

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
    exchange = exchange_of(request)
    call = await read_json(request, CHAT)
    exchange.call.asked(call.model, stream=call.stream)
    _keep_input(exchange.call, call)
    runtime = request.app[RUNTIME]
    check_abilities(call, find_model(runtime, call.model).spec)
    ask = ask_of(request, call.model, cells=call.num_ctx)
    if call.stream:
        return await _stream(request, call, ask)
    async with runtime.lease(ask) as lease:
        exchange.estimated_wait_ms = lease.switch.estimated_wait_ms
        note_grant(exchange.call, lease.switch)
        completion = await _collect(lease, call, exchange.call)
    return json_response(completion)


def _keep_input(noted: Call, call: ChatCall) -> None:
    """Show the request log what the model is told, as far as the log wants to know."""
    if noted.input is None:
        return
    if isinstance(call.messages, m.PackedMessages):
        noted.input.add(f"({call.messages.size_bytes} bytes of conversation)".encode())
        noted.input.cut = True
        return
    for message in call.messages:
        if noted.input.cut:
            break
        noted.input.add(f"{message.role}: {message.text()}\n".encode("utf-8", "replace"))


async def _collect(lease: Lease, call: ChatCall, noted: Call) -> wire.ChatCompletion:
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
    inference_s = time.perf_counter() - started_s
    _note_end(noted, finished, inference_s)
    if noted.output is not None:
        noted.output.add("".join((*thoughts, *answer)).encode("utf-8", "replace"))
    message = wire.AnswerMessage(content="".join(answer), reasoning_content="".join(thoughts) or UNSET)
    return wire.ChatCompletion(
        id=new_id("chatcmpl-"),
        created=int(time.time()),
        model=call.model,
        choices=(wire.Choice(message=message, finish_reason=finished.finish_reason),),
        usage=usage_of(finished),
        hypnos_telemetry=telemetry_of(lease, finished, inference_s),
    )


def _note_end(noted: Call, finished: m.Finished, inference_s: float) -> None:
    noted.finished(
        finished.prompt_tokens, finished.completion_tokens, finished.cached_tokens, finished.timing, inference_s
    )


async def _stream(request: web.Request, call: ChatCall, ask: Ask) -> web.StreamResponse:
    runtime = request.app[RUNTIME]
    stream = EventStream(request, request.app[OPTIONS].stream, estimated_wait_ms=runtime.estimated_wait_ms(ask.model))
    chunks = Chunks(call.model)
    exchange = exchange_of(request)
    try:
        async with stream, runtime.lease(ask) as lease:
            if not stream.started:
                exchange.estimated_wait_ms = lease.switch.estimated_wait_ms
            note_grant(exchange.call, lease.switch)
            await _relay(lease, call, chunks, stream, exchange.call)
    except (Exception, asyncio.CancelledError) as error:
        cause = _told_in_stream(error, request, stream)
        if cause is None:
            raise
        exchange.call.failure = cause
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


async def _relay(lease: Lease, call: ChatCall, chunks: Chunks, stream: EventStream, noted: Call) -> None:
    """Pass a generation on as contract §7.4 orders it. The status goes out when the prompt is accepted."""
    started_s = time.perf_counter()
    output = noted.output
    async with _generation(lease, call) as events:
        async for event in events:
            match event:
                case m.Accepted():
                    await stream.send(chunks.first())
                case m.Delta() if event.text:
                    if output is not None:
                        output.add(event.text.encode("utf-8", "replace"))
                    await stream.send(chunks.text(event))
                case m.Finished():
                    inference_s = time.perf_counter() - started_s
                    _note_end(noted, event, inference_s)
                    last = chunks.last(event, lease, inference_s)
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
