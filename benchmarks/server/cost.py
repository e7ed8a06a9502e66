"""Processor time of the server per streamed token and per request: Hypnos against a bare aiohttp handler.

Run: python -m benchmarks.server.cost. Both run at once and are measured in turn, so that what else the machine does
falls on both.
"""

import argparse
import asyncio
import statistics
from collections.abc import Awaitable, Callable

import aiohttp

from benchmarks.server.processes import Served, ask, body, both

STREAMS = 4
"""At once: as many as the demonstration engine has slots."""

Load = Callable[[aiohttp.ClientSession, Served], Awaitable[int]]
"""Loads a server and returns how many units it was asked for."""


async def measure(http: aiohttp.ClientSession, served: Served, load: Load) -> float:
    """Microseconds of the server's processor time per unit."""
    before_s = served.used_s()
    units = await load(http, served)
    return (served.used_s() - before_s) / units * 1e6


async def compare(
    http: aiohttp.ClientSession, theirs: Served, ours: Served, load: Load, rounds: int, unit: str
) -> None:
    """Print the medians and the ratio with its spread."""
    pairs = []
    for number in range(rounds):
        order = (theirs, ours) if number % 2 == 0 else (ours, theirs)
        found = {served.name: await measure(http, served, load) for served in order}
        pairs.append((found["bare"], found["hypnos"]))
    ratios = sorted(ours_us / bare_us for bare_us, ours_us in pairs)
    bare_us, ours_us = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        f"per {unit:8} bare {bare_us:7.1f} us   hypnos {ours_us:7.1f} us   ratio {statistics.median(ratios):.2f} "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f} in {rounds} rounds)",
        flush=True,
    )


async def run(tokens: int, requests: int, rounds: int) -> None:
    async def streams(http: aiohttp.ClientSession, served: Served) -> int:
        request = body(tokens, stream=True)
        await asyncio.gather(*(ask(http, served, request) for _ in range(STREAMS)))
        return STREAMS * tokens

    async def answers(http: aiohttp.ClientSession, served: Served) -> int:
        request = body(1, stream=False)

        async def one_after_another() -> None:
            for _ in range(requests // STREAMS):
                await ask(http, served, request)

        await asyncio.gather(*(one_after_another() for _ in range(STREAMS)))
        return requests // STREAMS * STREAMS

    async with both(tokens) as (http, theirs, ours):
        await answers(http, theirs)
        await answers(http, ours)
        await compare(http, theirs, ours, streams, rounds, "token")
        await compare(http, theirs, ours, answers, rounds, "request")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    asyncio.run(run(options.tokens, options.requests, options.rounds))


if __name__ == "__main__":
    main()
