"""A real server on a real port of this machine, for the length of a block."""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from hypnos_engine.server.app import ALL_ROUTES, make_app
from hypnos_engine.server.exchange import Route
from hypnos_engine.server.options import AccessKey, ServerOptions
from hypnos_engine.server.site import Site
from tests.server.fake_runtime import FakeRuntime

USER, ADMIN = "user-key", "admin-key"
KEYS = tuple(
    AccessKey(label, hashlib.sha256(key.encode()).hexdigest(), admin)
    for label, key, admin in (("user", USER, False), ("admin", ADMIN, True))
)
OPTIONS = ServerOptions(version="9.8.7", request_timeout_s=30.0, drain_s=5.0)


@dataclass
class Running:
    """A served runtime and a client of it."""

    runtime: FakeRuntime
    site: Site
    http: aiohttp.ClientSession

    @property
    def address(self) -> str:
        return self.site.address

    async def chat(self, **fields: Any) -> tuple[int, Any]:
        """Status and decoded JSON of one chat request."""
        async with self.http.post("/v1/chat/completions", json=chat_body(**fields)) as response:
            return response.status, await response.json()

    @asynccontextmanager
    async def raw(self, *pieces: bytes) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A plain connection that has sent the pieces."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.site.port)
        try:
            for piece in pieces:
                writer.write(piece)
            await writer.drain()
            yield reader, writer
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], **fields}


def chat_bytes(*, headers: str = "", **fields: Any) -> bytes:
    """One chat request as it goes over the wire."""
    body = msgspec.json.encode(chat_body(**fields))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def running(
    runtime: FakeRuntime | None = None,
    routes: tuple[Route, ...] = ALL_ROUTES,
    app: web.Application | None = None,
    port: int = 0,
    **options: Any,
) -> AsyncIterator[Running]:
    """Serve, on a free port unless one is given; leaving the block closes the server and looks for what was left."""
    runtime = runtime or FakeRuntime()
    before = asyncio.all_tasks()
    site = Site(app or make_app(runtime, replace(OPTIONS, **options), routes), port=port)
    await site.start()
    try:
        async with aiohttp.ClientSession(site.address) as http:
            yield Running(runtime, site, http)
    finally:
        await site.close()
    assert runtime.idle, (runtime.leases, runtime.waiting, runtime.generating)
    assert runtime.changes().readers == 0
    left = [task for task in asyncio.all_tasks() - before if "hypnos_engine" in repr(task)]
    assert not left, left


@contextmanager
def serving_in_thread(runtime: FakeRuntime, **options: Any) -> Iterator[str]:
    """Serve from a loop of another thread, for clients that block; yields the address."""
    started = threading.Event()
    address: list[str] = []
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        ended = asyncio.Event()
        stop.append((asyncio.get_running_loop(), ended))
        try:
            async with running(runtime, **options) as server:
                address.append(server.address)
                started.set()
                await ended.wait()
        finally:
            started.set()

    failures: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    try:
        if not failures:
            yield address[0]
    finally:
        if stop and not stop[0][0].is_closed():
            stop[0][0].call_soon_threadsafe(stop[0][1].set)
        thread.join()
    if failures:
        raise failures[0]
