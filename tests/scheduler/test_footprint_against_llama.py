"""The planner's bytes against llama.cpp's own, for the tensor tables of real models; llama.cpp allocates nothing."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hypnos_engine.domain.drafting import output_rows
from hypnos_engine.domain.kinds import Drafts, EngineKind, KvType, Modality
from hypnos_engine.domain.model import LayerShape, ModelId, ModelShape, ModelSpec
from hypnos_engine.gguf import read_shape
from hypnos_engine.scheduler.footprint import compute_bytes, layer_kv_bytes, output_bytes, pad_cells, window_cells
from hypnos_engine.scheduler.placement import MICRO_BATCH, Free, Plan, kv_bytes, plan
from hypnos_engine.testing.real_models import REAL_MODELS
from hypnos_engine.testing.sparse_gguf import SparseModel, write

MIB = 2**20
DRY_RUN = Path(__file__).with_name("dry_run.py")
CONTEXTS = tuple((cells, slots, "f16") for cells in (4096, 16_384, 65_536) for slots in (1, 4))
QUANTISED = ((16_384, 4, "q8_0"), (4096, 4, "q4_0"))
EVERY_DAY = ("gemma4-26b-a4b", "glm-4.7-flash", "lfm2.5-1.2b", "qwen3.6-35b-a3b", "smollm2-360m")
"""One for each kind of memory: windows with experts, latent attention, convolutions, delta nets, plain attention."""
COMPUTE_FRACTION, COMPUTE_BYTES = 0.03, 8 * MIB
EXACT_COMPUTE_BYTES = 2 * MIB
"""What the replay of llama.cpp's allocator achieves with an f16 cache; a larger error means that its order changed."""
BYTES_PER_TOKEN = 64
"""A published file holds more than tensors: at most this much for each token of its vocabulary."""
PUBLISHED_FRACTION = 0.001


@dataclass(frozen=True)
class DryRun:
    shape: ModelShape
    model_bytes: int
    contexts: list[tuple[tuple[int, int, str], dict[str, Any]]]


def dry_run(name: str, folder: Path) -> DryRun:
    path = folder / f"{name}.gguf"
    write(path, REAL_MODELS[name].build())
    shape = read_shape(path)
    wishes = CONTEXTS + QUANTISED
    arguments = [str(path), str(int(shape.is_encoder)), *(",".join(map(str, wish)) for wish in wishes)]
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    command = [sys.executable, str(DRY_RUN), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout)
    return DryRun(shape, answer["model_bytes"], list(zip(wishes, answer["contexts"], strict=True)))


def mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.2f}"


def expected_caches(shape: ModelShape, cells: int, slots: int, kv_type: KvType) -> list[list[str]]:
    """Size and cells of each cache, as llama.cpp prints them: everything first, then the windows."""
    caches: dict[int, list[LayerShape]] = {}
    for layer in shape.layers:
        if layer.k_elements_per_cell:
            caches.setdefault(layer.sliding_window, []).append(layer)
    lines = []
    for window in sorted(caches):
        kept = window_cells(window, cells, slots) if window else pad_cells(cells)
        size = sum(
            layer_kv_bytes(layer, kv_type, cells, slots) - layer.recurrent_state_bytes * slots
            for layer in caches[window]
        )
        lines.append([mib(size), str(kept)])
    return lines


def compare(run: DryRun) -> None:
    shape = run.shape
    assert run.model_bytes == shape.tensor_bytes
    for (cells, slots, kind), said in run.contexts:
        kv_type = KvType(kind)
        filled = [cache for cache in said["caches"] if cache[0] != "0.00"]
        assert filled == expected_caches(shape, cells, slots, kv_type), (cells, slots, kind)
        state = sum(layer.recurrent_state_bytes for layer in shape.layers) * slots
        assert said["state_mib"] == ([mib(state)] if state else []), (cells, slots, kind)
        cached = sum(float(cache[0]) for cache in said["caches"]) * MIB
        assert kv_bytes(shape, kv_type, cells, slots) == pytest.approx(cached + state, abs=0.02 * MIB)
        compute = float(said["compute_mib"][0]) * MIB
        allowed = max(COMPUTE_FRACTION * compute, COMPUTE_BYTES) if kind != "f16" else EXACT_COMPUTE_BYTES
        assert abs(compute_bytes(shape, cells, slots) - compute) <= allowed, (cells, slots, kind)
        if not shape.is_encoder:
            assert said["output_mib"] == [mib(output_bytes(shape, slots))]


def test_the_dry_run_computes_as_many_tokens_at_once_as_the_planner_assumes() -> None:
    assert f"MICRO_BATCH = {MICRO_BATCH}\n" in DRY_RUN.read_text()


def test_there_are_real_models_of_every_kind() -> None:
    models = {name: REAL_MODELS[name].build() for name in REAL_MODELS}
    assert len(models) >= 20
    assert {model.architecture for model in models.values()} >= {
        "bert", "deepseek2", "gemma-embedding", "gemma3", "gemma4", "gpt-oss", "lfm2", "lfm2moe", "llama",
        "nemotron_h_moe", "nomic-bert", "phi3", "qwen2vl", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "qwen3vl",
    }  # fmt: skip


@pytest.mark.parametrize("name", [name for name, model in REAL_MODELS.items() if model.file_bytes])
def test_the_tensor_table_is_as_large_as_the_published_file(name: str) -> None:
    model, published = REAL_MODELS[name].build(), REAL_MODELS[name].file_bytes
    unsure = PUBLISHED_FRACTION * published
    others = published - model.tensor_bytes
    assert -unsure <= others <= model.vocabulary_size * BYTES_PER_TOKEN + unsure


def test_a_sparse_file_is_gigabytes_that_are_not_there(tmp_path: Path) -> None:
    model = REAL_MODELS["qwen3-coder-30b-a3b"].build()
    path = tmp_path / "sparse.gguf"
    write(path, model)
    status = path.stat()
    assert status.st_size > model.tensor_bytes > 30_000_000_000
    assert status.st_blocks * 512 < 4_000_000
    assert read_shape(path).tensor_bytes == model.tensor_bytes


@pytest.mark.parametrize("name", EVERY_DAY)
def test_bytes_are_those_of_llama(name: str, tmp_path: Path) -> None:
    compare(dry_run(name, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(REAL_MODELS) - set(EVERY_DAY)))
def test_bytes_are_those_of_llama_for_every_other_model(name: str, tmp_path: Path) -> None:
    compare(dry_run(name, tmp_path))


def test_a_plan_holds_exactly_the_tensors_the_cache_and_the_buffers(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", REAL_MODELS["smollm2-360m"].build())
    shape = read_shape(tmp_path / "model.gguf")
    spec = ModelSpec(ModelId("m"), Modality.TEXT, EngineKind.LLAMA, "model.gguf", slots=4)
    planned = plan(spec, shape, 4096, Free(2**40, (), device_layers=False))
    assert isinstance(planned, Plan)
    footprint = planned.footprint
    assert footprint.file_pages == shape.tensor_bytes
    assert footprint.kv == kv_bytes(shape, KvType.F16, 4096, 4)
    assert footprint.workspace == compute_bytes(shape, 4096, 4) + output_bytes(shape, 4)


@pytest.mark.parametrize("name", ["gemma3-270m", "smollm2-360m"])
def test_guesses_take_room_for_their_logits(name: str, tmp_path: Path) -> None:
    """One model of 262,144 tokens, one of 49,152."""
    path = tmp_path / "model.gguf"
    write(path, REAL_MODELS[name].build())
    shape = read_shape(path)
    rows = output_rows(4, Drafts.NGRAM)
    command = [sys.executable, str(DRY_RUN), str(path), "0", f"4096,4,f16,{MICRO_BATCH},{rows}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    compute = float(json.loads(done.stdout)["contexts"][0]["compute_mib"][0]) * MIB
    # Many logits go where the masks were, which the planner keeps to the end.
    assert 0 <= compute_bytes(shape, 4096, 4, rows) - compute + EXACT_COMPUTE_BYTES <= 2 * EXACT_COMPUTE_BYTES + 8 * MIB
    spec = ModelSpec(ModelId("m"), Modality.TEXT, EngineKind.LLAMA, "model.gguf", slots=4, draft=Drafts.NGRAM)
    planned = plan(spec, shape, 4096, Free(2**40, (), device_layers=False))
    assert isinstance(planned, Plan)
    assert planned.footprint.workspace == compute_bytes(shape, 4096, 4, rows) + output_bytes(shape, 4, rows)
    assert output_bytes(shape, 4, rows) == rows * shape.vocabulary_size * 4


def test_a_model_that_cannot_guess_needs_no_room_for_it(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", REAL_MODELS["lfm2.5-350m"].build())
    shape = read_shape(tmp_path / "model.gguf")
    free = Free(2**40, (), device_layers=False)
    specs = [ModelSpec(ModelId("m"), Modality.TEXT, EngineKind.LLAMA, "model.gguf", draft=draft) for draft in Drafts]
    assert plan(specs[0], shape, 4096, free) == plan(specs[1], shape, 4096, free)


def test_what_lies_outside_the_layers_is_told_apart(tmp_path: Path) -> None:
    write(tmp_path / "tied.gguf", REAL_MODELS["qwen3-4b"].build())
    write(tmp_path / "own-head.gguf", REAL_MODELS["voxtral-3b"].build())
    tied, own = read_shape(tmp_path / "tied.gguf"), read_shape(tmp_path / "own-head.gguf")
    assert tied.input_bytes == tied.tied_head_bytes == 151_936 * 2560 // 256 * 210
    assert tied.non_layer_bytes - tied.input_bytes == 2560 * 4
    assert (own.input_bytes, own.tied_head_bytes) == (131_072 * 3072 // 256 * 144, 0)
    assert own.non_layer_bytes - own.input_bytes == 131_072 * 3072 // 256 * 210 + 3072 * 4
    assert own.repackable_head_bytes == 0  # q6_K stays as it is
    assert 0 < sum(layer.repackable_bytes for layer in own.layers) < own.tensor_bytes


def test_a_projectors_tensors_are_read_with_the_model(tmp_path: Path) -> None:
    projector = SparseModel("projector", "clip", "f16", 6, {})
    projector.add("v.blk.0.attn_q.weight", 1152, 1152)
    write(tmp_path / "projector.gguf", projector)
    write(tmp_path / "model.gguf", REAL_MODELS["smollm2-360m"].build())
    shape = read_shape(tmp_path / "model.gguf", tmp_path / "projector.gguf")
    assert shape.projector_bytes == projector.tensor_bytes == 1152 * 1152 * 2
    assert read_shape(tmp_path / "model.gguf").projector_bytes == 0
