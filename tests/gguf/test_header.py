"""The header reader against the reference reader of the gguf package, and its refusals one by one."""

import os
import struct
import time
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import pytest

from hypnos_engine.domain.errors import LoadFailed
from hypnos_engine.gguf import Array, Header, LongText, read_header
from hypnos_engine.gguf.header import MAX_KEYS, MAX_STRING_ELEMENTS, MAX_TENSORS
from hypnos_engine.gguf.tensor_types import TENSOR_TYPES

Forge = Callable[..., bytes]
U8, U16, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 2, 4, 6, 7, 8, 9, 10


def _compare(header: Header, reference: gguf.GGUFReader) -> None:
    assert [tensor.name for tensor in header.tensors] == [tensor.name for tensor in reference.tensors]
    for ours, theirs in zip(header.tensors, reference.tensors, strict=True):
        assert ours.dimensions == tuple(int(size) for size in theirs.shape)
        assert ours.type.name.lower() == theirs.tensor_type.name.lower()
        assert ours.size_bytes == int(theirs.n_bytes)
        assert ours.offset == int(theirs.data_offset)
    fields = {name: field for name, field in reference.fields.items() if not name.startswith("GGUF.")}
    assert set(header.metadata) == set(fields)
    for name, field in fields.items():
        value = header.metadata[name]
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            assert isinstance(value, Array)
            assert value.length == len(field.data)
        else:
            assert not isinstance(value, Array | LongText)
            assert value == field.contents()


@pytest.mark.starter
def test_a_real_model_reads_as_the_reference_reader_reads_it(starter: Path) -> None:
    header = read_header(starter)
    _compare(header, gguf.GGUFReader(starter))
    assert header.file_bytes == starter.stat().st_size
    assert len(header.metadata) > 20


def test_tiny_models_read_as_the_reference_reader_reads_them(models: Mapping[str, Path]) -> None:
    for path in models.values():
        _compare(read_header(path), gguf.GGUFReader(path))


def test_tensor_types_are_those_of_ggml(ggml_types: Mapping[int, tuple[str, int, int]]) -> None:
    ours = {number: (kind.name, kind.block, kind.block_bytes) for number, kind in TENSOR_TYPES.items()}
    assert ours == ggml_types


@pytest.mark.starter
def test_a_vocabulary_is_stepped_over_and_not_kept(starter: Path) -> None:
    """49,152 tokens and as many merges: some 15 ms; as objects they would take two seconds and 20 MB."""
    begin = time.process_time()
    for _ in range(5):
        header = read_header(starter)
        assert header.metadata["tokenizer.ggml.tokens"] == Array("string", 49152, None)
    assert (time.process_time() - begin) / 5 < 0.2
    tracemalloc.start()
    read_header(starter)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


def test_arrays_of_one_number_per_layer_are_kept(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "arrays.gguf"
    keys = [
        ("short", ARRAY, (U32, [1, 2, 3])),
        ("flags", ARRAY, (BOOL, [True, False])),
        ("long", ARRAY, (U8, [0] * 513)),
    ]
    path.write_bytes(forge(keys))
    assert read_header(path).metadata == {
        "short": Array("u32", 3, (1, 2, 3)),
        "flags": Array("bool", 2, (True, False)),
        "long": Array("u8", 513, None),
    }


def test_a_long_text_is_known_by_its_length(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "long.gguf"
    path.write_bytes(forge([("license", STRING, "x" * 70_000), ("after", U32, 7)]))
    assert read_header(path).metadata == {"license": LongText(70_000), "after": 7}


def test_version_two_is_read(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "two.gguf"
    path.write_bytes(forge([("a", U32, 1)], version=2))
    assert read_header(path).version == 2


@pytest.mark.parametrize("length", [1, (1 << 20) - 9, (1 << 20) - 8, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_strings_across_the_edge_of_a_window_are_stepped_over(tmp_path: Path, forge: Forge, length: int) -> None:
    path = tmp_path / "edge.gguf"
    path.write_bytes(forge([("texts", ARRAY, (STRING, ["x" * length, "", "y" * 5])), ("after", U32, 7)]))
    assert read_header(path).metadata == {"texts": Array("string", 3, None), "after": 7}


def _refusal(path: Path) -> str:
    with pytest.raises(LoadFailed) as caught:
        read_header(path)
    assert type(caught.value) is LoadFailed
    assert caught.value.message.startswith(f"{path.name}: ")
    return caught.value.message


ONE_TENSOR = [("a", [32], 0, 0)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"GGU", "only 3 bytes"),
        (b"\x7fELF" + bytes(60), "not a GGUF file"),
        (b"lmgg" + bytes(60), "GGML format"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(60), "big-endian"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(60), "version 1 is not supported"),
        (b"GGUF" + struct.pack("<I", 4) + bytes(60), "version 4 is not supported"),
        (b"GGUF" + struct.pack("<I", 3), "ends inside its header"),
    ],
)
def test_what_is_no_gguf_file_of_a_known_version_is_refused_by_name(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "strange.gguf"
    path.write_bytes(content)
    assert words in _refusal(path)


def test_what_is_no_regular_file_is_refused_without_being_opened(tmp_path: Path) -> None:
    assert "this is a folder" in _refusal(tmp_path)
    assert "there is no such file" in _refusal(tmp_path / "absent.gguf")
    if hasattr(os, "mkfifo"):
        pipe = tmp_path / "pipe.gguf"
        os.mkfifo(pipe)
        assert "not a regular file" in _refusal(pipe)
    empty = tmp_path / "empty.gguf"
    empty.touch()
    assert "is empty" in _refusal(empty)
    with pytest.raises(LoadFailed, match="cannot be read"):
        read_header(Path("nul\0byte.gguf"))
    with pytest.raises(LoadFailed, match="cannot be read"):
        read_header(tmp_path / ("x" * 300))


def test_a_name_that_is_no_text_is_shown_all_the_same() -> None:
    with pytest.raises(LoadFailed) as caught:
        read_header(Path("\udcff.gguf"))
    assert "no such file" in caught.value.message
    caught.value.message.encode()


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "more tensors than any model": ({"counts": (MAX_TENSORS + 1, 0)}, "more than any model"),
    "more keys than any model": ({"counts": (0, MAX_KEYS + 1)}, "more than any model"),
    "more tensors than fit": ({"counts": (MAX_TENSORS, 0)}, "more than fit"),
    "more keys than fit": ({"counts": (0, MAX_KEYS)}, "more than fit"),
    "a key twice": ({"metadata": [("a", U32, 1), ("a", U32, 2)]}, "'a' appears twice"),
    "a key without a name": ({"metadata": [("", U32, 1)]}, "has no name"),
    "an array of arrays": ({"metadata": [("a", ARRAY, (ARRAY, [(U32, [1])]))]}, "array of arrays"),
    "alignment zero": ({"metadata": [("general.alignment", U32, 0)]}, "not a power of two"),
    "alignment 48": ({"metadata": [("general.alignment", U32, 48)]}, "not a power of two"),
    "alignment of another type": ({"metadata": [("general.alignment", U64, 32)]}, "not a power of two"),
    "alignment as text": ({"metadata": [("general.alignment", STRING, "32")]}, "not a power of two"),
    "a tensor twice": ({"tensors": [*ONE_TENSOR, ("a", [32], 0, 128)], "content": 256}, "'a' appears twice"),
    "a long tensor name": ({"tensors": [("n" * 64, [32], 0, 0)], "content": 128}, "64 bytes long"),
    "five dimensions": ({"tensors": [("a", [1] * 5, 0, 0)], "content": 128}, "5 dimensions"),
    "a shape that overflows": ({"tensors": [("a", [2**32, 2**31], 0, 0)]}, "impossible shape"),
    "a negative dimension": ({"tensors": [("a", [2**64 - 1], 0, 0)]}, "impossible shape"),
    "a shape that hides behind zero": ({"tensors": [("a", [0, 2**62, 4], 0, 0)]}, "impossible shape"),
    "a removed type": ({"tensors": [("a", [32], 4, 0)], "content": 128}, "the type 4"),
    "an unknown type": ({"tensors": [("a", [32], 4711, 0)], "content": 128}, "the type 4711"),
    "half a block": ({"tensors": [("a", [48], 2, 0)], "content": 128}, "no multiple of 32"),
    "a gap": ({"tensors": [*ONE_TENSOR, ("b", [32], 0, 256)], "content": 512}, "at 256 instead of 128"),
    "an overlap": ({"tensors": [*ONE_TENSOR, ("b", [32], 0, 0)], "content": 512}, "at 0 instead of 128"),
    "an unaligned start": ({"tensors": [("a", [32], 0, 4)], "content": 512}, "at 4 instead of 0"),
    "missing content": ({"tensors": ONE_TENSOR, "content": 127}, "is incomplete"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_header_that_cannot_be_right_is_refused(tmp_path: Path, forge: Forge, what: str) -> None:
    arguments, words = REFUSED[what]
    path = tmp_path / "wrong.gguf"
    path.write_bytes(forge(**arguments))
    assert words in _refusal(path)


def test_a_header_that_is_right_is_not_refused(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "right.gguf"
    tensors = [*ONE_TENSOR, ("b", [64, 2], 2, 128), ("nothing", [0], 0, 224), ("scalar", [], 0, 224)]
    path.write_bytes(forge([("general.alignment", U32, 32)], tensors, content=228))
    assert [tensor.size_bytes for tensor in read_header(path).tensors] == [128, 72, 0, 4]


@pytest.mark.parametrize("size", [2**63, 2**64 - 1, 2**40])
@pytest.mark.parametrize("where", ["key", "text", "array of numbers", "array of texts", "text in an array"])
def test_lengths_beyond_the_file_are_refused_before_they_are_used(tmp_path: Path, where: str, size: int) -> None:
    length = struct.pack("<Q", size)
    key = struct.pack("<Q", 1) + b"k"
    body = {
        "key": length + b"k",
        "text": key + struct.pack("<I", STRING) + length,
        "array of numbers": key + struct.pack("<II", ARRAY, F32) + length,
        "array of texts": key + struct.pack("<II", ARRAY, STRING) + length,
        "text in an array": key + struct.pack("<IIQ", ARRAY, STRING, 1) + length,
    }[where]
    path = tmp_path / "length.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + body + bytes(64))
    assert _refusal(path)


def test_every_truncation_of_a_real_header_is_refused(tmp_path: Path, models: Mapping[str, Path]) -> None:
    whole = models["llama"].read_bytes()
    header_bytes = read_header(models["llama"]).tensors[0].offset
    path = tmp_path / "cut.gguf"
    for size in [*range(1, header_bytes, 61), header_bytes, len(whole) - 1]:
        path.write_bytes(whole[:size])
        message = _refusal(path)
        assert "incomplete" in message or "ends inside its header" in message or "only" in message or "fit" in message
    path.write_bytes(whole)
    assert read_header(path).tensors


def _sparse(path: Path, content: bytes, size: int) -> None:
    path.write_bytes(content)
    os.truncate(path, size)


def test_a_file_of_apparent_terabytes_is_read_fast(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "sparse.gguf"
    elements = 1 << 38
    _sparse(path, forge([("a", U32, 1)], [("a", [elements], 0, 0)]), (1 << 40) + 4096)
    begin = time.process_time()
    header = read_header(path)
    assert time.process_time() - begin < 1
    assert header.tensor_bytes == 1 << 40


@pytest.mark.parametrize("length", [0, (1 << 20) - 8, 1 << 20])
def test_hours_of_empty_texts_are_not_read(tmp_path: Path, length: int) -> None:
    """As many texts as are allowed in a file that really has them: too slow if each took a read of its own."""
    path = tmp_path / "texts.gguf"
    begin = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
    _sparse(path, begin + struct.pack("<IIQ", ARRAY, STRING, MAX_STRING_ELEMENTS), 1 << 42)
    if length:
        with path.open("r+b") as file:
            at = len(begin) + 16
            for _ in range(200):
                file.seek(at)
                file.write(struct.pack("<Q", length))
                at += 8 + length
    start = time.process_time()
    if length:
        assert "larger than that of any model" in _refusal(path)
    else:
        assert read_header(path).metadata["k"] == Array("string", MAX_STRING_ELEMENTS, None)
    assert time.process_time() - start < 8


def test_one_text_more_than_allowed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "texts.gguf"
    begin = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
    _sparse(path, begin + struct.pack("<IIQ", ARRAY, STRING, MAX_STRING_ELEMENTS + 1), 1 << 40)
    assert "more than any vocabulary" in _refusal(path)


@pytest.mark.slow
def test_the_largest_header_that_is_read_stays_below_fifty_megabytes(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "large.gguf"
    keys = [(f"key {number:06} " + "k" * 80, U64, 2**63 + number) for number in range(MAX_KEYS)]
    tensors = [(f"{number:06}" + "n" * 50, [1, 1, 1, 1], 26, 32 * number) for number in range(MAX_TENSORS)]
    path.write_bytes(forge(keys, tensors, content=32 * MAX_TENSORS))
    tracemalloc.start()
    assert len(read_header(path).tensors) == MAX_TENSORS
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 << 20


def test_more_text_than_any_model_has_is_refused(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "texts.gguf"
    path.write_bytes(forge([(f"text {number}", STRING, "x" * 60_000) for number in range(80)]))
    assert "more text than any model" in _refusal(path)
