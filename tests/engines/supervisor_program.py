"""A supervisor that loads workers, prints their process ids and then waits; started by a test, which kills it."""

import asyncio
import sys

from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.engines.process import Transport
from hypnos_engine.engines.runtimes import default_runtime
from hypnos_engine.engines.worker_engine import WorkerEngine
from hypnos_engine.ipc import messages as m


async def main() -> None:
    engines = [
        WorkerEngine(f"tiny-{one.value}", EngineKind.FAKE, default_runtime(), transport=one) for one in Transport
    ]
    for engine in engines:
        await engine.load(m.Load("tiny", ""), lambda _: None, lambda _: None)
    print(*[engine.pid for engine in engines], flush=True)
    await asyncio.to_thread(sys.stdin.read)


asyncio.run(main())
