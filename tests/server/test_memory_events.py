"""`/v1/memory/events` and `/v1/memory/decisions`: what changes as it happens, for readers of every speed."""

import asyncio
import json
import math
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import aiohttp
import msgspec
import pytest

from hypnos_engine.api import sse
from hypnos_engine.api.event_stream import decode_event
from hypnos_engine.api.memory_fold import MOVING_FIELDS, fold
from hypnos_engine.api.schemas.memory import KvPark, Latency, MemoryStatus
from hypnos_engine.api.schemas.memory_events import (
    DecisionEvent,
    MemoryEvent,
    ModelEvent,
    SnapshotEvent,
    TotalsEvent,
)
from hypnos_engine.domain.errors import HypnosError
from hypnos_engine.domain.kinds import Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.runtime.feed import MOST_READERS, RING
from hypnos_engine.runtime.parking import ParkedModel, ParkView
from hypnos_engine.runtime.snapshot import Decision
from hypnos_engine.scheduler.effects import Alternative, Record
from hypnos_engine.server.options import StreamTimes
from tests.loops import LoopFactory
from tests.server.fake_runtime import GIB, FakeRuntime, Script
from tests.server.raw_http import read_head
from tests.server.running import KEYS, USER, Running, running

EVENTS = "/v1/memory/events"
ID = ModelId("fake")


class Reader:
    """One who follows over HTTP."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self._events = self._read()

    async def _read(self) -> AsyncGenerator[tuple[int, MemoryEvent], None]:
        reader = sse.EventReader()
        async for piece in self.response.content.iter_any():
            for event in reader.feed(piece):
                known = decode_event(event.data)
                assert known is not None
                yield int(event.id), known

    async def take(self) -> tuple[int, MemoryEvent]:
        return await anext(self._events)

    async def ended(self) -> bool:
        with suppress(StopAsyncIteration):
            await self.take()
            return False
        return True


@asynccontextmanager
async def following(server: Running, **headers: str) -> AsyncIterator[Reader]:
    async with server.http.get(EVENTS, headers=headers) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        yield Reader(response)


async def status_of(server: Running) -> MemoryStatus:
    async with server.http.get("/v1/memory/status") as response:
        return msgspec.json.decode(await response.read(), type=MemoryStatus)


def steady(status: MemoryStatus) -> MemoryStatus:
    """A status without what changes by the passing of time alone; `docs/api.md` lists it."""
    nothing: Any = dict.fromkeys(MOVING_FIELDS, 0.0)
    parked = tuple(msgspec.structs.replace(one, parked_secs_ago=0.0) for one in status.kv_park.models)
    return msgspec.structs.replace(
        status,
        sequence=0,
        models=tuple(msgspec.structs.replace(model, **nothing) for model in status.models),
        kv_park=KvPark(status.kv_park.enabled, status.kv_park.max_bytes, status.kv_park.used_bytes, parked),
        latency=Latency({}, {}),
    )


def decision(number: int, because: str = "because") -> Decision:
    others = (Alternative(ModelId("b"), 2.5, "costs more"), Alternative(ModelId("c"), math.inf, "pinned"))
    numbers = (("bytes", 7), ("never", math.nan))
    return Decision(number, 1_793_481_500_000, Record("evict", ID, because, numbers, "tier3_nvme_ssd", others))


async def test_the_stream_begins_with_the_whole_status(loop_factory: LoopFactory) -> None:
    async with running(FakeRuntime(a=Script(), off=Script(enabled=False))) as server, following(server) as reader:
        number, event = await reader.take()
        status = await status_of(server)
    assert isinstance(event, SnapshotEvent)
    assert number == event.sequence == status.sequence
    known = fold(None, event)
    assert known is not None
    assert steady(known) == steady(status)
    assert reader.response.headers["x-request-id"].startswith("req-")


async def test_a_change_of_a_model_is_its_new_entry(loop_factory: LoopFactory) -> None:
    async with running() as server, following(server) as reader:
        first, _ = await reader.take()
        await server.runtime.move(ID, Tier.RAM)
        number, event = await reader.take()
    assert number == first + 1
    assert isinstance(event, ModelEvent)
    assert (event.id, event.current_tier) == ("fake", Tier.RAM)


async def test_a_change_of_the_sums_is_all_but_the_models() -> None:
    async with running() as server, following(server) as reader:
        await reader.take()
        server.runtime.used_bytes = 4 * GIB
        await server.runtime.set_parking(enabled=True, max_bytes=None)
        _, event = await reader.take()
    assert isinstance(event, TotalsEvent)
    assert event.tier1_vram_used_bytes == 4 * GIB
    assert event.kv_park.enabled
    assert event.model_ids == ("fake",)


async def test_a_decision_is_told_with_its_numbers() -> None:
    async with running() as server, following(server) as reader:
        await reader.take()
        server.runtime.decide(decision(5))
        _, event = await reader.take()
        async with server.http.get("/v1/memory/decisions") as response:
            listed = await response.json()
    assert isinstance(event, DecisionEvent)
    assert listed == {
        "object": "list",
        "data": [
            {
                "id": 5, "unix_ms": 1_793_481_500_000, "kind": "evict", "model": "fake", "chosen": "tier3_nvme_ssd",
                "because": "because", "numbers": {"bytes": 7.0},
                "alternatives": [
                    {"model": "b", "cost": 2.5, "why_not": "costs more"},
                    {"model": "c", "cost": None, "why_not": "pinned"},
                ],
            }
        ],
    }  # fmt: skip
    assert json.loads(msgspec.json.encode(event)) == {"object": "memory.decision", **listed["data"][0]}


@pytest.mark.parametrize(("query", "ids"), [("", [3, 2, 1]), ("?limit=2", [3, 2]), ("?limit=99999", [3, 2, 1])])
async def test_decisions_are_listed_newest_first(query: str, ids: list[int]) -> None:
    async with running() as server:
        for number in (1, 2, 3):
            server.runtime.decide(decision(number))
        async with server.http.get(f"/v1/memory/decisions{query}") as response:
            assert [one["id"] for one in (await response.json())["data"]] == ids


@pytest.mark.parametrize("limit", ["0", "-1", "many", "", "1.5", "%D9%A3", "9" * 30])
async def test_a_limit_that_is_no_count_is_refused(limit: str) -> None:
    async with running() as server, server.http.get(f"/v1/memory/decisions?limit={limit}") as response:
        assert response.status == 400
        assert "limit" in (await response.json())["error"]["message"]


async def do_something(server: Running, chance: random.Random) -> None:
    """One thing that changes what the status tells; refused wishes change nothing."""
    runtime = server.runtime
    model = ModelId(chance.choice(["a", "b", "c"]))
    match chance.randrange(8):
        case 0:
            runtime.used_bytes = chance.randrange(12) * GIB
        case 1:
            parked = ParkedModel(model, 1, 10, chance.randrange(100), chance.random())
            runtime.park = ParkView(True, GIB, parked.bytes, (parked,))
        case 2:
            runtime.decide(decision(chance.randrange(99)))
        case 3:
            for number in range(RING + 5):
                runtime.decide(decision(number))
        case 4:
            await server.http.post(f"/v1/models/{model}/{chance.choice(['enable', 'disable'])}")
        case 5:
            await server.http.post("/v1/memory/tier", json={"model": model, "target_tier": chance.choice(list(Tier))})
        case 6:
            await server.http.post(f"/v1/memory/{chance.choice(['free', 'restore'])}")
        case _:
            await server.chat(model=model)


@pytest.mark.parametrize("seed", range(6))
async def test_folding_the_events_gives_the_status_at_every_number(loop_factory: LoopFactory, seed: int) -> None:
    """wire.md: whatever happens, however late the reader is, over connections that are lost."""
    chance = random.Random(seed)
    async with running(FakeRuntime(a=Script(), b=Script(), c=Script(tier=Tier.DISK))) as server:
        known: MemoryStatus | None = None
        at: int | None = None
        for _ in range(5):
            headers = {} if at is None else {"Last-Event-ID": str(at)}
            async with following(server, **headers) as reader:
                for _ in range(8):
                    for _ in range(chance.randrange(4)):
                        await do_something(server, chance)
                    status = await status_of(server)
                    while at is None or at < status.sequence:
                        at, event = await reader.take()
                        known = fold(known, event)
                    assert known is not None
                    assert steady(known) == steady(status)


@pytest.mark.parametrize("last_id", ["", "x", "-1", "1", "9" * 18, "9" * 40, "१"])
async def test_a_number_of_nowhere_begins_anew(last_id: str) -> None:
    async with running() as server, following(server, **{"Last-Event-ID": last_id}) as reader:
        _, event = await reader.take()
    assert isinstance(event, SnapshotEvent)


async def test_a_reader_that_does_not_read_gets_a_snapshot_in_the_end() -> None:
    """And the server holds for it what its connection holds, not what happened meanwhile."""
    async with running() as server:
        request = f"GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        async with server.raw(request) as (reader, _):
            await read_head(reader)
            feed = server.runtime.changes()
            written = 0
            # Until the connection takes no more, and then beyond what is kept.
            for number in range(12_000):
                server.runtime.decide(decision(number, "x" * 2000))
                if number % 100 == 0:
                    await asyncio.sleep(0)
                written = number
            await server.runtime.move(ID, Tier.DISK)
            newest = feed.refresh().seq
            events = sse.EventReader()
            kinds: list[type[MemoryEvent]] = []
            at = 0
            while at < newest:
                for event in events.feed(await reader.read(65536)):
                    if event.data[:1] != "{":
                        continue  # the frames of the chunked body
                    at = int(event.id)
                    known = decode_event(event.data)
                    assert known is not None
                    kinds.append(type(known))
    assert kinds[0] is SnapshotEvent
    assert kinds.count(SnapshotEvent) >= 2
    assert len(kinds) < written


async def test_head_tells_the_headers_and_ends() -> None:
    async with running() as server, server.http.head(EVENTS) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"


async def test_it_works_while_staging() -> None:
    runtime = FakeRuntime()
    runtime.staging = True
    async with running(runtime) as server:
        async with following(server) as reader:
            await reader.take()
        async with server.http.get("/v1/memory/decisions") as response:
            assert response.status == 200


@pytest.mark.parametrize("path", [EVENTS, "/v1/memory/decisions"])
async def test_any_key_may_read_and_none_may_not(path: str) -> None:
    async with running(keys=KEYS) as server:
        async with server.http.get(path) as response:
            assert response.status == 401
        async with server.http.get(path, headers={"Authorization": f"Bearer {USER}"}) as response:
            assert response.status == 200


async def test_one_reader_too_many_is_told_to_come_back() -> None:
    async with running() as server, AsyncExitStack() as stack:
        for _ in range(MOST_READERS):
            await stack.enter_async_context(server.runtime.changes().subscribe())
        async with server.http.get(EVENTS) as response:
            assert response.status == 503
            assert (await response.json())["error"]["type"] == "model_not_available"
            assert response.headers["Retry-After"] == "5"


async def test_a_drain_ends_the_stream_at_once(loop_factory: LoopFactory) -> None:
    """It has no end of its own to wait for."""
    async with running() as server, following(server) as reader:
        await reader.take()
        async with asyncio.timeout(20):
            await server.site.drain(1000.0)
        assert await reader.ended()


async def test_a_drain_does_not_wait_for_a_reader_that_does_not_read() -> None:
    async with running() as server:
        request = f"GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        async with server.raw(request) as (reader, _):
            await read_head(reader)
            for number in range(12_000):
                server.runtime.decide(decision(number, "x" * 2000))
                if number % 100 == 0:
                    await asyncio.sleep(0)
            async with asyncio.timeout(20):
                await server.site.drain(1000.0)


async def test_the_stream_is_not_bound_by_the_time_limit_of_requests() -> None:
    async with running(request_timeout_s=0.05) as server, following(server) as reader:
        await reader.take()
        passed = asyncio.Event()
        asyncio.get_running_loop().call_later(0.15, passed.set)
        await passed.wait()
        server.runtime.decide(decision(1))
        assert isinstance((await reader.take())[1], DecisionEvent)


async def test_a_silent_stream_shows_that_it_lives(loop_factory: LoopFactory) -> None:
    times = StreamTimes(silent_comment_s=0.05)
    async with running(stream=times) as server, server.http.get(EVENTS) as response:
        lines = [await response.content.readline() for _ in range(8)]
    assert lines[3:] == [b": keep-alive\n", b"\n", b": keep-alive\n", b"\n", b": keep-alive\n"]


async def test_an_event_is_one_line_of_json_with_a_number() -> None:
    async with running() as server, server.http.get(EVENTS) as response:
        lines = [await response.content.readline() for _ in range(3)]
    assert lines[0].startswith(b"id: ")
    assert lines[2] == b"\n"
    data = json.loads(lines[1].removeprefix(b"data: "))
    assert data["object"] == "memory.snapshot"
    assert data["sequence"] == int(lines[0][4:])


async def test_a_refused_wish_is_no_change() -> None:
    script = Script(refuse_move=HypnosError("no"))
    async with running(FakeRuntime(fake=script)) as server:
        before = await status_of(server)
        await server.http.post("/v1/memory/tier", json={"model": "fake", "target_tier": "tier3_nvme_ssd"})
        assert (await status_of(server)).sequence == before.sequence
