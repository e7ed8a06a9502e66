"""The Python client of a running Hypnos: what the command line and the desktop app reach their engine with.

Turns answers into values and refusals into the same errors the server raised. Never looks at proxies, and never retries
anything but the stream of events, which changes nothing.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec

from hypnos_engine.api.error_table import error_from_answer
from hypnos_engine.api.event_stream import EventConnection, Lost, follow
from hypnos_engine.api.schemas.chat import ChatChunk, ChatCompletion, ChatRequest
from hypnos_engine.api.schemas.decisions import Decision, DecisionList
from hypnos_engine.api.schemas.downloads import Download, DownloadList, DownloadRequest, ResumeRequest
from hypnos_engine.api.schemas.errors import ErrorBody
from hypnos_engine.api.schemas.lifecycle import Health, Ready
from hypnos_engine.api.schemas.memory import KvPark, KvParkRequest, MemoryStatus
from hypnos_engine.api.schemas.memory_events import MemoryEvent
from hypnos_engine.api.schemas.models import ModelEntry, ModelList
from hypnos_engine.api.schemas.placing import (
    FreeRequest,
    HoldAnswer,
    OffloadAnswer,
    OffloadRequest,
    SwitchAnswer,
    TierAnswer,
    TierRequest,
)
from hypnos_engine.api.schemas.pool import AddRequest, PoolAnswer, ReplaceRequest
from hypnos_engine.api.schemas.request_log import Cleared, LogLevelAnswer, LogLevelRequest, LogRecord, RequestLogPage
from hypnos_engine.api.sse import EventReader
from hypnos_engine.config.choices import LogLevel
from hypnos_engine.domain.errors import EngineFailed, HypnosError, ModelNotAvailable
from hypnos_engine.domain.kinds import MoeOffload, Tier

T = TypeVar("T")

JSON_HEADERS: Final = {"Content-Type": "application/json"}
CONNECT_TIMEOUT_S: Final = 10.0
SILENCE_TIMEOUT_S: Final = 60.0
"""A stream of events that says nothing for so long, not even a comment, is dead: the server speaks every 15 s."""


class HypnosClient:
    """A connection pool to one server; use it as an async context manager.

    Every method raises the error of `domain.errors` that the server answered with, ModelNotAvailable when no server
    listens at the address, and EngineFailed for an answer that is none of Hypnos.
    """

    def __init__(self, address: str = "http://127.0.0.1:9999", key: str | None = None) -> None:
        self._address = address.rstrip("/")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # Answers may take as long as a model load does: only connecting is bounded.
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S)
        self._http = aiohttp.ClientSession(headers=headers, timeout=timeout, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.close()

    async def health(self) -> Health:
        return await self._get("/health", Health)

    async def ready(self) -> Ready:
        """Whether the server serves yet; a server that does not is an answer, not an error."""
        async with self._request("GET", "/ready") as response:
            return _decode(await response.read(), Ready)

    async def models(self) -> tuple[ModelEntry, ...]:
        return (await self._get("/v1/models", ModelList)).data

    async def model(self, model: str) -> ModelEntry:
        return await self._get(f"/v1/models/{quote(model, safe='')}", ModelEntry)

    async def memory_status(self) -> MemoryStatus:
        return await self._get("/v1/memory/status", MemoryStatus)

    def memory_events(
        self, *, last_id: int | None = None, on_lost: Callable[[Lost], None] | None = None
    ) -> AsyncGenerator[MemoryEvent, None]:
        """Yield what changes, the first time a snapshot; goes on for ever, over lost connections and restarts.

        After a loss it comes back where it was, or begins again with a snapshot; `on_lost` is told of each loss and of
        each vain attempt, on this loop. Feed the events to `api.memory_fold.fold`. Raises what coming back does not
        mend: a key that is not accepted, a server without the route. Closing the generator closes the connection.
        """
        return follow(self._event_connection, last_id, on_lost)

    @asynccontextmanager
    async def _event_connection(self, last_id: int | None) -> AsyncGenerator[EventConnection, None]:
        headers = {} if last_id is None else {"Last-Event-ID": str(last_id)}
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S, sock_read=SILENCE_TIMEOUT_S)
        async with self._request("GET", "/v1/memory/events", headers=headers, timeout=timeout) as response:
            await _check(response)
            yield response.content.iter_any()

    async def decisions(self, limit: int | None = None) -> tuple[Decision, ...]:
        """What the scheduler decided last, newest first."""
        query = "" if limit is None else f"?limit={limit}"
        return (await self._get(f"/v1/memory/decisions{query}", DecisionList)).data

    async def move(self, model: str, tier: Tier, *, context_len: int | None = None) -> TierAnswer:
        """Bring a model to a tier; returns once it is there. `context_len` sizes its cache in tier 1, in tokens."""
        return await self._post("/v1/memory/tier", TierRequest(model, tier, context_len), TierAnswer)

    async def enable(self, model: str) -> SwitchAnswer:
        return await self._post(f"/v1/models/{quote(model, safe='')}/enable", None, SwitchAnswer)

    async def disable(self, model: str) -> SwitchAnswer:
        """Take a model out of service until it is enabled again. Raises ModelBusy while it is in use."""
        return await self._post(f"/v1/models/{quote(model, safe='')}/disable", None, SwitchAnswer)

    async def set_moe_offload(self, model: str, mode: MoeOffload) -> OffloadAnswer:
        """Say where the experts of a Mixture-of-Experts model run."""
        path = f"/v1/models/{quote(model, safe='')}/moe-offload"
        return await self._post(path, OffloadRequest(mode.value), OffloadAnswer)

    async def add_model(self, *, catalog: str | None = None, config: str | None = None) -> PoolAnswer:
        """Take a model into the pool: a catalog entry as `<id>[:<quant>]`, or one [[models]] block in TOML."""
        return await self._post("/v1/models", AddRequest(catalog, config), PoolAnswer)

    async def replace_model(
        self, model: str, *, catalog: str | None = None, config: str | None = None, drain_s: float | None = None
    ) -> PoolAnswer:
        """Put another model in the place of one; ModelBusy when its requests have not ended within `drain_s`."""
        path = f"/v1/models/{quote(model, safe='')}"
        return await self._send("PUT", path, ReplaceRequest(catalog, config, drain_s), PoolAnswer)

    async def remove_model(self, model: str, *, drain_s: float | None = None) -> PoolAnswer:
        """Take a model out of the pool; errors as `replace_model`."""
        query = "" if drain_s is None else f"?drain_secs={drain_s:g}"
        return await self._send("DELETE", f"/v1/models/{quote(model, safe='')}{query}", None, PoolAnswer)

    async def free(self, for_s: float | None = None) -> HoldAnswer:
        """Have the accelerator emptied and left alone, for so many seconds or until `restore`."""
        return await self._post("/v1/memory/free", FreeRequest(for_s), HoldAnswer)

    async def restore(self) -> HoldAnswer:
        """Give the accelerator back to Hypnos."""
        return await self._post("/v1/memory/restore", None, HoldAnswer)

    async def kv_park(self) -> KvPark:
        return await self._get("/v1/memory/kv-park", KvPark)

    async def set_kv_park(self, *, enabled: bool | None = None, max_bytes: int | None = None) -> KvPark:
        """Change how conversations are parked, as long as the server runs; what is None stays."""
        return await self._post("/v1/memory/kv-park", KvParkRequest(enabled, max_bytes), KvPark)

    async def downloads(self) -> tuple[Download, ...]:
        """Every download that is known, newest first."""
        return (await self._get("/v1/downloads", DownloadList)).data

    async def start_download(self, spec: str, *, token: str | None = None, again: bool = False) -> Download:
        """Begin a download, or go on with the one that has the same files; `again` fetches also what is there."""
        return await self._post("/v1/downloads", DownloadRequest(spec, token, again), Download)

    async def pause_download(self, name: str) -> Download:
        """Stop a download and keep what has come."""
        return await self._post(f"/v1/downloads/{quote(name, safe='')}/pause", None, Download)

    async def resume_download(self, name: str, *, token: str | None = None) -> Download:
        """Go on with a download that is paused, has failed or waits for its next try."""
        return await self._post(f"/v1/downloads/{quote(name, safe='')}/resume", ResumeRequest(token), Download)

    async def cancel_download(self, name: str) -> Download:
        """Stop a download for good and remove what has come."""
        return await self._post(f"/v1/downloads/{quote(name, safe='')}/cancel", None, Download)

    async def request_log(self, **filters: str | int | None) -> RequestLogPage:
        """The newest calls, newest first. Filters are those of the route (contract §15); None leaves one out."""
        query = urlencode({name: value for name, value in filters.items() if value is not None})
        return await self._get(f"/v1/logs?{query}", RequestLogPage)

    async def request_log_record(self, name: str) -> LogRecord:
        """One call, by the `x-request-id` of its answer. Raises NotFound."""
        return await self._get(f"/v1/logs/{quote(name, safe='')}", LogRecord)

    async def clear_request_log(self) -> None:
        """Forget the calls; a key that is not admin forgets its own."""
        async with self._request("DELETE", "/v1/logs") as response:
            await _check(response)
            _decode(await response.read(), Cleared)

    async def set_request_log_level(self, level: LogLevel) -> LogLevel:
        """Say what the calls that begin from now on keep."""
        return (await self._post("/v1/logs/level", LogLevelRequest(level.value), LogLevelAnswer)).level

    async def chat(self, request: ChatRequest) -> ChatCompletion:
        """The whole answer of a conversation."""
        async with self._post_chat(request, stream=False) as response:
            return _decode(await response.read(), ChatCompletion)

    async def chat_stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk, None]:
        """Yield the answer's chunks, the last with usage and telemetry. Closing the generator cancels the request.

        A stream that fails midway raises EngineFailed with the server's words.
        """
        async with self._post_chat(request, stream=True) as response:
            reader = EventReader()
            async for piece in response.content.iter_any():
                for event in reader.feed(piece):
                    if event.data == "[DONE]":
                        return
                    chunk = _decode(event.data.encode(), ChatChunk)
                    if chunk.error:
                        raise EngineFailed(chunk.error.message)
                    yield chunk
        raise EngineFailed("The server ended the stream before the answer was complete.")

    async def _get(self, path: str, schema: type[T]) -> T:
        async with self._request("GET", path) as response:
            await _check(response)
            return _decode(await response.read(), schema)

    async def _post(self, path: str, request: msgspec.Struct | None, schema: type[T]) -> T:
        return await self._send("POST", path, request, schema)

    async def _send(self, method: str, path: str, request: msgspec.Struct | None, schema: type[T]) -> T:
        given = {} if request is None else {"data": BytesIO(msgspec.json.encode(request)), "headers": JSON_HEADERS}
        async with self._request(method, path, **given) as response:
            await _check(response)
            return _decode(await response.read(), schema)

    @asynccontextmanager
    async def _post_chat(self, request: ChatRequest, *, stream: bool) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        body = BytesIO(msgspec.json.encode(msgspec.structs.replace(request, stream=stream)))
        async with self._request("POST", "/v1/chat/completions", data=body, headers=JSON_HEADERS) as response:
            await _check(response)
            yield response

    @asynccontextmanager
    async def _request(self, method: str, path: str, **given: Any) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        try:
            async with self._http.request(method, self._address + path, **given) as response:
                yield response
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise ModelNotAvailable(f"No Hypnos answers at {self._address}. Start it with `hypnos serve`.") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise EngineFailed(f"The connection to {self._address} broke: {error}.") from error


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:
        raise _error_of(response.status, await response.read(), response.headers.get("Retry-After"))


def _error_of(status: int, body: bytes, retry_after: str | None) -> HypnosError:
    retry_after_s = float(retry_after) if retry_after and retry_after.isdecimal() else None
    try:
        detail = msgspec.json.decode(body, type=ErrorBody).error
    except msgspec.MsgspecError:
        return error_from_answer(status, None, body.decode("utf-8", "replace")[:500] or f"HTTP {status}", retry_after_s)
    return error_from_answer(status, detail.type, detail.message, retry_after_s)


def _decode(body: bytes, schema: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=schema)
    except msgspec.MsgspecError as error:
        raise EngineFailed(f"The server's answer is not one of Hypnos: {error}.") from error
