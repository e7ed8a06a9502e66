"""`/v1/downloads`: what the jobs look like over HTTP, who may see them, and how their changes are told."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hypnos_engine.api import sse
from hypnos_engine.api.client import HypnosClient
from hypnos_engine.api.event_stream import decode_event
from hypnos_engine.api.memory_fold import fold
from hypnos_engine.api.schemas.memory_events import DownloadEvent, SnapshotEvent
from hypnos_engine.catalog.downloads.ledger import Ledger
from hypnos_engine.catalog.downloads.orders import Network
from hypnos_engine.catalog.downloads.queue import Downloads
from hypnos_engine.catalog.downloads.terms import Terms
from hypnos_engine.catalog.shelf import Shelf
from hypnos_engine.domain.errors import InvalidRequest, NotFound
from hypnos_engine.runtime.feed import ChangeKind
from hypnos_engine.server.app import make_app
from hypnos_engine.server.downloads import DOWNLOADS, DownloadDesk
from hypnos_engine.testing.local_hub import Fault, LocalHub, local_hub
from tests.catalog.download_bench import FOREIGN, QUICK, content, held
from tests.loops import LoopFactory
from tests.server.fake_runtime import FakeRuntime
from tests.server.running import ADMIN, KEYS, OPTIONS, USER, Running, running

SIZE = 700_000
SPEC = "own/er/m.gguf"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)
    with local_hub() as made:
        made.repository("own/er", **{"m.gguf": content(SIZE)})
        yield made


@dataclass
class Served:
    server: Running
    client: HypnosClient
    downloads: Downloads


@asynccontextmanager
async def served(folder: Path, hub: LocalHub, key: str | None = None, **options: Any) -> AsyncIterator[Served]:
    runtime = FakeRuntime()
    roots = (folder / "models",)
    downloads = Downloads(
        Ledger(folder / "state"),
        Terms(roots, Network(hub.address), floor_bytes=0, patience=QUICK),
        tell=lambda job: runtime.changes().publish(ChangeKind.DOWNLOAD, job),
    )
    app = make_app(runtime, replace(OPTIONS, **options))
    app[DOWNLOADS] = DownloadDesk(downloads, Shelf(roots))
    await downloads.open()
    try:
        async with running(runtime, app=app) as server, HypnosClient(server.address, key) as client:
            yield Served(server, client, downloads)
    finally:
        await downloads.close()


async def over(made: Served, job: str) -> Any:
    """The job as the wire has it once it is over; follows the events, as a program would."""
    async with made.server.http.get("/v1/memory/events") as response:
        reader = sse.EventReader()
        status = None
        async for piece in response.content.iter_any():
            for event in reader.feed(piece):
                known = decode_event(event.data)
                assert known is not None
                status = fold(status, known)
                assert status is not None
                (found,) = [one for one in await made.client.downloads() if one.id == job]
                if isinstance(known, SnapshotEvent | DownloadEvent) and found.state in ("done", "failed"):
                    return found
    raise AssertionError("the stream has ended")


async def test_a_download_from_the_first_to_the_last_word(
    tmp_path: Path, hub: LocalHub, loop_factory: LoopFactory
) -> None:
    async with served(tmp_path, hub) as made:
        assert await made.client.downloads() == ()
        hub.faults.append(Fault(hold_at=300_000))
        begun = await made.client.start_download(SPEC)
        assert (begun.spec, begun.state in ("queued", "running")) == (SPEC, True)
        await held(hub)
        paused = await made.client.pause_download(begun.id)
        assert (paused.state, paused.bytes_total, paused.eta_secs) == ("paused", SIZE, None)
        assert paused.files[0].path == "m.gguf"
        assert paused.files[0].revision is not None
        await made.client.resume_download(begun.id)
        done = await over(made, begun.id)
        assert (done.state, done.bytes_done, done.error) == ("done", SIZE, None)
        assert done.files[0].done
        with pytest.raises(InvalidRequest, match="done already"):
            await made.client.cancel_download(begun.id)
        with pytest.raises(NotFound):
            await made.client.pause_download("dl-none")
    assert (tmp_path / "models" / "m.gguf").read_bytes() == content(SIZE)


async def test_a_cancelled_download_is_gone(tmp_path: Path, hub: LocalHub) -> None:
    async with served(tmp_path, hub) as made:
        hub.faults.append(Fault(hold_at=300_000))
        begun = await made.client.start_download(SPEC)
        await held(hub)
        assert (await made.client.cancel_download(begun.id)).state == "cancelled"
    assert not (tmp_path / "models" / "m.gguf").exists()


async def test_only_an_admin_may_see_and_change_downloads(tmp_path: Path, hub: LocalHub) -> None:
    async with served(tmp_path, hub, ADMIN, keys=KEYS) as made:
        http = made.server.http
        for key, status in ((None, 401), (USER, 403)):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            async with http.get("/v1/downloads", headers=headers) as response:
                assert response.status == status
            async with http.post("/v1/downloads", headers=headers, json={"spec": SPEC}) as response:
                assert response.status == status
        assert await made.client.downloads() == ()
        assert (await made.client.start_download(SPEC)).spec == SPEC
        await made.downloads.cancel(made.downloads.jobs()[0].id)


@pytest.mark.parametrize(
    "body",
    [
        {}, {"spec": ""}, {"spec": "nothing:such"}, {"spec": 7}, {"spec": "own/er/../m.gguf"}, {"spec": "x" * 501},
        {"spec": "own/er/*.gguf"}, {"spec": SPEC, "token": "two words"}, {"spec": SPEC, "token": "x" * 1001},
    ],
)  # fmt: skip
async def test_a_wish_that_makes_no_sense_is_refused_and_nothing_is_asked(
    tmp_path: Path, hub: LocalHub, body: dict[str, Any]
) -> None:
    async with served(tmp_path, hub) as made:
        async with made.server.http.post("/v1/downloads", json=body) as response:
            assert response.status == 400
            message = (await response.json())["error"]["message"]
            assert "x" * 100 not in message
            assert "two words" not in message
        assert made.downloads.jobs() == ()
    assert hub.requests == []


async def test_a_server_without_downloads_says_so(hub: LocalHub) -> None:
    async with running() as server, server.http.get("/v1/downloads") as response:
        assert response.status == 404
