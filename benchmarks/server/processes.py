"""Starts the two servers that are compared, each a process of its own, and reads how much processor time they used."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil

from tests.e2e.engine_process import END_S, START_S, free_port, private_environment

CONFIG = "config_version = 1\n[limits]\nmax_queue_per_model = 10000\n"
MODEL = "demo"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Served:
    """One of the two, and where it listens."""

    name: str
    address: str
    pid: int

    def used_s(self) -> float:
        """Processor time of this process so far, its children's not included."""
        with contextlib.suppress(OSError):  # Linux counts it exactly, per thread
            threads = Path(f"/proc/{self.pid}/task").iterdir()
            return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system


@contextlib.contextmanager
def hypnos(*arguments: str, home: Path | None = None) -> Iterator[Served]:
    """`hypnos serve` as it is installed."""
    with contextlib.ExitStack() as stack:
        folder = home or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = free_port()
        process = subprocess.Popen(
            [sys.executable, "-m", "hypnos_engine", "serve", "--port", str(port), *arguments],
            cwd=ROOT,
            env=private_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        try:
            yield Served("hypnos", f"http://127.0.0.1:{port}", process.pid)
        finally:
            process.terminate()
            process.wait(END_S)


@contextlib.contextmanager
def demonstration() -> Iterator[Served]:
    """Hypnos with the engine that invents words, in its worker process."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "hypnos.toml"
        config.write_text(CONFIG)
        with hypnos("--demo", "--config", str(config), home=Path(folder)) as served:
            yield served


@contextlib.contextmanager
def bare(events: list[bytes], answer: bytes) -> Iterator[Served]:
    """The bare handler, with the bytes that it is to send."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.server.bare", "--port", str(port)],
        cwd=ROOT,
        env=dict(os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        given = {"events": [event.decode() for event in events], "answer": answer.decode()}
        process.stdin.write(json.dumps(given) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n"
        yield Served("bare", f"http://127.0.0.1:{port}", process.pid)
    finally:
        process.kill()
        process.communicate()


async def wait_ready(http: aiohttp.ClientSession, served: Served) -> None:
    """Return once the models are in place."""
    deadline_s = time.monotonic() + START_S
    while True:
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with http.get(f"{served.address}/ready") as response:
                if response.status == 200:
                    return
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{served.address} is not ready after {START_S:g} s")
        await asyncio.sleep(0.05)


def body(tokens: int, *, stream: bool) -> bytes:
    """A request whose answer has so many tokens."""
    request = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Say 9000 words."}],
        "max_tokens": tokens,
        "stream": stream,
    }
    return json.dumps(request, separators=(",", ":")).encode()


async def ask(http: aiohttp.ClientSession, served: Served, request: bytes) -> bytes:
    """The whole body of one answer."""
    headers = {"Content-Type": "application/json"}
    async with http.post(f"{served.address}/v1/chat/completions", data=request, headers=headers) as response:
        content = await response.read()
        if response.status != 200:
            raise RuntimeError(f"{served.name} answered {response.status}: {content[:200]!r}")
        return content


@asynccontextmanager
async def both(tokens: int) -> AsyncIterator[tuple[aiohttp.ClientSession, Served, Served]]:
    """A client, the bare handler and Hypnos; the bare one sends what Hypnos sent for the same request."""
    connector = aiohttp.TCPConnector(limit=0)
    with demonstration() as ours:
        async with aiohttp.ClientSession(connector=connector) as http:
            await wait_ready(http, ours)
            stream = await ask(http, ours, body(tokens, stream=True))
            answer = await ask(http, ours, body(1, stream=False))
            events = [event + b"\n\n" for event in stream.split(b"\n\n") if event]
            with bare(events, answer) as theirs:
                yield http, theirs, ours
