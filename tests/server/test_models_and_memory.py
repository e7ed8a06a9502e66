"""The lists of models and the snapshot of the tiers (contract §6.1, §14.1, §18)."""

from dataclasses import replace
from typing import Any

import pytest
import yarl
from hypothesis import example, given
from hypothesis import strategies as st

from hypnos_engine.domain.kinds import Modality, Topology
from hypnos_engine.server.memory import memory_status
from tests.server.fake_runtime import GIB, HARDWARE, SPEC, FakeRuntime, Gate, Script
from tests.server.running import Running, chat_bytes, running

PLACEMENT = {
    "primary_tier": "tier1_gpu_vram", "gpu_layers": 30, "pinned_ram_layers": 0, "ssd_layers": 0,
    "vram_weight_bytes": GIB, "vram_kv_and_workspace_bytes": 0, "pinned_ram_bytes": 0,
    "allocated_context_len": 8192, "cpu_expert_layers": 0,
}  # fmt: skip


async def get(server: Running, path: str) -> tuple[int, Any]:
    async with server.http.get(yarl.URL(server.address + path, encoded=True)) as response:
        return response.status, await response.json()


async def test_the_list_has_the_models_in_service() -> None:
    """§6.1-01..08."""
    async with running(FakeRuntime(a=Script(), b=Script(enabled=False), c=Script())) as server:
        _, first = await get(server, "/v1/models")
        _, again = await get(server, "/v1/models")
    assert first == again
    assert first["object"] == "list"
    assert [entry["id"] for entry in first["data"]] == ["a", "c"]
    created = first["data"][0]["created"]
    assert isinstance(created, int)
    assert first["data"][0] == {
        "id": "a", "object": "model", "created": created, "owned_by": "hypnos", "modality": "text_generation",
        "current_tier": "tier1_gpu_vram", "placement": PLACEMENT, "active_leases": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "path", ["gemma4:26b-q4", "gemma4%3A26b-q4", "org%2Fmodel", "org/model", "caf%C3%A9%20%23%3F%25"]
)
async def test_one_model_is_found_by_its_decoded_id(path: str) -> None:
    """A-33, A-34."""
    names = ("gemma4:26b-q4", "org/model", "café #?%")
    async with running(FakeRuntime(**{name: Script() for name in names})) as server:
        status, entry = await get(server, f"/v1/models/{path}")
        _, listed = await get(server, "/v1/models")
    assert status == 200
    assert entry in listed["data"]


@pytest.mark.parametrize(
    ("path", "wire_type"),
    [("none", "model_not_found"), ("off", "model_disabled"), ("%FF%00", "model_not_found"),
     ("a" * 5000, "model_not_found")],
)  # fmt: skip
async def test_a_model_that_is_not_in_service_is_404(path: str, wire_type: str) -> None:
    async with running(FakeRuntime(off=Script(enabled=False))) as server:
        status, body = await get(server, f"/v1/models/{path}")
    assert (status, body["error"]["type"]) == (404, wire_type)
    assert len(body["error"]["message"]) < 500


async def test_the_snapshot_has_the_fields_of_the_contract() -> None:
    """§14.1-04..26: sums that belong together add up, disabled models are listed."""
    spec = replace(SPEC, additional_modalities=(Modality.VISION,))
    runtime = FakeRuntime(fake=Script(spec=spec), off=Script(enabled=False))
    async with running(runtime) as server:
        _, before = await get(server, "/v1/memory/status")
        await server.chat()
        runtime.estimate_ms = 88.0
        _, status = await get(server, "/v1/memory/status")
    capabilities = status["capabilities"]
    assert capabilities == {
        "accelerator": "NvidiaCuda", "topology": "DiscretePcie", "device_name": "Fake GPU",
        "total_vram_bytes": 16 * GIB, "usable_vram_budget_bytes": 12 * GIB, "pinned_ram_budget_bytes": 10 * GIB,
        "physical_memory_bytes": 32 * GIB, "installed_memory_bytes": 32 * GIB, "simulated": True,
        "tier2_to_tier1_bandwidth_gbps": None, "tier3_to_tier2_bandwidth_gbps": None,
    }  # fmt: skip
    assert status["tier1_vram_used_bytes"] + status["tier1_vram_free_bytes"] == capabilities["usable_vram_budget_bytes"]
    assert (
        status["tier2_pinned_ram_used_bytes"] + status["tier2_pinned_ram_free_bytes"]
        == capabilities["pinned_ram_budget_bytes"]
    )
    assert status["tier1_vram_unaccounted_bytes"] == 5 * GIB
    assert status["tier1_vram_effective_free_bytes"] == 8 * GIB
    assert status["physical_pool_free_bytes"] is None
    assert status["process_memory_cap_bytes"] is None
    assert status["process_footprint_bytes"] == status["process_memory_bytes"] == 2 * GIB
    model = status["models"][0]
    assert model == {
        "id": "fake", "enabled": True, "modality": "text_generation", "modalities": ["text_generation", "vision"],
        "engine": "fake", "total_weight_bytes": GIB, "priority": "normal", "current_tier": "tier1_gpu_vram",
        "placement": PLACEMENT, "moe_offload": "off", "expert_bytes": 0, "active_leases": 0, "idle_seconds": 0.0,
        "total_requests_served": 1, "requests_per_minute": 0.0, "reload_estimate_ms": 1200.0, "residency": "ready",
        "waiting": 0, "service_ms": 88.0, "estimated_wait_ms": 88.0,
    }  # fmt: skip
    assert not {"service_ms", "estimated_wait_ms", "problem"} & set(before["models"][0])
    assert [(entry["id"], entry["enabled"]) for entry in status["models"]] == [("fake", True), ("off", False)]
    assert status["recent_evictions"] == [
        {"model": "old", "for_model": "fake", "reason": "memory_budget", "to_tier": "tier3_nvme_ssd",
         "unix_ms": 1_793_481_500_000}
    ]  # fmt: skip


@pytest.mark.parametrize("topology", [Topology.UNIFIED, Topology.HOST])
def test_one_pool_tells_its_free_bytes(topology: Topology) -> None:
    """wire.md: where the tiers share one pool `physical_pool_free_bytes` is not null."""
    hardware = replace(HARDWARE, topology=topology)
    assert memory_status(replace(FakeRuntime().memory(), hardware=hardware)).physical_pool_free_bytes == 20 * GIB


def test_sums_are_never_negative() -> None:
    """Bookings above the budget, or a device that reports more free than there is."""
    view = replace(
        FakeRuntime().memory(), tier1_used_bytes=13 * GIB, tier1_real_free_bytes=17 * GIB, tier2_used_bytes=11 * GIB
    )
    status = memory_status(view)
    assert status.tier1_vram_free_bytes == status.tier2_pinned_ram_free_bytes == 0
    assert status.tier1_vram_unaccounted_bytes == status.tier1_vram_effective_free_bytes == 0


@given(budget=st.integers(0, 2**50), used=st.integers(0, 2**50))
@example(budget=12 * GIB, used=12 * GIB)
def test_booked_and_free_add_up_to_the_budget(budget: int, used: int) -> None:
    """§14.1-06, §14.1-11: whenever that is possible; bookings above the budget leave nothing free."""
    view = replace(
        FakeRuntime().memory(),
        tier1_budget_bytes=budget, tier1_used_bytes=used, tier2_budget_bytes=budget, tier2_used_bytes=used,
    )  # fmt: skip
    status = memory_status(view)
    for booked, free in (
        (status.tier1_vram_used_bytes, status.tier1_vram_free_bytes),
        (status.tier2_pinned_ram_used_bytes, status.tier2_pinned_ram_free_bytes),
    ):
        assert free >= 0
        assert booked + free == max(budget, used)


async def test_leases_show_while_they_are_held() -> None:
    gate = Gate()
    async with running(FakeRuntime(fake=Script(before_end=gate))) as server, server.raw(chat_bytes()) as (reader, _):
        await gate.reached.wait()
        _, entry = await get(server, "/v1/models/fake")
        gate.opened.set()
        await reader.readuntil(b"\r\n\r\n")
        await server.runtime.until(lambda: server.runtime.idle)
        _, after = await get(server, "/v1/models/fake")
    assert (entry["active_leases"], after["active_leases"]) == (1, 0)
