"""What holds for every model on every machine: more never needs less, and no byte is counted twice or overdrawn."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.domain.kinds import KvType, LoadMode, MoeOffload
from hypnos_engine.domain.model import GraphShape, LayerShape, ModelShape, ModelSpec
from hypnos_engine.scheduler.corrections import Correction
from hypnos_engine.scheduler.footprint import Parts, Split
from hypnos_engine.scheduler.placement import Free, Plan, Shortage, plan
from tests.scheduler.world import spec as made_up_spec

GIB = 2**30
sizes = st.integers(0, 2 * GIB)
cells = st.integers(1, 200_000)

layers = st.builds(
    LayerShape,
    weight_bytes=sizes,
    expert_bytes=st.one_of(st.just(0), sizes),
    k_elements_per_cell=st.integers(0, 64).map(lambda rows: 32 * rows),
    v_elements_per_cell=st.integers(0, 64).map(lambda rows: 32 * rows),
    sliding_window=st.sampled_from([0, 0, 128, 1024]),
    recurrent_state_bytes=st.sampled_from([0, 0, 40_000, 2_000_000]),
)


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    blocks = draw(st.lists(layers, max_size=8))
    blocks = [
        replace(block, repackable_bytes=block.weight_bytes // 2, repackable_expert_bytes=block.expert_bytes // 3)
        for block in blocks
    ]
    table, head = draw(sizes), draw(st.one_of(st.just(0), sizes))
    width = draw(st.integers(1, 4096))
    graph = None
    if draw(st.booleans()):
        weights = {
            "attn_q": (width, width), "attn_k": (width, 64), "attn_v": (width, 64), "attn_output": (width, width),
            "ffn_gate": (width, 2 * width), "ffn_up": (width, 2 * width), "ffn_down": (2 * width, width),
        }  # fmt: skip
        count = len(blocks)
        graph = GraphShape("llama", (weights,) * count, (True,) * count, (0,) * count, width, width, 0, 1000, 0, 0)
    return ModelShape(
        architecture="llama",
        name="any",
        file_bytes=0,
        tensor_bytes=sum(block.weight_bytes + block.expert_bytes for block in blocks) + table + head,
        layers=tuple(blocks),
        non_layer_bytes=table + head,
        context_train=8192,
        embedding_length=width,
        vocabulary_size=draw(st.integers(0, 300_000)),
        expert_count=8,
        expert_used_count=2,
        has_chat_template=True,
        is_encoder=False,
        input_bytes=table,
        tied_head_bytes=0 if head else table,
        projector_bytes=draw(st.sampled_from([0, 100_000_000])),
        graph=graph,
    )


specs = st.builds(
    lambda **settings: made_up_spec("m", **settings),
    slots=st.integers(1, 16),
    kv_type=st.sampled_from(KvType),
    moe_offload=st.sampled_from(MoeOffload),
    load_mode=st.sampled_from(LoadMode),
    min_gpu_layer_ratio=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
)
machines = st.builds(
    Free,
    host_bytes=st.integers(0, 24 * GIB),
    device_bytes=st.lists(st.integers(0, 24 * GIB), max_size=3).map(tuple),
    device_layers=st.booleans(),
    held_pages_bytes=st.sampled_from([0, 0, GIB]),
)


def parts_of(spec: ModelSpec, shape: ModelShape, wanted: int) -> Parts:
    return Parts(shape, spec.kv_type, spec.load_mode, spec.slots, wanted)


errors = st.builds(Correction, st.integers(-GIB, GIB), st.integers(-GIB, GIB))


@given(spec=specs, shape=shapes(), wanted=cells, free=machines, error=errors)
def test_a_plan_never_exceeds_what_is_free_and_a_refusal_always_does(
    spec: ModelSpec, shape: ModelShape, wanted: int, free: Free, error: Correction
) -> None:
    answer = plan(spec, shape, wanted, free, error)
    if isinstance(answer, Shortage):
        assert answer.needed_bytes > answer.free_bytes
        return
    footprint = answer.footprint
    shared = min(free.held_pages_bytes, answer.mapped_bytes)  # on one pool the accelerator's weights are among them
    assert min(footprint.file_pages, footprint.anonymous, footprint.device, footprint.kv, footprint.workspace) >= 0
    assert footprint.peak >= footprint.total == answer.host_peak_bytes + answer.device_peak_bytes
    if free.unified or not free.device_layers:
        assert footprint.peak - shared <= free.host_bytes
    else:
        assert answer.host_peak_bytes - shared <= free.host_bytes
        assert all(share <= device for share, device in zip(answer.device_shares, free.device_bytes, strict=False))
        assert sum(answer.device_shares) == answer.device_peak_bytes
        assert sum(answer.device_layers) == (answer.placement.gpu_layers if answer.devices else 0)


@given(spec=specs, shape=shapes(), wanted=cells, free=machines, more=st.tuples(sizes, sizes))
def test_more_free_memory_never_refuses_what_less_allowed(
    spec: ModelSpec, shape: ModelShape, wanted: int, free: Free, more: tuple[int, int]
) -> None:
    devices = tuple(device + more[1] for device in free.device_bytes)
    larger = replace(free, host_bytes=free.host_bytes + more[0], device_bytes=devices)
    if isinstance(plan(spec, shape, wanted, free), Plan):
        assert isinstance(plan(spec, shape, wanted, larger), Plan)


@given(spec=specs, shape=shapes(), wanted=st.tuples(cells, cells))
def test_more_cells_never_need_fewer_bytes(spec: ModelSpec, shape: ModelShape, wanted: tuple[int, int]) -> None:
    fewer, more = (parts_of(spec, shape, count) for count in sorted(wanted))
    assert fewer.on_host(repacks=True).peak <= more.on_host(repacks=True).peak
    for count in range(len(shape.layers) + 1):
        split = Split(count)
        small, large = fewer.divided(split, context_bytes=0), more.divided(split, context_bytes=0)
        assert small.device <= large.device
        assert small.peak - small.device <= large.peak - large.device


@given(spec=specs, shape=shapes(), wanted=cells, offloaded=st.integers(0, 8))
def test_more_layers_on_the_device_never_lower_its_bytes(
    spec: ModelSpec, shape: ModelShape, wanted: int, offloaded: int
) -> None:
    count, parts = len(shape.layers), parts_of(spec, shape, wanted)
    experts = min(offloaded, count)
    device = [parts.divided(Split(layers, experts), context_bytes=0).device for layers in range(count + 1)]
    assert device == sorted(device)
    by_experts = [parts.divided(Split(count, layers), context_bytes=0).device for layers in range(count + 1)]
    assert by_experts == sorted(by_experts, reverse=True)


@given(spec=specs, shape=shapes(), wanted=cells, layers=st.integers(0, 8), offloaded=st.integers(0, 8))
def test_every_weight_is_counted_once(
    spec: ModelSpec, shape: ModelShape, wanted: int, layers: int, offloaded: int
) -> None:
    count = len(shape.layers)
    split = Split(min(layers, count), min(offloaded, count))
    mapped, parts = replace(spec, load_mode=LoadMode.MMAP), parts_of(spec, shape, wanted)
    on_device = parts.device_weight_bytes(split)
    footprint = parts_of(mapped, shape, wanted).divided(split, context_bytes=0)
    assert footprint.file_pages + on_device == shape.tensor_bytes + shape.tied_head_bytes
    last = shape.layers[count - split.gpu_layers :]
    experts = sum(
        layer.expert_bytes
        for index, layer in enumerate(shape.layers)
        if count - split.gpu_layers <= index < count - split.cpu_expert_layers
    )
    assert on_device == sum(layer.weight_bytes for layer in last) + experts + parts.head_bytes


@given(spec=specs, shape=shapes(), wanted=cells, free=machines)
def test_one_pool_needs_the_sum_of_both_sides(spec: ModelSpec, shape: ModelShape, wanted: int, free: Free) -> None:
    strict = replace(spec, min_gpu_layer_ratio=1.0)
    pool = replace(free, device_bytes=(), device_layers=True, held_pages_bytes=0)
    whole = parts_of(strict, shape, wanted).divided(Split(len(shape.layers)), context_bytes=0)
    answer = plan(strict, shape, wanted, pool)
    assert isinstance(answer, Plan) == (whole.peak <= pool.host_bytes)
    if isinstance(answer, Shortage):
        assert answer == Shortage(whole.peak, pool.host_bytes)


@given(spec=specs, shape=shapes(), wanted=cells, free=machines)
def test_the_same_question_has_the_same_answer(spec: ModelSpec, shape: ModelShape, wanted: int, free: Free) -> None:
    assert plan(spec, shape, wanted, free) == plan(spec, shape, wanted, free)
