"""`GET /v1/memory/events` and `GET /v1/memory/decisions`: what changes as it happens, and why it was decided.

Decides how a change is spelled. Never holds more for a slow reader than its connection does.
"""

import asyncio
import math
from typing import Final

import msgspec
from aiohttp import hdrs, web

from hypnos_engine.api import sse
from hypnos_engine.api.decoding import quoted
from hypnos_engine.api.schemas import decisions as wire
from hypnos_engine.api.schemas import memory_events as events
from hypnos_engine.catalog.downloads.records import Job
from hypnos_engine.domain.errors import InvalidRequest, ModelNotAvailable
from hypnos_engine.runtime.feed import Change, LoadStep, Seen
from hypnos_engine.runtime.snapshot import Decision, MemoryView, ModelView
from hypnos_engine.server import memory
from hypnos_engine.server.answers import json_response
from hypnos_engine.server.downloads import download_of
from hypnos_engine.server.exchange import LIFECYCLE, OPTIONS, RUNTIME, client_left, exchange_of
from hypnos_engine.server.streaming import EventStream

DECISIONS_MAX: Final = 256
END_S: Final = 1.0
_LAST_EVENT_ID: Final = "Last-Event-ID"

_encode = msgspec.json.Encoder().encode


async def stream_memory(request: web.Request) -> web.StreamResponse:
    """Send changes until the reader leaves or the server shuts down, from a snapshot or from where the reader was."""
    if request.app[LIFECYCLE].draining:
        raise ModelNotAvailable("Hypnos is shutting down.", retry_after_s=5)
    stream = EventStream(request, request.app[OPTIONS].stream)
    feed = request.app[RUNTIME].changes()
    try:
        async with feed.subscribe(_last_id(request)) as changes, stream:
            await stream.start()
            if request.method == hdrs.METH_HEAD:
                return await stream.end()
            async for change in changes:
                await stream.send(sse.event(_encode(event_of(change, request.app)), change.seq))
    except asyncio.CancelledError:
        if not stream.started or client_left(request) or not exchange_of(request).was_cut():
            raise
    return await _end_in_time(request, stream)


async def _end_in_time(request: web.Request, stream: EventStream) -> web.StreamResponse:
    """End the stream; a reader that takes nothing does not hold up the server's end."""
    try:
        async with asyncio.timeout(END_S):
            return await stream.end()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        return stream.response


async def list_decisions(request: web.Request) -> web.Response:
    """The newest decisions, newest first."""
    found = request.app[RUNTIME].decisions(_limit(request))
    return json_response(wire.DecisionList(data=tuple(decision_of(one) for one in found)))


def event_of(change: Change, app: web.Application) -> events.MemoryEvent:
    """A change as the wire spells it."""
    match change.body:
        case ModelView():
            return events.ModelEvent(**memory.model_fields(change.body))
        case LoadStep(model, phase, progress):
            return events.LoadEvent(model, phase, progress)
        case Decision():
            return events.DecisionEvent(**msgspec.structs.asdict(decision_of(change.body)))
        case Job():
            return events.DownloadEvent(**msgspec.structs.asdict(download_of(change.body)))
        case MemoryView():
            seen = Seen(change.seq, change.body)
            if change.is_snapshot:
                models = tuple(memory.model_status(model) for model in change.body.models)
                return events.SnapshotEvent(models=models, **memory.totals(seen, app))
            ids = tuple(model.spec.id for model in change.body.models)
            return events.TotalsEvent(model_ids=ids, **memory.totals(seen, app))


def decision_of(decision: Decision) -> wire.Decision:
    """A decision as the wire spells it; numbers that JSON cannot express are left out."""
    record = decision.record
    return wire.Decision(
        id=decision.id,
        unix_ms=decision.unix_ms,
        kind=record.kind,
        model=record.model,
        chosen=record.chosen or record.model,
        because=record.because,
        numbers={name: float(value) for name, value in record.numbers if math.isfinite(value)},
        alternatives=tuple(
            wire.Alternative(other.model, other.cost if math.isfinite(other.cost) else None, other.why_not)
            for other in record.alternatives
        ),
    )


def _last_id(request: web.Request) -> int | None:
    """Where a reader was; a header that is no number of ours is as if it were not sent."""
    header = request.headers.get(_LAST_EVENT_ID, "").strip()
    return int(header) if header.isascii() and header.isdecimal() and len(header) < 20 else None


def _limit(request: web.Request) -> int:
    text = request.query.get("limit")
    if text is None:
        return DECISIONS_MAX
    limit = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if limit < 1:
        raise InvalidRequest(f"limit: expected an integer of at least 1, got {quoted(text)}.")
    return min(limit, DECISIONS_MAX)
