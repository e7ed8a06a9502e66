"""A supervisor that parks a conversation, loads its model again and then waits; started by a test, which kills it.

Prints the process id of the worker that runs, and the inode of the block.
"""

import asyncio
import sys
from pathlib import Path

from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.domain.model import ModelId
from hypnos_engine.engines.runtimes import default_runtime
from hypnos_engine.engines.worker_engine import WorkerEngine
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.parking import ParkedConversations
from hypnos_engine.testing.engine_conformance import complete, ignore, question


def _block() -> int:
    return next(
        entry.stat().st_ino
        for entry in Path("/proc/self/fd").iterdir()
        if str(entry.readlink()).startswith("/memfd:hypnos")
    )


async def main(weights_path: str) -> None:
    load = m.Load("tiny", weights_path, context_len=2048, slots=2, threads=1)
    conversations = ParkedConversations(enabled=True, max_bytes=2**30, on_dropped=ignore)
    engine = WorkerEngine("tiny", EngineKind.LLAMA, default_runtime())
    await engine.load(load, ignore, ignore)
    await complete(engine, question(1, "What is this?"))
    assert await conversations.park(ModelId("tiny"), engine, 2**24) > 0
    await engine.unload()
    again = WorkerEngine("tiny", EngineKind.LLAMA, default_runtime())
    await again.load(load, ignore, ignore)
    print(again.pid, _block(), flush=True)
    await asyncio.to_thread(sys.stdin.read)


asyncio.run(main(sys.argv[1]))
