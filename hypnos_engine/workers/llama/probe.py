"""What the inference library can use on this machine, for a process that ends right after; loads no model."""

import ctypes
from typing import Any

from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.llama import binding

_KINDS = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accel"}


class _Props(ctypes.Structure):
    """`ggml_backend_dev_props` of the pinned version, with room behind for what a later one may append."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("rest", ctypes.c_char * 256),
    )


def report() -> m.ProbeReport:
    """Ask llama.cpp and ggml. Raises ImportError without the library, LoadFailed when the binding does not fit."""
    binding.prepare()
    import llama_cpp.llama_cpp as lib

    from hypnos_engine.workers.llama import native

    native.start()
    return m.ProbeReport(
        library="llama-cpp-python",
        version=binding.version(),
        system_info=bytes(lib.llama_print_system_info()).decode("utf-8", "replace").strip(" |"),
        gpu_offload=bool(lib.llama_supports_gpu_offload()),
        devices=_devices(lib._lib),
    )


def _devices(ggml: Any) -> tuple[m.Device, ...]:
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    for name in ("name", "description"):
        function = getattr(ggml, f"ggml_backend_dev_{name}")
        function.restype, function.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    ggml.ggml_backend_dev_type.restype = ctypes.c_int
    ggml.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    ggml.ggml_backend_dev_memory.restype = None
    ggml.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, *[ctypes.POINTER(ctypes.c_size_t)] * 2]
    ggml.ggml_backend_dev_get_props.restype = None
    ggml.ggml_backend_dev_get_props.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Props)]
    return tuple(_device(ggml, ggml.ggml_backend_dev_get(index)) for index in range(ggml.ggml_backend_dev_count()))


def _device(ggml: Any, device: int) -> m.Device:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    props = _Props()
    ggml.ggml_backend_dev_get_props(device, ctypes.byref(props))
    return m.Device(
        name=(ggml.ggml_backend_dev_name(device) or b"").decode("utf-8", "replace"),
        description=(ggml.ggml_backend_dev_description(device) or b"").decode("utf-8", "replace"),
        kind=_KINDS.get(ggml.ggml_backend_dev_type(device), "accel"),
        free_bytes=free.value,
        total_bytes=total.value,
        bus_id=(props.device_id or b"").decode("utf-8", "replace").lower(),
    )
