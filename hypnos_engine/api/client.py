"""The Python client of a running Hypnos: what the command line and the desktop app reach their engine with.

Turns answers into values and refusals into the same errors the server raised. Never retries, never looks at proxies.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from io import BytesIO
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from hypnos_engine.api.error_table import error_from_answer
from hypnos_engine.api.schemas.chat import ChatChunk, ChatCompletion, ChatRequest
from hypnos_engine.api.schemas.errors import ErrorBody
from hypnos_engine.api.schemas.lifecycle import Health, Ready
from hypnos_engine.api.schemas.memory import MemoryStatus
from hypnos_engine.api.schemas.models import ModelEntry, ModelList
from hypnos_engine.api.sse import EventReader
from hypnos_engine.domain.errors import EngineFailed, HypnosError, ModelNotAvailable

T = TypeVar("T")

JSON_HEADERS: Final = {"Content-Type": "application/json"}
CONNECT_TIMEOUT_S: Final = 10.0


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
