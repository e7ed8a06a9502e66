"""Parked conversations: their bound, their memory, and workers that fail, hang or end while they hand them over."""

import asyncio
import contextlib
import logging
import mmap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypnos_engine.domain.errors import EngineFailed
from hypnos_engine.domain.model import ModelId
from hypnos_engine.engines.base import Engine
from hypnos_engine.engines.fake import FakeEngine, FakeScript
from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.blocks import Block
from hypnos_engine.runtime.parking import Conversations, ParkedConversations
from hypnos_engine.testing.engine_conformance import ignore
from hypnos_engine.testing.parking_conformance import (
    LOAD,
    MIB,
    ROOM,
    A,
    B,
    ConversationsTests,
    FakeConversations,
    OnDropped,
    ParksKvTests,
)

GIB = 1024 * MIB
SHORT_S = 0.05
"""For waits that a test lets run out."""


def blocks() -> dict[str, int]:
    """The nameless memory that this process holds: bytes by descriptor, of which a block has several."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the folder's own descriptor
            if str(entry.readlink()).startswith("/memfd:hypnos"):
                found[entry.name] = entry.stat().st_blocks * 512
    return found


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Each test drops what it parked; no block outlives that."""
    before = blocks()
    yield
    for thread in threading.enumerate():
        if thread.name == "hypnos-block-close":
            thread.join(10.0)
    assert blocks().keys() <= before.keys()


class TestParked(ConversationsTests):
    @pytest.fixture(autouse=True)
    def made(self) -> Iterator[list[ParkedConversations]]:
        """Every keeper of a test, emptied at its end."""
        self.keepers: list[ParkedConversations] = []
        yield self.keepers
        for keeper in self.keepers:
            keeper.close()

    def make(self, *, enabled: bool, max_bytes: int, on_dropped: OnDropped) -> Conversations:
        self.keepers.append(ParkedConversations(enabled=enabled, max_bytes=max_bytes, on_dropped=on_dropped))
        return self.keepers[-1]

    async def test_the_bytes_are_those_that_the_system_counts(self, keeper: Conversations) -> None:
        before = blocks()
        held_bytes = await self.parked(keeper, A, 1000)
        assert {taken for name, taken in blocks().items() if name not in before} == {held_bytes}
        assert held_bytes % mmap.PAGESIZE == 0

    async def test_one_line_tells_of_what_was_dropped(
        self, keeper: Conversations, caplog: pytest.LogCaptureFixture
    ) -> None:
        await self.parked(keeper, A, 1000)
        with caplog.at_level(logging.INFO, "hypnos.parking"):
            async with self.engine(load=m.Load("fake", "", context_len=64, slots=4)) as (engine, loaded):
                await keeper.restore(A, engine, loaded)
        assert [record.getMessage() for record in caplog.records] == [
            "parked conversations of a were dropped (1 of 1): the context has 64 tokens and had 2048"
        ]

    async def test_two_models_park_at_once_within_the_bound(self, keeper: Conversations) -> None:
        async with self.engine(1000, 1000, 1000) as (one, _), self.engine(1000, 1000, 1000) as (other, _):
            held = await asyncio.gather(keeper.park(A, one, 2 * MIB), keeper.park(B, other, 2 * MIB))
        assert held[0] > 0
        assert sum(held) == keeper.view().used_bytes <= keeper.view().max_bytes

    async def test_an_engine_without_the_ability_keeps_nothing(self, keeper: Conversations) -> None:
        class Bare:
            """Has nothing of ParksKv."""

        await self.parked(keeper, A, 1000)
        bare: Engine = Bare()  # type: ignore[assignment]
        async with self.engine() as (_, loaded):
            assert await keeper.restore(A, bare, loaded) is None
        assert await keeper.park(A, bare, ROOM) == 0
        assert keeper.view().models == ()


class TestFakeConversations(ConversationsTests):
    def make(self, *, enabled: bool, max_bytes: int, on_dropped: OnDropped) -> Conversations:
        return FakeConversations(enabled=enabled, max_bytes=max_bytes, on_dropped=on_dropped)


class TestFakeEngine(ParksKvTests):
    def make(self) -> Engine:
        return FakeEngine("fake", FakeScript(conversations=(100, 50)))

    def load_request(self) -> m.Load:
        return LOAD

    def kill(self, engine: Engine) -> None:
        assert isinstance(engine, FakeEngine)
        engine.die()


async def loaded(script: FakeScript) -> tuple[FakeEngine, m.Loaded]:
    engine = FakeEngine("fake", script)
    return engine, await engine.load(LOAD, ignore, ignore)


def keeper(dropped: list[ModelId] | None = None, max_bytes: int = ROOM) -> ParkedConversations:
    """One that waits for no worker for long."""
    told = [] if dropped is None else dropped
    return ParkedConversations(
        enabled=True,
        max_bytes=max_bytes,
        on_dropped=told.append,
        park_within_s=SHORT_S,
        restore_within_s=SHORT_S,
    )


async def test_a_worker_that_hangs_does_not_hold_up_its_end() -> None:
    conversations = keeper()
    engine, _ = await loaded(FakeScript(conversations=(1000,), park_gate=asyncio.Event()))
    assert await conversations.park(A, engine, ROOM) == 0
    assert conversations.view().used_bytes == 0
    await engine.unload()


async def test_a_worker_that_hangs_does_not_hold_up_the_next_requests() -> None:
    conversations = keeper()
    engine, _ = await loaded(FakeScript(conversations=(1000,)))
    assert await conversations.park(A, engine, ROOM) > 0
    await engine.unload()
    engine, reply = await loaded(FakeScript(park_gate=asyncio.Event()))
    assert await conversations.restore(A, engine, reply) is None
    assert conversations.view().models == ()
    await engine.unload()


async def test_a_worker_that_ends_meanwhile_is_no_error() -> None:
    for end in ("die", "unload"):
        conversations = ParkedConversations(enabled=True, max_bytes=ROOM, on_dropped=lambda _: None)
        engine, _ = await loaded(FakeScript(conversations=(1000,), park_gate=asyncio.Event()))
        parking = asyncio.create_task(conversations.park(A, engine, ROOM))
        await asyncio.sleep(0)
        if end == "die":
            engine.die()
        else:
            await engine.unload()
        assert await parking == 0
        assert conversations.view().models == ()


async def test_a_worker_that_fails_is_no_error() -> None:
    conversations = keeper()
    engine, _ = await loaded(FakeScript(conversations=(1000,), park_error=EngineFailed("It failed.")))
    assert await conversations.park(A, engine, ROOM) == 0
    await engine.unload()


class _Liar(FakeEngine):
    """Says that it wrote more than there is room for."""

    async def park(self, block: Block) -> m.Parked:
        return m.Parked(0, 1, 100, block.size_bytes + 1, 2048, 0.0)


async def test_what_a_worker_says_is_checked() -> None:
    conversations = keeper()
    engine = _Liar("fake")
    await engine.load(LOAD, ignore, ignore)
    assert await conversations.park(A, engine, ROOM) == 0
    await engine.unload()


async def test_a_bound_that_comes_down_meanwhile_counts() -> None:
    dropped: list[ModelId] = []
    conversations = ParkedConversations(enabled=True, max_bytes=ROOM, on_dropped=dropped.append)
    gate = asyncio.Event()
    engine, _ = await loaded(FakeScript(conversations=(1000,), park_gate=gate))
    parking = asyncio.create_task(conversations.park(A, engine, ROOM))
    await asyncio.sleep(0)
    conversations.configure(max_bytes=4096)
    gate.set()
    assert await parking == 0
    assert (conversations.view().used_bytes, dropped) == (0, [A])
    await engine.unload()


async def test_memory_that_the_system_refuses_is_no_error() -> None:
    conversations = keeper(max_bytes=2**62)
    engine, _ = await loaded(FakeScript(conversations=(1000,)))
    assert await conversations.park(A, engine, 2**62) == 0
    await engine.unload()


async def test_a_large_block_is_given_back_beside_the_loop() -> None:
    conversations = keeper()
    engine, _ = await loaded(FakeScript(conversations=(40_000,)))
    assert await conversations.park(A, engine, ROOM) > 16 * MIB
    conversations.close()
    await engine.unload()
