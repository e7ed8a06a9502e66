"""Loads weights and answers what the file says about its model; a file that the library refuses is a typed error."""

import contextlib
import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib

from hypnos_engine.domain.errors import Cancelled, LoadFailed
from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.llama import devices, native
from hypnos_engine.workers.llama import experts as overrides_of

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
    chosen = devices.choose(request, params)
    overrides = overrides_of.to_cpu(request.cpu_expert_layers, request.weights_path)
    if overrides is not None:
        params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p).value
    progress = _Progress(report)
    params.progress_callback = progress.callback
    native.log.mark()
    pointer = lib.llama_model_load_from_file(request.weights_path.encode(), params)
    del chosen, overrides  # the library reads them until here
    if not pointer:
        if progress.given_up:
            raise Cancelled("The load was given up.")
        raise refusal(request, native.log.reason("llama.cpp does not say why"))
    moved = native.log.overridden_tensors()
    model = Model(pointer, request.weights_path, Moved(len(moved), overrides_of.size_of(moved, request.weights_path)))
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
