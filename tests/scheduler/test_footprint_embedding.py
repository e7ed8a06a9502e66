"""The planner's bytes for models that make vectors, against llama.cpp's dry run and against real workers."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hypnos_engine.domain.embedding import DECODER_TOKENS_AT_ONCE, TEXTS_AT_ONCE, micro_batch, window
from hypnos_engine.domain.kinds import EngineKind, KvType, Modality
from hypnos_engine.domain.memory import Footprint
from hypnos_engine.domain.model import ModelId, ModelShape, ModelSpec
from hypnos_engine.gguf import read_shape
from hypnos_engine.ipc import messages as m
from hypnos_engine.scheduler.corrections import Correction, corrected
from hypnos_engine.scheduler.footprint import compute_bytes, embedding_step, kv_bytes, layer_kv_bytes, output_bytes
from hypnos_engine.scheduler.placement import DEFAULT_WHOLE_TEXT, Free, Plan, context_cells, plan
from hypnos_engine.testing.real_models import REAL_MODELS
from hypnos_engine.testing.sparse_gguf import write
from hypnos_engine.testing.tiny_embedders import EMBEDDERS
from tests.workers.driver import Worker

MIB = 2**20
DRY_RUN = Path(__file__).with_name("dry_run.py")
FRACTION, BYTES = 0.03, 8 * MIB
WINDOWS: Mapping[str, tuple[int, ...]] = {
    "all-minilm-l6-v2": (256, 512),
    "bge-m3": (512, 2048, 8192),
    "embeddinggemma-300m": (512, 2048),
    "modernbert-base": (512, 2048, 8192),
    "nomic-embed-text-v1.5": (512, 2048),
    "qwen3-embedding-0.6b": (256, 8192, 32_768),
    "smollm2-360m": (512, 2048),
}
EVERY_DAY = ("embeddinggemma-300m", "qwen3-embedding-0.6b")
PROCESSOR = Free(2**44, (), device_layers=False)


def spec(cells: int | None = None) -> ModelSpec:
    return ModelSpec(ModelId("m"), Modality.EMBEDDINGS, EngineKind.LLAMA, "model.gguf", context_len=cells)


def planned(shape: ModelShape, cells: int) -> Footprint:
    answer = plan(spec(cells), shape, cells, PROCESSOR)
    assert isinstance(answer, Plan)
    return answer.footprint


def dry_run(path: Path, shape: ModelShape, cells: tuple[int, ...]) -> list[dict[str, Any]]:
    wishes = [f"{n},{TEXTS_AT_ONCE},f16,{micro_batch(n, in_parts=shape.embeds_in_parts)}" for n in cells]
    command = [sys.executable, str(DRY_RUN), str(path), "1", *wishes]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    contexts: list[dict[str, Any]] = json.loads(done.stdout)["contexts"]
    return contexts


@pytest.mark.parametrize("name", EVERY_DAY)
def test_buffers_are_those_of_llama(name: str, tmp_path: Path) -> None:
    compare(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(WINDOWS) - set(EVERY_DAY)))
def test_buffers_are_those_of_llama_for_every_other_model(name: str, tmp_path: Path) -> None:
    compare(name, tmp_path)


def compare(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(path, REAL_MODELS[name].build())
    shape = read_shape(path)
    for cells, said in zip(WINDOWS[name], dry_run(path, shape, WINDOWS[name]), strict=True):
        step = embedding_step(shape, cells)
        compute = float(said["compute_mib"][0]) * MIB
        allowed = max(FRACTION * compute, BYTES)
        assert abs(compute_bytes(shape, cells, TEXTS_AT_ONCE, step=step) - compute) <= allowed, cells
        cached = sum(float(cache[0]) for cache in said["caches"]) * MIB
        kept = sum(layer_kv_bytes(layer, KvType.F16, cells, TEXTS_AT_ONCE, step) for layer in shape.layers)
        assert kept == pytest.approx(cached, abs=0.02 * MIB)
        assert planned(shape, cells).kv == kept
        # At its start the library has a row for each sequence; the largest batch needs one for each token.
        first = TEXTS_AT_ONCE * (shape.vocabulary_size + shape.embedding_length) * 4
        assert float(said["output_mib"][0]) * MIB == pytest.approx(first, abs=0.02 * MIB)
        assert output_bytes(shape, TEXTS_AT_ONCE, step=step) == first // TEXTS_AT_ONCE * max(TEXTS_AT_ONCE, step.tokens)


def test_an_encoders_empty_rows_count_while_it_loads_only(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", REAL_MODELS["embeddinggemma-300m"].build())
    shape = read_shape(tmp_path / "model.gguf")
    footprint = planned(shape, 2048)
    rows = 2048 * (262_144 + 768) * 4
    assert footprint.peak - footprint.total == rows
    assert footprint.workspace < 64 * MIB
    kept = corrected(footprint, Correction(host_bytes=5 * MIB))
    assert kept.peak - kept.total == rows
    on_device = plan(spec(2048), shape, 2048, Free(2**44, (2**40,), device_layers=True))
    assert isinstance(on_device, Plan)
    assert on_device.footprint.workspace > rows  # pinned for the device, and never given back


def test_a_decoder_keeps_the_rows_of_a_batch(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", REAL_MODELS["qwen3-embedding-0.6b"].build())
    shape = read_shape(tmp_path / "model.gguf")
    footprint = planned(shape, 8192)
    rows = DECODER_TOKENS_AT_ONCE * 151_669 * 4
    assert footprint.peak == footprint.total
    assert 2 * rows < footprint.workspace < 2 * rows + 16 * MIB
    assert footprint.kv == kv_bytes(shape, KvType.F16, 8192, 1)


def test_texts_are_as_long_as_the_model_was_made_for(tmp_path: Path) -> None:
    for name, cells in {
        "all-minilm-l6-v2": 512,
        "embeddinggemma-300m": 2048,
        "bge-m3": DEFAULT_WHOLE_TEXT,
        "qwen3-embedding-0.6b": 8192,
        "smollm2-360m": DEFAULT_WHOLE_TEXT,
    }.items():
        write(tmp_path / "model.gguf", REAL_MODELS[name].build())
        shape = read_shape(tmp_path / "model.gguf")
        assert context_cells(spec(), shape) == cells
        assert context_cells(spec(77), shape) == 77
    write(tmp_path / "model.gguf", REAL_MODELS["all-minilm-l6-v2"].build())
    shape = read_shape(tmp_path / "model.gguf")
    assert planned(shape, 100_000) == planned(shape, 512)
    assert (window(100_000, 512), window(100, 512), window(100, 0)) == (512, 100, 100)


@pytest.mark.parametrize("kind", EMBEDDERS)
def test_a_worker_reports_the_buffers_that_were_planned(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    EMBEDDERS[kind](path)
    shape = read_shape(path)
    assert shape.embeds_in_parts == (kind == "decoder")
    with Worker("llama") as worker:
        report = worker.load(path, embeddings=True, context_len=4096).memory
    footprint = planned(shape, 4096)
    assert report.weights_bytes == footprint.file_pages == shape.tensor_bytes
    assert report.kv_bytes == pytest.approx(footprint.kv, abs=0.02 * MIB)
    assert report.workspace_bytes == pytest.approx(footprint.workspace, abs=MIB)


def highest_bytes(pid: int) -> int:
    """Most memory that a process has had in use at once."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no way to give these pages back")
def test_a_real_encoder_takes_what_was_planned(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(path, REAL_MODELS["embeddinggemma-300m"].build())
    shape = read_shape(path)
    footprint = planned(shape, 512)
    with Worker("llama") as worker:
        report = worker.load(path, embeddings=True, context_len=512).memory
        texts = ("a b ab " * 60,) * 2
        worker.send(m.Embed(1, texts))
        assert len(worker.next_of(m.Embedded).prompt_tokens) == len(texts)
        highest = highest_bytes(worker.process.pid)
    private = footprint.anonymous + footprint.workspace
    assert report.anonymous_bytes <= private + BYTES
    assert footprint.total < highest < footprint.peak + BYTES
    assert footprint.peak - footprint.total > 500 * MIB
