"""Tells the library which accelerators a model's layers go to, and how many to each.

Must never let a model come up on the processor that was meant for an accelerator.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as lib

from hypnos_engine.domain.errors import LoadFailed
from hypnos_engine.ipc import messages as m

_LAYER_BY_LAYER = 1
"""The library's `split_mode` in which each device gets whole layers."""


def choose(request: m.Load, params: Any) -> tuple[Any, ...]:
    """Write the request's devices into a load's parameters; what is returned has to live until the load has ended.

    Raises LoadFailed when a device is not there (any more), or when the build cannot use any.
    """
    if request.devices is None:
        return ()
    if request.devices and request.gpu_layers and not lib.llama_supports_gpu_offload():
        raise LoadFailed(
            f"The model '{request.model}' was to be loaded onto {', '.join(request.devices)}, but this llama.cpp "
            "computes on the processor only: run ./run.sh setup."
        )
    found = [_device(request, name) for name in request.devices]
    devices = (ctypes.c_void_p * (len(found) + 1))(*found, None)  # none at all: the processor alone
    params.devices = ctypes.cast(devices, ctypes.c_void_p).value
    if len(found) < 2:
        return (devices,)
    shares = (ctypes.c_float * max(int(lib.llama_max_devices()), len(found)))(*split(request.device_layers))
    params.split_mode = _LAYER_BY_LAYER
    params.tensor_split = ctypes.cast(shares, ctypes.POINTER(ctypes.c_float))
    return devices, shares


def split(layers: Sequence[int]) -> tuple[float, ...]:
    """The library's shares for so many layers of each device.

    It hands out one layer more, the output head, and gives it to the last device.
    """
    return (*(float(count) for count in layers[:-1]), float(layers[-1] + 1))


def _device(request: m.Load, name: str) -> int:
    by_name = lib._lib.ggml_backend_dev_by_name
    by_name.restype, by_name.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    found = by_name(name.encode())
    if not found:
        raise LoadFailed(
            f"The accelerator {name}, onto which the model '{request.model}' was to be loaded, is not there any more: "
            "its driver was stopped or updated, or the machine slept. Restart the driver, or the machine."
        )
    return int(found)
