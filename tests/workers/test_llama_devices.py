"""Which devices a load is told to use: the library's own list, its own way of dividing layers, and what is missing."""

import ctypes
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

import llama_cpp.llama_cpp as lib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.domain.errors import LoadFailed
from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.llama import devices
from tests.workers.driver import Worker, chat

HAS_ACCELERATOR = bool(lib.llama_supports_gpu_offload())


def load(*names: str, gpu_layers: int = 0, layers: tuple[int, ...] = ()) -> m.Load:
    return m.Load("smol", "a.gguf", gpu_layers=gpu_layers, devices=names, device_layers=layers)


def listed(params: lib.llama_model_params) -> list[int | None]:
    """The devices in a load's parameters, up to the NULL that ends them."""
    found = ctypes.cast(params.devices, ctypes.POINTER(ctypes.c_void_p))
    values: list[int | None] = []
    while not values or values[-1] is not None:
        values.append(found[len(values)])
    return values


def processor() -> int:
    by_name = lib._lib.ggml_backend_dev_by_name
    by_name.restype, by_name.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    return int(by_name(b"CPU"))


def test_without_a_word_about_devices_the_library_chooses() -> None:
    params = lib.llama_model_default_params()
    assert devices.choose(m.Load("smol", "a.gguf"), params) == ()
    assert params.devices is None


def test_no_device_is_an_empty_list_and_not_the_library_s_choice() -> None:
    params = lib.llama_model_default_params()
    kept = devices.choose(load(), params)
    assert kept
    assert listed(params) == [None]


def test_one_device_is_named_and_gets_everything() -> None:
    params = lib.llama_model_default_params()
    kept = devices.choose(load("CPU"), params)
    assert kept
    assert listed(params) == [processor(), None]
    assert not params.tensor_split


def test_several_devices_get_their_layers_in_order_and_the_last_one_the_head() -> None:
    params = lib.llama_model_default_params()
    kept = devices.choose(load("CPU", "CPU", layers=(20, 10)), params)
    assert kept
    assert listed(params) == [processor(), processor(), None]
    assert (params.tensor_split[0], params.tensor_split[1]) == (20.0, 11.0)
    assert all(params.tensor_split[index] == 0.0 for index in range(2, int(lib.llama_max_devices())))


def test_a_device_that_is_gone_is_named_and_the_processor_does_not_take_its_place() -> None:
    with pytest.raises(LoadFailed, match=r"CUDA7.*'smol'.*not there any more"):
        devices.choose(load("CUDA7"), lib.llama_model_default_params())


def test_a_build_for_the_processor_refuses_what_was_planned_for_a_device() -> None:
    if HAS_ACCELERATOR:
        return
    with pytest.raises(LoadFailed, match="computes on the processor only"):
        devices.choose(load("CUDA0", gpu_layers=-1), lib.llama_model_default_params())


@given(st.lists(st.integers(0, 90), min_size=2, max_size=6).filter(any))
def test_the_library_s_rounding_gives_each_device_the_layers_that_it_was_planned_with(layers: list[int]) -> None:
    """llama.cpp divides the running sum of the shares, and looks for the first that is beyond a layer's own place."""
    shares = np.cumsum(np.array(devices.split(layers), np.float32), dtype=np.float32)
    ends = [float(end) for end in shares / shares[-1]]
    rows = sum(layers) + 1
    given = [bisect_right(ends, float(np.float32(row) / np.float32(rows))) for row in range(rows)]
    begins = list(accumulate([0, *layers]))
    for device, (begin, count) in enumerate(zip(begins, layers, strict=False)):
        assert given[begin : begin + count] == [device] * count
    assert given[-1] == len(layers) - 1, "the head is on the last device"


@pytest.mark.starter
def test_a_model_for_the_processor_alone_is_loaded_and_answers(starter: Path) -> None:
    with Worker("llama") as worker:
        loaded = worker.load(starter, devices=())
        assert (loaded.gpu_layers, loaded.memory.device_bytes) == (0, 0)
        assert worker.ask(chat(1, "Say hello.", max_tokens=4)).end


@pytest.mark.starter
def test_a_worker_whose_device_is_gone_says_so(starter: Path) -> None:
    with Worker("llama") as worker:
        worker.send(m.Load("smol", str(starter), context_len=256, slots=1, devices=("CUDA7",)))
        assert "CUDA7" in worker.next_of(m.LoadFailed).message
