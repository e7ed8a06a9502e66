"""The books about memory: sums of views, what is not there for the taking, and a recount that finds what is wrong."""

import os
from pathlib import Path

import pytest

from hypnos_engine.domain.kinds import Pages, Residency, Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.engines.fake import FakeEngine
from hypnos_engine.engines.holder import Held, HolderReport
from hypnos_engine.hardware.monitor import DeviceSample
from hypnos_engine.runtime.growth import private_bytes_of
from hypnos_engine.runtime.lease import Ask
from hypnos_engine.runtime.recount import recount
from hypnos_engine.runtime.senses import Senses
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler import ledger
from hypnos_engine.scheduler.core import Scheduler
from hypnos_engine.scheduler.state import FileSet
from tests.runtime.test_by_hand import MIB, A, B, hands, model_spec
from tests.runtime.unreliable import UNIT, unreliable
from tests.runtime.virtual_time import run

SMALL, MIDDLE = ModelId("small"), ModelId("middle")
AT_ONCE = frozenset(("load", "park", "unload", "fill", "drop"))


# --- views ----------------------------------------------------------------------------------------------------------


async def test_on_one_pool_the_tiers_add_up_to_what_is_booked(tmp_path: Path) -> None:
    """[§14.1-05] [§14.1-11]"""
    async with hands(tmp_path, model_spec("a"), model_spec("b")) as on:
        await on.runtime.move(A, Tier.RAM)
        await on.load(A)  # its pages stay held while it is loaded, and count once
        await on.runtime.move(B, Tier.RAM)
        state, memory = on.runtime.dispatcher.scheduler.state, on.runtime.memory()
        booked = ledger.host_booked(state)
        assert memory.tier1_used_bytes + memory.tier2_used_bytes == booked
        assert memory.tier2_used_bytes >= (tmp_path / "b.gguf").stat().st_size
        assert memory.tier1_used_bytes == sum(model.host_bytes for model in memory.models)
        assert memory.process_bytes >= booked
        assert memory.tier1_effective_free_bytes <= memory.tier1_budget_bytes - booked
        assert memory.devices == ()


def test_each_device_is_shown_with_its_own_bytes(tmp_path: Path) -> None:
    async def whole() -> None:
        async with unreliable(tmp_path, (4 * UNIT, 6 * UNIT), prompt=AT_ONCE) as on:
            on.monitor.others[1] = UNIT
            on.dispatcher.machine_changed()
            await on.ask(Ask(SMALL), 1)
            await on.ask(Ask(MIDDLE), 1)
            state = on.scheduler.state
            for device in range(2):
                shares = [ledger.share_of(model, device) for model in state.models.values()]
                assert ledger.device_booked(state, device) == sum(shares) <= on.monitor.sizes[device]
            assert recount(on.dispatcher) == ()

    run(whole())


# --- what is left ---------------------------------------------------------------------------------------------------


def senses(report: HolderReport | None, scheduler: Scheduler, taken_bytes: int = 0) -> Senses:
    return Senses(scheduler.state, DeviceSample, lambda: report, lambda model: taken_bytes)


def holding(locked_bytes: int) -> HolderReport:
    return HolderReport(True, bool(locked_bytes), None, (Held("a.gguf", 2**50, 2**50, locked_bytes),))


def test_pages_that_are_kept_warm_without_a_lock_are_not_there_for_the_taking() -> None:
    scheduler = Scheduler([model_spec("a")])
    assert senses(None, scheduler).sample().host_available_bytes > 0
    assert senses(holding(2**50), scheduler).sample().host_available_bytes > 0
    assert senses(holding(0), scheduler).sample().host_available_bytes == 0


def test_what_is_still_to_be_read_of_a_file_set_is_promised_already() -> None:
    scheduler = Scheduler([model_spec("a")])
    scheduler.state.files["a.gguf"] = FileSet("a.gguf", Pages.FILLING, 2**50)
    assert senses(None, scheduler).sample().host_available_bytes == 0
    assert senses(holding(2**50), scheduler).sample().host_available_bytes > 0


def test_what_a_load_will_take_is_promised_already(tmp_path: Path) -> None:
    async def whole() -> None:
        async with unreliable(tmp_path, prompt=AT_ONCE - {"load"}) as on:
            before = on.dispatcher.sample().host_available_bytes
            on.dispatcher.residents._measure = lambda engine: 0
            on.dispatcher.post(ev.StageRequested(SMALL))
            model = on.scheduler.state.models[SMALL]
            assert model.residency is Residency.LOADING
            during = on.dispatcher.sample().host_available_bytes
            assert before - during == model.private_bytes

    run(whole())


def test_a_device_is_lost_once_and_returns_once() -> None:
    here, away = DeviceSample((5,)), DeviceSample((0,), lost=(0,))
    now = [here]
    seen = Senses(Scheduler([]).state, lambda: now[0], lambda: None, lambda model: 0)
    told: list[ev.Event] = []
    for now[0] in (here, away, away, here):
        told += [event for event in seen.changed() if not isinstance(event, ev.MachineSampled)]
    assert told == [ev.DeviceLost(0), ev.DeviceReturned(0)]


# --- a recount ------------------------------------------------------------------------------------------------------


def test_a_recount_finds_what_is_booked_and_not_there(tmp_path: Path) -> None:
    async def whole() -> None:
        async with unreliable(tmp_path, prompt=AT_ONCE) as on:
            await on.dispatcher.until(lambda: on.scheduler.tier(ModelId("kept")) is Tier.RAM)
            assert recount(on.dispatcher) == ()
            on.dispatcher.post(ev.KvParked(SMALL, 4096))
            assert [(found.what, found.booked, found.counted) for found in recount(on.dispatcher)] == [
                ("parked bytes of small", 4096, 0)
            ]
            on.dispatcher.post(ev.KvParked(SMALL, 0))
            await on.holder.inner.drop("kept.gguf")
            assert [found.what for found in recount(on.dispatcher)] == ["pages of kept.gguf"]
            on.dispatcher.pages.lost("kept.gguf")
            await on.dispatcher.until(lambda: on.scheduler.tier(ModelId("kept")) is Tier.RAM)
            assert recount(on.dispatcher) == ()

    run(whole())


def test_a_recount_finds_pages_that_nobody_has_booked(tmp_path: Path) -> None:
    async def whole() -> None:
        async with unreliable(tmp_path, prompt=AT_ONCE) as on:
            await on.dispatcher.until(lambda: on.scheduler.tier(ModelId("kept")) is Tier.RAM)
            await on.holder.inner.fill("large.gguf", [tmp_path / "large.gguf"], lambda fraction: None)
            assert [found.what for found in recount(on.dispatcher)] == ["pages of large.gguf"]

    run(whole())


# --- growth ---------------------------------------------------------------------------------------------------------


class OwnProcess(FakeEngine):
    def __init__(self, pid: int | None) -> None:
        super().__init__("a")
        self.pid = pid


@pytest.mark.parametrize("kind", [FakeEngine("a"), OwnProcess(None), OwnProcess(2**30)], ids=["none", "ended", "gone"])
def test_an_engine_without_a_process_has_no_memory_of_its_own(kind: FakeEngine) -> None:
    assert private_bytes_of(kind) == 0


def test_what_a_process_has_for_itself_is_measured() -> None:
    before = private_bytes_of(OwnProcess(os.getpid()))
    block = bytearray(os.urandom(64 * MIB))
    after = private_bytes_of(OwnProcess(os.getpid()))
    assert after - before > 48 * MIB
    assert len(block) == 64 * MIB
