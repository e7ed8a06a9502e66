"""Time that the server adds to a request at half of what it can bear: Hypnos against a bare aiohttp handler.

Run: python -m benchmarks.server.latency. Requests are sent at fixed moments by a process of their own, whether or not
the ones before were answered, and each is timed from the moment at which it was due.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time

import aiohttp

from benchmarks.server.processes import ROOT, Served, ask, body, both

AT_ONCE = 16
"""Clients that find out how many requests a second the server can bear."""


async def capacity_per_s(http: aiohttp.ClientSession, served: Served, seconds: float) -> float:
    """Requests answered in a second when there is always another one."""
    request, ends_s, answered = body(1, stream=False), time.perf_counter() + seconds, 0

    async def go_on() -> None:
        nonlocal answered
        while time.perf_counter() < ends_s:
            await ask(http, served, request)
            answered += 1

    await asyncio.gather(*(go_on() for _ in range(AT_ONCE)))
    return answered / seconds


async def offer(address: str, rate: float, seconds: float) -> list[float]:
    """Seconds that each request took, sent at a fixed rate."""
    served, request, took_s = Served("offered", address, 0), body(1, stream=False), []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def one(due_s: float) -> None:
            await ask(http, served, request)
            took_s.append(time.perf_counter() - due_s)

        await ask(http, served, request)
        began_s = time.perf_counter()
        tasks = []
        for number in range(int(rate * seconds)):
            due_s = began_s + number / rate
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            tasks.append(asyncio.create_task(one(due_s)))
        await asyncio.gather(*tasks)
    return took_s


def offered(served: Served, rate: float, seconds: float) -> tuple[float, float]:
    """Milliseconds at the median and at the 99th percentile, as a client process saw them."""
    command = [sys.executable, "-m", "benchmarks.server.latency", "--offer", served.address]
    command += ["--rate", str(rate), "--seconds", str(seconds)]
    said = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    took_ms = sorted(seconds_taken * 1e3 for seconds_taken in json.loads(said))
    return statistics.median(took_ms), took_ms[int(len(took_ms) * 0.99)]


async def run(rounds: int, seconds: float) -> None:
    async with both(1) as (http, theirs, ours):
        await capacity_per_s(http, ours, 0.5)
        capacity = await capacity_per_s(http, ours, seconds)
        print(f"Hypnos answers {capacity:.0f} requests a second; {capacity / 2:.0f} a second are offered", flush=True)
        found: dict[str, list[tuple[float, float]]] = {"bare": [], "hypnos": []}
        for number in range(rounds):
            for served in (theirs, ours) if number % 2 == 0 else (ours, theirs):
                found[served.name].append(await asyncio.to_thread(offered, served, capacity / 2, seconds))
    for column, name in enumerate(("p50", "p99")):
        bare, hypnos = ([row[column] for row in found[which]] for which in ("bare", "hypnos"))
        added = sorted(ours_ms - bare_ms for bare_ms, ours_ms in zip(bare, hypnos, strict=True))
        print(
            f"{name}   bare {statistics.median(bare):7.2f} ms   hypnos {statistics.median(hypnos):7.2f} ms   "
            f"added {statistics.median(added):.2f} ms ({added[0]:.2f} to {added[-1]:.2f} in {rounds} rounds)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--offer", metavar="ADDRESS", help="be the client of one round")
    parser.add_argument("--rate", type=float, default=100.0)
    options = parser.parse_args()
    if options.offer:
        print(json.dumps(asyncio.run(offer(options.offer, options.rate, options.seconds))))
    else:
        asyncio.run(run(options.rounds, options.seconds))


if __name__ == "__main__":
    main()
