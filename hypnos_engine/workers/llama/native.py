"""The one door to llama.cpp's C interface: checks that the binding fits, and keeps what the library logs.

The library reports the reason of a failure only in its log. No Python exception may leave a callback: the C side would
then go on with an undefined value.
"""

import contextlib
import ctypes
import re
import sys
from collections import deque
from dataclasses import dataclass
from typing import Any

import llama_cpp.llama_cpp as lib

from hypnos_engine.domain.errors import LoadFailed

MODEL_PARAMS_BYTES, CONTEXT_PARAMS_BYTES = 80, 160
"""Sizes of the two parameter structs in the pinned version: other sizes mean another layout, and silent nonsense."""

_DEBUG, _WARN, _ERROR, _CONTINUED = 1, 3, 4, 5
_KEPT_LINES = 4000
_BUFFER = re.compile(r"(\S+) +(model|KV|RS|compute|output) buffer size = +([0-9.]+) MiB")
_OVERRIDDEN = re.compile(r"tensor (\S+) \(.*\) buffer type overridden to (\S+)")
_OFFLOADED = re.compile(r"offloaded (\d+)/\d+ layers to GPU")
_FLASH_ATTENTION = re.compile(r"Flash Attention (enabled|disabled)")
_NO_MEMORY = re.compile(r"bad_alloc|insufficient memory|failed to allocate|Cannot allocate memory")
_MIB = 1024 * 1024

Pointer = Any
"""An opaque pointer of the library; None or falsy is NULL."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """Bytes that the library says it allocated, by what for and where."""

    by_kind: dict[str, int]
    """Keys model, KV, RS (recurrent state), compute, output."""
    device_bytes: int
    repacked_bytes: int
    mapped: bool
    """True when weights are mapped from their file."""


class NativeLog:
    """Receives every line of llama.cpp and ggml. `mark` starts a new span; the questions are about the present span."""

    def __init__(self) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=_KEPT_LINES)
        self._level = 0
        self._callback = lib.llama_log_callback(self._receive)  # kept: the library holds only its address

    def install(self) -> None:
        """Take the place of the binding's own log callback."""
        lib.llama_log_set(self._callback, ctypes.c_void_p(0))

    def mark(self) -> None:
        """Forget what was logged so far."""
        self._lines.clear()

    def reason(self, otherwise: str) -> str:
        """The library's own words for what went wrong, the most specific line first; `otherwise` without any."""
        errors = [text for level, text in self._lines if level == _ERROR]
        if not errors:
            return otherwise
        # The first error names the cause ("tensor ... not within the file bounds"); later ones only say that it failed.
        words = re.sub(r"^\w+: (error loading model: )?", "", errors[0]).strip() or otherwise
        return f"there is not enough memory ({words})" if _NO_MEMORY.search(words) else words

    def buffers(self) -> Buffers:
        """Sum of the buffers announced in the present span."""
        by_kind: dict[str, int] = {}
        device = repacked = 0
        mapped = False
        for _, text in self._lines:
            found = _BUFFER.search(text) if " buffer size" in text else None  # the search alone would take 10 ms
            if found is None:
                continue
            name, kind, size = found[1], found[2], int(float(found[3]) * _MIB)
            by_kind[kind] = by_kind.get(kind, 0) + size
            on_host = name.startswith(("CPU", "BLAS")) or name.endswith("_Host")
            device += 0 if on_host else size
            repacked += size if "REPACK" in name else 0
            mapped = mapped or name.endswith("_Mapped")
        return Buffers(by_kind, device, repacked, mapped)

    def overridden_tensors(self) -> frozenset[str]:
        """Names of the tensors that were placed where an override says."""
        return frozenset(found[1] for _, text in self._lines if (found := _OVERRIDDEN.search(text)))

    def offloaded_layers(self) -> int:
        """Layers that went to an accelerator, the output head counted as one."""
        counts = [int(found[1]) for _, text in self._lines if (found := _OFFLOADED.search(text))]
        return counts[-1] if counts else 0

    def flash_attention(self) -> bool:
        """Whether the context of the present span uses it: the library decides that by itself."""
        found = [found[1] for _, text in self._lines if (found := _FLASH_ATTENTION.search(text))]
        return found[-1:] == ["enabled"]

    def _receive(self, level: int, text: bytes | None, _user: object) -> None:
        with contextlib.suppress(BaseException):  # nothing may leave a callback
            line = (text or b"").decode("utf-8", "replace").rstrip("\n")
            if level == _CONTINUED and self._lines:
                self._lines[-1] = (self._level, self._lines[-1][1] + line)
                return
            self._level = level
            self._lines.append((level, line))
            if level in (_WARN, _ERROR):
                sys.stderr.write(f"{line}\n")


log = NativeLog()


def attach() -> None:
    """Check the binding and receive what the library logs; opens no device. Raises LoadFailed when it does not fit."""
    sizes = ctypes.sizeof(lib.llama_model_params), ctypes.sizeof(lib.llama_context_params)
    if sizes != (MODEL_PARAMS_BYTES, CONTEXT_PARAMS_BYTES):
        raise LoadFailed(
            f"The installed llama-cpp-python does not fit this program (parameter sizes {sizes[0]} and {sizes[1]} "
            f"instead of {MODEL_PARAMS_BYTES} and {CONTEXT_PARAMS_BYTES}): run the set-up again."
        )
    log.install()


def start() -> None:
    """Prepare the library, its devices too; call before anything else. Raises LoadFailed as `attach`."""
    attach()
    lib.llama_backend_init()  # asks every backend for its devices, which may open a context on each


def version() -> str:
    """Version of llama.cpp itself."""
    return bytes(lib.llama_version()).decode()
