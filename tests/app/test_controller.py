"""The controller against a real engine over a real port, on a plain loop and without Qt."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from app.controller.controller import Controller
from app.engine_host import ServeRequest, free_port_beside, next_free_port, reached_engine
from app.presenters import intents
from app.presenters.notices import Notice
from app.state import Phase, View
from hypnos_engine.api.client import HypnosClient
from hypnos_engine.domain.errors import ConfigurationInvalid, FolderUnusable, PortInUse
from hypnos_engine.domain.kinds import Residency, Tier
from tests.e2e.engine_process import free_port, private_environment, serving

WAIT_S = 60.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of this test's own, with a space and letters beyond ASCII."""
    folder = tmp_path / "home mit Ümläut 🌙"
    folder.mkdir()
    for name, value in private_environment(folder).items():
        monkeypatch.setenv(name, value)
    for name in ("HYPNOS_CONFIG", "HYPNOS_PORT", "HYPNOS_HOST", "HYPNOS_API_KEYS", "HYPNOS_MODELS_DIR"):
        monkeypatch.delenv(name, raising=False)
    return folder


@dataclass
class Seen:
    """What the windows would have been shown."""

    views: list[View] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    def show(self, view: View) -> None:
        self.views.append(view)
        self._moved.set()

    def tell(self, notice: Notice) -> None:
        self.notices.append(notice)
        self._moved.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._moved.clear()
                await self._moved.wait()

    @property
    def now(self) -> View:
        return self.views[-1]


@asynccontextmanager
async def followed(address: str, token: str, seen: Seen, *, own: bool = True) -> AsyncIterator[Controller]:
    async with HypnosClient(address, token) as client:
        controller = Controller(client, View(address, own=own), changed=seen.show, tell=seen.tell)
        running = asyncio.create_task(controller.run())
        try:
            yield controller
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def demonstration(seen: Seen) -> AsyncIterator[Controller]:
    request = ServeRequest(port=free_port(), demo=True)
    async with reached_engine(request) as reached, followed(reached.address, reached.token, seen) as controller:
        await reached.stage()
        await seen.until(lambda: bool(seen.views) and seen.now.phase is Phase.READY and bool(seen.now.models))
        yield controller


def demo_is(seen: Seen, tier: Tier, residency: Residency) -> Callable[[], bool]:
    def check() -> bool:
        model = seen.now.model("demo")
        return model is not None and (model.tier, model.residency) == (tier, residency)

    return check


async def test_a_model_is_moved_switched_and_seen_where_it_is(home: Path) -> None:
    seen = Seen()
    async with demonstration(seen) as controller:
        await seen.until(demo_is(seen, Tier.GPU, Residency.READY))
        controller.act(intents.Move("demo", Tier.DISK))
        await seen.until(demo_is(seen, Tier.DISK, Residency.COLD))
        controller.act(intents.Switch("demo", enabled=False))
        await seen.until(lambda: seen.now.models[0].enabled is False)
        controller.act(intents.Switch("demo", enabled=True))
        await seen.until(lambda: seen.now.models[0].enabled is True)
        controller.act(intents.Move("demo", Tier.GPU))
        await seen.until(demo_is(seen, Tier.GPU, Residency.READY))
        assert seen.now.decisions
    assert seen.notices == []


async def test_a_wish_that_is_refused_becomes_a_notice_each_time(home: Path) -> None:
    seen = Seen()
    async with demonstration(seen) as controller:
        for count in (1, 2):
            controller.act(intents.Move("no such model", Tier.GPU))
            await seen.until(lambda count=count: len(seen.notices) == count)  # type: ignore[misc]
        assert all(notice.title == "no such model was not moved" for notice in seen.notices)


async def test_a_hold_is_begun_and_ended(home: Path) -> None:
    seen = Seen()
    async with demonstration(seen) as controller:
        controller.act(intents.FreeGpu())
        await seen.until(lambda: seen.now.hold is not None)
        controller.act(intents.RestoreGpu())
        await seen.until(lambda: seen.now.hold is None)


async def test_looking_again_brings_everything_anew(home: Path) -> None:
    seen = Seen()
    async with demonstration(seen) as controller:
        before = controller.view.status
        controller.look_again()
        await seen.until(lambda: controller.view.status is not before)
        assert controller.view.phase is Phase.READY


async def test_an_engine_of_another_program_is_shown_and_its_end_is_told(home: Path) -> None:
    seen = Seen()
    with serving(home, "--demo") as engine:
        async with reached_engine(ServeRequest()) as reached:
            assert (reached.address, reached.own) == (engine.address, False)
            async with followed(reached.address, reached.token, seen, own=False):
                await seen.until(lambda: bool(seen.views) and bool(seen.now.models))
                await asyncio.to_thread(engine.end)
                await seen.until(lambda: seen.now.phase is Phase.UNREACHABLE)
    assert [notice.action for notice in seen.notices] == [intents.StartHere()]


async def test_an_engine_without_a_stream_of_events_is_polled(home: Path) -> None:
    """A server of another version: all that it has is the status."""
    seen = Seen()
    request = ServeRequest(port=free_port(), demo=True)
    async with reached_engine(request) as reached, HypnosClient(reached.address, reached.token) as client:
        await reached.stage()

        async def pass_on(asked: web.Request) -> web.Response:
            known = {"/v1/memory/status": client.memory_status, "/ready": client.ready}
            if asked.path not in known:
                body = {"error": {"message": "No such route.", "type": "not_found"}}
                return web.json_response(body, status=404)
            return web.Response(body=msgspec.json.encode(await known[asked.path]()), content_type="application/json")

        older = web.Application()
        older.router.add_get("/{path:.*}", pass_on)
        runner = web.AppRunner(older)
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            async with followed(f"http://127.0.0.1:{port}", "", seen):
                await seen.until(lambda: bool(seen.views) and bool(seen.now.models))
                await client.move("demo", Tier.DISK)
                await seen.until(demo_is(seen, Tier.DISK, Residency.COLD))
        finally:
            await runner.cleanup()


async def test_a_taken_port_is_refused_with_who_has_it_and_another_one_is_found(home: Path) -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as foreign:
        port = foreign.sockets[0].getsockname()[1]
        request = ServeRequest(port=port, demo=True)
        with pytest.raises(PortInUse, match=str(port)):
            async with reached_engine(request):
                pass
        free = free_port_beside(request)
        assert free is not None
        assert free > port
        async with reached_engine(ServeRequest(port=free, demo=True)) as reached:
            assert str(free) in reached.address


def test_no_port_is_offered_beyond_the_last() -> None:
    assert next_free_port(65535) is None


async def test_a_broken_configuration_is_refused_with_its_line(home: Path) -> None:
    folder = home / "config" / "hypnos"
    folder.mkdir(parents=True)
    (folder / "hypnos.toml").write_text("config_version = 1\n[server]\nprot = 1\n", encoding="utf-8")
    with pytest.raises(ConfigurationInvalid, match="prot"):
        async with reached_engine(ServeRequest()):
            pass


async def test_a_state_folder_that_is_a_file_is_refused(home: Path) -> None:
    (home / "state").write_text("")
    with pytest.raises(FolderUnusable):
        async with reached_engine(ServeRequest(demo=True)):
            pass
