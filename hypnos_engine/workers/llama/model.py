"""Loads weights and answers what the file says about its model; a file that the library refuses is a typed error."""

import contextlib
import ctypes
import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib

from hypnos_engine.domain.errors import Cancelled, LoadFailed
from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.llama import native

_LOAD_MODES = {"auto": -1, "read": 0, "mmap": 1}
_PROGRESS_EVERY_S = 0.1
_META_BYTES = 4096

ProgressReport = Callable[[float], bool]
"""Takes the fraction that is loaded; returns False to give the load up."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Tensors that were placed by an override, as the library says that it did."""

    tensors: int
    bytes: int


NONE_MOVED = Moved(0, 0)


class _BufferOverride(ctypes.Structure):
    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


class Model:
    """Loaded weights. Freed once, after the context that uses them."""

    def __init__(self, pointer: native.Pointer, path: str, experts: Moved) -> None:
        self.pointer = pointer
        self.path = path
        self.experts = experts
        """The experts that stay in host memory."""
        self.vocab = lib.llama_model_get_vocab(pointer)
        self.weights_bytes = int(lib.llama_model_size(pointer))
        self.layers = int(lib.llama_model_n_layer(pointer))
        self.context_train = int(lib.llama_model_n_ctx_train(pointer))
        self.window = int(lib.llama_model_n_swa(pointer))
        """Tokens that sliding-window layers attend to; 0 without such layers."""
        self.recurrent = bool(lib.llama_model_is_recurrent(pointer) or lib.llama_model_is_hybrid(pointer))
        """True when some layers keep a running state instead of a cache."""
        self.architecture = self.meta("general.architecture") or "unknown"
        template = lib.llama_model_chat_template(pointer, None)
        self.chat_template: str | None = template.decode("utf-8", "replace") if template else None

    def meta(self, key: str) -> str | None:
        """A scalar of the file's header as text; None when the file has no such key."""
        buffer = ctypes.create_string_buffer(_META_BYTES)
        if lib.llama_model_meta_val_str(self.pointer, key.encode(), buffer, _META_BYTES) < 0:
            return None
        return buffer.value.decode("utf-8", "replace")

    def free(self) -> None:
        """Give the memory back; harmless when done before."""
        pointer, self.pointer = self.pointer, None
        if pointer:
            lib.llama_model_free(pointer)


def load(request: m.Load, report: ProgressReport) -> Model:
    """Load the weights. Raises LoadFailed naming the file and the library's reason, Cancelled when `report` gave up."""
    _check_readable(request)
    params = lib.llama_model_default_params()
    params.load_mode = _LOAD_MODES.get(request.load_mode, -1)
    params.n_gpu_layers = request.gpu_layers if lib.llama_supports_gpu_offload() else 0
    overrides = _experts_to_cpu(request.cpu_expert_layers)
    if overrides is not None:
        params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p).value
    progress = _Progress(report)
    params.progress_callback = progress.callback
    native.log.mark()
    pointer = lib.llama_model_load_from_file(request.weights_path.encode(), params)
    del overrides  # the library reads it until here
    if not pointer:
        if progress.given_up:
            raise Cancelled("The load was given up.")
        raise refusal(request, native.log.reason("llama.cpp does not say why"))
    moved = native.log.overridden_tensors()
    model = Model(pointer, request.weights_path, Moved(len(moved), _size_of(moved, request.weights_path)))
    try:
        _check_usable(request, model)
    except LoadFailed:
        model.free()
        raise
    return model


def refusal(request: m.Load, reason: str) -> LoadFailed:
    """The error for a file that cannot be served."""
    return LoadFailed(f"The weights of '{request.model}' cannot be loaded from '{request.weights_path}': {reason}.")


class _Progress:
    def __init__(self, report: ProgressReport) -> None:
        self.given_up = False
        self._report = report
        self._next_s = 0.0
        self.callback: Any = lib.llama_progress_callback(self._receive)

    def _receive(self, fraction: float, _user: object) -> bool:
        with contextlib.suppress(BaseException):  # nothing may leave a callback
            now_s = time.monotonic()
            if fraction >= 1.0 or now_s >= self._next_s:
                self._next_s = now_s + _PROGRESS_EVERY_S
                self.given_up = self.given_up or not self._report(fraction)
        return not self.given_up


def _check_readable(request: m.Load) -> None:
    path = Path(request.weights_path)
    try:
        if path.is_dir():
            raise refusal(request, "it is a folder, not a GGUF file")
        with path.open("rb") as file:
            magic = file.read(4)
    except FileNotFoundError:
        raise refusal(request, "there is no such file") from None
    except (OSError, ValueError) as error:
        raise refusal(request, f"it cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if magic != b"GGUF":
        raise refusal(request, "it is not a GGUF file, or damaged at its beginning; download it again")


def _check_usable(request: m.Load, model: Model) -> None:
    if not lib.llama_model_has_decoder(model.pointer) or lib.llama_model_has_encoder(model.pointer):
        raise refusal(request, f"a model of the architecture '{model.architecture}' does not generate text by itself")
    if lib.llama_model_is_diffusion(model.pointer):
        raise refusal(request, f"the architecture '{model.architecture}' (diffusion) is not supported")


def _experts_to_cpu(layers: int) -> Any:
    """Keep the expert tensors of the first `layers` blocks in host memory; None for none."""
    if layers <= 0:
        return None
    from llama_cpp._ggml import libggml

    libggml.ggml_backend_cpu_buffer_type.restype = ctypes.c_void_p
    cpu = libggml.ggml_backend_cpu_buffer_type()
    patterns = [rb"blk\.%d\.ffn_(up|down|gate|gate_up)_(ch|)exps" % layer for layer in range(layers)]
    rows = [_BufferOverride(pattern, cpu) for pattern in patterns]
    return (_BufferOverride * (len(rows) + 1))(*rows, _BufferOverride(None, None))


class _HeaderParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


def _size_of(names: Collection[str], path: str) -> int:
    """Bytes of the named tensors of a model, by the headers of its files; the log gives whole MiB only."""
    if not names:
        return 0
    from llama_cpp._ggml import libggml

    libggml.gguf_init_from_file.restype = ctypes.c_void_p
    libggml.gguf_init_from_file.argtypes = [ctypes.c_char_p, _HeaderParams]
    libggml.gguf_free.argtypes = [ctypes.c_void_p]
    libggml.gguf_find_tensor.restype = ctypes.c_int64
    libggml.gguf_find_tensor.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    libggml.gguf_get_tensor_size.restype = ctypes.c_size_t
    libggml.gguf_get_tensor_size.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    total = 0
    for file in _files(path):
        header = libggml.gguf_init_from_file(file.encode(), _HeaderParams(True, None))
        if not header:
            continue
        for name in names:
            index = libggml.gguf_find_tensor(header, name.encode())
            total += int(libggml.gguf_get_tensor_size(header, index)) if index >= 0 else 0
        libggml.gguf_free(header)
    return total


def _files(path: str) -> Iterator[str]:
    """The file, or all files of a model that is divided and named as llama.cpp names the parts."""
    part = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", path)
    if part is None:
        yield path
    else:
        yield from (f"{part[1]}-{number:05}-of-{part[2]}.gguf" for number in range(1, int(part[2]) + 1))
