"""The project's own client against a real server: values out, errors as the server raised them."""

import asyncio

import pytest

from hypnos_engine.api.client import HypnosClient
from hypnos_engine.api.schemas.chat import ChatRequest, Message
from hypnos_engine.domain import errors as e
from hypnos_engine.domain.kinds import Tier
from tests.server.fake_runtime import FakeRuntime, Gate, Script
from tests.server.running import ADMIN, KEYS, running

REQUEST = ChatRequest(model="fake", messages=[Message("user", "Hi")])


async def test_it_reads_every_route() -> None:
    runtime = FakeRuntime(**{"fake": Script(), "org/a:b": Script()})
    async with running(runtime, keys=KEYS) as server, HypnosClient(server.address + "/", ADMIN) as client:
        assert (await client.health()).version == "9.8.7"
        assert (await client.ready()).ready
        runtime.staging = True
        assert (await client.ready()).reason == "startup tier initialization in progress"
        runtime.staging = False
        assert [entry.id for entry in await client.models()] == ["fake", "org/a:b"]
        assert (await client.model("org/a:b")).current_tier is Tier.GPU
        assert (await client.memory_status()).capabilities.device_name == "Fake GPU"
        completion = await client.chat(REQUEST)
        assert completion.choices[0].message.content == "Hello, world"


async def test_it_streams() -> None:
    async with running() as server, HypnosClient(server.address) as client:
        chunks = [chunk async for chunk in client.chat_stream(REQUEST)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello, world"
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens == 3


async def test_closing_the_stream_cancels_the_request() -> None:
    runtime = FakeRuntime(fake=Script(gates={1: Gate()}))
    async with running(runtime) as server, HypnosClient(server.address) as client:
        stream = client.chat_stream(REQUEST)
        await anext(stream)
        await stream.aclose()
        await runtime.until(lambda: runtime.idle)


@pytest.mark.parametrize(
    "error",
    [
        e.InvalidRequest("wrong"),
        e.ModelBusy("full"),
        e.RateLimited("slow down", retry_after_s=7.0),
        e.ModelNotAvailable("hold", retry_after_s=5.0),
        e.DeadlineUnmeetable("late", retry_after_s=2.0),
        e.InsufficientMemory("no room"),
        e.ProcessMemoryCap("cap"),
        e.EngineTimeout("slow"),
        e.EngineFailed("broken"),
    ],
    ids=lambda error: error.code,
)
@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_arrives_as_it_was_raised(error: e.HypnosError, stream: bool) -> None:
    async with running(FakeRuntime(fake=Script(refuse=error))) as server, HypnosClient(server.address) as client:
        asking = anext(client.chat_stream(REQUEST)) if stream else client.chat(REQUEST)
        with pytest.raises(type(error)) as caught:
            await asking
    assert (caught.value.message, caught.value.retry_after_s) == (error.message, error.retry_after_s)


async def test_a_plain_text_answer_is_an_error_too() -> None:
    runtime = FakeRuntime(fake=Script(before_grant=Gate()))
    async with running(runtime, request_timeout_s=0.02) as server, HypnosClient(server.address) as client:
        with pytest.raises(e.RequestTimedOut, match="request_timeout_secs"):
            await client.chat(REQUEST)


async def test_a_failure_midway_raises_with_the_servers_words() -> None:
    runtime = FakeRuntime(fake=Script(fail=e.WorkerDied("the worker was killed")))
    seen: list[str] = []

    async def read(client: HypnosClient) -> None:
        async for chunk in client.chat_stream(REQUEST):
            seen.append(chunk.choices[0].delta.content or "")

    async with running(runtime) as server, HypnosClient(server.address) as client:
        with pytest.raises(e.EngineFailed, match="the worker was killed"):
            await read(client)
    assert "".join(seen) == "Hello, world"


async def serve_bytes(answer: bytes) -> tuple[asyncio.Server, str]:
    """A server that answers everything with these bytes and hangs up."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello",
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
    ],
)
async def test_an_answer_of_something_else_is_a_failure(answer: bytes) -> None:
    server, address = await serve_bytes(answer)
    async with server, HypnosClient(address) as client:
        with pytest.raises(e.EngineFailed):
            await client.health()


async def test_a_stream_cut_off_is_a_failure() -> None:
    server, address = await serve_bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n: x")
    async with server, HypnosClient(address) as client:
        with pytest.raises(e.EngineFailed, match="before the answer was complete"):
            await anext(client.chat_stream(REQUEST))


async def test_no_server_at_all_says_how_to_start_one() -> None:
    server, address = await serve_bytes(b"")
    server.close()
    await server.wait_closed()
    async with HypnosClient(address) as client:
        with pytest.raises(e.ModelNotAvailable, match="hypnos serve"):
            await client.health()
