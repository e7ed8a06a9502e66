"""The request log (contract §15): what is kept of each call of a model, and the routes that show, empty and set it.

Decides what a level keeps and what is blanked. Never holds a key, never holds the loop for the sake of a text, and
shows a key that is not admin nothing but its own calls.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from aiohttp import hdrs, web
from msgspec import UNSET

from hypnos_engine.api.decoding import quoted, shorten
from hypnos_engine.api.schemas.request_log import Cleared, LogLevelAnswer, LogRecord
from hypnos_engine.config.choices import LogLevel
from hypnos_engine.domain.errors import HypnosError, InvalidRequest, NotFound
from hypnos_engine.server.answers import JSON, json_response
from hypnos_engine.server.bodies import read_json
from hypnos_engine.server.exchange import exchange_of
from hypnos_engine.server.options import LogTerms, ServerOptions
from hypnos_engine.server.readers import Readers
from hypnos_engine.server.readings import LEVEL, REDACTION
from hypnos_engine.server.redacting import BLANK, RedactionRequest
from hypnos_engine.server.spool import BodyBudget, Spool
from hypnos_engine.telemetry.calls import Call
from hypnos_engine.telemetry.ring import Kept, RecordRing, Wanted
from hypnos_engine.telemetry.tape import Room, Tape, shortened

if TYPE_CHECKING:
    from collections.abc import Callable

MODEL_MAX_CHARS: Final = 128
STATUSES: Final = ("ok", "error", "4xx", "5xx")
REDACTED_AT_ONCE: Final = 32
"""Calls whose text waits for the patterns; those beyond have theirs blanked whole."""
REDACT_WITHIN_S: Final = 5.0
"""How long the patterns may take for the texts of a call, others' before it included."""
SETTLE_S: Final = 2.0
"""How long a reader waits for texts that are being looked through."""
SECRET_MIN_CHARS: Final = 8
"""What is sent in place of a key is looked for in captured text from this length on."""
_PART_BYTES: Final = 256 * 1024
_WHOLE_BYTES: Final = 1024 * 1024
"""A longer answer is sent part by part."""
_SECOND_DIGITS: Final = 3

_TEXT: Final = frozenset({LogLevel.DEBUG, LogLevel.TRACE})
_encode: Final = msgspec.json.Encoder().encode


class Ended(NamedTuple):
    """What became of a call."""

    id: str
    route: str
    method: str
    status: int
    key: str
    duration_s: float
    error_type: str | None
    error: str | None
    quotes: bool
    """True where the error may repeat what the client wrote."""
    secret: str
    """What came in place of a key; empty where nothing did. Looked for in what was captured, and kept nowhere."""

    def without_secret(self, text: str) -> str:
        """A text in which the caller's own key is blanked."""
        return text if len(self.secret) < SECRET_MIN_CHARS else text.replace(self.secret, BLANK)


@dataclass(frozen=True, slots=True)
class _Texts:
    """The captured texts of one call, in the order of their fields; None = not captured."""

    input: str | None = None
    output: str | None = None
    request_payload: str | None = None
    response_payload: str | None = None
    error: str | None = None

    def there(self) -> tuple[str, ...]:
        return tuple(text for text in self.all() if text is not None)

    def all(self) -> tuple[str | None, ...]:
        return self.input, self.output, self.request_payload, self.response_payload, self.error

    def each(self, change: "Callable[[str], str]") -> "_Texts":
        return _Texts(*(None if text is None else change(text) for text in self.all()))

    def replaced(self, texts: tuple[str, ...]) -> "_Texts":
        rest = iter(texts)
        return self.each(lambda _: next(rest))


class RequestLog:
    """The newest calls of one server. Used on one loop; `close` ends what it started."""

    def __init__(
        self, terms: LogTerms, spool_dir: str | None = None, *, redact_within_s: float = REDACT_WITHIN_S
    ) -> None:
        self.level = terms.level
        self.ring = RecordRing(terms.entries, terms.max_bytes)
        self._terms = terms
        self._spool_dir = spool_dir
        self._redact_within_s = redact_within_s
        self._room = Room(terms.max_bytes)
        self._readers = Readers()
        self._redacting: set[asyncio.Task[None]] = set()

    @property
    def captured_bytes(self) -> int:
        """Text of calls that are under way."""
        return self._room.used_bytes

    def open(self, call: Call) -> None:
        """A call of a model begins: from here on it keeps what the level says."""
        level = self.level
        if level is LogLevel.OFF or not self.ring.entries:
            return
        call.level = level
        if level in _TEXT and not self._terms.blank:
            call.input = Tape(self._room)
            call.output = Tape(self._room)
            if level is LogLevel.TRACE:
                call.request_payload = Tape(self._room)
                call.response_payload = Tape(self._room)

    def close(self, call: Call, ended: Ended) -> None:
        """The call is over: keep its record, if its level asks for it, and let go of its tapes."""
        if call.level is None:
            return
        level = LogLevel(call.level)
        try:
            if _is_wanted(level, ended):
                self._record(level, call, ended)
        finally:
            for tape in call.tapes:
                tape.close()

    def clear(self, key: str | None) -> None:
        """Forget everything; with a label, what that key called."""
        self.ring.clear(key)

    @property
    def unsettled(self) -> int:
        """Records that are blank because their texts are being looked through."""
        return len(self._redacting)

    async def settled(self) -> None:
        """Wait for records whose texts are being looked through; not for long."""
        if self._redacting:
            await asyncio.wait(tuple(self._redacting), timeout=SETTLE_S)

    async def stop(self) -> None:
        """End every process and task."""
        for task in tuple(self._redacting):
            task.cancel()
        if self._redacting:
            await asyncio.wait(tuple(self._redacting))
        await self._readers.close()

    # --- records ----------------------------------------------------------------------------------------------------

    def _record(self, level: LogLevel, call: Call, ended: Ended) -> None:
        if level not in _TEXT:
            self.ring.add(_kept(_record_of(level, call, ended, _Texts(error=_plain_error(ended)), cut=False)))
            return
        cut = any(tape.cut for tape in call.tapes)
        texts = self._captured(level, call, ended)
        if not self._terms.patterns or not texts.there():
            self.ring.add(_kept(_record_of(level, call, ended, texts, cut=cut)))
            return
        # It is blank until its texts were looked through.
        record = _record_of(level, call, ended, texts.each(lambda _: BLANK), cut=cut)
        self.ring.add(_kept(record))
        if len(self._redacting) < REDACTED_AT_ONCE:
            task = asyncio.create_task(self._redact(record, texts), name="redacting")
            self._redacting.add(task)
            task.add_done_callback(self._redacting.discard)

    def _captured(self, level: LogLevel, call: Call, ended: Ended) -> _Texts:
        error = ended.error
        if self._terms.blank:
            payload = BLANK if level is LogLevel.TRACE else None
            return _Texts(BLANK, BLANK, payload, payload, BLANK if error is not None and ended.quotes else error)
        texts = _Texts(
            input=_text_of(call.input),
            output=_text_of(call.output),
            request_payload=_text_of(call.request_payload),
            response_payload=_text_of(call.response_payload),
            error=error,
        )
        return texts.each(ended.without_secret)

    async def _redact(self, record: LogRecord, texts: _Texts) -> None:
        with suppress(HypnosError, TimeoutError):  # a pattern took too long, or the process was killed
            async with asyncio.timeout(self._redact_within_s):
                clean = texts.replaced(await self._looked_through(texts.there()))
            self.ring.replace(_kept(_with_texts(record, clean)))

    async def _looked_through(self, texts: tuple[str, ...]) -> tuple[str, ...]:
        job = _encode(RedactionRequest(texts, self._terms.patterns))
        spool = Spool(BodyBudget(len(job), 0.0), self._spool_dir)
        try:
            await spool.add(job)
            found = await self._readers.read(REDACTION, await spool.file(), len(job), ServerOptions(version=""))
        finally:
            spool.close()
        return found.texts


def _kept(record: LogRecord) -> Kept:
    return Kept(
        record.id,
        record.key,
        record.model or "",
        record.route,
        record.status,
        record.status >= HTTPStatus.BAD_REQUEST or record.error_type is not None,
        _encode(record),
    )


def _is_wanted(level: LogLevel, ended: Ended) -> bool:
    if level is LogLevel.ERROR:
        failed_midway = ended.status < HTTPStatus.BAD_REQUEST and ended.error_type is not None
        return ended.status >= HTTPStatus.INTERNAL_SERVER_ERROR or failed_midway
    return level is not LogLevel.WARN or ended.status >= HTTPStatus.BAD_REQUEST or ended.error_type is not None


def _plain_error(ended: Ended) -> str | None:
    """What is said of an error where no text of clients is kept."""
    if ended.error is not None and ended.quotes:
        return "The request was refused; what was wrong with it is kept from the level debug on."
    return None if ended.error is None else ended.without_secret(ended.error)


def _text_of(tape: Tape | None) -> str | None:
    return None if tape is None else tape.text()


def _record_of(level: LogLevel, call: Call, ended: Ended, texts: _Texts, *, cut: bool) -> LogRecord:
    timing = call.timing
    rate = None if timing is None else timing.decode_tokens_per_s
    record = LogRecord(
        id=ended.id,
        route=ended.route,
        method=ended.method,
        status=ended.status,
        key=ended.key,
        started_at=datetime.fromtimestamp(time.time() - ended.duration_s, UTC),
        duration_ms=_rounded(ended.duration_s * 1e3) or 0.0,
        model=None if call.model is None else ended.without_secret(call.model)[:MODEL_MAX_CHARS],
        stream=call.stream,
        tokens_in=call.tokens_in,
        tokens_out=call.tokens_out,
        cached_tokens=call.cached_tokens,
        tokens_per_s=_rounded(rate),
        waited_ms=_rounded(call.waited_ms),
        inference_ms=_rounded(call.inference_ms),
        tier_switch_ms=_rounded(call.tier_switch_ms),
        previous_tier=call.previous_tier,
        error=None,
        error_type=ended.error_type,
        level=level,
        truncated=cut,
    )
    return record if not texts.there() else _with_texts(record, texts)


def _with_texts(record: LogRecord, texts: _Texts) -> LogRecord:
    """The record with texts, each as long as it may be."""
    bounded = [(None, False) if text is None else shortened(text) for text in texts.all()]
    given, received, request, response = (UNSET if text is None else text for text, _ in bounded[:4])
    return msgspec.structs.replace(
        record,
        input=given,
        output=received,
        request_payload=request,
        response_payload=response,
        error=bounded[4][0],
        truncated=record.truncated or any(cut for _, cut in bounded),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _SECOND_DIGITS)


# --- routes ---------------------------------------------------------------------------------------------------------

REQUEST_LOG: Final = web.AppKey("request_log", RequestLog)


async def list_log(request: web.Request) -> web.StreamResponse:
    """The newest calls that the filters let through, newest first."""
    log = request.app[REQUEST_LOG]
    own = _only(request)
    wanted, most = _filters(request, own), _limit(request)
    await log.settled()
    head = _encode({"level": log.level, "capacity": log.ring.entries, "stored": log.ring.stored(own)})
    body = bytearray(head[:-1] + b',"records":[')
    if request.method == hdrs.METH_HEAD:
        return web.Response(content_type=JSON)
    response: web.StreamResponse | None = None
    first, below, done = True, None, False
    while not done:
        found, below = log.ring.page(wanted, most=most, most_bytes=_PART_BYTES, below=below)
        most -= len(found)
        done = below is None or most <= 0
        if found:
            body += (b"" if first else b",") + b",".join(found)
            first = False
        if done:
            body += b"]}"
        if response is None and done:
            return web.Response(body=bytes(body), content_type=JSON)
        if response is None and len(body) > _WHOLE_BYTES:
            response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: JSON})
            await response.prepare(request)
            exchange_of(request).stop_clock()
        if response is not None:
            await response.write(bytes(body))
            await request.writer.drain()
            body.clear()
        await asyncio.sleep(0)  # the next part is another turn's
    assert response is not None
    await response.write_eof()
    return response


async def show_log(request: web.Request) -> web.Response:
    """One record, by the `x-request-id` of its answer."""
    log = request.app[REQUEST_LOG]
    await log.settled()
    own = _only(request)
    record = log.ring.get(request.match_info["id"])
    if record is None or (own is not None and record.key != own):
        raise NotFound("The request log has no such record: it was not a call of a model, or it is gone by now.")
    return web.Response(body=record.encoded, content_type=JSON)


async def clear_log(request: web.Request) -> web.Response:
    """Forget every record; a key that is not admin empties its own part."""
    request.app[REQUEST_LOG].clear(_only(request))
    return json_response(Cleared())


async def set_log_level(request: web.Request) -> web.Response:
    """Say what the calls that begin from now on keep."""
    wish = await read_json(request, LEVEL)
    log = request.app[REQUEST_LOG]
    log.level = wish.level
    return json_response(LogLevelAnswer(log.level))


def _only(request: web.Request) -> str | None:
    """The label whose records the caller may see; None = everybody's."""
    key = exchange_of(request).key
    return None if key.admin else key.label


def _filters(request: web.Request, own: str | None) -> Wanted:
    """Raises InvalidRequest."""
    query = request.query
    model, route, key, status = (query.get(name) for name in ("model", "route", "key", "status"))
    if status is not None and status not in STATUSES:
        raise InvalidRequest(shorten(f"status: expected one of {', '.join(STATUSES)}, got {quoted(status)}."))

    def wanted(record: Kept) -> bool:
        return (
            (own is None or record.key == own)
            and (key is None or record.key == key)
            and (model is None or record.model == model)
            and (route is None or record.route == route)
            and (status is None or _has_status(record, status))
        )

    return wanted


def _has_status(record: Kept, status: str) -> bool:
    match status:
        case "ok":
            return not record.failed
        case "error":
            return record.failed
        case _:
            return record.status // 100 == int(status[0])


def _limit(request: web.Request) -> int:
    text = request.query.get("limit")
    if text is None:
        return request.app[REQUEST_LOG].ring.entries
    limit = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if limit < 1:
        raise InvalidRequest(f"limit: expected an integer of at least 1, got {quoted(text)}.")
    return limit
