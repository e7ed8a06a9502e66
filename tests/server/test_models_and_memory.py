"""The lists of models and the snapshot of the tiers (contract §6.1, §14.1, §18)."""

from dataclasses import replace
from typing import Any

import pytest
import yarl
from hypothesis import example, given
from hypothesis import strategies as st

from hypnos_engine.api.schemas.memory import MemoryStatus
from hypnos_engine.domain.kinds import Modality, Topology
from hypnos_engine.domain.memory import UnusableDevice
from hypnos_engine.engines.holder import Held, HolderReport
from hypnos_engine.hardware.monitor import GpuSample
from hypnos_engine.runtime.feed import Seen
from hypnos_engine.runtime.parking import ParkedModel, ParkView
from hypnos_engine.runtime.snapshot import MemoryView
from hypnos_engine.server.app import make_app
from hypnos_engine.server.memory import memory_status
from hypnos_engine.server.options import WorkloadProfile
from tests.server.fake_runtime import GIB, HARDWARE, SPEC, FakeRuntime, Gate, Script
from tests.server.running import OPTIONS, Running, chat_bytes, running

PLACEMENT = {
    "primary_tier": "tier1_gpu_vram", "gpu_layers": 30, "pinned_ram_layers": 0, "ssd_layers": 0,
    "vram_weight_bytes": GIB, "vram_kv_and_workspace_bytes": 0, "pinned_ram_bytes": 0,
    "allocated_context_len": 8192, "cpu_expert_layers": 0,
}  # fmt: skip


def status_of(view: MemoryView) -> MemoryStatus:
    return memory_status(Seen(1, view), make_app(FakeRuntime(), OPTIONS))


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
        "tier2_to_tier1_bandwidth_gbps": 25.0, "tier3_to_tier2_bandwidth_gbps": None, "unusable_devices": [],
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
        "device_bytes": 2 * GIB, "host_bytes": GIB, "held_bytes": 0, "parked_bytes": 0,
    }  # fmt: skip
    assert not {"service_ms", "estimated_wait_ms", "problem", "load"} & set(before["models"][0])
    assert not {"gpu", "profile", "pages"} & set(status)
    assert status["devices"] == [
        {"index": 0, "name": "Fake GPU", "budget_bytes": 12 * GIB, "used_bytes": 3 * GIB, "real_free_bytes": 8 * GIB,
         "real_total_bytes": 16 * GIB, "lost": False}
    ]  # fmt: skip
    assert status["kv_park"] == {"enabled": False, "max_bytes": GIB, "used_bytes": 0, "models": []}
    assert status["hold"] == {"held": False, "until_unix_ms": None}
    assert [(entry["id"], entry["enabled"]) for entry in status["models"]] == [("fake", True), ("off", False)]
    assert status["recent_evictions"] == [
        {"model": "old", "for_model": "fake", "reason": "memory_budget", "to_tier": "tier3_nvme_ssd",
         "unix_ms": 1_793_481_500_000}
    ]  # fmt: skip


@pytest.mark.parametrize("topology", [Topology.UNIFIED, Topology.HOST])
def test_one_pool_tells_its_free_bytes(topology: Topology) -> None:
    """wire.md: where the tiers share one pool `physical_pool_free_bytes` is not null."""
    hardware = replace(HARDWARE, topology=topology)
    assert status_of(replace(FakeRuntime().memory(), hardware=hardware)).physical_pool_free_bytes == 20 * GIB


async def test_what_the_machine_tells_of_itself_is_in_the_snapshot() -> None:
    """[§14.1-15..17] [§14.1-29..30]: the graphics processor, held pages, parked conversations, devices of no use."""
    runtime = FakeRuntime()
    runtime.gpu = GpuSample(
        name="Fake GPU", utilization_percent=87, temperature_celsius=71, power_watts=148.2, sm_clock_mhz=2400,
        throttle_reasons=8, ecc_uncorrected_errors=0, retired_pages_pending=False, sampled_unix_ms=1_793_481_600_123,
    )  # fmt: skip
    runtime.pages = HolderReport(True, False, "raise the limit", (Held("fake.gguf", GIB, GIB, 0),))
    runtime.park = ParkView(True, GIB, 100, (ParkedModel(SPEC.id, 1, 12, 100, 3.5),))
    runtime.hardware = replace(HARDWARE, unusable=(UnusableDevice("Other GPU", "no driver", "install it"),))
    async with running(runtime) as server:
        _, status = await get(server, "/v1/memory/status")
    assert status["gpu"] == {
        "utilization_percent": 87, "temperature_celsius": 71, "power_watts": 148.2, "sm_clock_mhz": 2400,
        "throttle_reasons": 8, "throttled": True, "ecc_uncorrected_errors": 0, "retired_pages_pending": False,
        "sampled_unix_ms": 1_793_481_600_123,
    }  # fmt: skip
    assert status["pages"] == {
        "alive": True, "locking": False, "why_not_locked": "raise the limit",
        "held": [{"files": "fake.gguf", "size_bytes": GIB, "held_bytes": GIB, "locked_bytes": 0}],
    }  # fmt: skip
    assert status["kv_park"] == {
        "enabled": True, "max_bytes": GIB, "used_bytes": 100,
        "models": [{"model": "fake", "slots": 1, "tokens": 12, "bytes": 100, "parked_secs_ago": 3.5}],
    }  # fmt: skip
    assert status["capabilities"]["unusable_devices"] == [
        {"name": "Other GPU", "why": "no driver", "mend": "install it"}
    ]


@pytest.mark.parametrize(
    ("profile", "objective"),
    [
        (WorkloadProfile("voice_assistant", "first_audio", 1500.0), {"metric": "first_audio", "target_ms": 1500.0}),
        (WorkloadProfile("batch", "throughput", None), {"metric": "throughput"}),
    ],
)
async def test_the_profile_is_told_with_its_objective(profile: WorkloadProfile, objective: dict[str, Any]) -> None:
    """[§14.1-34] [§14.1-35] [§14.1-36] [§14.1-37]"""
    async with running(profile=profile) as server:
        _, status = await get(server, "/v1/memory/status")
    assert status["profile"] == {"name": profile.name, "objective": objective}


async def test_a_load_shows_how_far_it_is() -> None:
    memory = FakeRuntime().memory()
    view = replace(memory.models[0], load_phase="weights", load_progress=0.25)
    load = status_of(replace(memory, models=(view,))).models[0].load
    assert load
    assert (load.phase, load.progress) == ("weights", 0.25)


def test_sums_are_never_negative() -> None:
    """Bookings above the budget."""
    view = replace(FakeRuntime().memory(), tier1_used_bytes=13 * GIB, tier2_used_bytes=11 * GIB)
    status = status_of(view)
    assert status.tier1_vram_free_bytes == status.tier2_pinned_ram_free_bytes == 0


@given(budget=st.integers(0, 2**50), used=st.integers(0, 2**50))
@example(budget=12 * GIB, used=12 * GIB)
def test_booked_and_free_add_up_to_the_budget(budget: int, used: int) -> None:
    """§14.1-06, §14.1-11: whenever that is possible; bookings above the budget leave nothing free."""
    view = replace(
        FakeRuntime().memory(),
        tier1_budget_bytes=budget, tier1_used_bytes=used, tier2_budget_bytes=budget, tier2_used_bytes=used,
    )  # fmt: skip
    status = status_of(view)
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
