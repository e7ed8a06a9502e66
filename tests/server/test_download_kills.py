"""A download whose child and whose server are killed at random ends with the right bytes, hardly any of them twice."""

import json
import random
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from hypnos_engine.catalog.downloads.orders import BLOCK_BYTES
from hypnos_engine.testing.local_hub import Fault, LocalHub, local_hub
from tests.catalog.download_bench import FOREIGN
from tests.e2e.engine_process import RunningEngine, serving

MIB = 1024 * 1024
WAIT_S = 120.0
SPEC = "own/er/m.gguf"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)
    with local_hub() as made:
        yield made


def started(stack: ExitStack, home: Path, hub: LocalHub) -> RunningEngine:
    home.mkdir(exist_ok=True)
    config = home / "hypnos.toml"
    config.write_text(
        f'config_version = 1\nmodels_dir = {json.dumps(str(home / "models"))}\n[downloads]\nhub = "{hub.address}"\n'
    )
    return stack.enter_context(serving(home, "--config", str(config), ready=False))


def child_of(engine: RunningEngine) -> psutil.Process | None:
    for child in psutil.Process(engine.process.pid).children():
        try:
            if any("downloads.child" in word for word in child.cmdline()):
                return child
        except psutil.Error:
            continue
    return None


def post(engine: RunningEngine, path: str, body: object) -> Any:
    request = urllib.request.Request(
        engine.address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def wait_done(engine: RunningEngine) -> Any:
    """The job once it is over; asks as fast as it is answered."""
    deadline = time.monotonic() + WAIT_S
    while (job := engine.get("/v1/downloads")["data"][0])["state"] not in ("done", "failed"):
        assert time.monotonic() < deadline, job
    return job


def survive(home: Path, hub: LocalHub, size_bytes: int, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    whole = b"".join(chance.randbytes(min(MIB, size_bytes - at)) for at in range(0, size_bytes, MIB))
    hub.repository("own/er", **{"m.gguf": whole})
    places = sorted(chance.randrange(size_bytes) for _ in range(kills))
    with ExitStack() as stack:
        hub.faults.append(Fault(hold_at=places[0]))
        engine = started(stack, home, hub)
        post(engine, "/v1/downloads", {"spec": SPEC})
        for number in range(kills):
            assert hub.held.acquire(timeout=WAIT_S), engine.get("/v1/downloads")
            following = places[number + 1 : number + 2]
            hub.faults.extend(Fault(hold_at=place) for place in following)
            if chance.random() < 0.5:
                engine.process.send_signal(signal.SIGKILL)
                engine.process.wait()
                hub.release()
                engine = started(stack, home, hub)
            else:
                child = child_of(engine)
                assert child is not None
                child.kill()
                hub.release()
        job = wait_done(engine)
        assert job["state"] == "done", job
        assert job["bytes_done"] == size_bytes
        assert (home / "models" / "m.gguf").read_bytes() == whole
        assert not (home / "models" / ".hypnos-downloads").exists()
        assert engine.end() == 0
    fetches = [one for one in hub.sent if one.path.startswith("/cdn/")]
    reached = 0
    for fetch in fetches:
        assert reached - fetch.start <= BLOCK_BYTES
        reached = max(reached, fetch.start + fetch.count)
    assert sum(fetch.count for fetch in fetches) <= size_bytes + kills * BLOCK_BYTES


def test_a_few_kills(tmp_path: Path, hub: LocalHub) -> None:
    survive(tmp_path / "home", hub, 9 * MIB, kills=3, seed=2)


def test_an_end_in_between_leaves_no_process_and_the_next_start_goes_on(tmp_path: Path, hub: LocalHub) -> None:
    whole = random.Random(3).randbytes(3 * MIB)
    hub.repository("own/er", **{"m.gguf": whole})
    hub.faults.append(Fault(hold_at=2 * MIB))
    with ExitStack() as stack:
        engine = started(stack, tmp_path / "home", hub)
        post(engine, "/v1/downloads", {"spec": SPEC})
        assert hub.held.acquire(timeout=WAIT_S)
        child = child_of(engine)
        assert child is not None
        assert engine.end() == 0
        assert not psutil.wait_procs([child], timeout=WAIT_S)[1]
        hub.release()
        engine = started(stack, tmp_path / "home", hub)
        assert wait_done(engine)["state"] == "done"
        assert (tmp_path / "home" / "models" / "m.gguf").read_bytes() == whole


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_twenty_kills_of_300_mb(tmp_path: Path, hub: LocalHub) -> None:
    survive(tmp_path / "home", hub, 300 * 1000 * 1000, kills=20, seed=11)
