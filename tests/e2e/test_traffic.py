"""Three chat models and one for vectors on room for two: nothing is lost, nobody is forgotten, the ledger is true."""

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from hypnos_engine.config.starter import STARTER_MODEL, starter_folder
from hypnos_engine.domain.kinds import Accelerator, EngineKind, Modality, Residency, Topology
from hypnos_engine.domain.memory import HardwareSnapshot
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.engines.holder import HolderProcess
from hypnos_engine.engines.registry import EngineRegistry
from hypnos_engine.engines.runtimes import default_runtime
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.lease import Ask
from hypnos_engine.runtime.local import LocalRuntime, Machine
from hypnos_engine.runtime.parking import ParkedConversations
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.limits import Budgets, Limits
from hypnos_engine.testing import tiny_gguf

pytestmark = pytest.mark.starter

CHATS = ("north", "east", "south")
VECTORS = "vectors"
KEYS = ("ann", "bob")
LIMITS = Limits(max_queue_per_model=64)
USERS = 6
PARKED_BYTES = 64 * 2**20
TOUCHED_BYTES = 48 * 2**20
"""What a worker may have touched beyond its report: the stacks and buffers of requests in flight."""


def machine(host_bytes: int) -> Machine:
    """This machine's processor with so much memory to use."""
    memory = psutil.virtual_memory()
    hardware = HardwareSnapshot(Topology.HOST, Accelerator.CPU, "CPU", memory.total, memory.available, 2)
    budgets = Budgets(
        (), host_bytes, 2, device_layers=False, tier2_bytes=host_bytes, park_bytes=PARKED_BYTES, disk_bytes_per_s=2e9
    )
    return Machine(hardware, budgets, host_bytes)


@dataclass
class Traffic:
    """Users of one runtime, and who looks at the ledger once a second."""

    runtime: LocalRuntime
    seconds: float
    served: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    looks: int = 0

    async def run(self) -> None:
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(self.seconds, over.set)
        async with asyncio.TaskGroup() as group:
            for number in range(USERS):
                group.create_task(self._use(random.Random(number), over))
            group.create_task(self._watch(over))

    async def _use(self, chance: random.Random, over: asyncio.Event) -> None:
        while not over.is_set():
            model = VECTORS if chance.random() < 0.3 else chance.choice(CHATS)
            ask = Ask(ModelId(model), key_label=chance.choice(KEYS))
            try:
                async with self.runtime.lease(ask) as lease:
                    if model == VECTORS:
                        made = await lease.embed(tuple("some text" for _ in range(chance.randrange(1, 9))))
                        assert made.dimensions
                    else:
                        text = f"Say {chance.randrange(100)}."
                        message = m.ChatMessage("user", (m.TextPart(text),))
                        async with aclosing(lease.generate((message,), max_tokens=chance.randrange(1, 24))) as events:
                            ends = [event async for event in events if isinstance(event, m.Finished)]
                        assert len(ends) == 1
                self.served[model] += 1
            except Exception as error:
                self.failed.append(f"{model}: {error!r}")

    async def _watch(self, over: asyncio.Event) -> None:
        while not over.is_set():
            self._look()
            self.looks += 1
            try:
                await asyncio.wait_for(over.wait(), 1.0)
            except TimeoutError:
                continue

    def _look(self) -> None:
        """Everything that has to hold at every moment."""
        self.wrong += [repr(difference) for difference in self.runtime.recount()]
        state = self.runtime.dispatcher.scheduler.state
        for waiting in (waiting for model in state.models.values() for waiting in model.waiting.values()):
            if waiting.overtaken > LIMITS.max_overtakes:
                self.wrong.append(f"a request for {waiting.model} was overtaken {waiting.overtaken} times")
        view = self.runtime.memory()
        if view.tier1_used_bytes > view.tier1_budget_bytes:
            self.wrong.append(f"{view.tier1_used_bytes} booked of {view.tier1_budget_bytes}")
        seen = view.tier1_used_bytes + view.tier1_unaccounted_bytes + view.tier1_real_free_bytes
        if seen != view.tier1_real_total_bytes:
            self.wrong.append(f"booked, unaccounted and free are {seen}, the machine has {view.tier1_real_total_bytes}")
        booked = sum(model.private_bytes for model in state.models.values())
        workers = [worker for worker in psutil.Process().children() if "--kind" in _arguments(worker)]
        ready = sum(model.residency is not Residency.COLD for model in state.models.values())
        taken = sum(map(_private_bytes, workers))
        if taken > booked + TOUCHED_BYTES * max(1, ready):
            self.wrong.append(f"workers hold {taken} bytes for themselves, {booked} are booked")


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return [] if "holder" in (arguments := process.cmdline()) else arguments
    except psutil.Error:
        return []


def _private_bytes(process: psutil.Process) -> int:
    """Anonymous memory as the system counts it; 0 for a process that has just ended."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def configured(folder: Path) -> tuple[ModelSpec, ...]:
    """Three copies of the starter model, each a file of its own, and a tiny encoder."""
    starters = starter_folder()
    assert starters is not None
    for name in CHATS:
        shutil.copy(starters / STARTER_MODEL.weights_path, folder / f"{name}.gguf")
    tiny_gguf.write_encoder(folder / f"{VECTORS}.gguf")

    def spec(name: str, modality: Modality, cells: int) -> ModelSpec:
        return ModelSpec(
            id=ModelId(name),
            modality=modality,
            engine=EngineKind.LLAMA,
            weights_path=f"{name}.gguf",
            context_len=cells,
            keep_warm_in_ram=True,
        )

    return (*(spec(name, Modality.TEXT, 1024) for name in CHATS), spec(VECTORS, Modality.EMBEDDINGS, 512))


@asynccontextmanager
async def running(folder: Path, specs: tuple[ModelSpec, ...], host_bytes: int) -> AsyncIterator[LocalRuntime]:
    """A runtime with real workers, a real holder and parking; nothing of it is left afterwards."""
    registry = EngineRegistry()
    holder = HolderProcess(default_runtime(), lambda files: runtime.pages_lost(files))
    parked = ParkedConversations(
        enabled=True, max_bytes=PARKED_BYTES, on_dropped=lambda model: runtime.dispatcher.post(ev.KvParked(model, 0))
    )
    runtime = LocalRuntime(
        specs,
        (folder,),
        lambda spec: registry.make(spec.id, spec.engine),
        LIMITS,
        holder=holder,
        conversations=parked,
    )
    try:
        await runtime.start(machine(host_bytes))
        yield runtime
    finally:
        await runtime.stop()
        await holder.stop()


async def use(folder: Path, seconds: float) -> Traffic:
    """Find out what one chat model takes, then give all of them room for two."""
    specs = configured(folder)
    async with running(folder, specs, 8 * 2**30) as runtime, runtime.lease(Ask(ModelId(CHATS[0]))):
        one_bytes = runtime.memory().tier1_used_bytes
    async with running(folder, specs, int(2.7 * one_bytes)) as runtime:
        traffic = Traffic(runtime, seconds)
        await traffic.run()
        states = runtime.dispatcher.scheduler.state.models.values()
        assert not any(model.leases or model.waiting for model in states)
        return traffic


def check(traffic: Traffic) -> None:
    assert not traffic.failed, traffic.failed[:10]
    assert not traffic.wrong, traffic.wrong[:10]
    assert set(traffic.served) == {*CHATS, VECTORS}, traffic.served
    assert traffic.looks >= traffic.seconds / 4
    assert any(eviction.reason == "memory_budget" for eviction in traffic.runtime.dispatcher.evictions)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_minute_of_mixed_traffic(tmp_path: Path) -> None:
    check(await use(tmp_path, 60.0))


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_ten_minutes_of_mixed_traffic(tmp_path: Path) -> None:
    check(await use(tmp_path, 600.0))
