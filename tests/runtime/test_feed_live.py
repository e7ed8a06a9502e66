"""The change feed of a running engine: readers know what it tells, whatever it is doing."""

import asyncio
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hypnos_engine.domain.errors import HypnosError
from hypnos_engine.domain.kinds import EngineKind, Modality, MoeOffload, Tier
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.engines.fake import FakeEngine
from hypnos_engine.hardware.machine import host_memory, snapshot
from hypnos_engine.runtime.lease import Ask
from hypnos_engine.runtime.local import LocalRuntime, Machine
from hypnos_engine.runtime.snapshot import Decision, ModelView
from hypnos_engine.scheduler.events import Workflow
from hypnos_engine.scheduler.limits import Budgets, Limits
from hypnos_engine.testing.tiny_gguf import write_llama
from tests.loops import LoopFactory
from tests.runtime.bench import read
from tests.runtime.test_feed import Follower

NAMES = ("a", "b", "c")
MIB = 1024**2


def engine(folder: Path) -> LocalRuntime:
    specs = []
    for name in NAMES:
        write_llama(folder / f"{name}.gguf")
        specs.append(ModelSpec(ModelId(name), Modality.TEXT, EngineKind.LLAMA, f"{name}.gguf", context_len=512))
    return LocalRuntime(specs, [folder], lambda spec: FakeEngine(spec.id), Limits())


def machine(host_bytes: int) -> Machine:
    hardware = snapshot(host_memory(), None)
    return Machine(hardware, Budgets((), host_bytes, 2, device_layers=False), tier2_budget_bytes=0)


def steady(view: ModelView) -> ModelView:
    """A model without what changes by the passing of time alone."""
    return replace(view, idle_s=0.0, requests_per_minute=0.0, estimated_wait_ms=None)


async def use(running: LocalRuntime, chance: random.Random) -> None:
    """One request or wish; what is refused is refused."""
    model = ModelId(chance.choice(NAMES))
    with suppress(HypnosError):
        match chance.randrange(6):
            case 0:
                await running.move(model, chance.choice(list(Tier)))
            case 1:
                await running.switch(model, enabled=chance.random() < 0.7)
            case 2:
                await running.set_expert_offload(model, chance.choice(list(MoeOffload)))
            case _:
                async with running.lease(Ask(model, workflow=Workflow("turn", "1"))) as lease:
                    await read(lease)


async def work(running: LocalRuntime, chance: random.Random, times: int) -> None:
    for _ in range(times):
        await use(running, chance)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("host_bytes", [160 * MIB, 4096 * MIB], ids=["tight", "roomy"])
async def test_a_reader_knows_what_the_engine_tells(
    loop_factory: LoopFactory, tmp_path: Path, seed: int, host_bytes: int
) -> None:
    """wire.md: at the number of every look, whoever asks and wishes meanwhile."""
    chance = random.Random(seed)
    running = engine(tmp_path)
    await running.start(machine(host_bytes))
    feed, follower = running.changes(), Follower()
    decisions: list[Decision] = []
    async with feed.subscribe() as changes:
        workers = [asyncio.create_task(work(running, random.Random(f"{seed}/{number}"), 12)) for number in range(3)]
        done = asyncio.gather(*workers)
        looks = 0
        while looks < 5 or not done.done():
            for _ in range(chance.randrange(30)):
                await asyncio.sleep(0)
            seen = feed.refresh()
            while follower.seq != seen.seq:
                change = await anext(changes)
                follower.take(change)
                if isinstance(change.body, Decision):
                    decisions.append(change.body)
            assert [steady(view) for view in follower.models.values()] == [steady(view) for view in seen.view.models]
            assert follower.totals == replace(seen.view, models=())
            looks += 1
        await done
    assert [one.id for one in decisions] == sorted({one.id for one in decisions})
    await running.stop()
    assert feed.readers == 0
