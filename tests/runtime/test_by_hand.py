"""Tiers, switches, expert offload, holds and the pool by hand: what is answered, when, and what is in memory then."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from hypnos_engine.domain.errors import (
    Cancelled,
    InsufficientMemory,
    InvalidRequest,
    LoadFailed,
    ModelBusy,
    ModelDisabled,
    ModelNotAvailable,
    ModelNotFound,
)
from hypnos_engine.domain.kinds import EngineKind, Modality, MoeOffload, Residency, Tier
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.engines.fake import FakeEngine, FakeScript
from hypnos_engine.engines.holder_fake import FakeHolder
from hypnos_engine.hardware.machine import host_memory, snapshot
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.lease import Ask
from hypnos_engine.runtime.local import LocalRuntime, Machine
from hypnos_engine.runtime.parking import ParkedConversations
from hypnos_engine.runtime.snapshot import MovedModel
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.limits import Budgets, Limits
from hypnos_engine.testing.tiny_gguf import write_llama, write_moe
from tests.runtime.bench import read

GIB = 2**30
MIB = 2**20
A, B = ModelId("a"), ModelId("b")


@dataclass
class Hands:
    """A runtime whose models are real files and whose engines and holder are fakes."""

    runtime: LocalRuntime
    holder: FakeHolder
    folder: Path
    scripts: dict[str, FakeScript] = field(default_factory=dict)
    engines: list[FakeEngine] = field(default_factory=list)

    def tier(self, model: ModelId) -> Tier:
        view = self.runtime.model(model)
        assert view is not None
        return view.tier

    async def load(self, model: ModelId) -> None:
        async with self.runtime.lease(Ask(model)) as lease:
            await read(lease)

    async def until(self, condition: Callable[[], bool]) -> None:
        assert await self.runtime.dispatcher.until(condition, within_s=30)


def model_spec(name: str, **changes: object) -> ModelSpec:
    settings: dict[str, object] = {"context_len": 512, "slots": 2, **changes}
    return ModelSpec(ModelId(name), Modality.TEXT, EngineKind.LLAMA, f"{name}.gguf", **settings)  # type: ignore[arg-type]


@asynccontextmanager
async def hands(
    folder: Path,
    *specs: ModelSpec,
    host_bytes: int = GIB,
    tier2_bytes: int = GIB,
    park_bytes: int = 0,
    device_layers: bool = False,
    **scripts: FakeScript,
) -> AsyncIterator[Hands]:
    for name in ("a", "b", "c"):
        write_llama(folder / f"{name}.gguf")
    write_moe(folder / "moe.gguf")
    made: list[FakeEngine] = []

    def make(spec: ModelSpec) -> FakeEngine:
        script = scripts.get(spec.id, FakeScript())
        private = 32 * MIB
        script.memory = m.MemoryReport(0, 0, 0, 0, 0, private)
        made.append(FakeEngine(spec.id, script))
        return made[-1]

    holder = FakeHolder(lambda files: runtime.pages_lost(files))
    conversations = ParkedConversations(
        enabled=park_bytes > 0, max_bytes=park_bytes, on_dropped=lambda model: runtime.parked_dropped(model)
    )
    runtime = LocalRuntime(
        specs or (model_spec("a"), model_spec("b")),
        [folder],
        make,
        Limits(),
        holder=holder,
        conversations=conversations,
    )
    budgets = Budgets((), host_bytes, 2, device_layers=device_layers, tier2_bytes=tier2_bytes)
    try:
        await runtime.start(Machine(snapshot(host_memory(), None), budgets, tier2_bytes))
        yield Hands(runtime, holder, folder, scripts, made)
        assert runtime.recount() == ()
    finally:
        await runtime.stop()
        await holder.stop()
        conversations.close()


@pytest.fixture
def expected_log() -> list[str]:
    return ["loading a failed: the file is damaged"]


# --- tiers ----------------------------------------------------------------------------------------------------------


async def test_a_model_goes_where_it_is_told_to(tmp_path: Path) -> None:
    """[§14.2-01] [§14.2-09]"""
    async with hands(tmp_path) as on:
        for tier in (Tier.RAM, Tier.GPU, Tier.RAM, Tier.DISK, Tier.GPU, Tier.DISK):
            view = await on.runtime.move(A, tier)
            assert view.tier is view.placement.primary_tier is tier
            layers = (view.placement.gpu_layers, view.placement.pinned_ram_layers, view.placement.ssd_layers)
            assert [bool(count) for count in layers] == [tier is one for one in Tier]
            held = [held.files for held in on.holder.report().held]
            assert (tier is Tier.RAM) <= (held == ["a.gguf"])
            assert (tier is Tier.DISK) <= (held == [])
        assert on.runtime.recount() == ()


async def test_a_promotion_with_a_larger_context_gets_it(tmp_path: Path) -> None:
    """[§14.2-04]"""
    async with hands(tmp_path) as on:
        view = await on.runtime.move(A, Tier.GPU, context_len=2048)
        assert view.placement.allocated_context_len == 2048
        assert (await on.runtime.move(A, Tier.GPU, context_len=256)).placement.allocated_context_len == 2048
        assert len(on.engines) == 1


async def test_a_model_in_use_stays_where_it_is(tmp_path: Path) -> None:
    """[§14.2-05]"""
    async with hands(tmp_path) as on, on.runtime.lease(Ask(A)):
        with pytest.raises(ModelBusy):
            await on.runtime.move(A, Tier.DISK)


async def test_a_move_that_cannot_be_is_refused_by_its_reason(tmp_path: Path) -> None:
    """[§14.2-06] [§14.2-07]"""
    specs = (model_spec("a"), model_spec("b", enabled=False), model_spec("gone"))
    async with hands(tmp_path, *specs, host_bytes=20 * MIB, tier2_bytes=1) as on:
        for tier in (Tier.GPU, Tier.RAM):
            with pytest.raises(InsufficientMemory):
                await on.runtime.move(A, tier)
        with pytest.raises(ModelDisabled):
            await on.runtime.move(B, Tier.GPU)
        with pytest.raises(ModelNotFound):
            await on.runtime.move(ModelId("nobody"), Tier.GPU)
        with pytest.raises(ModelNotAvailable, match=r"gone\.gguf"):
            await on.runtime.move(ModelId("gone"), Tier.GPU)
        assert len(on.runtime.dispatcher.wishes) == 0


async def test_a_promotion_whose_load_fails_says_why(tmp_path: Path) -> None:
    async with hands(tmp_path, a=FakeScript(load_error=LoadFailed("the file is damaged"))) as on:
        with pytest.raises(LoadFailed, match="damaged"):
            await on.runtime.move(A, Tier.GPU)


async def test_whoever_leaves_does_not_stop_the_move(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with hands(tmp_path, a=FakeScript(load_gate=gate)) as on:
        moving = asyncio.create_task(on.runtime.move(A, Tier.GPU))
        await on.until(lambda: bool(on.engines))
        moving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await moving
        assert len(on.runtime.dispatcher.wishes) == 0
        gate.set()
        await on.until(lambda: on.tier(A) is Tier.GPU)


async def test_a_move_at_the_end_of_the_program_is_told_so(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with hands(tmp_path, a=FakeScript(load_gate=gate)) as on:
        moving = asyncio.create_task(on.runtime.move(A, Tier.GPU))
        await on.until(lambda: bool(on.engines))
        await on.runtime.drain(0.0)
        with pytest.raises(Cancelled):
            await moving
        with pytest.raises(Cancelled):
            await on.runtime.move(B, Tier.GPU)
        gate.set()
        await on.until(lambda: on.tier(A) is Tier.GPU)


# --- in and out of service ------------------------------------------------------------------------------------------


async def test_a_model_that_is_switched_off_leaves_memory_and_comes_back_by_its_next_request(tmp_path: Path) -> None:
    """[§6.5-01] [§6.5-02] [§6.5-04] [§6.5-05]"""
    async with hands(tmp_path) as on:
        await on.runtime.move(A, Tier.RAM)
        await on.load(A)
        view = await on.runtime.switch(A, enabled=False)
        assert (view.enabled, view.tier, view.residency) == (False, Tier.DISK, Residency.COLD)
        assert on.holder.report().held == ()
        with pytest.raises(ModelDisabled):
            await on.load(A)
        assert (await on.runtime.switch(A, enabled=True)).enabled
        await on.load(A)
        assert on.tier(A) is Tier.GPU


async def test_a_model_in_use_cannot_be_switched_off_and_an_unknown_one_is_not_found(tmp_path: Path) -> None:
    """[§6.5-07]"""
    async with hands(tmp_path) as on:
        async with on.runtime.lease(Ask(A)):
            with pytest.raises(ModelBusy):
                await on.runtime.switch(A, enabled=False)
        with pytest.raises(ModelNotFound):
            await on.runtime.switch(ModelId("nobody"), enabled=False)
        view = on.runtime.model(A)
        assert view is not None
        assert view.enabled


# --- expert offload -------------------------------------------------------------------------------------------------


async def test_an_idle_model_takes_a_new_offload_up_at_its_next_load(tmp_path: Path) -> None:
    """[§6.6-13] [§6.6-14] [§6.6-15]"""
    moe = ModelId("moe")
    async with hands(tmp_path, model_spec("moe")) as on:
        await on.load(moe)
        change = await on.runtime.set_expert_offload(moe, MoeOffload.ON)
        assert change.applies_now
        assert (change.view.spec.moe_offload, change.view.residency) == (MoeOffload.ON, Residency.COLD)
        await on.until(lambda: on.tier(moe) is Tier.RAM)
        async with on.runtime.lease(Ask(moe)):
            assert not (await on.runtime.set_expert_offload(moe, MoeOffload.OFF)).applies_now
            assert on.tier(moe) is Tier.GPU


async def test_offload_of_models_that_have_no_use_for_it(tmp_path: Path) -> None:
    """[§6.6-18] [§6.6-20]"""
    async with hands(tmp_path, model_spec("a"), model_spec("b", enabled=False)) as on:
        await on.load(A)
        assert (await on.runtime.set_expert_offload(A, MoeOffload.ON)).applies_now
        assert on.tier(A) is Tier.GPU
        with pytest.raises(ModelNotFound):
            await on.runtime.set_expert_offload(ModelId("nobody"), MoeOffload.ON)
        with pytest.raises(ModelDisabled):
            await on.runtime.set_expert_offload(B, MoeOffload.ON)


# --- holds ----------------------------------------------------------------------------------------------------------


async def test_what_is_on_the_accelerator_leaves_for_its_owner_and_comes_back(tmp_path: Path) -> None:
    async with hands(tmp_path, device_layers=True) as on:
        await on.load(A)
        assert on.runtime.hold() is None
        held = await on.runtime.free(None)
        assert (held.held, held.until_unix_ms) == (True, None)
        assert [(one.model, one.from_tier) for one in held.moved] == [(A, Tier.GPU)]
        await on.until(lambda: on.tier(A) is Tier.RAM)
        assert on.runtime.hold() == replace(held, moved=(MovedModel(A, Tier.GPU, Tier.RAM),))
        assert on.runtime.memory().hold == on.runtime.hold()
        with pytest.raises(ModelNotAvailable, match="hold"):
            await on.load(B)
        back = await on.runtime.restore()
        assert not back.held
        assert back.moved == (MovedModel(A, Tier.RAM, Tier.GPU),)
        assert on.tier(A) is Tier.GPU
        assert on.runtime.hold() is None
        assert await on.runtime.restore() == replace(back, moved=())


async def test_a_hold_waits_for_nobody_who_is_at_work(tmp_path: Path) -> None:
    async with hands(tmp_path, device_layers=True) as on:
        async with on.runtime.lease(Ask(A)) as lease:
            held = await on.runtime.free(None)
            assert held.moved == ()
            assert await read(lease) == "one two three"
        await on.until(lambda: on.tier(A) is not Tier.GPU)
        hold = on.runtime.hold()
        assert hold is not None
        assert [one.model for one in hold.moved] == [A]


async def test_a_hold_ends_by_itself(tmp_path: Path) -> None:
    async with hands(tmp_path, device_layers=True) as on:
        await on.load(A)
        held = await on.runtime.free(0.2)
        assert held.until_unix_ms is not None
        await on.until(lambda: on.runtime.hold() is None and on.tier(A) is Tier.GPU)


# --- the pool -------------------------------------------------------------------------------------------------------


async def test_a_model_is_added_replaced_and_removed(tmp_path: Path) -> None:
    """[§6.4-41]"""
    async with hands(tmp_path) as on:
        added = await on.runtime.add(model_spec("c"))
        assert (added.tier, added.problem) == (Tier.DISK, None)
        assert added.total_weight_bytes > 0
        await on.load(ModelId("c"))
        replaced = await on.runtime.replace(model_spec("c", context_len=1024))
        assert (replaced.spec.context_len, replaced.residency) == (1024, Residency.COLD)
        await on.load(ModelId("c"))
        assert on.engines[-1].loads[0].context_len == 1024
        await on.runtime.remove(ModelId("c"))
        assert on.runtime.model(ModelId("c")) is None
        assert on.holder.report().held == ()
        with pytest.raises(InvalidRequest):
            await on.runtime.add(model_spec("a"))
        for change in (on.runtime.remove(ModelId("c")), on.runtime.replace(model_spec("c"))):
            with pytest.raises(ModelNotFound):
                await change


async def test_a_model_gets_other_files(tmp_path: Path) -> None:
    async with hands(tmp_path) as on:
        await on.load(A)
        await on.runtime.replace(replace(model_spec("a"), weights_path="moe.gguf"))
        view = on.runtime.model(A)
        assert view is not None
        assert view.expert_bytes > 0
        await on.load(A)
        assert on.engines[-1].loads[0].weights_path == str(tmp_path / "moe.gguf")


async def test_a_change_that_would_wait_too_long_is_abandoned(tmp_path: Path) -> None:
    async with hands(tmp_path) as on:
        async with on.runtime.lease(Ask(A)) as lease:
            with pytest.raises(ModelBusy):
                await on.runtime.replace(model_spec("a", slots=1), within_s=0.05)
            assert await read(lease) == "one two three"
        view = on.runtime.model(A)
        assert view is not None
        assert (view.spec.slots, view.residency) == (2, Residency.READY)
        await on.load(A)
        assert len(on.engines) == 1


# --- pages and conversations ----------------------------------------------------------------------------------------


async def test_startup_models_of_tier_2_are_held_when_staging_ends(tmp_path: Path) -> None:
    specs = (model_spec("a", initial_tier=Tier.RAM), model_spec("b", keep_warm_in_ram=True, initial_tier=Tier.GPU))
    async with hands(tmp_path, *specs) as on:
        assert not on.runtime.staging
        assert (on.tier(A), on.tier(B)) == (Tier.RAM, Tier.GPU)
        assert {held.files for held in on.holder.report().held} >= {"a.gguf"}
        await on.until(lambda: len(on.holder.report().held) == 2)
        memory = on.runtime.memory()
        assert memory.pages == on.holder.report()
        assert memory.tier2_used_bytes >= (tmp_path / "a.gguf").stat().st_size


async def test_pages_that_cannot_be_held_do_not_hold_up_the_start(tmp_path: Path) -> None:
    specs = (model_spec("a", initial_tier=Tier.RAM, keep_warm_in_ram=True),)
    async with hands(tmp_path, *specs, tier2_bytes=1) as on:
        assert on.tier(A) is Tier.DISK


async def test_lost_pages_are_told_and_read_again(tmp_path: Path) -> None:
    async with hands(tmp_path, model_spec("a", keep_warm_in_ram=True)) as on:
        await on.until(lambda: on.tier(A) is Tier.RAM)
        on.holder.lose("a.gguf")
        assert on.tier(A) is Tier.DISK
        await on.until(lambda: on.tier(A) is Tier.RAM)
        on.holder.die()
        assert on.tier(A) is Tier.DISK
        await on.until(lambda: on.tier(A) is Tier.RAM)


async def test_pages_of_a_file_that_was_replaced_are_read_anew(tmp_path: Path) -> None:
    async with hands(tmp_path, model_spec("a", keep_warm_in_ram=True), model_spec("b")) as on:
        await on.until(lambda: on.tier(A) is Tier.RAM)
        before = on.holder.report().held[0].held_bytes
        (tmp_path / "moe.gguf").replace(tmp_path / "a.gguf")
        on.runtime.forget_inspections()
        await on.runtime.move(A, Tier.GPU)
        await on.until(
            lambda: [h.held_bytes for h in on.holder.report().held] == [(tmp_path / "a.gguf").stat().st_size]
        )
        assert on.holder.report().held[0].held_bytes != before


async def test_conversations_come_back_with_their_model(tmp_path: Path) -> None:
    """[§14.3-04] [§14.3-05] [§5-17]"""
    talks = FakeScript(conversations=(30, 12))
    async with hands(tmp_path, park_bytes=64 * MIB, a=talks) as on:
        await on.load(A)
        await on.runtime.move(A, Tier.RAM)
        parked = on.runtime.parking()
        assert [(one.model, one.slots, one.tokens) for one in parked.models] == [(A, 2, 42)]
        assert on.runtime.recount() == ()
        view = on.runtime.model(A)
        assert view is not None
        assert view.parked_bytes == parked.used_bytes == on.runtime.memory().parking.used_bytes  # type: ignore[union-attr]
        async with on.runtime.lease(Ask(A)) as lease:
            assert lease.switch.restored is not None
            assert lease.switch.restored.tokens == 42
            assert on.runtime.parking().models == ()
        async with on.runtime.lease(Ask(A)) as lease:
            assert lease.switch.restored is None


async def test_parking_is_switched_while_it_runs(tmp_path: Path) -> None:
    """[§14.3-14] [§14.3-15]"""
    talks = {"a": FakeScript(conversations=(30,)), "b": FakeScript(conversations=(30,))}
    async with hands(tmp_path, **talks) as on:  # type: ignore[arg-type]
        await on.load(A)
        await on.runtime.move(A, Tier.RAM)
        assert on.runtime.parking().models == ()
        assert (await on.runtime.set_parking(enabled=True, max_bytes=GIB)).enabled
        for model in (A, B):
            await on.load(model)
            await on.runtime.move(model, Tier.RAM)
        parked = on.runtime.parking()
        assert [one.model for one in parked.models] == [A, B]
        smaller = await on.runtime.set_parking(enabled=None, max_bytes=parked.used_bytes - 1)
        assert [one.model for one in smaller.models] == [B]
        assert on.runtime.recount() == ()
        assert (await on.runtime.set_parking(enabled=False, max_bytes=None)).models == ()


async def test_a_disabled_model_forgets_its_conversations(tmp_path: Path) -> None:
    """[§14.3-20]"""
    async with hands(tmp_path, park_bytes=64 * MIB, a=FakeScript(conversations=(30,))) as on:
        await on.load(A)
        await on.runtime.move(A, Tier.RAM)
        assert on.runtime.parking().models
        await on.runtime.switch(A, enabled=False)
        assert on.runtime.parking().models == ()


# --- what is told ---------------------------------------------------------------------------------------------------


async def test_decisions_are_kept_newest_first(tmp_path: Path) -> None:
    async with hands(tmp_path) as on:
        await on.load(A)
        decisions = on.runtime.decisions(2)
        assert decisions[0].id == decisions[1].id + 1
        assert on.runtime.decisions(0) == ()
        kinds = [decision.record.kind for decision in on.runtime.decisions(1000)]
        assert "load" in kinds
        assert "loaded" in kinds


async def test_an_eviction_says_where_the_model_went(tmp_path: Path) -> None:
    async with hands(tmp_path, host_bytes=60 * MIB) as on:
        await on.load(A)
        await on.load(B)
        (eviction, *_) = on.runtime.memory().evictions
        assert (eviction.model, eviction.for_model, eviction.reason) == (A, B, "memory_budget")
        assert eviction.to_tier is Tier.RAM


async def test_progress_of_a_load_is_seen(tmp_path: Path) -> None:
    gate = asyncio.Event()
    script = FakeScript(load_gate=gate, progress=(m.LoadProgress("weights", 0.25),))
    async with hands(tmp_path, a=script) as on:
        loading = asyncio.create_task(on.load(A))
        await on.until(lambda: bool(on.engines))
        await on.until(lambda: A in on.runtime.dispatcher.residents.progress)
        view = on.runtime.model(A)
        assert view is not None
        assert (view.load_phase, view.load_progress) == ("weights", 0.25)
        assert 0.2 < on.runtime.dispatcher.scheduler.state.models[A].load_fraction < 0.25
        gate.set()
        await loading
        view = on.runtime.model(A)
        assert view is not None
        assert view.load_progress is None


async def test_a_task_that_ends_is_timed(tmp_path: Path) -> None:
    ended: list[str] = []
    async with hands(tmp_path) as on:
        on.runtime.dispatcher.around.on_workflow_ended = lambda name, seconds: ended.append(name)
        async with on.runtime.lease(Ask(A, workflow=ev.Workflow("plan a trip", "1", ends=True))):
            pass
        assert ended == ["plan a trip"]
