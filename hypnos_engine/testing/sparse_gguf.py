"""Writes GGUF files that are a real header and a hole: gigabytes apparent, a few megabytes on disk; never any weights.

Readers of headers and llama.cpp's dry run see the tensor table of a real model. The tokens are synthetic and unique.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hypnos_engine.gguf.tensor_types import TENSOR_TYPES

ALIGNMENT = 32
_TYPE_NUMBERS = {kind.name: number for number, kind in TENSOR_TYPES.items()}
_U32, _F32, _BOOL, _STRING, _ARRAY = 4, 6, 7, 8, 9
_UNQUANTISED = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ssm_conv1d",
    "ssm_a",
    "ssm_d",
    "shortconv.conv",
    "token_types",
    "position_embd",
    ".bias",
)
"""Parts of the names of two-dimensional tensors that llama.cpp's quantiser leaves as they are."""

KeyValue = bool | int | float | str | tuple[int, ...] | tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One line of the tensor table; the first dimension is the row, as in the file."""

    name: str
    dimensions: tuple[int, ...]
    type_name: str

    @property
    def size_bytes(self) -> int:
        kind = TENSOR_TYPES[_TYPE_NUMBERS[self.type_name]]
        elements = 1
        for dimension in self.dimensions:
            elements *= dimension
        return elements // kind.block * kind.block_bytes


@dataclass(slots=True)
class SparseModel:
    """A model's header. `keys` are written with the architecture's name before them."""

    name: str
    architecture: str
    quantisation: str
    """q8_0, q4_0, q4_K_M or f16: how two-dimensional tensors are stored."""
    vocabulary_size: int
    keys: Mapping[str, KeyValue]
    tokenizer: str = "gpt2"
    embedding_type: str = ""
    """Type of the token embeddings where the published file departs from the quantiser's habit."""
    tensors: list[TensorEntry] = field(default_factory=list)

    def add(self, name: str, *dimensions: int, layer: int = -1, layers: int = 0) -> None:
        """Add a weight; its type follows from the quantisation, its name and its place, as in llama.cpp's quantiser."""
        self.tensors.append(TensorEntry(name, dimensions, self._type_name(name, dimensions, layer, layers)))

    @property
    def tensor_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self.tensors)

    def _type_name(self, name: str, dimensions: tuple[int, ...], layer: int, layers: int) -> str:
        if "per_layer_model_proj" in name:
            return "bf16"
        if len(dimensions) == 1 or any(part in name for part in _UNQUANTISED):
            return "f32"
        return _fitting(self._wanted_type(name, layer, layers), dimensions[0])

    def _wanted_type(self, name: str, layer: int, layers: int) -> str:
        if self.quantisation not in ("q4_0", "q4_K_M"):
            return self.quantisation
        plain = "q4_0" if self.quantisation == "q4_0" else "q4_K"
        if self.embedding_type and name == "token_embd.weight":
            return self.embedding_type
        has_own_head = any(tensor.name == "output.weight" for tensor in self.tensors)
        if name in ("output.weight", "per_layer_token_embd.weight"):
            return "q6_K"
        if name == "token_embd.weight" and not has_own_head:  # it is the head too
            return "q6_K"
        important = "attn_v.weight" in name or "ffn_down" in name
        if self.quantisation == "q4_K_M" and important and _more_bits(layer, layers):
            return "q6_K"
        return plain


def write(path: Path, model: SparseModel) -> None:
    """Write the header and extend the file to the size that the tensor table promises; the rest is a hole."""
    prefix = f"{model.architecture}."
    keys: dict[str, bytes] = {
        "general.architecture": _value(model.architecture),
        "general.name": _value(model.name),
        **{prefix + name: _value(value) for name, value in model.keys.items()},
        **_tokenizer(model),
    }
    header = [struct.pack("<4sIQQ", b"GGUF", 3, len(model.tensors), len(keys))]
    header += [_text(key) + value for key, value in keys.items()]
    offset = 0
    for tensor in model.tensors:
        dimensions = struct.pack(f"<I{len(tensor.dimensions)}Q", len(tensor.dimensions), *tensor.dimensions)
        place = struct.pack("<IQ", _TYPE_NUMBERS[tensor.type_name], offset)
        header.append(_text(tensor.name) + dimensions + place)
        offset += _padded(tensor.size_bytes)
    content = b"".join(header)
    with path.open("wb") as file:
        file.write(content)
        file.truncate(_padded(len(content)) + offset)


def _tokenizer(model: SparseModel) -> dict[str, bytes]:
    wordpiece = model.tokenizer == "bert"
    first = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] if wordpiece else ["<s>", "</s>", "Ċ", "a", "b", "ab"]
    tokens = first + [f"t{number:x}" for number in range(model.vocabulary_size - len(first))]
    entries: dict[str, bytes] = {
        "tokenizer.ggml.model": _value(model.tokenizer),
        "tokenizer.ggml.tokens": _strings(tokens),
    }
    if wordpiece:
        entries["tokenizer.ggml.token_type_count"] = _value(2)
    else:
        entries["tokenizer.ggml.pre"] = _value("gpt-2")
        entries["tokenizer.ggml.merges"] = _strings(["a b"])
        entries["tokenizer.ggml.bos_token_id"] = _value(0)
        entries["tokenizer.ggml.eos_token_id"] = _value(1)
    return entries


def _more_bits(layer: int, layers: int) -> bool:
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def _fitting(wanted: str, row: int) -> str:
    """Return a type whose blocks divide the row, as llama.cpp's quantiser falls back."""
    if row % TENSOR_TYPES[_TYPE_NUMBERS[wanted]].block == 0:
        return wanted
    second = {"q4_K": "q5_0", "q6_K": "q8_0"}.get(wanted, "f16")
    return second if row % TENSOR_TYPES[_TYPE_NUMBERS[second]].block == 0 else "f16"


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def _text(content: str) -> bytes:
    encoded = content.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _strings(entries: list[str]) -> bytes:
    return struct.pack("<IIQ", _ARRAY, _STRING, len(entries)) + b"".join(_text(entry) for entry in entries)


def _value(value: KeyValue) -> bytes:
    if isinstance(value, tuple):
        kind, layout = (_BOOL, "?") if isinstance(value[0], bool) else (_U32, "I")
        return struct.pack(f"<IIQ{len(value)}{layout}", _ARRAY, kind, len(value), *value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _U32, value)
    return struct.pack("<If", _F32, value)
