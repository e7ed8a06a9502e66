"""The placement ladder: each rung, the line between two rungs, and what a refusal says."""

from dataclasses import replace

import pytest

from hypnos_engine.domain.kinds import EngineKind, KvType, LoadMode, MoeOffload
from hypnos_engine.domain.model import LayerShape, ModelShape, ModelSpec
from hypnos_engine.scheduler.corrections import Correction
from hypnos_engine.scheduler.footprint import WORKER_BYTES, input_bytes, mask_bytes, worker_bytes
from hypnos_engine.scheduler.placement import (
    DEFAULT_CONTEXT,
    DEVICE_CONTEXT_BYTES,
    Free,
    Plan,
    Shortage,
    context_cells,
    kv_bytes,
    plan,
    workspace_bytes,
)
from tests.scheduler.world import spec as made_up_spec

MIB = 2**20
GIB = 2**30
LAYERS = 10
WEIGHTS, EXPERTS, HEAD, TABLE = 100 * MIB, 400 * MIB, 50 * MIB, 150 * MIB
CELLS = 1024
PLENTY = 2**40

DENSE_LAYER = LayerShape(WEIGHTS, 0, 1024, 1024, 0, 0)
EXPERT_LAYER = replace(DENSE_LAYER, expert_bytes=EXPERTS)


def shape(layer: LayerShape = DENSE_LAYER, **changes: object) -> ModelShape:
    layers = (layer,) * LAYERS
    sizes: dict[str, object] = {
        "architecture": "llama",
        "name": "made up",
        "file_bytes": 0,
        "tensor_bytes": sum(one.weight_bytes + one.expert_bytes for one in layers) + HEAD + TABLE,
        "layers": layers,
        "non_layer_bytes": HEAD + TABLE,
        "input_bytes": TABLE,
        "context_train": 4096,
        "embedding_length": 64,
        "vocabulary_size": 1000,
        "expert_count": 8,
        "expert_used_count": 2,
        "has_chat_template": True,
        "is_encoder": False,
        **changes,
    }
    return ModelShape(**sizes)  # type: ignore[arg-type]  # the keys are the field names


def spec(**changes: object) -> ModelSpec:
    return made_up_spec("m", **changes)


def discrete(device_bytes: int, host_bytes: int = PLENTY) -> Free:
    return Free(host_bytes, (device_bytes,), device_layers=True)


def placed(answer: Plan | Shortage) -> Plan:
    assert isinstance(answer, Plan), answer
    return answer


DENSE, MIXTURE = shape(), shape(EXPERT_LAYER)


def device_peak(model: ModelShape, **changes: object) -> int:
    return placed(plan(spec(**changes), model, CELLS, discrete(PLENTY))).device_peak_bytes


# --- the rungs --------------------------------------------------------------------------------------------------------


def test_without_a_shape_only_the_worker_counts() -> None:
    answer = placed(plan(spec(), None, CELLS, Free(WORKER_BYTES, (), device_layers=False)))
    assert answer.footprint.anonymous == answer.footprint.peak == WORKER_BYTES
    assert answer.placement.allocated_context_len == CELLS


def test_the_demonstration_engine_loads_no_weights() -> None:
    answer = placed(plan(spec(engine=EngineKind.FAKE), DENSE, CELLS, discrete(0)))
    assert answer.footprint.total == WORKER_BYTES


def test_a_model_that_fits_goes_to_the_device_whole() -> None:
    answer = placed(plan(spec(), DENSE, CELLS, discrete(PLENTY)))
    weights = LAYERS * WEIGHTS + HEAD
    kv, footprint = kv_bytes(DENSE, KvType.F16, CELLS, 2), answer.footprint
    assert answer.placement.gpu_layers == LAYERS
    assert answer.placement.vram_weight_bytes == weights
    assert footprint.device > weights + kv
    assert footprint.device_context == DEVICE_CONTEXT_BYTES
    assert answer.device_peak_bytes == footprint.device + DEVICE_CONTEXT_BYTES
    assert (footprint.file_pages, footprint.kv, footprint.repacked) == (TABLE, 0, 0)
    assert footprint.workspace == input_bytes(DENSE, CELLS, 2)
    assert answer.host_peak_bytes == TABLE + worker_bytes(DENSE) + footprint.workspace


def test_one_byte_less_takes_a_layer_off_the_device() -> None:
    needed = device_peak(DENSE)
    assert placed(plan(spec(), DENSE, CELLS, discrete(needed))).placement.gpu_layers == LAYERS
    split = placed(plan(spec(), DENSE, CELLS, discrete(needed - 1)))
    assert split.placement.gpu_layers == LAYERS - 1
    assert split.placement.pinned_ram_layers == 1
    assert split.placement.pinned_ram_bytes == split.footprint.file_pages == WEIGHTS + TABLE
    assert split.footprint.kv == kv_bytes(DENSE, KvType.F16, CELLS, 2) // LAYERS


def test_a_tied_head_is_on_both_sides() -> None:
    tied = shape(non_layer_bytes=TABLE, input_bytes=TABLE, tied_head_bytes=TABLE, tensor_bytes=LAYERS * WEIGHTS + TABLE)
    answer = placed(plan(spec(), tied, CELLS, discrete(PLENTY)))
    assert answer.placement.vram_weight_bytes == LAYERS * WEIGHTS + TABLE
    assert answer.footprint.file_pages == TABLE
    on_host = placed(plan(spec(), tied, CELLS, discrete(0)))
    assert on_host.footprint.file_pages == tied.tensor_bytes


@pytest.mark.parametrize("layers", [1, 4, LAYERS])
def test_experts_of_as_few_layers_as_needed_leave_first(layers: int) -> None:
    whole = device_peak(MIXTURE)
    # Whatever is computed by the processor needs no other buffer on the device.
    free = whole - (layers - 1) * EXPERTS - 1
    answer = placed(plan(spec(moe_offload=MoeOffload.AUTO), MIXTURE, CELLS, discrete(free)))
    assert answer.placement.cpu_expert_layers == layers
    assert answer.placement.gpu_layers == LAYERS
    assert answer.footprint.device == whole - DEVICE_CONTEXT_BYTES - layers * EXPERTS
    assert answer.footprint.file_pages == TABLE + layers * EXPERTS
    assert answer.footprint.workspace == workspace_bytes(MIXTURE, CELLS, 2)


def test_experts_stay_when_all_fits_or_the_settings_forbid() -> None:
    whole = device_peak(MIXTURE)
    assert placed(plan(spec(moe_offload=MoeOffload.AUTO), MIXTURE, CELLS, discrete(whole))).placement == (
        placed(plan(spec(moe_offload=MoeOffload.OFF), MIXTURE, CELLS, discrete(whole))).placement
    )
    off = placed(plan(spec(moe_offload=MoeOffload.OFF), MIXTURE, CELLS, discrete(whole - 1)))
    assert (off.placement.cpu_expert_layers, off.placement.gpu_layers) == (0, LAYERS - 1)


def test_experts_can_be_kept_off_the_device_although_they_fit() -> None:
    answer = placed(plan(spec(moe_offload=MoeOffload.ON), MIXTURE, CELLS, discrete(PLENTY)))
    assert answer.placement.cpu_expert_layers == LAYERS
    assert answer.placement.vram_weight_bytes == LAYERS * WEIGHTS + HEAD


def test_layers_leave_when_the_experts_were_not_enough() -> None:
    without = device_peak(MIXTURE, moe_offload=MoeOffload.ON)
    for offload in (MoeOffload.ON, MoeOffload.AUTO):
        answer = placed(plan(spec(moe_offload=offload), MIXTURE, CELLS, discrete(without - 1)))
        assert (answer.placement.gpu_layers, answer.placement.cpu_expert_layers) == (LAYERS - 1, LAYERS)


def test_dense_models_have_no_experts_to_offload() -> None:
    answer = placed(plan(spec(moe_offload=MoeOffload.ON), DENSE, CELLS, discrete(PLENTY)))
    assert (answer.placement.cpu_expert_layers, answer.placement.gpu_layers) == (0, LAYERS)


@pytest.mark.parametrize(("ratio", "least"), [(0.05, 1), (0.7, 7), (0.5, 5), (0.51, 6), (1.0, LAYERS)])
def test_the_share_of_the_device_has_a_lower_bound(ratio: float, least: int) -> None:
    whole = device_peak(DENSE)
    layer = WEIGHTS + kv_bytes(DENSE, KvType.F16, CELLS, 2) // LAYERS
    fits = whole - (LAYERS - least) * layer
    answer = placed(plan(spec(min_gpu_layer_ratio=ratio), DENSE, CELLS, discrete(fits)))
    assert answer.placement.gpu_layers == least
    refused = plan(spec(min_gpu_layer_ratio=ratio), DENSE, CELLS, discrete(fits - 1))
    assert refused == Shortage(fits, fits - 1)


def test_without_a_lower_bound_the_processor_does_it_all() -> None:
    answer = placed(plan(spec(), DENSE, CELLS, discrete(0)))
    assert answer.footprint.device == answer.footprint.device_context == 0
    assert answer.footprint.file_pages == DENSE.tensor_bytes
    assert (answer.placement.gpu_layers, answer.placement.pinned_ram_layers) == (0, LAYERS)
    assert (answer.placement.vram_weight_bytes, answer.placement.pinned_ram_bytes) == (0, DENSE.tensor_bytes)


def test_a_refusal_names_the_memory_that_is_missing() -> None:
    on_host = placed(plan(spec(), DENSE, CELLS, discrete(0))).host_peak_bytes
    assert plan(spec(), DENSE, CELLS, discrete(0, on_host - 1)) == Shortage(on_host, on_host - 1)
    only_host = Free(on_host - 1, (), device_layers=False)
    assert plan(spec(), DENSE, CELLS, only_host) == Shortage(on_host, on_host - 1)


def test_the_host_needs_room_for_what_the_device_does_not_hold() -> None:
    host = placed(plan(spec(min_gpu_layer_ratio=1.0), DENSE, CELLS, discrete(PLENTY))).host_peak_bytes
    refused = plan(spec(min_gpu_layer_ratio=1.0), DENSE, CELLS, discrete(PLENTY, host - 1))
    assert refused == Shortage(host, host - 1)


# --- one pool ---------------------------------------------------------------------------------------------------------


def test_on_one_pool_both_sides_are_added_up() -> None:
    whole = placed(plan(spec(), DENSE, CELLS, Free(PLENTY, (), device_layers=True)))
    assert whole.footprint.device_context == 0
    both = whole.device_peak_bytes + whole.host_peak_bytes
    pool = Free(both - 1, (), device_layers=True)
    assert isinstance(plan(spec(min_gpu_layer_ratio=0.1), DENSE, CELLS, pool), Shortage)
    assert plan(spec(min_gpu_layer_ratio=0.1), DENSE, CELLS, pool) == Shortage(both, both - 1)
    exact = placed(plan(spec(), DENSE, CELLS, replace(pool, host_bytes=both)))
    assert exact.placement.gpu_layers == LAYERS
    assert exact.placement.vram_weight_bytes == DENSE.tensor_bytes


def test_on_one_pool_offloading_experts_would_free_nothing() -> None:
    pool = Free(PLENTY, (), device_layers=True)
    answer = placed(plan(spec(moe_offload=MoeOffload.ON), MIXTURE, CELLS, pool))
    assert answer.placement.cpu_expert_layers == 0


# --- lines ------------------------------------------------------------------------------------------------------------


def test_only_a_processor_repacks() -> None:
    layer = replace(EXPERT_LAYER, repackable_bytes=60 * MIB, repackable_expert_bytes=300 * MIB)
    model = shape(layer, repackable_head_bytes=7 * MIB)
    processor = Free(PLENTY, (), device_layers=False)
    assert placed(plan(spec(), model, CELLS, processor)).footprint.repacked == LAYERS * 360 * MIB + 7 * MIB
    assert placed(plan(spec(), model, CELLS, discrete(0))).footprint.repacked == 0


def test_weights_that_are_read_are_private_and_exist_once() -> None:
    model = shape(replace(DENSE_LAYER, repackable_bytes=60 * MIB))
    processor = Free(PLENTY, (), device_layers=False)
    mapped = placed(plan(spec(load_mode=LoadMode.MMAP), model, CELLS, processor)).footprint
    read = placed(plan(spec(load_mode=LoadMode.READ), model, CELLS, processor)).footprint
    assert (mapped.file_pages, mapped.anonymous) == (model.tensor_bytes, worker_bytes(model))
    assert (read.file_pages, read.repacked) == (0, mapped.repacked)
    assert read.anonymous == worker_bytes(model) + model.tensor_bytes - read.repacked


def test_the_projector_goes_where_the_layers_go() -> None:
    model = shape(projector_bytes=3 * MIB)
    assert device_peak(model) == device_peak(DENSE) + 3 * MIB
    assert placed(plan(spec(), model, CELLS, discrete(0))).footprint.projector == 3 * MIB


def test_a_correction_moves_the_line_between_two_rungs() -> None:
    needed = device_peak(DENSE)
    grown = Correction(host_bytes=5 * MIB, device_bytes=1)
    answer = placed(plan(spec(), DENSE, CELLS, discrete(needed), grown))
    assert answer.placement.gpu_layers == LAYERS - 1
    assert answer.footprint.anonymous == worker_bytes(DENSE) + 5 * MIB
    shrunk = placed(plan(spec(), DENSE, CELLS, discrete(needed - 1), Correction(0, -1)))
    assert shrunk.placement.gpu_layers == LAYERS


def test_windows_and_states_do_not_grow_with_the_context() -> None:
    window = shape(replace(DENSE_LAYER, sliding_window=128))
    assert kv_bytes(window, KvType.F16, 65_536, 2) == kv_bytes(window, KvType.F16, 1024, 2)
    assert mask_bytes(window, 65_536, 2) == 512 * 768 * 2
    recurrent = shape(LayerShape(WEIGHTS, 0, 0, 0, 0, 1000))
    assert kv_bytes(recurrent, KvType.F16, 65_536, 3) == 3 * LAYERS * 1000
    assert mask_bytes(recurrent, 65_536, 3) == 0
    assert mask_bytes(shape(is_encoder=True), 65_536, 3) == 512 * 512 * 2


@pytest.mark.parametrize(("kv_type", "bytes_per_32"), [(KvType.F16, 64), (KvType.Q8_0, 34), (KvType.Q4_0, 18)])
def test_a_cache_is_as_large_as_its_type(kv_type: KvType, bytes_per_32: int) -> None:
    assert kv_bytes(DENSE, kv_type, 1000, 2) == LAYERS * 1024 * 2048 * bytes_per_32 // 32


def test_the_context_comes_from_the_settings_the_model_or_the_default() -> None:
    assert context_cells(spec(context_len=77), DENSE) == 77
    assert context_cells(spec(context_len=None), DENSE) == 4096
    assert context_cells(spec(context_len=None), shape(context_train=2**20)) == DEFAULT_CONTEXT
    assert context_cells(spec(context_len=None), shape(context_train=0)) == DEFAULT_CONTEXT
    assert context_cells(spec(context_len=None), None) == DEFAULT_CONTEXT


def test_a_file_without_layers_is_all_head() -> None:
    parts = shape(layers=(), tensor_bytes=HEAD, non_layer_bytes=HEAD, input_bytes=0)
    assert placed(plan(spec(), parts, CELLS, discrete(PLENTY))).placement.vram_weight_bytes == HEAD
    assert placed(plan(spec(), parts, CELLS, discrete(0))).footprint.file_pages == HEAD
