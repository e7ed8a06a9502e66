"""Decides what the header of one GGUF file says; refuses what llama.cpp's own reader would refuse, and never guesses.

Arrays are stepped over. Only short ones of numbers are kept, because some keys hold one number per layer; a vocabulary
is never turned into strings. Every count and length is checked against the file's size and a bound before it is used.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hypnos_engine.gguf.cursor import Cursor, open_cursor
from hypnos_engine.gguf.tensor_types import TENSOR_TYPES, TensorType

MAX_KEYS = 16_384
MAX_TENSORS = 32_768
MAX_NAME_BYTES = 65_535
MAX_TENSOR_NAME_BYTES = 63
MAX_DIMENSIONS = 4
MAX_STRING_ELEMENTS = 4_000_000
"""Strings in all arrays of a header together; the largest vocabularies and their merges stay below a million."""
KEPT_ARRAY_LENGTH = 512
"""As many numbers as llama.cpp allows layers."""
KEPT_TEXT_BYTES = 65_536
KEPT_BYTES = 4 << 20
"""Names and texts kept from one header; no real one comes near it."""

_SUPPORTED_VERSIONS = (2, 3)
_OLDER_FORMATS = (b"lmgg", b"fmgg", b"tjgg", b"algg")
"""ggml, ggmf, ggjt and ggla as they stand in a little-endian file."""
_STRING, _ARRAY = 8, 9
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LongText:
    """A text that was stepped over because of its length."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Array:
    """An array of metadata. `values` is None when it holds texts or is too long to be one number per layer."""

    element: str
    """Type of the elements: `u8` to `i64`, `f32`, `f64`, `bool`, `string`."""
    length: int
    values: tuple[int | float | bool, ...] | None


Value = bool | int | float | str | LongText | Array


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of the tensor table. `dimensions` has the row length first, as in the file."""

    name: str
    dimensions: tuple[int, ...]
    type: TensorType
    offset: int
    """Bytes from the start of the file to the tensor's first one."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What one file says about itself."""

    path: Path
    name: str
    """The file's name, for messages."""
    version: int
    file_bytes: int
    metadata: Mapping[str, Value]
    kinds: Mapping[str, str]
    """Stored type of each value, spelled as in `Array.element`; arrays are `array`."""
    tensors: tuple[Tensor, ...]

    @property
    def tensor_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class _Scalar:
    name: str
    layout: struct.Struct


_SCALARS: dict[int, _Scalar] = {
    0: _Scalar("u8", struct.Struct("<B")),
    1: _Scalar("i8", struct.Struct("<b")),
    2: _Scalar("u16", struct.Struct("<H")),
    3: _Scalar("i16", struct.Struct("<h")),
    4: _Scalar("u32", struct.Struct("<I")),
    5: _Scalar("i32", struct.Struct("<i")),
    6: _Scalar("f32", struct.Struct("<f")),
    7: _Scalar("bool", struct.Struct("<?")),
    10: _Scalar("u64", struct.Struct("<Q")),
    11: _Scalar("i64", struct.Struct("<q")),
    12: _Scalar("f64", struct.Struct("<d")),
}


def read_header(path: Path) -> Header:
    """Read the header of one file: metadata without long arrays, and the tensor table.

    Blocks for file input, some 15 ms for a vocabulary of 50,000 tokens. Holds at most about 30 MB, for a hostile file.
    Raises LoadFailed, with a sentence that names the file, for anything but a complete GGUF file of version 2 or 3.
    """
    with open_cursor(path) as cursor:
        return _Reading(cursor, path).header()


class _Reading:
    """One pass over one header; counts what it keeps."""

    def __init__(self, cursor: Cursor, path: Path) -> None:
        self._cursor = cursor
        self._path = path
        self._kept_bytes = 0
        self._string_elements = 0
        self._kinds: dict[str, str] = {}

    def header(self) -> Header:
        cursor = self._cursor
        version = self._preamble()
        tensor_count = self._count("tensors", MAX_TENSORS, smallest_bytes=24)
        key_count = self._count("metadata keys", MAX_KEYS, smallest_bytes=13)
        metadata = self._metadata(key_count)
        alignment = self._alignment(metadata)
        tensors = self._tensors(tensor_count, alignment)
        return Header(self._path, cursor.name, version, cursor.file_bytes, metadata, self._kinds, tensors)

    def _preamble(self) -> int:
        cursor = self._cursor
        if cursor.file_bytes < 4:
            raise cursor.refuse(f"the file has only {cursor.file_bytes} bytes.")
        magic = cursor.take(4)
        if magic in _OLDER_FORMATS:
            raise cursor.refuse(
                "this file has the GGML format, not GGUF.",
                "Download a GGUF version of the model; a whisper.cpp model needs engine = ggml_whisper.",
            )
        if magic != b"GGUF":
            raise cursor.refuse("this is not a GGUF file.", "Check weights_path, or download the model again.")
        version = cursor.u32()
        if version & 0xFFFF == 0 and version:
            raise cursor.refuse("this GGUF file is for big-endian machines.", "Download the little-endian version.")
        if version not in _SUPPORTED_VERSIONS:
            raise cursor.refuse(
                f"GGUF version {version} is not supported, only 2 and 3 are.",
                "Download a version made for a current llama.cpp.",
            )
        return version

    def _count(self, what: str, most: int, smallest_bytes: int) -> int:
        cursor = self._cursor
        count = cursor.u64()
        if count > most:
            raise cursor.refuse(f"the header announces {count:,} {what}, more than any model has ({most:,}).")
        if count * smallest_bytes > cursor.remaining_bytes:
            raise cursor.refuse(f"the header announces {count:,} {what}, more than fit into the file.")
        return count

    def _metadata(self, count: int) -> dict[str, Value]:
        metadata: dict[str, Value] = {}
        for _ in range(count):
            key = self._name("a metadata key", MAX_NAME_BYTES)
            if not key:
                raise self._cursor.refuse("a metadata key has no name.")
            if key in metadata:
                raise self._cursor.refuse(f"the metadata key {_quoted(key)} appears twice.")
            metadata[key] = self._value(key)
        return metadata

    def _value(self, key: str) -> Value:
        kind = self._cursor.u32()
        if kind == _STRING:
            self._kinds[key] = "string"
            return self._text()
        if kind == _ARRAY:
            self._kinds[key] = "array"
            return self._array(key)
        scalar = self._scalar(key, kind)
        self._kinds[key] = scalar.name
        value: int | float | bool = scalar.layout.unpack(self._cursor.take(scalar.layout.size))[0]
        return value

    def _scalar(self, key: str, kind: int) -> _Scalar:
        scalar = _SCALARS.get(kind)
        if scalar is None:
            raise self._cursor.refuse(f"the metadata key {_quoted(key)} has the unknown type {kind}.")
        return scalar

    def _text(self) -> str | LongText:
        cursor = self._cursor
        size = cursor.u64()
        if size > KEPT_TEXT_BYTES:
            cursor.skip(size)
            return LongText(size)
        return self._keep(cursor.take(size))

    def _array(self, key: str) -> Array:
        cursor = self._cursor
        kind = cursor.u32()
        length = cursor.u64()
        if kind == _ARRAY:
            raise cursor.refuse(
                f"the metadata key {_quoted(key)} holds an array of arrays, which llama.cpp cannot read.",
                "Download a version made for llama.cpp.",
            )
        if kind == _STRING:
            self._string_elements += length
            if self._string_elements > MAX_STRING_ELEMENTS:
                raise cursor.refuse(f"{_quoted(key)} announces {length:,} texts, more than any vocabulary has.")
            if length * 8 > cursor.remaining_bytes:
                raise cursor.cut_short()
            cursor.skip_strings(length)
            return Array("string", length, None)
        scalar = self._scalar(key, kind)
        size = scalar.layout.size
        if length > KEPT_ARRAY_LENGTH:
            cursor.skip(length * size)
            return Array(scalar.name, length, None)
        self._count_kept(length * 32)
        content = cursor.take(length * size)
        return Array(scalar.name, length, tuple(value for (value,) in scalar.layout.iter_unpack(content)))

    def _alignment(self, metadata: Mapping[str, Value]) -> int:
        alignment = metadata.get("general.alignment", 32)
        stored = self._kinds.get("general.alignment", "u32")
        if stored != "u32" or not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise self._cursor.refuse(f"general.alignment is {_shown(alignment)}, not a power of two.")
        return alignment

    def _tensors(self, count: int, alignment: int) -> tuple[Tensor, ...]:
        """Read the table. llama.cpp wants tensors one after another, each padded: each offset is known beforehand."""
        cursor = self._cursor
        entries: dict[str, tuple[tuple[int, ...], TensorType, int, int]] = {}
        expected = 0
        for _ in range(count):
            name = self._name("a tensor", MAX_TENSOR_NAME_BYTES)
            if name in entries:
                raise cursor.refuse(f"the tensor {_quoted(name)} appears twice.")
            dimensions = self._dimensions(name)
            kind, size = self._size(name, dimensions)
            offset = cursor.u64()
            if offset != expected:
                raise cursor.refuse(f"the tensor {_quoted(name)} lies at {offset:,} instead of {expected:,}.")
            entries[name] = (dimensions, kind, offset, size)
            expected = _padded(offset + size, alignment)
        start = _padded(cursor.position, alignment)
        tensors = tuple(
            Tensor(name, dimensions, kind, start + offset, size)
            for name, (dimensions, kind, offset, size) in entries.items()
        )
        if tensors:
            needed = tensors[-1].offset + tensors[-1].size_bytes
            if needed > cursor.file_bytes:
                raise cursor.refuse(
                    f"the file is incomplete: its tensors need {needed:,} bytes, it has {cursor.file_bytes:,}.",
                    "Continue or repeat the download.",
                )
        return tensors

    def _dimensions(self, name: str) -> tuple[int, ...]:
        cursor = self._cursor
        count = cursor.u32()
        if count > MAX_DIMENSIONS:
            raise cursor.refuse(f"the tensor {_quoted(name)} has {count} dimensions, more than {MAX_DIMENSIONS}.")
        dimensions = tuple(cursor.u64() for _ in range(count))
        elements = 1
        for dimension in dimensions:
            elements *= max(dimension, 1)
        if elements > _LARGEST:
            raise cursor.refuse(f"the tensor {_quoted(name)} has an impossible shape {dimensions}.")
        return dimensions

    def _size(self, name: str, dimensions: tuple[int, ...]) -> tuple[TensorType, int]:
        cursor = self._cursor
        number = cursor.u32()
        kind = TENSOR_TYPES.get(number)
        if kind is None:
            raise cursor.refuse(
                f"the tensor {_quoted(name)} has the type {number}, which this version does not know.",
                "Download another quantization of the model.",
            )
        elements = 1
        for dimension in dimensions:
            elements *= dimension
        row = dimensions[0] if dimensions else 1
        if row % kind.block:
            raise cursor.refuse(f"the rows of {_quoted(name)} have {row} elements, no multiple of {kind.block}.")
        return kind, elements // kind.block * kind.block_bytes

    def _name(self, what: str, most: int) -> str:
        size = self._cursor.u64()
        if size > most:
            raise self._cursor.refuse(f"the name of {what} is {size:,} bytes long, more than {most:,}.")
        return self._keep(self._cursor.take(size))

    def _keep(self, content: bytes) -> str:
        self._count_kept(len(content))
        return content.decode("utf-8", "replace")

    def _count_kept(self, size: int) -> None:
        self._kept_bytes += size
        if self._kept_bytes > KEPT_BYTES:
            raise self._cursor.refuse("the header holds more text than any model has.")


def _padded(size: int, alignment: int) -> int:
    return (size + alignment - 1) // alignment * alignment


def _quoted(name: str) -> str:
    """Show a name from the file: escaped, and short enough for a message."""
    shown = repr(name[:80])
    return shown + "..." if len(name) > 80 else shown


def _shown(value: Value) -> str:
    return _quoted(value) if isinstance(value, str) else str(value)[:80]
