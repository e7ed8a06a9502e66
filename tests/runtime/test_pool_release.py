"""Files of models are released before they change on disk: nobody has them open, and whoever asks meanwhile waits."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from hypnos_engine.domain.errors import ModelBusy
from hypnos_engine.domain.kinds import EngineKind, Modality, Residency, Tier
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.engines.fake import FakeEngine
from hypnos_engine.engines.holder_fake import FakeHolder
from hypnos_engine.hardware.machine import host_memory, snapshot
from hypnos_engine.runtime.lease import Ask
from hypnos_engine.runtime.local import LocalRuntime, Machine
from hypnos_engine.scheduler.limits import Budgets, Limits
from hypnos_engine.testing.tiny_gguf import write_llama, write_moe
from tests.runtime.bench import read

GIB = 2**30
A, B = ModelId("a"), ModelId("b")


class Bench:
    """Two models on files of their own, one of them kept in memory; made on the loop that runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engines: list[FakeEngine] = []
        for name in ("a", "b"):
            write_llama(folder / f"{name}.gguf")
        self.holder = FakeHolder(lambda _: None)
        specs = [ModelSpec(name, Modality.TEXT, EngineKind.LLAMA, f"{name}.gguf", context_len=512) for name in (A, B)]
        specs[0] = replace(specs[0], keep_warm_in_ram=True)
        self.runtime = LocalRuntime(specs, [folder], self._make, Limits(), holder=self.holder)

    def _make(self, spec: ModelSpec) -> FakeEngine:
        self.engines.append(FakeEngine(spec.id))
        return self.engines[-1]

    async def __aenter__(self) -> "Bench":
        budgets = Budgets((), GIB, 2, device_layers=False, tier2_bytes=GIB)
        await self.runtime.start(Machine(snapshot(host_memory(), None), budgets, GIB))
        await self.until(lambda: self.tier(A) is Tier.RAM)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.runtime.stop()

    def tier(self, model: ModelId) -> Tier:
        view = self.runtime.model(model)
        assert view is not None
        return view.tier

    def state(self, model: ModelId) -> Residency:
        view = self.runtime.model(model)
        assert view is not None
        return view.residency

    async def ask(self, model: ModelId) -> str:
        async with self.runtime.lease(Ask(model)) as lease:
            return await read(lease)

    async def until(self, condition: object) -> None:
        assert callable(condition)
        assert await self.runtime.dispatcher.until(condition, within_s=30)


async def test_workers_and_pages_go_and_the_new_file_is_what_is_loaded(tmp_path: Path) -> None:
    async with Bench(tmp_path) as on:
        await on.ask(A)
        await on.ask(B)
        write_moe(tmp_path / "new.gguf")
        async with on.runtime.release([tmp_path / "a.gguf"]) as concerned:
            assert concerned == (A,)
            assert (on.state(A), on.state(B)) == (Residency.COLD, Residency.READY)
            assert on.holder.report().held == ()
            waiting = asyncio.create_task(on.ask(A))
            await on.until(lambda: on.runtime.dispatcher.scheduler.state.models[A].waiting)
            assert on.state(A) is Residency.COLD
            (tmp_path / "new.gguf").replace(tmp_path / "a.gguf")
        assert await waiting == "one two three"
        view = on.runtime.model(A)
        assert view is not None
        assert view.expert_bytes > 0, "planned as the file that is there now"
        await on.runtime.move(A, Tier.RAM)
        assert on.tier(A) is Tier.RAM, "kept in memory again"


async def test_a_model_in_use_keeps_its_file(tmp_path: Path) -> None:
    async with Bench(tmp_path) as on:
        async with on.runtime.lease(Ask(A)) as lease:
            with pytest.raises(ModelBusy):
                async with on.runtime.release([tmp_path / "a.gguf"], 0.05):
                    pytest.fail("it is still in use")
            assert await read(lease) == "one two three"
        assert await on.ask(A) == "one two three"
        assert len(on.engines) == 1


async def test_files_of_no_model_are_free_at_once(tmp_path: Path) -> None:
    async with Bench(tmp_path) as on:
        await on.ask(A)
        async with on.runtime.release([tmp_path / "none.gguf", tmp_path / "a.gguf.part"], 0.0) as concerned:
            assert concerned == ()
        assert on.state(A) is Residency.READY


async def test_a_folder_of_models_and_a_link_to_a_file_count_too(tmp_path: Path) -> None:
    (tmp_path / "link.gguf").symlink_to(tmp_path / "b.gguf")
    async with Bench(tmp_path) as on:
        async with on.runtime.release([tmp_path / "link.gguf"]) as concerned:
            assert concerned == (B,)
        async with on.runtime.release([tmp_path]) as concerned:
            assert concerned == (A, B)


async def test_of_two_who_hold_the_same_file_the_last_gives_it_back(tmp_path: Path) -> None:
    async with Bench(tmp_path) as on:
        async with on.runtime.release([tmp_path / "a.gguf"]):
            async with on.runtime.release([tmp_path / "a.gguf"]):
                waiting = asyncio.create_task(on.ask(A))
                await on.until(lambda: on.runtime.dispatcher.scheduler.state.models[A].waiting)
            await asyncio.sleep(0)
            assert not waiting.done()
            assert on.state(A) is Residency.COLD
        assert await waiting == "one two three"


async def test_whoever_fails_within_the_block_gives_the_files_back(tmp_path: Path) -> None:
    async with Bench(tmp_path) as on:
        with pytest.raises(RuntimeError):
            async with on.runtime.release([tmp_path / "a.gguf"]):
                raise RuntimeError("the disk is full")
        assert await on.ask(A) == "one two three"


async def test_the_end_does_not_wait_for_files(tmp_path: Path) -> None:
    async with Bench(tmp_path) as on:
        held, leave = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with on.runtime.release([tmp_path / "a.gguf"]):
                held.set()
                await leave.wait()

        holding = asyncio.create_task(hold())
        await held.wait()
        await on.runtime.stop()
        leave.set()
        await holding
