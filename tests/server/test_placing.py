"""The routes that move, switch and hold models (contract §6.5, §6.6, §14.2, §14.3; wire.md: free and restore)."""

import asyncio
import time
from typing import Any

import pytest

from hypnos_engine.domain import errors as e
from hypnos_engine.domain.kinds import MoeOffload, Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.runtime.parking import ParkedModel, ParkView
from tests.loops import LoopFactory
from tests.server.fake_runtime import GIB, FakeRuntime, Gate, Script
from tests.server.running import ADMIN, KEYS, USER, Running, chat_bytes, running

GPU, RAM, DISK = "tier1_gpu_vram", "tier2_pinned_ram", "tier3_nvme_ssd"
TIER = "/v1/memory/tier"
PARK = "/v1/memory/kv-park"


async def post(server: Running, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    given: dict[str, Any] = {} if body is None else {"json": body}
    async with server.http.post(path, headers=headers, **given) as response:
        text = response.content_type != "application/json"
        return response.status, await (response.text() if text else response.json())


async def get(server: Running, path: str) -> Any:
    async with server.http.get(path) as response:
        return await response.json()


def wire_type(answer: Any) -> str:
    kind: str = answer["error"]["type"]
    return kind


# --- tiers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", [GPU, RAM, DISK])
async def test_a_model_is_moved_by_hand(loop_factory: LoopFactory, tier: str) -> None:
    """[§14.2-01] [§14.2-03] [§14.2-08]"""
    async with running() as server:
        status, answer = await post(server, TIER, {"model": "fake", "target_tier": tier, "context_len": 4096.0})
        entry = await get(server, "/v1/models/fake")
    assert status == 200
    assert answer == {"model": "fake", "placement": entry["placement"]}
    assert answer["placement"]["primary_tier"] == entry["current_tier"] == tier
    assert server.runtime.moves == [("fake", Tier(tier), 4096)]


async def test_the_context_may_be_left_out() -> None:
    """[§14.2-04]"""
    async with running() as server:
        await post(server, TIER, {"model": "fake", "target_tier": RAM, "context_len": None})
    assert server.runtime.moves == [("fake", Tier.RAM, None)]


async def test_a_promotion_answers_after_the_load(loop_factory: LoopFactory) -> None:
    """[§14.2-09]"""
    gate = Gate()
    async with running(FakeRuntime(fake=Script(tier=Tier.DISK, before_moved=gate))) as server:
        asked = asyncio.create_task(post(server, TIER, {"model": "fake", "target_tier": GPU}))
        await gate.reached.wait()
        assert not asked.done()
        gate.opened.set()
        status, answer = await asked
    assert (status, answer["placement"]["primary_tier"]) == (200, GPU)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (e.InsufficientMemory("no room"), 507, "insufficient_vram_or_ram"),
        (e.ProcessMemoryCap("cap"), 507, "process_memory_cap"),
        (e.DeviceOutOfMemory("ran out"), 507, "device_out_of_memory"),
        (e.ModelBusy("on its way"), 429, "model_busy"),
        (e.ModelNotAvailable("the accelerator is on hold", retry_after_s=30.0), 503, "model_not_available"),
        (e.LoadFailed("weights refused"), 500, "server_error"),
        (e.EngineTimeout("slow"), 504, "timeout"),
        (e.Cancelled("shutting down"), 499, "cancelled"),
    ],
    ids=lambda value: value.code if isinstance(value, e.HypnosError) else None,
)
@pytest.mark.parametrize(
    "path", [TIER, "/v1/models/fake/enable", "/v1/models/fake/disable", "/v1/models/fake/moe-offload"]
)
async def test_a_refusal_keeps_its_status(path: str, error: e.HypnosError, status: int, kind: str) -> None:
    """[§14.2-06] [§4-24] [§4-30] [§4-32] [§4-33]"""
    body = {"model": "fake", "target_tier": GPU, "mode": "on"}
    async with running(FakeRuntime(fake=Script(refuse_move=error))) as server:
        found, answer = await post(server, path, body)
    assert (found, wire_type(answer)) == (status, kind)


@pytest.mark.parametrize(("model", "kind"), [("none", "model_not_found"), ("off", "model_disabled")])
async def test_an_unknown_or_disabled_model_cannot_be_moved(model: str, kind: str) -> None:
    """[§14.2-07] A-42"""
    async with running(FakeRuntime(off=Script(enabled=False))) as server:
        status, answer = await post(server, TIER, {"model": model, "target_tier": GPU})
    assert (status, wire_type(answer)) == (404, kind)


@pytest.mark.parametrize("path", [TIER, "/v1/models/fake/disable"])
async def test_a_leased_model_stays(path: str) -> None:
    """[§14.2-05] [§6.5-07] A-40: no Retry-After."""
    gate = Gate()
    async with running(FakeRuntime(fake=Script(before_end=gate))) as server, server.raw(chat_bytes()) as (reader, _):
        await gate.reached.wait()
        async with server.http.post(path, json={"model": "fake", "target_tier": DISK}) as response:
            answer = await response.json()
        gate.opened.set()
        await reader.readuntil(b"\r\n\r\n")
    assert (response.status, wire_type(answer)) == (429, "model_busy")
    assert "Retry-After" not in response.headers


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"target_tier": GPU}, "model"),
        ({"model": "fake"}, "target_tier"),
        ({"model": "fake", "target_tier": "tier0"}, "target_tier"),
        ({"model": 3, "target_tier": GPU}, "model"),
        ({"model": "fake", "target_tier": GPU, "context_len": 0}, "context_len"),
        ({"model": "fake", "target_tier": GPU, "context_len": 1.5}, "context_len"),
        ({"model": "fake", "target_tier": GPU, "context_len": 2**40}, "context_len"),
        ([], "object"),
    ],
)
async def test_a_malformed_move_names_its_field(body: Any, field: str) -> None:
    """[§14.2-02]"""
    async with running() as server:
        status, answer = await post(server, TIER, body)
    assert (status, wire_type(answer)) == (400, "invalid_request_error")
    assert field in answer["error"]["message"]
    assert not server.runtime.moves


# --- in service or not ----------------------------------------------------------------------------------------------


async def test_a_model_is_taken_out_of_service_and_brought_back(loop_factory: LoopFactory) -> None:
    """[§6.5-01..06] [§6.5-08] A-34"""
    runtime = FakeRuntime(**{"org/a:b": Script(), "fake": Script()})
    async with running(runtime) as server:
        status, off = await post(server, "/v1/models/org%2Fa%3Ab/disable")
        listed = await get(server, "/v1/models")
        refused, answer = await server.chat(model="org/a:b")
        again, on = await post(server, "/v1/models/org/a:b/enable")
        served, _ = await server.chat(model="org/a:b")
    assert (status, again) == (200, 200)
    assert off == {"model": "org/a:b", "enabled": False, "placement": off["placement"]}
    assert off["placement"]["primary_tier"] == DISK
    assert [entry["id"] for entry in listed["data"]] == ["fake"]
    assert (refused, wire_type(answer)) == (404, "model_disabled")
    assert (on["enabled"], served) == (True, 200)


@pytest.mark.parametrize("what", ["enable", "disable", "moe-offload"])
async def test_an_unknown_model_is_404(what: str) -> None:
    """[§6.6-20] A-41"""
    async with running() as server:
        status, answer = await post(server, f"/v1/models/none/{what}", {"mode": "on"})
    assert (status, wire_type(answer)) == (404, "model_not_found")


# --- experts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(MoeOffload))
async def test_the_experts_of_an_idle_model_move_now(loop_factory: LoopFactory, mode: MoeOffload) -> None:
    """[§6.6-01] [§6.6-08] [§6.6-13] [§6.6-14] [§6.6-15]"""
    async with running() as server:
        status, answer = await post(server, "/v1/models/fake/moe-offload", {"mode": mode.value})
        shown = (await get(server, "/v1/memory/status"))["models"][0]
    assert status == 200
    assert answer == {"model": "fake", "moe_offload": mode, "applies": "now", "placement": shown["placement"]}
    assert (shown["moe_offload"], shown["current_tier"]) == (mode, RAM)


async def test_the_experts_of_a_busy_model_move_with_its_next_load() -> None:
    """[§6.6-17]"""
    gate = Gate()
    async with running(FakeRuntime(fake=Script(before_end=gate))) as server, server.raw(chat_bytes()) as (reader, _):
        await gate.reached.wait()
        _, answer = await post(server, "/v1/models/fake/moe-offload", {"mode": "on"})
        gate.opened.set()
        await reader.readuntil(b"\r\n\r\n")
    assert (answer["applies"], answer["placement"]["primary_tier"]) == ("next_load", GPU)


@pytest.mark.parametrize("mode", ["", "ON", "half", "x" * 5000])
async def test_an_unknown_mode_is_422(mode: str) -> None:
    """[§6.6-19] A-38"""
    async with running() as server:
        status, answer = await post(server, "/v1/models/fake/moe-offload", {"mode": mode})
    assert (status, wire_type(answer)) == (422, "invalid_request_error")
    assert len(answer["error"]["message"]) < 500
    assert "auto" in answer["error"]["message"]


@pytest.mark.parametrize("body", [{}, {"mode": None}, {"mode": 1}, []])
async def test_a_body_without_a_mode_is_400(body: Any) -> None:
    async with running() as server:
        status, _ = await post(server, "/v1/models/fake/moe-offload", body)
    assert status == 400


# --- holds ----------------------------------------------------------------------------------------------------------


async def test_the_accelerator_is_given_away_and_taken_back(loop_factory: LoopFactory) -> None:
    async with running(FakeRuntime(a=Script(), b=Script(tier=Tier.DISK))) as server:
        status, freed = await post(server, "/v1/memory/free")
        held = (await get(server, "/v1/memory/status"))["hold"]
        again, restored = await post(server, "/v1/memory/restore")
        after = (await get(server, "/v1/memory/status"))["hold"]
    assert (status, again) == (200, 200)
    assert freed == {"held": True, "until_unix_ms": None, "moved": [{"model": "a", "from": GPU, "to": RAM}]}
    assert held == {"held": True, "until_unix_ms": None}
    assert restored == {"held": False, "until_unix_ms": None, "moved": [{"model": "a", "from": RAM, "to": GPU}]}
    assert after == {"held": False, "until_unix_ms": None}


async def test_a_hold_may_have_an_end() -> None:
    async with running() as server:
        before_ms = time.time() * 1e3
        _, freed = await post(server, "/v1/memory/free", {"for_secs": 600})
    assert before_ms + 600_000 - 1 <= freed["until_unix_ms"] <= time.time() * 1e3 + 600_000


@pytest.mark.parametrize("seconds", [0, -1, 1e300, "soon"])
async def test_a_hold_without_sense_is_400(seconds: Any) -> None:
    async with running() as server:
        status, answer = await post(server, "/v1/memory/free", {"for_secs": seconds})
    assert status == 400
    assert "for_secs" in answer["error"]["message"]


async def test_without_a_hold_there_is_nothing_to_restore() -> None:
    async with running() as server:
        status, answer = await post(server, "/v1/memory/restore")
    assert (status, answer) == (200, {"held": False, "until_unix_ms": None, "moved": []})


# --- parking --------------------------------------------------------------------------------------------------------


async def test_parking_is_shown_as_the_status_shows_it(loop_factory: LoopFactory) -> None:
    """[§14.3-01] [§14.3-17]"""
    runtime = FakeRuntime()
    runtime.park = ParkView(True, GIB, 100, (ParkedModel(ModelId("fake"), 2, 50, 100, 1.5),))
    async with running(runtime) as server:
        shown = await get(server, PARK)
        status = await get(server, "/v1/memory/status")
    assert shown == status["kv_park"]
    assert shown["models"] == [{"model": "fake", "slots": 2, "tokens": 50, "bytes": 100, "parked_secs_ago": 1.5}]


@pytest.mark.parametrize(
    ("body", "enabled", "max_bytes"),
    [
        ({"enabled": False}, False, GIB),
        ({"max_bytes": 5.0}, True, 5),
        ({"enabled": False, "max_bytes": 0}, False, 0),
        ({"enabled": None, "max_bytes": 7}, True, 7),
    ],
)
async def test_parking_is_changed_in_part_or_whole(body: Any, enabled: bool, max_bytes: int) -> None:
    """[§14.3-02] [§14.3-12]"""
    runtime = FakeRuntime()
    runtime.park = ParkView(True, GIB, 0, ())
    async with running(runtime) as server:
        status, answer = await post(server, PARK, body)
        assert answer == await get(server, PARK)
    assert status == 200
    assert (answer["enabled"], answer["max_bytes"]) == (enabled, max_bytes)


@pytest.mark.parametrize(
    "body", [{}, {"enabled": None}, {"max_bytes": -1}, {"max_bytes": 1.5}, {"max_bytes": 2**60}, {"enabled": "yes"}, []]
)
async def test_a_change_of_parking_without_sense_is_400(body: Any) -> None:
    """[§14.3-13]"""
    async with running() as server:
        status, answer = await post(server, PARK, body)
    assert (status, wire_type(answer)) == (400, "invalid_request_error")


async def test_a_change_of_parking_without_a_body_is_400() -> None:
    """[§14.3-13]"""
    async with running() as server:
        status, _ = await post(server, PARK)
    assert status == 400


# --- who may, and when ----------------------------------------------------------------------------------------------

CHANGES = [
    (TIER, {"model": "fake", "target_tier": GPU}),
    (PARK, {"enabled": True}),
    ("/v1/models/fake/enable", None),
    ("/v1/models/fake/disable", None),
    ("/v1/models/fake/moe-offload", {"mode": "on"}),
    ("/v1/memory/free", None),
    ("/v1/memory/restore", None),
]


@pytest.mark.parametrize(("path", "body"), CHANGES)
async def test_who_may_change_the_state(path: str, body: Any) -> None:
    """A-47: any key for the contract's routes; wire.md: an admin key for what goes beyond it."""
    async with running(keys=KEYS) as server:
        without, _ = await post(server, path, body)
        as_user, answer = await post(server, path, body, Authorization=f"Bearer {USER}")
        as_admin, _ = await post(server, path, body, Authorization=f"Bearer {ADMIN}")
    assert (without, as_admin) == (401, 200)
    if path in {"/v1/memory/free", "/v1/memory/restore"}:
        assert (as_user, wire_type(answer)) == (403, "permission_denied")
    else:
        assert as_user == 200


@pytest.mark.parametrize(("path", "body"), CHANGES)
async def test_nothing_is_placed_while_staging(path: str, body: Any) -> None:
    """[§3-10] [§3-11]"""
    runtime = FakeRuntime()
    runtime.staging = True
    async with running(runtime) as server, server.http.post(path, json=body) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "5"
        assert wire_type(await response.json()) == "model_not_available"


async def test_parking_is_shown_while_staging() -> None:
    runtime = FakeRuntime()
    runtime.staging = True
    async with running(runtime) as server, server.http.get(PARK) as response:
        assert response.status == 200


@pytest.mark.parametrize(("path", "body"), CHANGES)
async def test_other_methods_are_told_which_there_are(path: str, body: Any) -> None:
    async with running() as server, server.http.patch(path) as response:
        assert response.status == 405
        assert "POST" in response.headers["Allow"]
