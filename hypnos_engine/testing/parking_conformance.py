"""What keepers of conversations and engines that can park must do, as tests to inherit; and a keeper of figures.

Decides nothing about how they do it; it only watches what comes back, what is booked, and what is left.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from hypnos_engine.domain.errors import Cancelled, EngineFailed, WorkerDied
from hypnos_engine.domain.model import ModelId
from hypnos_engine.engines.base import Engine, ParksKv
from hypnos_engine.engines.fake import FakeEngine, FakeScript
from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.blocks import Block
from hypnos_engine.runtime.parking import Conversations, ParkedModel, ParkView, Restored
from hypnos_engine.testing.engine_conformance import complete, ignore, question

A, B, C = ModelId("a"), ModelId("b"), ModelId("c")
MIB = 1024**2
ROOM = 64 * MIB
CONTEXT = 2048
LOAD = m.Load("fake", "", context_len=CONTEXT, slots=4)
OnDropped = Callable[[ModelId], None]


class FakeConversations:
    """Implements Conversations without memory: keeps what fake engines hold as figures, a MiB for each conversation."""

    def __init__(self, *, enabled: bool, max_bytes: int, on_dropped: OnDropped) -> None:
        self._view = ParkView(enabled, max_bytes, 0)
        self._on_dropped = on_dropped
        self._kept: dict[ModelId, tuple[int, tuple[int, ...]]] = {}
        """Cells of the context and tokens of each conversation, the oldest model first."""
        self._under_way: set[ModelId] = set()

    @property
    def enabled(self) -> bool:
        """As Conversations.enabled."""
        return self._view.enabled

    async def park(self, model: ModelId, engine: Engine, room_bytes: int) -> int:
        """As Conversations.park."""
        self.drop(model)
        if not self.enabled or not isinstance(engine, FakeEngine):
            return 0
        count = max(0, min(room_bytes, self._view.max_bytes)) // MIB
        self._under_way.add(model)
        await asyncio.sleep(0)
        wanted = model in self._under_way and self.enabled and engine.is_serving
        self._under_way.discard(model)
        kept = engine.conversations[:count] if wanted else ()
        if not kept:
            return 0
        for dropped in self._beyond(self._view.max_bytes - len(kept) * MIB):
            self.drop(dropped)
            self._on_dropped(dropped)
        self._kept[model] = engine.loads[0].context_len, kept
        return len(kept) * MIB

    async def restore(self, model: ModelId, engine: Engine, loaded: m.Loaded) -> Restored | None:
        """As Conversations.restore."""
        context_len, kept = self._kept.pop(model, (0, ()))
        if not isinstance(engine, FakeEngine) or not kept or context_len != loaded.context_len:
            return None
        await asyncio.sleep(0)
        if not engine.is_serving:
            return None
        engine.conversations = kept
        return Restored(0.0, sum(kept))

    def drop(self, model: ModelId) -> None:
        """As Conversations.drop."""
        self._under_way.discard(model)
        self._kept.pop(model, None)

    def configure(self, *, enabled: bool | None = None, max_bytes: int | None = None) -> tuple[ModelId, ...]:
        """As Conversations.configure."""
        view = self._view
        enabled = view.enabled if enabled is None else enabled
        self._view = ParkView(enabled, view.max_bytes if max_bytes is None else max_bytes, 0)
        dropped = self._beyond(self._view.max_bytes if enabled else -1)
        for model in dropped:
            self.drop(model)
        return dropped

    def view(self) -> ParkView:
        """As Conversations.view."""
        models = tuple(
            ParkedModel(model, len(kept), sum(kept), len(kept) * MIB, 0.0) for model, (_, kept) in self._kept.items()
        )
        return ParkView(self._view.enabled, self._view.max_bytes, sum(one.bytes for one in models), models)

    def _beyond(self, most_bytes: int) -> tuple[ModelId, ...]:
        used = sum(len(kept) * MIB for _, kept in self._kept.values())
        beyond: list[ModelId] = []
        for model, (_, kept) in self._kept.items():
            if used <= most_bytes:
                break
            used -= len(kept) * MIB
            beyond.append(model)
        return tuple(beyond)


class ConversationsTests:
    """Inherit as a `Test…` class; `make` makes the keeper. The engines here are fakes."""

    def make(self, *, enabled: bool, max_bytes: int, on_dropped: OnDropped) -> Conversations:
        """A keeper that holds nothing yet."""
        raise NotImplementedError

    @pytest.fixture
    def dropped(self) -> list[ModelId]:
        """Models that the keeper dropped of its own accord."""
        return []

    @pytest.fixture
    def keeper(self, dropped: list[ModelId]) -> Conversations:
        """One that is on, with room for three conversations."""
        return self.make(enabled=True, max_bytes=int(3.5 * MIB), on_dropped=dropped.append)

    @asynccontextmanager
    async def engine(
        self, *conversations: int, load: m.Load = LOAD, script: FakeScript | None = None
    ) -> AsyncIterator[tuple[FakeEngine, m.Loaded]]:
        """A loaded engine whose idle slots hold so many tokens; 1000 of them take a MiB, roughly."""
        script = script or FakeScript()
        script.conversations = conversations
        engine = FakeEngine("fake", script)
        loaded = await engine.load(load, ignore, ignore)
        try:
            yield engine, loaded
        finally:
            await engine.unload()

    async def parked(self, keeper: Conversations, model: ModelId, *conversations: int, room_bytes: int = ROOM) -> int:
        """Park an engine's conversations and unload it; what `park` says."""
        async with self.engine(*conversations) as (engine, _):
            return await keeper.park(model, engine, room_bytes)

    async def test_what_was_parked_comes_back_once(self, keeper: Conversations, dropped: list[ModelId]) -> None:
        held_bytes = await self.parked(keeper, A, 1000, 900)
        assert held_bytes > 0
        view = keeper.view()
        assert (view.enabled, view.used_bytes) == (True, held_bytes)
        [one] = view.models
        assert (one.model, one.slots, one.tokens, one.bytes) == (A, 2, 1900, held_bytes)
        assert one.parked_secs_ago >= 0
        async with self.engine() as (engine, loaded):
            restored = await keeper.restore(A, engine, loaded)
            assert restored is not None
            assert restored.tokens == 1900
            assert restored.ms >= 0
            assert engine.conversations == (1000, 900)
            assert (keeper.view().used_bytes, keeper.view().models) == (0, ())
            assert await keeper.restore(A, engine, loaded) is None
        assert dropped == []

    async def test_nothing_is_kept_of_what_holds_nothing(self, keeper: Conversations) -> None:
        assert await self.parked(keeper, A) == 0
        assert await self.parked(keeper, A, 1000, room_bytes=0) == 0
        assert keeper.view().models == ()
        async with self.engine() as (engine, loaded):
            assert await keeper.restore(A, engine, loaded) is None

    async def test_nothing_is_kept_while_it_is_off(self, dropped: list[ModelId]) -> None:
        """[§14.3-09]"""
        keeper = self.make(enabled=False, max_bytes=ROOM, on_dropped=dropped.append)
        assert await self.parked(keeper, A, 1000) == 0
        assert (keeper.enabled, keeper.view()) == (False, ParkView(False, ROOM, 0))

    async def test_no_more_than_the_room_is_taken(self, keeper: Conversations) -> None:
        held_bytes = await self.parked(keeper, A, 1000, 1000, 1000, room_bytes=int(2.5 * MIB))
        assert 0 < held_bytes <= 2.5 * MIB
        assert keeper.view().models[0].slots == 2

    async def test_the_oldest_go_first(self, keeper: Conversations, dropped: list[ModelId]) -> None:
        """[§14.3-10] [§14.3-11]"""
        for model in (A, B, C):
            assert await self.parked(keeper, model, 1000, room_bytes=int(1.1 * MIB)) > 0
        assert [one.model for one in keeper.view().models] == [A, B, C]
        await self.parked(keeper, A, 1000, room_bytes=int(1.1 * MIB))
        assert [one.model for one in keeper.view().models] == [B, C, A]
        assert dropped == []
        await self.parked(keeper, ModelId("d"), 1000, room_bytes=int(1.1 * MIB))
        assert [one.model for one in keeper.view().models] == [C, A, "d"]
        assert dropped == [B]
        assert keeper.view().used_bytes <= keeper.view().max_bytes

    async def test_a_lower_bound_drops_the_oldest(self, keeper: Conversations, dropped: list[ModelId]) -> None:
        """[§14.3-15]"""
        for model in (A, B, C):
            await self.parked(keeper, model, 1000, room_bytes=int(1.1 * MIB))
        assert keeper.configure(max_bytes=int(1.5 * MIB)) == (A, B)
        assert keeper.configure(max_bytes=10 * MIB) == ()
        view = keeper.view()
        assert ([one.model for one in view.models], view.max_bytes, view.enabled) == ([C], 10 * MIB, True)
        assert dropped == []

    async def test_turning_it_off_drops_everything(self, keeper: Conversations) -> None:
        """[§14.3-14]"""
        for model in (A, B):
            await self.parked(keeper, model, 1000, room_bytes=int(1.1 * MIB))
        assert keeper.configure(enabled=False) == (A, B)
        assert (keeper.enabled, keeper.view().used_bytes, keeper.view().models) == (False, 0, ())
        assert keeper.configure(enabled=True) == ()
        assert await self.parked(keeper, A, 1000) > 0

    async def test_a_dropped_model_has_nothing(self, keeper: Conversations, dropped: list[ModelId]) -> None:
        """[§14.3-20]"""
        await self.parked(keeper, A, 1000)
        keeper.drop(A)
        keeper.drop(A)
        keeper.drop(B)
        assert keeper.view().models == ()
        async with self.engine() as (engine, loaded):
            assert await keeper.restore(A, engine, loaded) is None
            assert engine.conversations == ()
        assert dropped == []

    @pytest.mark.parametrize("way", ["drop", "off"])
    async def test_what_is_unwanted_meanwhile_is_not_kept(self, keeper: Conversations, way: str) -> None:
        async with self.engine(1000) as (engine, _):
            parking = asyncio.create_task(keeper.park(A, engine, ROOM))
            await asyncio.sleep(0)
            if way == "drop":
                keeper.drop(A)
            else:
                keeper.configure(enabled=False)
            assert await parking == 0
        assert (keeper.view().used_bytes, keeper.view().models) == (0, ())

    async def test_another_context_is_not_filled(self, keeper: Conversations) -> None:
        """[§14.3-18]"""
        await self.parked(keeper, A, 1000)
        async with self.engine(load=m.Load("fake", "", context_len=2 * CONTEXT, slots=4)) as (engine, loaded):
            assert await keeper.restore(A, engine, loaded) is None
            assert engine.conversations == ()
        assert keeper.view().used_bytes == 0

    async def test_an_engine_that_is_gone_costs_its_conversations_alone(self, keeper: Conversations) -> None:
        async with self.engine(1000) as (engine, _):
            engine.die()
            assert await keeper.park(A, engine, ROOM) == 0
        await self.parked(keeper, A, 1000)
        async with self.engine() as (engine, loaded):
            engine.die()
            assert await keeper.restore(A, engine, loaded) is None
        assert (keeper.view().used_bytes, keeper.view().models) == (0, ())

    async def test_a_new_park_takes_the_place_of_the_old_one(self, keeper: Conversations) -> None:
        await self.parked(keeper, A, 1000, 1000)
        held_bytes = await self.parked(keeper, A, 500)
        assert (keeper.view().used_bytes, keeper.view().models[0].tokens) == (held_bytes, 500)
        assert await self.parked(keeper, A) == 0
        assert keeper.view().models == ()

    async def test_a_cancelled_park_leaves_nothing(self, keeper: Conversations) -> None:
        async with self.engine(1000) as (engine, _):
            parking = asyncio.create_task(keeper.park(A, engine, ROOM))
            await asyncio.sleep(0)
            parking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await parking
        assert (keeper.view().used_bytes, keeper.view().models) == (0, ())


class ParksKvTests:
    """Inherit as a `Test…` class: engines that can park, and what is in the block afterwards."""

    room_bytes = ROOM

    def make(self) -> Engine:
        """An unloaded engine with the ability."""
        raise NotImplementedError

    def load_request(self) -> m.Load:
        """A model that answers."""
        raise NotImplementedError

    def kill(self, engine: Engine) -> None:
        """End the engine as a crash does."""
        raise NotImplementedError

    @asynccontextmanager
    async def loaded(self, *, used: bool) -> AsyncIterator[ParksKv]:
        """A loaded engine, which may have answered a question."""
        engine = self.make()
        await engine.load(self.load_request(), ignore, ignore)
        try:
            if used:
                await complete(engine, question(1, "What is this?"))
            assert isinstance(engine, ParksKv)
            yield engine
        finally:
            await engine.unload()

    async def test_conversations_come_back_in_another_engine(self) -> None:
        with Block.create(self.room_bytes) as block:
            async with self.loaded(used=True) as engine:
                parked = await engine.park(block)
                assert parked.slots >= 1
                assert parked.tokens >= 1
                assert 0 < parked.size_bytes <= block.size_bytes
                assert (await engine.park(block)).tokens == parked.tokens  # the engine keeps them
            async with self.loaded(used=False) as engine:
                restored = await engine.restore(block)
                assert (restored.slots, restored.tokens) == (parked.slots, parked.tokens)

    async def test_an_engine_that_is_killed_right_after_has_parked(self) -> None:
        with Block.create(self.room_bytes) as block:
            async with self.loaded(used=True) as engine:
                parked = await engine.park(block)
                self.kill(engine)  # type: ignore[arg-type]
            async with self.loaded(used=False) as engine:
                assert (await engine.restore(block)).tokens == parked.tokens

    async def test_a_block_without_room_gets_nothing(self) -> None:
        with Block.create(64) as block:
            async with self.loaded(used=True) as engine:
                parked = await engine.park(block)
                assert (parked.slots, parked.tokens, parked.size_bytes) == (0, 0, 0)

    @pytest.mark.parametrize("content", [b"", b"\xff" * 4096, b"garbage " * 512], ids=["zeroes", "ones", "words"])
    async def test_a_block_of_something_else_is_dropped(self, content: bytes) -> None:
        with Block.create(4096) as block:
            with block.view as view:
                view[: len(content)] = content
            async with self.loaded(used=False) as engine:
                restored = await engine.restore(block)
                assert (restored.slots, restored.tokens) == (0, 0)
                assert restored.problem

    async def test_an_engine_that_is_not_there_raises(self) -> None:
        with Block.create(4096) as block:
            engine = self.make()
            assert isinstance(engine, ParksKv)
            with pytest.raises(EngineFailed):
                await engine.park(block)
            await engine.load(self.load_request(), ignore, ignore)
            self.kill(engine)
            assert not (await engine.exited()).expected
            for answer in (engine.park(block), engine.restore(block)):
                with pytest.raises(WorkerDied):
                    await answer
            async with self.loaded(used=False) as other:
                await other.unload()  # type: ignore[attr-defined]
                with pytest.raises(Cancelled):
                    await other.park(block)
            await engine.unload()
