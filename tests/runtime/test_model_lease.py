"""A lease hands requests to its engine, and knows afterwards how they went."""

import asyncio
from array import array

import pytest

from hypnos_engine.domain.errors import InvalidRequest, WorkerDied
from hypnos_engine.domain.kinds import EngineKind, Modality, Tier
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.engines.fake import FakeEngine, FakeScript
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.lease import Lease, Switch
from hypnos_engine.runtime.model_lease import ModelLease
from hypnos_engine.testing.engine_conformance import ignore

SPEC = ModelSpec(ModelId("m"), Modality.EMBEDDINGS, EngineKind.FAKE, "")
SWITCH = Switch(Tier.GPU, 0.0, None, (), 0.0, None)


async def leased(script: FakeScript | None = None) -> tuple[ModelLease, FakeEngine]:
    engine = FakeEngine("m", script)
    await engine.load(m.Load("m", "", context_len=16, embeddings=True), ignore, ignore)
    return ModelLease(SPEC, SWITCH, engine, "local", 7), engine


async def test_vectors_come_from_the_engine_under_the_leases_number() -> None:
    lease, engine = await leased(FakeScript(vector=lambda text: (float(len(text)), 4.0)))
    plain: Lease = lease
    answer = await plain.embed(("abc", "x" * 100), normalise=False)
    assert list(array("f", answer.packed)) == [3.0, 4.0, 100.0, 4.0]
    assert [request.id for request in engine.embeds] == [7]
    assert lease.finished_well
    assert list(array("f", (await plain.embed(("abc",))).packed)) == pytest.approx([0.6, 0.8])


async def test_a_text_that_is_too_long_is_cut_only_when_that_is_allowed() -> None:
    lease, _ = await leased()
    with pytest.raises(InvalidRequest):
        await lease.embed(("word " * 50,))
    assert not lease.finished_well
    assert lease.death is None
    assert (await lease.embed(("word " * 50,), truncate=True)).truncated == (0,)


async def test_a_death_under_the_lease_is_remembered() -> None:
    lease, engine = await leased(FakeScript(token_gate=asyncio.Semaphore(0)))
    task = asyncio.create_task(lease.embed(("abc",)))
    await asyncio.sleep(0)
    engine.die()
    with pytest.raises(WorkerDied):
        await task
    assert isinstance(lease.death, WorkerDied)
    assert not lease.finished_well
