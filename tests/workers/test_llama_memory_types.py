"""How weights and cache are held: cache types, ways to load, layers for an accelerator, experts in host memory."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from hypnos_engine.gguf import read_shape
from hypnos_engine.ipc import messages as m
from hypnos_engine.testing import tiny_gguf
from hypnos_engine.testing.tiny_gguf import Geometry
from tests.workers.driver import Worker, chat
from tests.workers.memory_kinds import KINDS, KV_TYPE, write_all

BYTES_OF_32 = {"f16": 64, "q8_0": 34, "q4_0": 18}
"""Of 32 numbers in the cache."""
QUESTION = "What is the capital of France, and why is it not another town?"


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_all(tmp_path_factory.mktemp("kinds"))


def _loaded(path: Path, **options: object) -> tuple[m.Loaded, str]:
    """What the worker says of the load, and an answer."""
    with Worker("llama") as worker:
        settings: dict[str, object] = {"context_len": 512, "slots": 2, "threads": 1, "kv_type": KV_TYPE, **options}
        loaded = worker.load(path, **settings)
        reply = worker.ask(chat(1, QUESTION, max_tokens=12))
        assert reply.end.prompt_tokens > len(QUESTION) / 2
        return loaded, reply.text


@pytest.mark.parametrize(("kind", "kv_type"), [*((kind, "q4_0") for kind in KINDS), ("full", "q8_0"), ("full", "f16")])
def test_every_kind_of_memory_takes_every_type_of_cache(kinds: Mapping[str, Path], kind: str, kv_type: str) -> None:
    """A quantised V is possible with flash attention alone, which the library chooses by itself."""
    loaded, _ = _loaded(kinds[kind], kv_type=kv_type, context_len=8192)
    assert loaded.context_len == 8192
    if kind == "full":
        layers, elements = 2, 2 * 32
        expected = layers * 8192 * elements * BYTES_OF_32[kv_type] // 32
        assert loaded.memory.kv_bytes == pytest.approx(expected, abs=2**20 / 100)  # the library prints so many digits


def test_a_type_that_the_heads_do_not_allow_is_a_typed_failure(tiny: Mapping[str, Path]) -> None:
    with Worker("llama") as worker:
        worker.send(m.Load("tiny", str(tiny["mla"]), context_len=512, slots=1, kv_type="q8_0"))
        failed = worker.next_of(m.LoadFailed)
        assert failed.code == "load_failed"
        assert "(q8_0)" in failed.message
        assert "does not divide" in failed.message
        assert "another 'kv_type'" in failed.message


@pytest.mark.parametrize("kind", ["full", "hybrid", "mixture"])
def test_mapped_or_read_the_weights_are_the_same(kinds: Mapping[str, Path], kind: str) -> None:
    """§5-15."""
    answers = {mode: _loaded(kinds[kind], load_mode=mode) for mode in ("mmap", "read", "auto")}
    assert {mode: loaded.phases.load_mode for mode, (loaded, _) in answers.items()} == {
        "mmap": "mmap",
        "read": "read",
        "auto": "mmap",
    }
    assert len({text for _, text in answers.values()}) == 1


@pytest.mark.parametrize("gpu_layers", [1, 2, 100, -1])
def test_layers_for_an_accelerator_stay_where_there_is_none(kinds: Mapping[str, Path], gpu_layers: int) -> None:
    whole, text = _loaded(kinds["full"])
    loaded, same = _loaded(kinds["full"], gpu_layers=gpu_layers)
    wanted = loaded.layers if gpu_layers < 0 else min(gpu_layers, loaded.layers)
    if loaded.memory.device_bytes == 0:
        assert loaded.gpu_layers == whole.gpu_layers == 0
        assert same == text
    else:
        assert 0 < loaded.gpu_layers <= wanted


@pytest.mark.parametrize("load_mode", ["mmap", "read"])
@pytest.mark.parametrize("layers", [0, 1, 2, 5])
def test_experts_that_stay_in_host_memory_are_reported(kinds: Mapping[str, Path], layers: int, load_mode: str) -> None:
    """By the library's own word: it names every tensor whose place an override decided."""
    shape = read_shape(kinds["mixture"])
    overridden = shape.layers[max(0, len(shape.layers) - layers) :]
    plain, text = _loaded(kinds["mixture"])
    assert (plain.memory.host_expert_tensors, plain.memory.host_expert_bytes) == (0, 0)
    loaded, same = _loaded(kinds["mixture"], cpu_expert_layers=layers, gpu_layers=-1, load_mode=load_mode)
    assert loaded.memory.host_expert_tensors == 3 * len(overridden)
    assert loaded.memory.host_expert_bytes == sum(layer.expert_bytes for layer in overridden)
    assert loaded.memory.weights_bytes == plain.memory.weights_bytes
    if loaded.memory.device_bytes == 0:
        assert same == text


def test_experts_of_a_model_in_several_files_are_counted(tmp_path: Path) -> None:
    whole = tmp_path / "whole.gguf"
    geometry = Geometry(layers=3, quantised=True)
    tiny_gguf.write_moe(whole, geometry)
    tiny_gguf.write_moe(tmp_path / "parts.gguf", geometry, tensors_per_file=12)
    first = min(tmp_path.glob("parts-00001-of-*.gguf"))
    assert len(list(tmp_path.glob("parts-*.gguf"))) > 2
    reports = [_loaded(path, cpu_expert_layers=2)[0].memory for path in (whole, first)]
    assert reports[0].host_expert_tensors == reports[1].host_expert_tensors == 6
    assert reports[0].host_expert_bytes == reports[1].host_expert_bytes > 0


def test_a_model_without_experts_has_none_to_keep(kinds: Mapping[str, Path]) -> None:
    loaded, _ = _loaded(kinds["full"], cpu_expert_layers=2)
    assert (loaded.memory.host_expert_tensors, loaded.memory.host_expert_bytes) == (0, 0)
