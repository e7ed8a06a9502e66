"""Engines in every condition, as the wire tells of them: with a card of 24 GiB, and with one pool of memory."""

from msgspec import UNSET, structs

from app.state import Decision, Phase, Readiness, Snapshot, View, fold
from hypnos_engine.api.schemas.memory import (
    Capabilities,
    HoldStatus,
    KvPark,
    Latency,
    LoadStep,
    MemoryStatus,
    ModelStatus,
)
from hypnos_engine.api.schemas.models import LayerPlacementPlan
from hypnos_engine.domain.kinds import (
    Accelerator,
    EngineKind,
    Modality,
    MoeOffload,
    Priority,
    Residency,
    Tier,
    Topology,
)

GIB = 2**30
MIB = 2**20
ADDRESS = "http://127.0.0.1:9999"

NOWHERE = LayerPlacementPlan(
    primary_tier=Tier.DISK,
    gpu_layers=0,
    pinned_ram_layers=0,
    ssd_layers=0,
    vram_weight_bytes=0,
    vram_kv_and_workspace_bytes=0,
    pinned_ram_bytes=0,
    allocated_context_len=0,
    cpu_expert_layers=0,
)


def entry(name: str, **changes: object) -> ModelStatus:
    """A text model of 2 GiB on disk, with `changes`."""
    plain = ModelStatus(
        id=name,
        enabled=True,
        modality=Modality.TEXT,
        modalities=(Modality.TEXT,),
        engine=EngineKind.LLAMA,
        total_weight_bytes=2 * GIB,
        priority=Priority.NORMAL,
        current_tier=Tier.DISK,
        placement=NOWHERE,
        moe_offload=MoeOffload.OFF,
        expert_bytes=0,
        active_leases=0,
        idle_seconds=12.0,
        total_requests_served=0,
        requests_per_minute=0.0,
        reload_estimate_ms=1800.0,
        residency=Residency.COLD,
        waiting=0,
        device_bytes=0,
        host_bytes=0,
        held_bytes=0,
        parked_bytes=0,
    )
    return structs.replace(plain, **changes)


def status(*models: ModelStatus, one_pool: bool = False, held: bool = False) -> MemoryStatus:
    """A snapshot of a machine that has these models."""
    budget = 23 * GIB
    on_device = sum(model.device_bytes for model in models)
    on_host = sum(model.host_bytes + model.held_bytes + model.parked_bytes for model in models)
    used = on_device + on_host if one_pool else on_device
    return MemoryStatus(
        sequence=1,
        capabilities=Capabilities(
            accelerator=Accelerator.METAL if one_pool else Accelerator.CUDA,
            topology=Topology.UNIFIED if one_pool else Topology.DISCRETE,
            device_name="Apple M3 Pro" if one_pool else "NVIDIA GeForce RTX 4090",
            total_vram_bytes=24 * GIB,
            usable_vram_budget_bytes=budget,
            pinned_ram_budget_bytes=32 * GIB,
            physical_memory_bytes=64 * GIB,
            installed_memory_bytes=64 * GIB,
            simulated=False,
        ),
        tier1_vram_used_bytes=used,
        tier1_vram_free_bytes=budget - used,
        tier1_vram_real_free_bytes=budget - used,
        tier1_vram_real_total_bytes=24 * GIB,
        tier1_vram_unaccounted_bytes=0,
        tier1_vram_effective_free_bytes=budget - used,
        tier2_pinned_ram_used_bytes=0 if one_pool else on_host,
        tier2_pinned_ram_free_bytes=32 * GIB - (0 if one_pool else on_host),
        physical_pool_free_bytes=20 * GIB if one_pool else None,
        process_footprint_bytes=3 * GIB,
        process_memory_bytes=3 * GIB,
        process_memory_cap_bytes=None,
        recent_evictions=(),
        kv_park=KvPark(enabled=False, max_bytes=0, used_bytes=0, models=()),
        latency=Latency(routes={}, workflows={}),
        hold=HoldStatus(held=held),
        devices=(),
        models=models,
    )


def household() -> tuple[ModelStatus, ...]:
    """Models of many kinds, each in another condition."""
    return (
        entry(
            "gemma4:26b-q4",
            modalities=(Modality.TEXT, Modality.VISION),
            current_tier=Tier.GPU,
            residency=Residency.READY,
            total_weight_bytes=int(14.7 * GIB),
            device_bytes=int(16.2 * GIB),
            host_bytes=300 * MIB,
            active_leases=2,
            waiting=1,
            total_requests_served=1284,
            requests_per_minute=3.4,
            service_ms=4200.0,
            estimated_wait_ms=2600.0,
        ),
        entry(
            "whisper:large-v3",
            modality=Modality.SPEECH_TO_TEXT,
            modalities=(Modality.SPEECH_TO_TEXT,),
            engine=EngineKind.WHISPER,
            residency=Residency.LOADING,
            load=LoadStep("weights", 0.62),
            device_bytes=int(3.1 * GIB),
            total_weight_bytes=3 * GIB,
        ),
        entry(
            "kokoro-82m-q4",
            modality=Modality.TEXT_TO_SPEECH,
            modalities=(Modality.TEXT_TO_SPEECH,),
            engine=EngineKind.ONNX,
            current_tier=Tier.GPU,
            residency=Residency.READY,
            host_bytes=412 * MIB,
            total_weight_bytes=90 * MIB,
            total_requests_served=312,
            requests_per_minute=0.8,
            service_ms=640.0,
            estimated_wait_ms=0.0,
        ),
        entry(
            "qwen3:32b",
            current_tier=Tier.RAM,
            held_bytes=int(18.5 * GIB),
            total_weight_bytes=int(18.5 * GIB),
            total_requests_served=41,
            requests_per_minute=0.2,
            service_ms=11800.0,
            estimated_wait_ms=3900.0,
        ),
        entry("bge-m3", modality=Modality.EMBEDDINGS, modalities=(Modality.EMBEDDINGS,), total_weight_bytes=560 * MIB),
        entry(
            "docling:int8",
            modality=Modality.DOCUMENTS,
            modalities=(Modality.DOCUMENTS,),
            engine=EngineKind.DOCLING,
            total_weight_bytes=370 * MIB,
            problem="The file layout_cdla.onnx (weights_path) is not in any of the models folders. Put it there, or "
            "change the path.",
        ),
        entry("llama3:70b", enabled=False, total_weight_bytes=40 * GIB),
    )


DECISIONS = (
    Decision(
        3, 1_790_000_200_000, "load", "whisper:large-v3", "whisper:large-v3 is loaded for a request: 3.1 GiB fit."
    ),
    Decision(
        2,
        1_790_000_100_000,
        "unload",
        "qwen3:32b",
        "qwen3:32b leaves the GPU for gemma4:26b-q4: its loss costs least (3.9 s to reload, 0.2 requests per minute).",
    ),
    Decision(1, 1_790_000_000_000, "load", "gemma4:26b-q4", "gemma4:26b-q4 is loaded at the start, whole on the GPU."),
)


def ready(*models: ModelStatus, one_pool: bool = False, held: bool = False) -> View:
    """The view of an engine that serves these models."""
    view = fold(View(ADDRESS, own=True), Snapshot(status(*models, one_pool=one_pool, held=held)))
    return fold(view, Readiness(ready=True))


def idle_model(name: str = "smollm2:135m", **changes: object) -> ModelStatus:
    """A small model that is loaded and has nothing to do."""
    ready_ = {"current_tier": Tier.GPU, "residency": Residency.READY, "device_bytes": 349 * MIB, "service_ms": UNSET}
    return entry(name, **{**ready_, **changes})


STARTING = View(ADDRESS, own=True)
assert STARTING.phase is Phase.STARTING
