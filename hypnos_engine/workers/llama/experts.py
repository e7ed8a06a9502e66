"""Keeps the experts of a model's last layers in host memory, and says how many bytes that were; loads nothing."""

import ctypes
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

_EXPERTS = rb"blk\.%d\.ffn_(up|down|gate|gate_up)_(ch|)exps"


class BufferOverride(ctypes.Structure):
    """`llama_model_tensor_buft_override`: where tensors go whose names a pattern finds."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


class _HeaderParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


def to_cpu(layers: int, path: str) -> Any:
    """Overrides for the library: the experts of the last `layers` layers of a file go to host memory; None for none."""
    if layers <= 0:
        return None
    from llama_cpp._ggml import libggml

    libggml.ggml_backend_cpu_buffer_type.restype = ctypes.c_void_p
    cpu = libggml.ggml_backend_cpu_buffer_type()
    last = _layers_of(path)
    patterns = [_EXPERTS % layer for layer in range(max(0, last - layers), last)]
    rows = [BufferOverride(pattern, cpu) for pattern in patterns]
    return (BufferOverride * (len(rows) + 1))(*rows, BufferOverride(None, None))


def size_of(names: Collection[str], path: str) -> int:
    """Bytes of the named tensors of a model, by the headers of its files; the log gives whole MiB only."""
    total = 0
    for file in files_of(path) if names else ():
        with _header(file) as (library, header):
            for name in names:
                index = library.gguf_find_tensor(header, name.encode()) if header else -1
                total += int(library.gguf_get_tensor_size(header, index)) if index >= 0 else 0
    return total


def files_of(path: str) -> Iterator[str]:
    """The file, or all files of a model that is divided and named as llama.cpp names the parts."""
    part = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", path)
    if part is None:
        yield path
    else:
        yield from (f"{part[1]}-{number:05}-of-{part[2]}.gguf" for number in range(1, int(part[2]) + 1))


def _layers_of(path: str) -> int:
    """Layers of a model by its header; 0 for a file that the library will refuse anyway."""
    with _header(path) as (library, header):
        if not header or (index := library.gguf_find_key(header, b"general.architecture")) < 0:
            return 0
        architecture = library.gguf_get_val_str(header, index)
        index = library.gguf_find_key(header, architecture + b".block_count")
        return int(library.gguf_get_val_u32(header, index)) if index >= 0 else 0


@contextmanager
def _header(file: str) -> Iterator[tuple[Any, Any]]:
    """The library and the header of a file, or None in its place when it cannot be read."""
    from llama_cpp._ggml import libggml

    libggml.gguf_init_from_file.restype = ctypes.c_void_p
    libggml.gguf_init_from_file.argtypes = [ctypes.c_char_p, _HeaderParams]
    libggml.gguf_free.argtypes = [ctypes.c_void_p]
    libggml.gguf_find_tensor.restype = ctypes.c_int64
    libggml.gguf_find_tensor.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    libggml.gguf_get_tensor_size.restype = ctypes.c_size_t
    libggml.gguf_get_tensor_size.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    libggml.gguf_find_key.restype = ctypes.c_int64
    libggml.gguf_find_key.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    libggml.gguf_get_val_str.restype = ctypes.c_char_p
    libggml.gguf_get_val_str.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    libggml.gguf_get_val_u32.restype = ctypes.c_uint32
    libggml.gguf_get_val_u32.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    header = libggml.gguf_init_from_file(file.encode(), _HeaderParams(True, None))
    try:
        yield libggml, header
    finally:
        if header:
            libggml.gguf_free(header)
