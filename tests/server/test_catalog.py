"""`GET /v1/models/catalog` on the wire: every field of contract §6.2."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hypnos_engine.catalog.entries import Platform
from hypnos_engine.catalog.files import EntryState
from hypnos_engine.catalog.shelf import Shelf
from hypnos_engine.config.render import parse_model
from hypnos_engine.domain.kinds import EngineKind, Modality
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.server.app import make_app
from hypnos_engine.testing.tiny_gguf import write_llama
from tests.catalog.small_catalog import entry, write_catalog
from tests.server.fake_runtime import FakeRuntime
from tests.server.running import OPTIONS, Running, running

FILE = {"role", "repo", "remote", "local", "size", "platform", "present", "outdated", "size_exact"}
VARIANT = {"quant", "default", "size_bytes", "files", "installed", "outdated", "config_block"}
ENTRY = {
    *("id", "name", "publisher", "license", "summary", "architecture", "modality", "additional_modalities", "engine"),
    *("capabilities", "lineup", "configured", "variants"),
}


@asynccontextmanager
async def serving(shelf: Shelf | None, runtime: FakeRuntime | None = None) -> AsyncIterator[Running]:
    runtime = runtime or FakeRuntime()
    async with running(runtime, app=make_app(runtime, OPTIONS, shelf=shelf)) as server:
        yield server


async def fetch(server: Running, query: str = "", status: int = 200) -> Any:
    async with server.http.get(f"/v1/models/catalog{query}") as response:
        body = await response.json()
        assert response.status == status, body
        return body


async def fetch_one(server: Running, name: str) -> Any:
    return next(one for one in (await fetch(server))["data"] if one["id"] == name)


def serving_model(spec: ModelSpec, *, enabled: bool = True) -> FakeRuntime:
    """A pool of one model."""
    runtime = FakeRuntime()
    (view,) = runtime.models()
    runtime.models = lambda: (replace(view, spec=spec, enabled=enabled),)  # type: ignore[method-assign]
    return runtime


def tiny(folder: Path) -> Path:
    path = folder / "tiny.gguf"
    write_llama(path)
    return path


async def test_the_shipped_catalog_is_served_whole(tmp_path: Path) -> None:
    """[§6.2-01] to [§6.2-13]"""
    async with serving(Shelf([tmp_path, tmp_path / "other"], platform=Platform.OTHER)) as server:
        body = await fetch(server)
    assert (body["object"], body["catalog_version"], body["models_dir"]) == ("list", 1, str(tmp_path))
    assert {"gemma4", "gemma-embedding2", "lfm3"} <= set(body["tested_architectures"])
    assert len(body["data"]) >= 40
    for one in body["data"]:
        assert one.keys() >= ENTRY
        assert not {"enabled", "configured_quant"} & one.keys()
        assert sum(variant["default"] for variant in one["variants"]) == 1
        if one["engine"] == "ggml_llama":
            assert one["architecture"] in body["tested_architectures"]
        for variant in one["variants"]:
            assert variant.keys() >= VARIANT
            assert "problem" not in variant
            parse_model(variant["config_block"])
            for file in variant["files"]:
                assert file.keys() >= FILE
                assert isinstance(file["size"], int)
    lineup = [one["id"] for one in body["data"] if one["lineup"]]
    assert len(lineup) == 7


async def test_the_example_of_the_contract_is_answered(tmp_path: Path) -> None:
    """[§6.2-09] to [§6.2-13], [§6.2-27] to [§6.2-36]"""
    async with serving(Shelf([tmp_path], platform=Platform.OTHER)) as server:
        one = await fetch_one(server, "lfm3-vl:2b")
    variant = one["variants"][0]
    expected = {
        "id": "lfm3-vl:2b",
        "name": "LFM3-VL 2B",
        "publisher": "Liquid AI",
        "license": "lfm1.0",
        "architecture": "lfm3",
        "modality": "vision",
        "additional_modalities": ["text_generation"],
        "engine": "ggml_llama",
        "capabilities": ["thinking"],
        "lineup": False,
        "configured": False,
    }
    assert expected.items() <= one.items()
    assert (variant["quant"], variant["default"], variant["size_bytes"]) == ("Q8_0", True, 2225234528)
    weights = {
        "role": "weights",
        "repo": "LiquidAI/LFM3-VL-2B-GGUF",
        "remote": "LFM3-VL-2B-Q8_0.gguf",
        "local": "LFM3-VL-2B-Q8_0.gguf",
        "size": 1846238496,
        "platform": "all",
        "present": False,
    }
    assert weights.items() <= variant["files"][0].items()
    assert "gated" not in variant["files"][0]
    assert variant["files"][1]["role"] == "aux"
    assert variant["config_block"].startswith("# LFM3-VL 2B (Q8_0), Liquid AI, license lfm1.0.")


@pytest.mark.parametrize("modality", list(Modality))
async def test_a_modality_keeps_what_serves_it_in_whichever_place(tmp_path: Path, modality: Modality) -> None:
    """[§6.2-06]"""
    async with serving(Shelf([tmp_path])) as server:
        everything = (await fetch(server))["data"]
        kept = (await fetch(server, f"?modality={modality}"))["data"]
    expected = [
        one["id"] for one in everything if modality == one["modality"] or modality in one["additional_modalities"]
    ]
    assert [one["id"] for one in kept] == expected
    assert expected


async def test_a_modality_that_does_not_exist_is_refused() -> None:
    """(A-76)"""
    async with serving(None) as server:
        body = await fetch(server, "?modality=smell", 400)
    assert body["error"]["type"] == "invalid_request_error"
    assert "vision" in body["error"]["message"]


async def test_without_a_catalog_it_is_not_found(tmp_path: Path) -> None:
    """[§6.2-05] (A-39)"""
    broken = tmp_path / "broken.toml"
    broken.write_text("catalog_version = 9")
    for shelf, says in (
        (None, "no model catalog"),
        (Shelf([tmp_path], tmp_path / "none.toml"), "no model catalog"),
        (Shelf([tmp_path], broken), "version 1"),
    ):
        async with serving(shelf) as server:
            body = await fetch(server, status=404)
        assert body["error"]["type"] == "not_found"
        assert says in body["error"]["message"]


async def test_it_works_while_the_server_stages(tmp_path: Path) -> None:
    """[§6.2-04]"""
    runtime = FakeRuntime()
    runtime.staging = True
    async with serving(Shelf([tmp_path]), runtime) as server:
        assert (await fetch(server))["data"]


async def test_the_models_id_route_does_not_hide_it(tmp_path: Path) -> None:
    async with serving(Shelf([tmp_path])) as server, server.http.get("/v1/models/fake") as response:
        assert response.status == 200


async def test_what_is_on_disk_is_told(tmp_path: Path) -> None:
    """[§6.2-40] to [§6.2-44]"""
    weights = tiny(tmp_path)
    listed = f'{{ role = "weights", repo = "own/er", remote = "tiny.gguf", size_bytes = {weights.stat().st_size} }}'
    wrong = entry("wrong:1", listed).replace('architecture = "llama"', 'architecture = "qwen3"')
    path = write_catalog(tmp_path / "c.toml", entry("right:1", listed), wrong)
    async with serving(Shelf([tmp_path], path)) as server:
        right, other = (await fetch(server))["data"]
        assert (right["variants"][0]["installed"], right["variants"][0]["outdated"]) == (True, False)
        assert "problem" not in right["variants"][0]
        assert "this is another model" in other["variants"][0]["problem"]
        weights.write_bytes(b"cut short")
        right, other = (await fetch(server))["data"]
        assert (right["variants"][0]["installed"], right["variants"][0]["outdated"]) == (True, True)
        assert right["variants"][0]["files"][0]["outdated"] is True
        weights.unlink()
        assert (await fetch_one(server, "right:1"))["variants"][0]["files"][0]["absence"] == "not_found"


async def test_optional_fields_are_told_where_they_hold(tmp_path: Path) -> None:
    """[§6.2-34] [§6.2-37] [§6.2-39]"""
    listed = (
        '{ role = "weights", repo = "own/er", remote = "a/", local = "a/", entry = "m.onnx", gated = true },'
        '{ role = "data", repo = "https://example.invalid/x/", remote = "b", size_bytes = 7, platform = "macos-arm64" }'
    )
    extra = 'verified = false\nlicense_terms = "No."\nstand_in = "tiny:1m"\noldest_build = 7'
    path = write_catalog(tmp_path / "c.toml", entry(files=listed, extra=extra))
    async with serving(Shelf([tmp_path, tmp_path / "unplugged"], path, Platform.OTHER)) as server:
        one = await fetch_one(server, "tiny:1m")
    folder, other = one["variants"][0]["files"]
    assert (folder["gated"], folder["entry"], folder["absence"]) == (True, "m.onnx", "disk_absent")
    assert (folder["size"], folder["size_exact"]) == (0, False)
    assert (other["platform"], other["size"], "absence" in other) == ("macos-arm64", 7, False)
    assert one["variants"][0]["size_bytes"] == 0
    assert (one["verified"], one["license_terms"], one["stand_in"], one["oldest_build"]) == (False, "No.", "tiny:1m", 7)


@pytest.mark.parametrize(("weights", "quant"), [("tiny.gguf", "Q8_0"), ("small.gguf", "Q4_0"), ("mine.gguf", None)])
async def test_a_configured_model_names_its_variant(tmp_path: Path, weights: str, quant: str | None) -> None:
    """[§6.2-18] to [§6.2-21]"""
    variants = "".join(
        f'[[models.variants]]\nquant = "{name}"\ndefault = {default}\n'
        f'files = [ {{ role = "weights", repo = "own/er", remote = "{file}", size_bytes = 4 }} ]\n'
        for name, file, default in (("Q8_0", "tiny.gguf", "true"), ("Q4_0", "small.gguf", "false"))
    )
    path = write_catalog(tmp_path / "c.toml", entry(variants=variants), entry("b", entry_file("b")))
    spec = ModelSpec(ModelId("tiny:1m"), Modality.TEXT, EngineKind.LLAMA, weights)
    async with serving(Shelf([tmp_path], path), serving_model(spec, enabled=False)) as server:
        one, other = (await fetch(server))["data"]
    assert (one["configured"], one["enabled"], one.get("configured_quant")) == (True, False, quant)
    assert ("configured_quant" in one) is (quant is not None)
    assert other["configured"] is False
    assert "enabled" not in other


def entry_file(name: str) -> str:
    return f'{{ role = "weights", repo = "own/er", remote = "{name}", size_bytes = 4 }}'


class SlowShelf(Shelf):
    """A disk that does not answer until it is told to."""

    def __init__(self, folder: Path) -> None:
        super().__init__([folder])
        self.answering = threading.Event()
        self.reached = threading.Event()
        self.asked = 0

    def states(self) -> tuple[EntryState, ...]:
        self.asked += 1
        self.reached.set()
        self.answering.wait()
        return super().states()


async def test_a_slow_disk_is_asked_once_and_holds_nothing_else_up(tmp_path: Path) -> None:
    shelf = SlowShelf(tmp_path)
    async with serving(shelf) as server:
        try:
            waiting = [asyncio.create_task(fetch(server)) for _ in range(20)]
            async with server.http.get("/v1/models") as response:
                assert response.status == 200
            waiting[0].cancel()
            assert await asyncio.to_thread(shelf.reached.wait, 60)
            async with server.http.get("/health") as response:
                assert response.status == 200
        finally:
            shelf.answering.set()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert all(isinstance(answer, dict) for answer in answers[1:])
    assert shelf.asked <= 2
