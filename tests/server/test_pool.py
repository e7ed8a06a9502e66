"""Adding, replacing and removing models over HTTP (contract §6.4, §17): real runtime and files, scripted engines."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hypnos_engine.api.client import HypnosClient
from hypnos_engine.catalog.entries import Platform
from hypnos_engine.catalog.shelf import Shelf
from hypnos_engine.config.load import load
from hypnos_engine.config.overlay import Overlay
from hypnos_engine.config.paths import overlay_path
from hypnos_engine.config.render import render_model
from hypnos_engine.domain.errors import InvalidRequest, ModelBusy, ModelNotFound
from hypnos_engine.domain.kinds import EngineKind, Modality, Priority, Tier
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.engines.fake import FakeEngine, FakeScript
from hypnos_engine.engines.holder_fake import FakeHolder
from hypnos_engine.hardware.machine import host_memory, snapshot
from hypnos_engine.runtime.local import LocalRuntime, Machine
from hypnos_engine.runtime.pool import Pool
from hypnos_engine.scheduler.limits import Budgets, Limits
from hypnos_engine.server.app import make_app
from hypnos_engine.server.pool import POOL
from hypnos_engine.server.site import Site
from hypnos_engine.testing.tiny_gguf import write_llama
from tests.catalog.small_catalog import entry, write_catalog
from tests.loops import LoopFactory
from tests.server.running import ADMIN, KEYS, OPTIONS, USER, chat_body

GIB = 2**30
DISK = "tier3_nvme_ssd"
TEXT, LLAMA = Modality.TEXT, EngineKind.LLAMA


def spec(name: str, file: str = "a.gguf", **changes: Any) -> ModelSpec:
    return ModelSpec(ModelId(name), TEXT, LLAMA, file, context_len=512, **changes)


def block(name: str, file: str = "a.gguf", **changes: Any) -> dict[str, str]:
    return {"config": render_model(spec(name, file, **changes))}


@dataclass
class Served:
    """A server whose pool can be changed, and a client of it."""

    runtime: LocalRuntime
    pool: Pool
    overlay: Overlay
    config: Path
    folder: Path
    site: Site
    http: aiohttp.ClientSession
    engines: list[FakeEngine] = field(default_factory=list)
    script: FakeScript = field(default_factory=FakeScript)

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        given: dict[str, Any] = {} if body is None else {"json": body}
        async with self.http.request(method, path, headers=headers, **given) as response:
            return response.status, await response.json()

    async def chat(self, model: str) -> tuple[int, Any]:
        return await self.call("POST", "/v1/chat/completions", chat_body(model=model, max_tokens=8))

    async def ids(self) -> list[str]:
        _, listed = await self.call("GET", "/v1/models")
        return [one["id"] for one in listed["data"]]

    def next_start(self) -> list[str]:
        return [model.id for model in load(self.config).models]

    async def until(self, condition: Any) -> None:
        assert await self.runtime.dispatcher.until(condition, within_s=30)

    def state(self, name: str) -> Any:
        return self.runtime.dispatcher.scheduler.state.models[ModelId(name)]


@asynccontextmanager
async def served(folder: Path, *, host_bytes: int = GIB, staged: bool = True, **options: Any) -> AsyncIterator[Served]:
    """One model, `old`, on `a.gguf`; `b.gguf` is there, too, and a catalog whose tested architecture is `llama`."""
    models_dir = folder / "models"
    models_dir.mkdir()
    for name in ("a", "b"):
        write_llama(models_dir / f"{name}.gguf")
    config = folder / "hypnos.toml"
    config.write_text(f"config_version = 1\n{render_model(spec('old'))}", encoding="utf-8")
    size = (models_dir / "b.gguf").stat().st_size
    files = f'{{ role = "weights", repo = "own/er", remote = "b.gguf", size_bytes = {size} }}'
    two = "".join(
        f'[[models.variants]]\nquant = "{quant}"\n{"default = true" if quant == "Q4" else ""}\nfiles = [ {made} ]\n'
        for quant, made in (("Q4", files), ("Q8", files.replace("b.gguf", "missing.gguf")))
    )
    catalog = write_catalog(folder / "models.catalog.toml", entry("tiny:1m", variants=two))
    shelf = Shelf([models_dir], catalog, Platform.OTHER)
    script, engines = FakeScript(), list[FakeEngine]()

    def make(model: ModelSpec) -> FakeEngine:
        engines.append(FakeEngine(model.id, replace(script)))
        return engines[-1]

    runtime = LocalRuntime(
        load(config).models,
        [models_dir],
        make,
        Limits(),
        holder=FakeHolder(lambda _: None),
        tested=shelf.tested_architectures,
    )
    overlay = Overlay(overlay_path(config), config)
    pool = Pool(runtime, [models_dir], shelf, overlay)
    app = make_app(runtime, replace(OPTIONS, **options), shelf=shelf)
    app[POOL] = pool
    if staged:
        hardware = snapshot(host_memory(), None)
        await runtime.start(Machine(hardware, Budgets((), host_bytes, 2, device_layers=False), host_bytes))
    site = Site(app, port=0)
    await site.start()
    try:
        async with aiohttp.ClientSession(site.address) as http:
            yield Served(runtime, pool, overlay, config, models_dir, site, http, engines, script)
    finally:
        await site.close()
        await pool.close()
        await runtime.stop()


def kind(answer: Any) -> str:
    found: str = answer["error"]["type"]
    return found


# --- adding ---------------------------------------------------------------------------------------------------------


async def test_a_model_is_added_served_and_kept(loop_factory: LoopFactory, tmp_path: Path) -> None:
    """[§6.4-01] [§6.4-02] [§6.4-03] [§6.4-07..09] [§6.4-14] [§6.4-15] [§6.4-24] [§6.4-37] [§6.4-38] [§6.4-40..42]"""
    async with served(tmp_path) as server:
        before = server.config.read_bytes()
        status, answer = await server.call("POST", "/v1/models", block("new", "b.gguf", initial_tier=Tier.GPU))
        assert status == 201
        placement = answer.pop("placement")
        assert answer == {"model": "new", "action": "added", "persisted": True}
        assert placement["primary_tier"] == DISK
        assert not server.engines, "it is loaded by its first request"
        assert await server.ids() == ["old", "new"]
        assert (await server.chat("new"))[0] == 200
        assert server.next_start() == ["old", "new"]
        assert server.config.read_bytes() == before


async def test_an_added_model_can_be_staged_before_its_first_request(tmp_path: Path) -> None:
    """[§6.4-43]"""
    async with served(tmp_path) as server:
        await server.call("POST", "/v1/models", block("new", "b.gguf"))
        status, answer = await server.call("POST", "/v1/memory/tier", {"model": "new", "target_tier": "tier1_gpu_vram"})
    assert (status, answer["placement"]["primary_tier"]) == (200, "tier1_gpu_vram")


@pytest.mark.parametrize("named", ["tiny:1m", "tiny:1m:Q4", "tiny:1m:q4"])
async def test_a_catalog_entry_is_added(tmp_path: Path, named: str) -> None:
    """[§6.4-11..13]"""
    async with served(tmp_path) as server:
        status, answer = await server.call("POST", "/v1/models", {"catalog": named, "config": None})
        assert (status, answer["model"], answer["persisted"]) == (201, "tiny:1m", True)
        assert (await server.chat("tiny:1m"))[0] == 200
        assert server.next_start() == ["old", "tiny:1m"]


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("tiny:1m:Q8", "./run.sh models tiny:1m:Q8"),
        ("tiny:2m", "tiny:1m"),
        ("tiny:1m:Q2", "Q4, Q8"),
        ("", "no entry"),
        ("x" * 5000, "no entry"),
    ],
)
async def test_a_catalog_entry_that_is_not_there_is_refused(tmp_path: Path, named: str, says: str) -> None:
    """[§6.4-17] [§6.4-21] [§6.4-22] [§6.4-23]"""
    async with served(tmp_path) as server:
        status, answer = await server.call("POST", "/v1/models", {"catalog": named})
        assert (status, kind(answer)) == (400, "invalid_request_error")
        assert says in answer["error"]["message"]
        assert await server.ids() == server.next_start() == ["old"]


async def test_every_reason_is_listed(tmp_path: Path) -> None:
    """[§6.4-16] [§6.4-17] [§6.4-21] [§6.4-25]"""
    async with served(tmp_path) as server:
        given = block("old", "none.gguf", aux_path="/etc/hostname", tokenizer_path="gone.json")
        status, answer = await server.call("POST", "/v1/models", given)
    assert (status, kind(answer)) == (400, "invalid_request_error")
    for words in ("4 reasons", "'old' already", '"none.gguf"', "not inside a models folder", '"gone.json"'):
        assert words.replace("'", '"') in answer["error"]["message"]


async def test_every_wrong_setting_is_listed(tmp_path: Path) -> None:
    """[§6.4-19]"""
    text = '[[models]]\nid = "x y"\nmodality = "text"\nengine = "ggml_llama"\nweigths_path = "a.gguf"\n'
    async with served(tmp_path) as server:
        status, answer = await server.call("POST", "/v1/models", {"config": text})
    assert (status, kind(answer)) == (400, "invalid_request_error")
    for words in ("config:2", "models.modality", "did you mean `weights_path`?", "models.weights_path: is missing"):
        assert words in answer["error"]["message"]


@pytest.mark.parametrize(
    ("file", "says"), [("gemma.gguf", "allow_untested"), ("noise.gguf", "noise.gguf"), ("empty.gguf", "empty.gguf")]
)
async def test_what_the_weights_say_is_checked(tmp_path: Path, file: str, says: str) -> None:
    """[§6.4-18] [§6.4-20]"""
    async with served(tmp_path) as server:
        untested(server.folder / "gemma.gguf")
        (server.folder / "noise.gguf").write_bytes(b"GGUF" + bytes(range(256)))
        (server.folder / "empty.gguf").touch()
        status, answer = await server.call("POST", "/v1/models", block("new", file))
        assert (status, kind(answer)) == (400, "invalid_request_error")
        assert says in answer["error"]["message"]
        assert await server.ids() == ["old"]


async def test_an_untested_architecture_is_taken_when_its_owner_insists(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        untested(server.folder / "gemma.gguf")
        status, _ = await server.call("POST", "/v1/models", block("new", "gemma.gguf", allow_untested=True))
        assert status == 201
        assert (await server.chat("new"))[0] == 200


def untested(path: Path) -> None:
    """A file of an architecture that is not the catalog's."""
    write_llama(path)
    data = path.read_bytes()
    path.write_bytes(
        data.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0gemma", 1).replace(b"llama.", b"gemma.")
    )


async def test_an_absolute_path_has_to_lead_into_a_models_folder(tmp_path: Path) -> None:
    """[§6.4-17]"""
    write_llama(tmp_path / "outside.gguf")
    async with served(tmp_path) as server:
        inside, _ = await server.call("POST", "/v1/models", block("new", str(server.folder / "b.gguf")))
        outside, answer = await server.call("POST", "/v1/models", block("other", str(tmp_path / "outside.gguf")))
    assert (inside, outside) == (201, 400)
    assert "not inside a models folder" in answer["error"]["message"]


async def test_pinned_models_have_to_fit_together(tmp_path: Path) -> None:
    async with served(tmp_path, host_bytes=60 * 2**20) as server:
        pinned = Priority.REALTIME_PINNED
        first, _ = await server.call("POST", "/v1/models", block("one", priority=pinned))
        second, answer = await server.call("POST", "/v1/models", block("two", priority=pinned))
    assert (first, second) == (201, 400)
    assert "pin fewer" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "either `catalog`"),
        ({"catalog": "tiny:1m", "config": "x"}, "either `catalog`"),
        ({"catalog": None, "config": None}, "either `catalog`"),
        ({"catalog": 3}, "catalog"),
        ({"config": ["x"]}, "config"),
        ({"config": ""}, "exactly one [[models]]"),
        ({"config": "[[models"}, "this is not TOML"),
        ({"config": render_model(spec("a")) + render_model(spec("b"))}, "exactly one"),
        ({"config": "[server]\nport = 1\n"}, "server"),
        ({"config": "#" * 70_000}, "at most"),
        ([], "object"),
    ],
)
async def test_a_malformed_body_is_refused(tmp_path: Path, body: Any, says: str) -> None:
    """[§6.4-11] [§6.4-14]"""
    async with served(tmp_path) as server:
        for method, path in (("POST", "/v1/models"), ("PUT", "/v1/models/old")):
            status, answer = await server.call(method, path, body)
            assert (status, kind(answer)) == (400, "invalid_request_error")
            assert says in answer["error"]["message"]
        assert server.next_start() == ["old"]


async def test_of_two_who_add_the_same_model_one_is_told(tmp_path: Path) -> None:
    """[§6.4-25]"""
    async with served(tmp_path) as server:
        answers = await asyncio.gather(*(server.call("POST", "/v1/models", block("new")) for _ in range(4)))
        assert sorted(status for status, _ in answers) == [201, 400, 400, 400]
        assert server.next_start() == ["old", "new"]


# --- replacing ------------------------------------------------------------------------------------------------------


async def test_a_replaced_model_keeps_its_id(loop_factory: LoopFactory, tmp_path: Path) -> None:
    """[§6.4-04] [§6.4-26] [§6.4-27] [§6.4-29] [§6.4-41] [§17-05]"""
    async with served(tmp_path) as server:
        await server.chat("old")
        status, answer = await server.call("PUT", "/v1/models/old", block("another", "b.gguf", slots=2))
        assert (status, answer["model"], answer["action"], answer["persisted"]) == (200, "old", "replaced", True)
        assert answer["placement"]["primary_tier"] == DISK
        assert await server.ids() == ["old"]
        assert (await server.chat("old"))[0] == 200
        assert server.engines[-1].loads[0].weights_path == str(server.folder / "b.gguf")
        (kept,) = load(server.config).models
        assert kept == spec("old", "b.gguf", slots=2)


async def test_a_block_without_an_id_replaces_too(tmp_path: Path) -> None:
    """[§6.4-27]"""
    text = '[[models]]\nmodality = "text_generation"\nengine = "ggml_llama"\nweights_path = "b.gguf"\n'
    async with served(tmp_path) as server:
        status, answer = await server.call("PUT", "/v1/models/old", {"config": text})
        assert (status, answer["model"]) == (200, "old")
        status, _ = await server.call(
            "PUT", "/v1/models/old", {"config": text.replace("[[models]]", '[[models]]\nid = "a b"')}
        )
        assert status == 200
        status, answer = await server.call("PUT", "/v1/models/old", {"catalog": "tiny:1m"})
        assert (status, answer["model"]) == (200, "old")


async def test_an_unknown_model_is_404(tmp_path: Path) -> None:
    """[§6.4-32]"""
    async with served(tmp_path) as server:
        put, first = await server.call("PUT", "/v1/models/none", block("none", "not-there.gguf"))
        delete, second = await server.call("DELETE", "/v1/models/none")
    assert (put, kind(first)) == (delete, kind(second)) == (404, "model_not_found")


async def test_a_replacement_that_does_not_pass_the_checks_changes_nothing(tmp_path: Path) -> None:
    """[§6.4-16] [§6.4-21]"""
    async with served(tmp_path) as server:
        await server.chat("old")
        status, _ = await server.call("PUT", "/v1/models/old", block("old", "none.gguf"))
        assert status == 400
        assert (await server.chat("old"))[0] == 200
        assert len(server.engines) == 1
        assert not server.overlay.path.exists()


async def test_running_requests_end_with_the_old_model_and_new_ones_get_the_new(tmp_path: Path) -> None:
    """[§6.4-28] [§6.4-29]: and the new one is not loaded before the old one has left."""
    async with served(tmp_path) as server:
        server.script.token_gate = gate = asyncio.Semaphore(0)
        server.script.unload_gate = leaving = asyncio.Event()
        running = asyncio.create_task(server.chat("old"))
        await server.until(lambda: server.state("old").leases)
        changed = asyncio.create_task(server.call("PUT", "/v1/models/old", block("old", "b.gguf")))
        await server.until(lambda: server.state("old").change is not None)
        late = asyncio.create_task(server.chat("old"))
        await server.until(lambda: server.state("old").waiting)
        server.script.token_gate = server.script.unload_gate = None
        for _ in range(64):
            gate.release()
        assert (await running)[0] == 200
        assert not changed.done()
        assert len(server.engines) == 1, "the old one is still on its way out"
        leaving.set()
        assert (await changed)[0] == 200
        assert (await late)[0] == 200
        assert [Path(engine.loads[0].weights_path).name for engine in server.engines] == ["a.gguf", "b.gguf"]


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_past_its_time_a_change_is_refused_and_nothing_has_changed(tmp_path: Path, method: str) -> None:
    """[§6.4-30] [§6.4-31] [§6.4-33] [§6.4-35] [§17-08]"""
    async with served(tmp_path) as server:
        server.script.token_gate = gate = asyncio.Semaphore(0)
        running = asyncio.create_task(server.chat("old"))
        await server.until(lambda: server.state("old").leases)
        query, body = ("?drain_secs=0.2", None) if method == "DELETE" else ("", {**block("old"), "drain_secs": 0.2})
        changed = asyncio.create_task(server.call(method, f"/v1/models/old{query}", body))
        await server.until(lambda: server.state("old").change is not None)
        late = asyncio.create_task(server.chat("old"))
        status, answer = await changed
        assert (status, kind(answer)) == (429, "model_busy")
        for _ in range(64):
            gate.release()
        assert ((await running)[0], (await late)[0]) == (200, 200)
        assert len(server.engines) == 1
        assert server.next_start() == ["old"]
        assert not server.overlay.path.exists()


@pytest.mark.parametrize("drain", ["-1", "nan", "inf", "soon", "1e9", ""])
async def test_a_wrong_drain_time_is_refused(tmp_path: Path, drain: str) -> None:
    async with served(tmp_path) as server:
        status, answer = await server.call("DELETE", f"/v1/models/old?drain_secs={drain}")
        assert (status, kind(answer)) == (400, "invalid_request_error")
        assert "drain_secs" in answer["error"]["message"]
        assert await server.ids() == ["old"]


async def test_a_drain_may_last_longer_than_a_request(tmp_path: Path) -> None:
    """`limits.request_timeout_secs` is for inference: a change has its own bound."""
    async with served(tmp_path, request_timeout_s=0.2) as server:
        server.script.token_gate = gate = asyncio.Semaphore(0)
        async with server.http.post("/v1/chat/completions", json=chat_body(model="old", stream=True)) as running:
            changed = asyncio.create_task(server.call("DELETE", "/v1/models/old?drain_secs=0.6"))
            status, answer = await changed
            assert (status, kind(answer)) == (429, "model_busy")
            for _ in range(64):
                gate.release()
            assert b"[DONE]" in await running.read()


async def test_changes_of_one_model_come_one_after_the_other(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        server.script.token_gate = gate = asyncio.Semaphore(0)
        running = asyncio.create_task(server.chat("old"))
        await server.until(lambda: server.state("old").leases)
        first = asyncio.create_task(server.call("PUT", "/v1/models/old", block("old", "b.gguf")))
        await server.until(lambda: server.state("old").change is not None)
        status, answer = await server.call("DELETE", "/v1/models/old?drain_secs=0")
        assert (status, kind(answer)) == (429, "model_busy")
        other, _ = await server.call("POST", "/v1/models", block("new"))
        assert other == 201, "changes of other models do not wait"
        for _ in range(64):
            gate.release()
        assert ((await running)[0], (await first)[0]) == (200, 200)
        assert (await server.call("DELETE", "/v1/models/old"))[0] == 200
        assert server.next_start() == ["new"]


async def test_a_client_that_leaves_does_not_undo_its_change(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        server.script.token_gate = gate = asyncio.Semaphore(0)
        running = asyncio.create_task(server.chat("old"))
        await server.until(lambda: server.state("old").leases)
        changed = asyncio.create_task(server.call("PUT", "/v1/models/old", block("old", "b.gguf")))
        await server.until(lambda: server.state("old").change is not None)
        changed.cancel()
        await asyncio.gather(changed, return_exceptions=True)
        for _ in range(64):
            gate.release()
        assert (await running)[0] == 200
        status, _ = await server.call("PUT", "/v1/models/old", block("old", "b.gguf", slots=3))
        assert status == 200, "the one before was done first"
        assert [model.slots for model in load(server.config).models] == [3]


async def test_the_end_gives_up_a_change_that_waits(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        server.script.token_gate = asyncio.Semaphore(0)
        running = asyncio.create_task(server.chat("old"))
        await server.until(lambda: server.state("old").leases)
        changed = asyncio.create_task(server.call("DELETE", "/v1/models/old"))
        await server.until(lambda: server.state("old").change is not None)
        await server.pool.close()
        running.cancel()
        await asyncio.gather(running, changed, return_exceptions=True)
        assert server.state("old").change is None
        assert server.next_start() == ["old"]


# --- removing -------------------------------------------------------------------------------------------------------


async def test_a_removed_model_is_not_found(loop_factory: LoopFactory, tmp_path: Path) -> None:
    """[§6.4-05] [§6.4-36] [§6.4-40] [§6.4-44] [§17-06]"""
    async with served(tmp_path) as server:
        await server.chat("old")
        status, answer = await server.call("DELETE", "/v1/models/old")
        assert (status, answer) == (200, {"model": "old", "action": "removed", "persisted": True})
        assert (await server.chat("old"))[0] == 404
        assert await server.ids() == server.next_start() == []
        assert (await server.call("POST", "/v1/models", block("old")))[0] == 201
        assert (await server.chat("old"))[0] == 200
        assert server.next_start() == ["old"]


async def test_who_comes_while_a_model_is_removed_waits_and_gets_404(tmp_path: Path) -> None:
    """[§6.4-34] [§6.4-36]"""
    async with served(tmp_path) as server:
        server.script.token_gate = gate = asyncio.Semaphore(0)
        running = asyncio.create_task(server.chat("old"))
        await server.until(lambda: server.state("old").leases)
        removed = asyncio.create_task(server.call("DELETE", "/v1/models/old?drain_secs=120"))
        await server.until(lambda: server.state("old").change is not None)
        late = asyncio.create_task(server.chat("old"))
        await server.until(lambda: server.state("old").waiting)
        for _ in range(64):
            gate.release()
        assert ((await running)[0], (await removed)[0]) == (200, 200)
        status, answer = await late
        assert (status, kind(answer)) == (404, "model_not_found")


# --- who may, when, and what is kept --------------------------------------------------------------------------------

CALLS = [("POST", "/v1/models"), ("PUT", "/v1/models/old"), ("DELETE", "/v1/models/old")]


@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_only_an_admin_changes_the_pool(tmp_path: Path, method: str, path: str) -> None:
    """[§6.4-06]"""
    async with served(tmp_path, keys=KEYS) as server:
        answers = [
            await server.call(method, path, block("new"), Authorization=f"Bearer {key}")
            for key in ("wrong", USER, ADMIN)
        ]
    assert [status for status, _ in answers[:2]] == [401, 403]
    assert kind(answers[1][1]) == "permission_denied"
    assert answers[2][0] in (200, 201)


@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_the_pool_is_not_changed_while_the_start_goes_on(tmp_path: Path, method: str, path: str) -> None:
    """[§6.4-10]"""
    async with served(tmp_path, staged=False) as server:
        status, answer = await server.call(method, path, block("new"))
    assert (status, kind(answer)) == (503, "model_not_available")


async def test_a_change_that_cannot_be_kept_is_made_and_says_so(tmp_path: Path, expected_log: list[str]) -> None:
    """[§6.4-38] [§6.4-39]"""
    expected_log.append("the change of ")
    async with served(tmp_path) as server:
        server.overlay.path.write_text("this is no overlay", encoding="utf-8")
        answers = [
            await server.call("POST", "/v1/models", block("new")),
            await server.call("PUT", "/v1/models/old", block("old", "b.gguf")),
            await server.call("DELETE", "/v1/models/old"),
        ]
        assert [(status, answer["persisted"]) for status, answer in answers] == [
            (201, False),
            (200, False),
            (200, False),
        ]
        assert await server.ids() == ["new"]
        assert server.overlay.path.read_text(encoding="utf-8") == "this is no overlay"
        server.overlay.path.unlink()
        _, answer = await server.call("PUT", "/v1/models/new", block("new"))
        assert answer["persisted"], "the next one is kept again"


async def test_the_client_of_the_api_changes_the_pool(tmp_path: Path) -> None:
    async with served(tmp_path) as server, HypnosClient(server.site.address) as client:
        added = await client.add_model(config=block("org/new:1")["config"])
        assert (added.model, added.action, added.persisted) == ("org/new:1", "added", True)
        replaced = await client.replace_model("org/new:1", catalog="tiny:1m", drain_s=5)
        assert (replaced.model, replaced.action) == ("org/new:1", "replaced")
        assert (await client.remove_model("org/new:1", drain_s=0.5)).action == "removed"
        with pytest.raises(ModelNotFound):
            await client.remove_model("org/new:1")
        with pytest.raises(InvalidRequest):
            await client.add_model(catalog="tiny:1m:Q8")
        server.script.token_gate = gate = asyncio.Semaphore(0)
        running = asyncio.create_task(server.chat("old"))
        await server.until(lambda: server.state("old").leases)
        with pytest.raises(ModelBusy):
            await client.remove_model("old", drain_s=0)
        for _ in range(64):
            gate.release()
        await running
