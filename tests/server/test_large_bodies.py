"""Bodies above what is decoded on the loop: read by another process, bounded together, and gone once they were read."""

import asyncio
import gzip
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from hypnos_engine.domain.errors import InvalidRequest
from hypnos_engine.ipc import messages as m
from hypnos_engine.server.app import make_app
from hypnos_engine.server.bodies import BODIES
from hypnos_engine.server.readers import Readers, Transport
from hypnos_engine.server.readings import CHAT
from hypnos_engine.server.spool import BodyBudget
from tests.loops import LoopFactory
from tests.server.fake_runtime import FakeRuntime
from tests.server.raw_http import read_response
from tests.server.running import OPTIONS, Running, chat_body, chat_bytes, running

MIB = 1024 * 1024
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@dataclass
class Watched:
    """A server whose bodies a test can count."""

    server: Running
    budget: BodyBudget

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; each turn is a whole request."""
        while not condition():
            async with self.server.http.get("/health") as response:
                await response.read()


@asynccontextmanager
async def watched(**options: Any) -> AsyncIterator[Watched]:
    runtime = FakeRuntime()
    before = spooled()
    app = make_app(runtime, replace(OPTIONS, **options))
    async with running(runtime, app=app) as server:
        found = Watched(server, app[BODIES].budget)
        yield found
        await found.until(lambda: found.budget.held_bytes == 0)
        await found.until(lambda: spooled() == before)
    assert not readers()


def spooled() -> int:
    """Files without a name that this process has open."""
    if sys.platform != "linux":
        return 0
    targets = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            targets.append(str(descriptor.readlink()))
    return sum(name.startswith("/") and name.endswith(" (deleted)") and "memfd" not in name for name in targets)


def readers() -> list[psutil.Process]:
    """The processes that read bodies for this one."""
    found = []
    for child in psutil.Process().children():
        try:
            if "hypnos_engine.server.reading_process" in child.cmdline():
                found.append(child)
        except psutil.Error:
            continue
    return found


def content(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def declared(size: int, *sent: bytes) -> bytes:
    return HEAD + f"Content-Length: {size}\r\n\r\n".encode() + b"".join(sent)


async def test_a_large_body_is_read_by_another_process(loop_factory: LoopFactory) -> None:
    text = "Grüße 🦊 \\ \n" * 300_000
    async with watched(max_prompt_chars=10_000_000) as at:
        for _ in range(2):
            async with at.server.raw(chat_bytes(messages=content(text))) as (reader, _):
                status, _, answer = await read_response(reader)
            assert status == 200, answer
        assert len(readers()) == 1, "one process reads several"
    assert [said.messages[0].text() for said in at.server.runtime.said] == [text, text]


async def test_what_is_beside_a_long_conversation_arrives_too() -> None:
    fields: dict[str, Any] = {"temperature": 0.5, "stop": ["a", "b"], "seed": 7, "max_tokens": 3, "think": True}
    async with watched(max_prompt_chars=10_000_000) as at:
        for text in ("short", "x" * 2 * MIB):
            async with at.server.raw(chat_bytes(messages=content(text), **fields)) as (reader, _):
                assert (await read_response(reader))[0] == 200
    short, long = at.server.runtime.said
    assert replace(long, messages=(), ask=short.ask) == replace(short, messages=())


async def test_a_picture_in_a_body_is_not_kept_with_the_text() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * MIB}}
    parts: list[Any] = [{"type": "text", "text": "What is this?"}, picture]
    async with (
        watched() as at,
        at.server.raw(chat_bytes(messages=[{"role": "user", "content": parts}])) as (reader, _),
    ):
        status, _, answer = await read_response(reader)
    assert status == 400
    assert json.loads(answer)["error"]["message"].startswith("messages[0].content[1]: the model 'fake' does not serve")


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "cut": (lambda: json_chat(b'"%b"' % (b"a" * 2 * MIB))[:-1] + b"]", "The body is not valid JSON"),
    "bad text": (lambda: json_chat(b'"%b\xff"' % (b"a" * 2 * MIB)), "The body is not valid JSON: Invalid UTF-8"),
    "deep": (lambda: b"[" * 2 * MIB, "The body: expected object"),
    "deep inside": (lambda: json_chat(b'"a"', b',"tools":[{"function":{"name":"f","parameters":{"a":' + b"[" * 2 * MIB),
                    "nested too deeply"),
    "too long": (lambda: json_chat(b'"%b"' % (b"a" * 2 * MIB)), "messages: 2097153 characters"),
    "small values": (lambda: json_chat(b'"a"', b',"tools":[{"function":{"name":"f","parameters":{"a":[%b]}}}]'
                     % b",".join([b"{}"] * 1_000_000)), "tools: the model 'fake' has no tool format"),
    "messages": (lambda: b'{"model":"fake","messages":[%b]}' % b",".join([b'{"role":"user"}'] * 100_000),
                 "messages: 100000 messages"),
    "another model": (lambda: json_chat(b'"a"', model=b"m" * 2 * MIB), "There is no model"),
    "wrong type": (lambda: json_chat(b'"a"', b',"stream":"%b"' % (b"y" * 2 * MIB)), "stream: expected boolean"),
}  # fmt: skip


def json_chat(text: bytes, more: bytes = b"", model: bytes = b"fake") -> bytes:
    return b'{"model":"%b","messages":[{"role":"user","content":%b}]%b}' % (model, text, more)


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_body_gets_the_words_that_a_small_one_gets(name: str) -> None:
    make, message = HOSTILE[name]
    body = make()
    async with watched() as at, at.server.raw(declared(len(body), body), chat_bytes()) as (reader, _):
        status, _, answer = await read_response(reader)
        assert (await read_response(reader))[0] == 200, "the connection goes on"
    said = json.loads(answer)["error"]["message"]
    assert status == (404 if name == "another model" else 400)
    assert message in said
    assert len(said) <= 600


async def test_a_small_body_of_very_many_values_is_read_elsewhere() -> None:
    tools = b',"tools":[{"function":{"name":"f","parameters":{"a":[%b]}}}]' % b",".join([b"{}"] * 100_000)
    body = json_chat(b'"a"', tools)
    assert len(body) < MIB
    async with watched() as at:
        async with at.server.raw(declared(len(body), body)) as (reader, _):
            assert (await read_response(reader))[0] == 400
        assert len(readers()) == 1


async def test_a_packed_body_is_unpacked_on_its_way(loop_factory: LoopFactory) -> None:
    text = "word " * MIB
    packed = gzip.compress(msgspec.json.encode(chat_body(messages=content(text))))
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    async with watched(max_prompt_chars=10_000_000) as at, at.server.raw(head + packed) as (reader, _):
        assert (await read_response(reader))[0] == 200
    assert at.server.runtime.said[0].messages[0].text() == text


async def test_a_bomb_is_refused_at_the_limit_wherever_it_lies() -> None:
    """§1.4-03."""
    bomb = gzip.compress(b" " * 64 * MIB)
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    async with watched(max_body_bytes=4 * MIB) as at, at.server.raw(head + bomb) as (reader, _):
        status, _, answer = await read_response(reader)
    assert status == 413
    assert answer == f"The body is larger than limits.max_body_bytes ({4 * MIB} bytes).".encode()


# --- the sum --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_body_that_finds_no_room_is_told_to_come_back(loop_factory: LoopFactory, chunked: bool) -> None:
    options = {"max_body_bytes_in_flight": 3 * MIB, "max_body_bytes": 3 * MIB, "body_wait_s": 0.05}
    body = msgspec.json.encode(chat_body(messages=content("x" * 2 * MIB)))
    framed = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    async with watched(**options) as at, at.server.raw(declared(2 * MIB, b"{" * MIB)):
        await at.until(lambda: at.budget.held_bytes == 2 * MIB)
        async with at.server.raw(framed if chunked else declared(len(body), body)) as (reader, _):
            status, headers, answer = await read_response(reader)
        assert at.budget.held_bytes == 2 * MIB, "what was taken is given back"
        async with at.server.http.post("/v1/chat/completions", json=chat_body()) as response:
            assert response.status == 200, "small ones go on"
    assert status == 503
    assert int(headers["retry-after"]) >= 1
    error = json.loads(answer)["error"]
    assert error["type"] == "model_not_available"
    assert "limits.max_body_bytes_in_flight" in error["message"]


async def test_a_body_waits_for_the_one_before_it(loop_factory: LoopFactory) -> None:
    """The time that it waits is not held against its client, whose bytes have come."""
    options = {"max_body_bytes_in_flight": 3 * MIB, "max_body_bytes": 3 * MIB, "max_prompt_chars": 3 * MIB}
    body = msgspec.json.encode(chat_body(messages=content("x" * 2 * MIB)))
    async with watched(**options) as at, at.server.raw(declared(len(body), body[:MIB])) as (reader, writer):
        await at.until(lambda: at.budget.held_bytes == len(body))
        async with at.server.raw(declared(len(body), body)) as (later, _):
            second = asyncio.ensure_future(read_response(later))
            await at.until(lambda: at.server.runtime.leases == 0)
            assert not second.done()
            writer.write(body[MIB:])
            assert (await read_response(reader))[0] == 200
            assert (await second)[0] == 200


async def test_one_body_may_be_all_that_there_is_room_for() -> None:
    body = msgspec.json.encode(chat_body(messages=content("x" * 2 * MIB)))
    async with (
        watched(max_body_bytes_in_flight=MIB, max_prompt_chars=3 * MIB) as at,
        at.server.raw(declared(len(body), body)) as (reader, _),
    ):
        assert (await read_response(reader))[0] == 200


async def test_bytes_go_to_those_who_asked_first() -> None:
    budget = BodyBudget(100, wait_s=5.0)
    order: list[str] = []

    async def take(name: str, size_bytes: int) -> None:
        await budget.take(size_bytes)
        order.append(name)

    await take("first", 80)
    waiting = [asyncio.create_task(take("large", 90)), asyncio.create_task(take("small", 10))]
    await asyncio.sleep(0)
    assert order == ["first"], "a small one does not pass a large one for ever"
    waiting[0].cancel()
    await asyncio.wait(waiting)
    assert order == ["first", "small"]
    budget.give_back(80)
    budget.give_back(10)
    assert budget.held_bytes == 0


# --- clients that do not do their part ------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [0, 1000, MIB + MIB // 2])
async def test_a_client_that_leaves_midway_leaves_nothing(loop_factory: LoopFactory, sent: int) -> None:
    async with watched() as at:
        async with at.server.raw(declared(3 * MIB, b"x" * sent)):
            await at.until(lambda: at.budget.held_bytes == 3 * MIB)
        await at.until(lambda: at.budget.held_bytes == 0)


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_client_that_leaves_while_its_body_is_read_leaves_nothing(
    loop_factory: LoopFactory, chunked: bool
) -> None:
    body = b"[" * 3 * MIB
    framed = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    async with watched() as at, at.server.raw(framed if chunked else declared(len(body), body)):
        await at.until(lambda: at.budget.held_bytes > 2 * MIB)


@pytest.mark.parametrize("size", [1000, 3 * MIB])
async def test_a_body_that_never_comes_is_given_up(loop_factory: LoopFactory, size: int) -> None:
    async with (
        watched(body_grace_s=0.05, body_bytes_per_s=10**9) as at,
        at.server.raw(declared(size, b"{" * (size - 1))) as (reader, _),
    ):
        status, headers, answer = await read_response(reader)
    assert status == 408
    assert headers["content-type"].startswith("text/plain")
    assert f"{size - 1} bytes".encode() in answer


async def test_a_body_at_the_pace_is_awaited() -> None:
    body = msgspec.json.encode(chat_body())
    async with (
        watched(body_grace_s=0.0, body_bytes_per_s=1) as at,
        at.server.raw(declared(len(body), body[:-1])) as (reader, writer),
    ):
        await at.until(lambda: at.budget.held_bytes == len(body))
        writer.write(body[-1:])
        assert (await read_response(reader))[0] == 200


async def test_a_disk_that_takes_nothing_is_told(tmp_path: Path) -> None:
    body = msgspec.json.encode(chat_body(messages=content("x" * 2 * MIB)))
    async with (
        watched(spool_dir=str(tmp_path / "none")) as at,
        at.server.raw(declared(len(body), body)) as (reader, _),
    ):
        status, _, answer = await read_response(reader)
    assert status == 503
    assert "cannot be kept on the server's disk" in json.loads(answer)["error"]["message"]
    assert str(tmp_path) not in answer.decode()


# --- the processes --------------------------------------------------------------------------------------------------


async def test_a_process_that_was_killed_is_replaced(expected_log: list[str]) -> None:
    expected_log.append("a process that reads large bodies is gone")
    request = chat_bytes(messages=content("x" * 2 * MIB))
    async with watched(max_prompt_chars=3 * MIB) as at:
        for _ in range(2):
            async with at.server.raw(request) as (reader, _):
                assert (await read_response(reader))[0] == 200
            (process,) = readers()
            process.kill()
            process.wait()


async def test_an_idle_process_ends(tmp_path: Path) -> None:
    pool = Readers(idle_s=0.0)
    await read_with(pool, tmp_path, msgspec.json.encode(chat_body()))
    ended = asyncio.get_running_loop().run_in_executor(None, psutil.wait_procs, readers())
    await ended
    await pool.close()
    assert not readers()


@pytest.mark.parametrize("transport", [Transport.SOCKET, Transport.ONCE])
async def test_both_ways_to_hand_a_body_over_read_alike(tmp_path: Path, transport: str) -> None:
    pool = Readers(transport=transport)
    text = "Grüße " * 100_000
    read = await read_with(pool, tmp_path, msgspec.json.encode(chat_body(messages=content(text))))
    assert m.unpacked(read.messages)[0].text() == text
    assert m.unpacked((await read_with(pool, tmp_path, msgspec.json.encode(chat_body()))).messages)[0].text() == "Hi"
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        await read_with(pool, tmp_path, b"{" * 1000)
    await pool.close()
    assert not readers()


async def read_with(pool: Readers, folder: Path, body: bytes) -> Any:
    path = folder / "body"
    path.write_bytes(body)
    with path.open("rb") as file:
        return await pool.read(CHAT, file.fileno(), len(body), replace(OPTIONS, max_prompt_chars=10**7))
