"""From a plan to a load message, and from a worker's report to booked bytes."""

from dataclasses import replace
from pathlib import Path

from hypnos_engine.domain.kinds import Drafts, EngineKind, Modality
from hypnos_engine.domain.memory import Footprint, Placement
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.inspection import Inspection
from hypnos_engine.runtime.loading import ALL_LAYERS, load_request, measured_footprint
from hypnos_engine.scheduler.placement import Plan

FILES = Inspection(Path("/models/a.gguf"), None, None, projector=Path("/models/a.mmproj"))
SPEC = ModelSpec(ModelId("a"), Modality.TEXT, EngineKind.LLAMA, "a.gguf", slots=3)


def request(placement: Placement, footprint: Footprint) -> m.Load:
    return load_request(SPEC, FILES, Plan(placement, footprint), threads=2)


def test_a_plan_without_device_bytes_gives_the_accelerator_nothing() -> None:
    load = request(Placement(gpu_layers=30, allocated_context_len=4096), Footprint(file_pages=10))
    assert load.gpu_layers == 0
    assert (load.context_len, load.slots, load.threads, load.weights_path) == (4096, 3, 2, "/models/a.gguf")


def test_a_model_for_embeddings_is_loaded_to_make_vectors() -> None:
    plan = Plan(Placement(allocated_context_len=512), Footprint(file_pages=10))
    for modality in Modality:
        load = load_request(replace(SPEC, modality=modality), FILES, plan, threads=1)
        assert load.embeddings is (modality is Modality.EMBEDDINGS)


def test_guesses_are_made_only_where_the_settings_say_so() -> None:
    plan = Plan(Placement(allocated_context_len=512), Footprint(file_pages=10))
    assert load_request(SPEC, FILES, plan, threads=1).draft == m.Load("a", "").draft == Drafts.OFF
    load = load_request(replace(SPEC, draft=Drafts.NGRAM), FILES, plan, threads=1)
    assert load.draft == Drafts.NGRAM


def test_a_whole_placement_asks_for_every_layer_and_the_head() -> None:
    assert request(Placement(gpu_layers=30), Footprint(device=10)).gpu_layers == ALL_LAYERS


def test_a_split_names_its_layers_and_the_head() -> None:
    assert request(Placement(gpu_layers=12, pinned_ram_layers=18), Footprint(device=10)).gpu_layers == 13


def test_anonymous_memory_is_not_counted_twice() -> None:
    report = m.MemoryReport(
        weights_bytes=100, device_bytes=30, kv_bytes=5, workspace_bytes=6, repacked_bytes=7, anonymous_bytes=50
    )
    assert measured_footprint(report, "mmap").total == 70 + 50 + 30
    assert measured_footprint(report, "read").total == 50 + 30
