"""The client's methods for memory and placement, and its stream of events over lost connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest

from hypnos_engine.api import sse
from hypnos_engine.api.client import HypnosClient
from hypnos_engine.api.memory_fold import fold
from hypnos_engine.api.schemas.memory_events import LoadEvent, ModelEvent, SnapshotEvent
from hypnos_engine.domain import errors as e
from hypnos_engine.domain.kinds import MoeOffload, Tier
from hypnos_engine.domain.model import ModelId
from tests.loops import LoopFactory, loop_factory
from tests.server.fake_runtime import FakeRuntime, Script
from tests.server.running import ADMIN, KEYS, USER, running

if TYPE_CHECKING:
    from hypnos_engine.api.event_stream import Lost

__all__ = ["loop_factory"]


async def test_it_calls_every_route(loop_factory: LoopFactory) -> None:
    runtime = FakeRuntime(**{"fake": Script(), "org/a:b": Script()})
    async with running(runtime, keys=KEYS) as server, HypnosClient(server.address, ADMIN) as client:
        assert (await client.move("org/a:b", Tier.DISK, context_len=100)).placement.primary_tier is Tier.DISK
        assert not (await client.disable("org/a:b")).enabled
        assert (await client.enable("org/a:b")).enabled
        assert (await client.set_moe_offload("fake", MoeOffload.AUTO)).moe_offload is MoeOffload.AUTO
        await client.move("fake", Tier.GPU)
        freed = await client.free()
        assert [(one.model, one.from_tier, one.to_tier) for one in freed.moved] == [("fake", Tier.GPU, Tier.RAM)]
        assert not (await client.restore()).held
        assert (await client.free(60.0)).until_unix_ms
        assert (await client.set_kv_park(enabled=True)).enabled
        assert (await client.set_kv_park(max_bytes=5)).max_bytes == 5
        assert (await client.kv_park()).max_bytes == 5
        assert await client.decisions() == await client.decisions(3) == ()
    assert runtime.moves == [("org/a:b", Tier.DISK, 100), ("fake", Tier.GPU, None)]


@pytest.mark.parametrize(
    "error", [e.ModelBusy("in use"), e.InsufficientMemory("no room"), e.LoadFailed("broken")], ids=lambda one: one.code
)
async def test_a_refusal_arrives_as_it_was_raised(error: e.HypnosError) -> None:
    runtime = FakeRuntime(fake=Script(refuse_move=error))
    async with running(runtime) as server, HypnosClient(server.address) as client:
        expected = e.EngineFailed if isinstance(error, e.LoadFailed) else type(error)
        with pytest.raises(expected, match=error.message):
            await client.move("fake", Tier.GPU)


async def test_a_model_that_is_not_there_is_told() -> None:
    async with running() as server, HypnosClient(server.address) as client:
        with pytest.raises(e.ModelNotFound):
            await client.disable("none")


async def test_it_follows_what_changes(loop_factory: LoopFactory) -> None:
    async with running() as server, HypnosClient(server.address) as client:
        async with aclosing(client.memory_events()) as events:
            known = fold(None, await anext(events))
            await server.runtime.move(ModelId("fake"), Tier.DISK)
            event = await anext(events)
            assert isinstance(event, ModelEvent)
            known = fold(known, event)
        assert known
        assert known.models[0].current_tier is Tier.DISK


async def test_a_server_that_comes_back_is_followed_on() -> None:
    lost: list[Lost] = []
    async with running() as server:
        client = HypnosClient(server.address)
        events = client.memory_events(on_lost=lost.append)
        assert isinstance(await anext(events), SnapshotEvent)
        port = server.site.port
    async with client, aclosing(events), running(FakeRuntime(other=Script()), port=port):
        event = await anext(events)
    assert isinstance(event, SnapshotEvent)
    assert [model.id for model in event.models] == ["other"]
    assert lost
    assert all(one.retry_in_s > 0 for one in lost)


async def test_a_key_that_is_not_accepted_ends_it() -> None:
    async with running(keys=KEYS) as server, HypnosClient(server.address, "wrong") as client:
        with pytest.raises(e.InvalidApiKey):
            await anext(client.memory_events())


async def test_a_user_may_follow() -> None:
    async with (
        running(keys=KEYS) as server,
        HypnosClient(server.address, USER) as client,
        aclosing(client.memory_events()) as events,
    ):
        assert isinstance(await anext(events), SnapshotEvent)


@asynccontextmanager
async def serving(*answers: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """One answer for each connection, which then ends; yields the address and the heads of the requests."""
    heads: list[bytes] = []
    left = list(answers)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        if left:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
            writer.write(left.pop(0))
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads


def load(progress: float, number: int) -> bytes:
    return sse.event(msgspec.json.encode(LoadEvent("a", "weights", progress)), number)


async def test_it_goes_on_where_the_connection_was_lost() -> None:
    answers = (load(0.1, 41) + load(0.2, 42) + b'id: 43\ndata: {"obj', b"", load(0.3, 43))
    lost: list[Lost] = []
    async with (
        serving(*answers) as (address, heads),
        HypnosClient(address) as client,
        aclosing(client.memory_events(last_id=40, on_lost=lost.append)) as events,
    ):
        seen = [await anext(events) for _ in range(3)]
    assert [event.progress for event in seen if isinstance(event, LoadEvent)] == [0.1, 0.2, 0.3]
    assert [
        head.lower().count(b"last-event-id: %d\r\n" % number) for head, number in zip(heads, (40, 42, 42), strict=True)
    ] == [1, 1, 1]
    assert [one.retry_in_s for one in lost] == [0.25, 0.5]


async def test_kinds_of_a_later_version_are_skipped() -> None:
    news = sse.event(b'{"object":"memory.weather","sun":true}', 1)
    async with (
        serving(news + load(0.5, 2)) as (address, _),
        HypnosClient(address) as client,
        aclosing(client.memory_events()) as events,
    ):
        assert isinstance(await anext(events), LoadEvent)


@pytest.mark.parametrize("event", [b"hello", b"[]", b'{"object":"memory.load"}', b'{"object":3}'])
async def test_what_is_no_event_is_a_loss(event: bytes) -> None:
    lost: list[Lost] = []
    async with (
        serving(sse.event(event), load(0.5, 2)) as (address, _),
        HypnosClient(address) as client,
        aclosing(client.memory_events(on_lost=lost.append)) as events,
    ):
        assert isinstance(await anext(events), LoadEvent)
    assert isinstance(lost[0].error, e.EngineFailed)
