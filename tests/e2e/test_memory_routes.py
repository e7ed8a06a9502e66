"""Events, decisions and wishes of a real engine in a process of its own, seen through the project's client."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hypnos_engine.api.client import HypnosClient
from hypnos_engine.api.memory_fold import fold
from hypnos_engine.api.schemas.chat import ChatRequest, Message
from hypnos_engine.api.schemas.memory_events import LoadEvent, ModelEvent, SnapshotEvent
from hypnos_engine.domain.errors import PermissionDenied
from hypnos_engine.domain.kinds import Residency, Tier
from tests.e2e.engine_process import RunningEngine, serving

if TYPE_CHECKING:
    from hypnos_engine.api.schemas.memory import MemoryStatus

CONFIG = """
config_version = 1
[server]
profile = "voice_assistant"
api_keys = ["admin-key-0123456789"]
[[server.keys]]
key = "user-key-0123456789"
label = "user"
weight = 2.0
"""
ADMIN, USER = "admin-key-0123456789", "user-key-0123456789"
LONGEST_S = 60.0
QUESTION = ChatRequest(model="demo", messages=[Message("user", "Hello")], max_tokens=3)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    home: Path = tmp_path_factory.mktemp("engine")
    config = home / "hypnos.toml"
    config.write_text(CONFIG, encoding="utf-8")
    with serving(home, "--demo", "--config", str(config)) as running:
        yield running


async def test_a_model_is_followed_on_its_way(engine: RunningEngine) -> None:
    """wire.md: what the events say is what the status says, and a load is seen on its way."""
    async with (
        asyncio.timeout(LONGEST_S),
        HypnosClient(engine.address, USER) as client,
        aclosing(client.memory_events()) as events,
    ):
        known: MemoryStatus | None = None
        seen: list[Residency] = []
        asked = asyncio.create_task(unload_and_ask(client, seen))
        while known is None or not asked.done() or seen[-1:] != [Residency.READY] or len(seen) < 3:
            event = await anext(events)
            known = fold(known, event)
            assert known is not None
            if isinstance(event, SnapshotEvent | ModelEvent | LoadEvent) and known.models[0].residency not in seen[-1:]:
                seen.append(known.models[0].residency)
        await asked
    assert seen[0] is Residency.READY
    assert Residency.LOADING in seen


async def unload_and_ask(client: HypnosClient, seen: list[Residency]) -> None:
    """Once more where the load was over before anybody looked: changes are told at most ten times a second."""
    while Residency.LOADING not in seen:
        assert (await client.move("demo", Tier.DISK)).placement.primary_tier is Tier.DISK
        completion = await client.chat(QUESTION)
        assert completion.hypnos_telemetry.previous_tier is Tier.DISK
        assert completion.hypnos_telemetry.tier_switch_phases


async def test_what_was_decided_is_told(engine: RunningEngine) -> None:
    async with HypnosClient(engine.address, USER) as client:
        await client.chat(QUESTION)
        decisions = await client.decisions()
    assert {"load", "loaded"} <= {decision.kind for decision in decisions}
    assert [decision.id for decision in decisions] == sorted((one.id for one in decisions), reverse=True)


async def test_the_configured_profile_is_told(engine: RunningEngine) -> None:
    """[§14.1-34] [§14.1-37]"""
    async with HypnosClient(engine.address, USER) as client:
        profile = (await client.memory_status()).profile
    assert profile
    assert (profile.name, profile.objective.metric, profile.objective.target_ms) == (
        "voice_assistant", "first_audio", 1500.0,
    )  # fmt: skip


async def test_the_accelerator_is_given_away_by_an_admin_only(engine: RunningEngine) -> None:
    async with HypnosClient(engine.address, USER) as user, HypnosClient(engine.address, ADMIN) as admin:
        with pytest.raises(PermissionDenied):
            await user.free()
        assert (await admin.free(600.0)).held
        assert (await user.memory_status()).hold.held
        assert not (await admin.restore()).held
        assert not (await user.memory_status()).hold.held


async def test_parking_is_switched(engine: RunningEngine) -> None:
    """[§14.3-12] [§14.3-17]"""
    async with HypnosClient(engine.address, USER) as client:
        before = await client.kv_park()
        assert (await client.set_kv_park(enabled=True)).enabled
        assert (await client.memory_status()).kv_park.enabled
        assert (await client.set_kv_park(enabled=False, max_bytes=before.max_bytes)) == before


async def test_a_reader_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """With a long time to drain, the end waits for requests and not for those who watch."""
    config = tmp_path / "hypnos.toml"
    config.write_text("config_version = 1\n[server]\ndrain_secs = 300\n", encoding="utf-8")
    with serving(tmp_path, "--demo", "--config", str(config)) as engine:
        async with HypnosClient(engine.address) as client, aclosing(client.memory_events()) as events:
            await anext(events)
            status = await asyncio.to_thread(engine.end, signal.SIGTERM)
    assert status == 0
