"""A supervisor that holds a file, prints the holder's process id and then waits; started by a test, which kills it."""

import asyncio
import sys
from pathlib import Path

from hypnos_engine.engines.holder import HolderProcess
from hypnos_engine.engines.runtimes import default_runtime


async def main() -> None:
    holder = HolderProcess(default_runtime(), lambda _: None)
    assert await holder.fill("own", [Path(__file__)], lambda _: None)
    print(holder.pid, flush=True)
    await asyncio.to_thread(sys.stdin.read)


asyncio.run(main())
