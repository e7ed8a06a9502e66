"""What a file says about its model, against what llama.cpp says when it really loads the file."""

import re
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hypnos_engine.domain.errors import LoadFailed
from hypnos_engine.domain.model import ModelShape
from hypnos_engine.gguf import model_files, read_shape
from hypnos_engine.testing import tiny_gguf
from hypnos_engine.testing.tiny_gguf import Geometry

AskLlama = Callable[..., Any]
Forge = Callable[..., bytes]
U16, U32, BOOL, STRING, ARRAY = 2, 4, 7, 8, 9

CELLS, SEQUENCES, UBATCH = 16_384, 3, 64
_KV_LINE = re.compile(r"llama_kv_cache: size = .*\( *(\d+) cells, .*K \(f16\): +([\d.]+) MiB, V \(f16\): +([\d.]+)")
_STATE_LINE = re.compile(r"llama_memory_recurrent: size = +([\d.]+) MiB")


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.2f}"


def _window_cells(window: int) -> int:
    return -(-min(CELLS, window * SEQUENCES + UBATCH) // 256) * 256


def _expected_caches(shape: ModelShape, whole: int) -> list[tuple[str, str, str]]:
    """Cells, K and V as llama.cpp prints them: one cache of everything, then one of windows if there are any."""
    caches = []
    windows = {layer.sliding_window for layer in shape.layers if layer.sliding_window}
    assert len(windows) <= 1
    for window in (0, *windows):
        cells = _window_cells(window) if window else whole
        kept = [layer for layer in shape.layers if layer.sliding_window == window]
        k_bytes = sum(layer.k_elements_per_cell for layer in kept) * cells * 2
        v_bytes = sum(layer.v_elements_per_cell for layer in kept) * cells * 2
        caches.append((str(cells), _mib(k_bytes), _mib(v_bytes)))
    return caches


LARGER: dict[str, Callable[[Path], None]] = {
    "llama": lambda path: tiny_gguf.write_llama(path, Geometry(layers=3, heads=4, kv_heads=2)),
    "sliding_window": lambda path: tiny_gguf.write_sliding_window(path, window=1000),
    "hybrid": lambda path: tiny_gguf.write_hybrid(
        path, Geometry(layers=5, embedding=512, heads=16), attention_layers=(1, 3)
    ),
    "delta_net": lambda path: tiny_gguf.write_delta_net(path, Geometry(layers=7), attention_every=3),
    "moe": tiny_gguf.write_moe,
    "mla": tiny_gguf.write_mla,
    "shared_kv": lambda path: tiny_gguf.write_shared_kv(path, Geometry(layers=8), window=700, shared_layers=4),
    "encoder": tiny_gguf.write_encoder,
}
"""Sizes at which the numbers that llama.cpp prints, rounded to 0.01 MiB, tell right from wrong."""


def test_every_kind_of_tiny_model_is_compared_with_llama() -> None:
    assert set(LARGER) == set(tiny_gguf.WRITERS)


@pytest.mark.parametrize("kind", LARGER)
def test_caches_and_weights_are_those_of_llama(tmp_path: Path, ask_llama: AskLlama, kind: str) -> None:
    path = tmp_path / "model.gguf"
    LARGER[kind](path)
    _compare_with_llama(path, ask_llama, encoder=kind == "encoder")


@pytest.mark.starter
def test_caches_and_weights_of_a_real_model_are_those_of_llama(starter: Path, ask_llama: AskLlama) -> None:
    shape = _compare_with_llama(starter, ask_llama, cells=1024)
    assert (shape.architecture, shape.vocabulary_size, len(shape.layers)) == ("llama", 49152, 30)
    assert shape.has_chat_template


def _compare_with_llama(path: Path, ask_llama: AskLlama, *, cells: int = CELLS, encoder: bool = False) -> ModelShape:
    # Mean pooling aborts while it plans unless the micro-batch is a multiple of the sequences.
    sequences = 1 if encoder else SEQUENCES
    verdict = ask_llama(path, cells=cells, sequences=sequences, ubatch=UBATCH, embeddings=encoder)
    assert verdict.loaded
    assert verdict.finite, verdict.log[-2000:]
    shape = read_shape(path)
    assert shape.tensor_bytes == verdict.model_bytes
    assert len(shape.layers) == verdict.layers
    printed = [(cells, k, v) for cells, k, v in _KV_LINE.findall(verdict.log)]
    assert printed == ([] if encoder else _expected_caches(shape, cells))
    state_bytes = sum(layer.recurrent_state_bytes for layer in shape.layers) * SEQUENCES
    assert _STATE_LINE.findall(verdict.log) == ([_mib(state_bytes)] if state_bytes else [])
    assert shape.is_encoder is encoder
    return shape


def test_layers_and_the_rest_add_up_to_all_tensors(models: Mapping[str, Path]) -> None:
    for path in models.values():
        shape = read_shape(path)
        layers = sum(layer.weight_bytes + layer.expert_bytes for layer in shape.layers)
        assert layers + shape.non_layer_bytes == shape.tensor_bytes
        assert min(layer.weight_bytes for layer in shape.layers) > 0


def test_experts_are_counted_apart(models: Mapping[str, Path]) -> None:
    shape = read_shape(models["moe"])
    assert shape.expert_bytes == 2 * 3 * 4 * 32 * 64 * 2
    assert (shape.expert_count, shape.expert_used_count) == (4, 2)
    assert read_shape(models["mla"]).layers[0].expert_bytes == 0
    assert read_shape(models["llama"]).expert_bytes == 0


def test_what_the_file_says_about_its_model(models: Mapping[str, Path], tmp_path: Path) -> None:
    shape = read_shape(models["llama"])
    assert (shape.name, shape.context_train, shape.embedding_length, shape.vocabulary_size) == (
        "tiny llama",
        4096,
        64,
        274,
    )
    assert shape.file_bytes == models["llama"].stat().st_size
    assert shape.has_chat_template
    assert not read_shape(models["encoder"]).has_chat_template
    bare = tmp_path / "bare.gguf"
    tiny_gguf.write_llama(bare, chat_template=None)
    assert not read_shape(bare).has_chat_template


def test_an_endless_name_is_cut(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "named.gguf"
    path.write_bytes(forge([("general.name", STRING, "n" * 5_000)]))
    assert read_shape(path).name == "n" * 200


def test_kinds_of_layers(models: Mapping[str, Path]) -> None:
    sliding = [layer.sliding_window for layer in read_shape(models["sliding_window"]).layers]
    assert sliding == [64, 64, 64, 64, 64, 0, 64]
    hybrid = [(layer.k_elements_per_cell, layer.recurrent_state_bytes) for layer in read_shape(models["hybrid"]).layers]
    assert hybrid == [(0, 512), (0, 512), (32, 0), (0, 512)]
    latent = [(layer.k_elements_per_cell, layer.v_elements_per_cell) for layer in read_shape(models["mla"]).layers]
    assert latent == [(48, 0)] * 3
    shared = [(layer.k_elements_per_cell, layer.sliding_window) for layer in read_shape(models["shared_kv"]).layers]
    assert shared == [(16, 64), (32, 0), (16, 64), (32, 0), (0, 0), (0, 0)]


def test_files_of_a_split_model_are_found_and_summed(models: Mapping[str, Path], ask_llama: AskLlama) -> None:
    files = model_files(models["split"])
    assert [file.name for file in files] == [f"split-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    whole, split = read_shape(models["llama"]), read_shape(models["split"])
    assert split.layers == whole.layers
    assert split.tensor_bytes == whole.tensor_bytes
    assert split.file_bytes == sum(file.stat().st_size for file in files)
    assert ask_llama(models["split"]).model_bytes == split.tensor_bytes
    assert model_files(models["llama"]) == (models["llama"],)


@pytest.fixture
def split(models: Mapping[str, Path], tmp_path: Path) -> tuple[Path, ...]:
    """A split model of one's own to damage."""
    return tuple(Path(shutil.copy(file, tmp_path)) for file in model_files(models["split"]))


def _refusal(path: Path) -> str:
    with pytest.raises(LoadFailed) as caught:
        read_shape(path)
    assert type(caught.value) is LoadFailed
    return caught.value.message


def test_a_missing_file_of_a_split_model_is_named(split: tuple[Path, ...]) -> None:
    split[1].unlink()
    assert _refusal(split[0]).startswith(
        "split-00001-of-00003.gguf: the model has 3 files, and split-00002-of-00003.gguf"
    )


def test_a_damaged_file_of_a_split_model_is_named(split: tuple[Path, ...]) -> None:
    split[2].write_bytes(split[2].read_bytes()[:-1])
    assert _refusal(split[0]).startswith("split-00003-of-00003.gguf: the file is incomplete")


def test_another_file_than_the_first_is_refused_with_the_first_ones_name(split: tuple[Path, ...]) -> None:
    assert "split-00001-of-00003.gguf instead" in _refusal(split[1])


def test_files_in_the_wrong_order_or_of_another_model_are_refused(
    split: tuple[Path, ...], models: Mapping[str, Path]
) -> None:
    shutil.copy(split[2], split[1])
    assert "is not file 2 of the model" in _refusal(split[0])
    shutil.copy(models["llama"], split[1])
    assert "is not file 2 of the model" in _refusal(split[0])


def test_a_renamed_file_of_a_split_model_is_refused(split: tuple[Path, ...]) -> None:
    renamed = split[0].rename(split[0].with_name("model.gguf"))
    assert "-00001-of-00003.gguf" in _refusal(renamed)


def test_split_files_that_do_not_belong_together_are_refused(tmp_path: Path, forge: Forge) -> None:
    def part(number: int, name: str, announced: int) -> Path:
        path = tmp_path / f"m-0000{number + 1}-of-00002.gguf"
        keys = [("split.no", U16, number), ("split.count", U16, 2), ("split.tensors.count", 5, announced)]
        path.write_bytes(forge(keys, [(name, [32], 0, 0)], content=128))
        return path

    first = part(0, "a", 2)
    part(1, "b", 2)
    assert read_shape(first).tensor_bytes == 256
    part(1, "a", 2)
    assert "'a' is in another file" in _refusal(first)
    part(0, "a", 3)
    part(1, "b", 3)
    assert "hold 2 tensors instead of 3" in _refusal(first)


def test_a_part_number_of_another_type_is_refused_because_llama_aborts(
    tmp_path: Path, forge: Forge, ask_llama: AskLlama
) -> None:
    paths = [tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    for number, (path, kind) in enumerate(zip(paths, (U16, U32), strict=True)):
        keys = [*DECODER, ("split.no", kind, number), ("split.count", U16, 2)]
        path.write_bytes(forge(keys, [(f"t{number}", [32], 0, 0)], content=128))
    assert ask_llama(paths[0]).signal
    assert "m-00002-of-00002.gguf: it is not file 2" in _refusal(paths[0])


def test_a_file_without_layers_has_a_shape_without_layers(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "mmproj.gguf"
    keys = [("general.architecture", STRING, "clip"), ("clip.vision.block_count", U32, 27)]
    path.write_bytes(forge(keys, [("v.blk.0.attn_q.weight", [32], 0, 0)], content=128))
    shape = read_shape(path)
    assert (shape.architecture, shape.name, shape.layers, shape.non_layer_bytes) == ("clip", "mmproj", (), 128)


DECODER: list[tuple[str, int, object]] = [
    ("general.architecture", STRING, "qwen3moe"),
    ("qwen3moe.block_count", U32, 2),
    ("qwen3moe.context_length", U32, 128),
    ("qwen3moe.embedding_length", U32, 64),
    ("qwen3moe.attention.head_count", U32, 2),
    ("qwen3moe.attention.layer_norm_rms_epsilon", 6, 1e-6),
    ("qwen3moe.expert_count", U32, 4),
    ("qwen3moe.expert_used_count", U32, 2),
    ("tokenizer.ggml.model", STRING, "no_vocab"),
]


def _with(changes: Mapping[str, tuple[int, object]], architecture: str = "qwen3moe") -> list[tuple[str, int, object]]:
    keys = {name: (kind, value) for name, kind, value in DECODER}
    keys.update({f"qwen3moe.{name}": change for name, change in changes.items()})
    keys["general.architecture"] = (STRING, architecture)
    return [(name.replace("qwen3moe.", f"{architecture}."), kind, value) for name, (kind, value) in keys.items()]


ENDS_LLAMA: dict[str, tuple[list[tuple[str, int, object]], str]] = {
    "no layers": (_with({"block_count": (U32, 0)}), "between 1 and 512"),
    "too many layers": (_with({"block_count": (U32, 513)}), "between 1 and 512"),
    "more appended layers than layers": (_with({"nextn_predict_layers": (U32, 3)}), "between 0 and 2"),
    "too many experts": (_with({"expert_count": (U32, 1025)}), "between 0 and 1024"),
    "more experts used than there are": (_with({"expert_used_count": (U32, 5)}), "5 experts are used"),
    "more used in one layer": (_with({"expert_used_count": (ARRAY, (U32, [2, 5]))}), "5 experts are used"),
    "no experts used": (_with({"expert_used_count": (U32, 0)}), "uses none"),
    "as many groups as experts": (_with({"expert_group_count": (U32, 4)}), "cannot form 4 groups"),
    "groups that do not divide": (
        _with({"expert_group_count": (U32, 3), "expert_group_used_count": (U32, 1)}),
        "cannot be chosen",
    ),
    "no group chosen": (_with({"expert_group_count": (U32, 2)}), "cannot be chosen"),
    "unknown rope scaling": (_with({"rope.scaling.type": (STRING, "bent")}), "'bent' is unknown"),
    "full attention in every zeroth layer": (
        _with(
            {
                "full_attention_interval": (U32, 0),
                "rope.dimension_sections": (ARRAY, (5, [8, 0, 0, 0])),
                **{
                    f"ssm.{key}": (U32, 4)
                    for key in ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count")
                },
            },
            "qwen35moe",
        ),
        "'qwen35moe.full_attention_interval' is 0",
    ),
}


@pytest.mark.parametrize("what", ENDS_LLAMA)
def test_what_ends_llamas_process_is_refused(tmp_path: Path, forge: Forge, ask_llama: AskLlama, what: str) -> None:
    keys, words = ENDS_LLAMA[what]
    path = tmp_path / "fatal.gguf"
    path.write_bytes(forge(keys))
    assert ask_llama(path).signal
    assert words in _refusal(path)


def test_the_same_header_without_the_fault_is_accepted(tmp_path: Path, forge: Forge, ask_llama: AskLlama) -> None:
    path = tmp_path / "sound.gguf"
    path.write_bytes(forge(_with({})))
    verdict = ask_llama(path)
    assert verdict.signal is None
    assert "'token_embd.weight' not found" in verdict.log
    assert len(read_shape(path).layers) == 2


@pytest.mark.parametrize(("shared_layers", "words"), [(3, "shares"), (5, "fewer than two layers")])
def test_layers_that_share_what_nobody_keeps_are_refused(
    tmp_path: Path, ask_llama: AskLlama, shared_layers: int, words: str
) -> None:
    path = tmp_path / "shared.gguf"
    tiny_gguf.write_shared_kv(path, shared_layers=shared_layers)
    assert ask_llama(path).signal
    assert words in _refusal(path)


def test_a_sliding_model_without_a_sliding_layer_is_refused(
    tmp_path: Path, models: Mapping[str, Path], ask_llama: AskLlama
) -> None:
    content = models["sliding_window"].read_bytes()
    key = b"gemma3.attention.sliding_window_pattern"
    one_of_one = struct.pack("<Q", len(key)) + key + struct.pack("<II", U32, 1)
    # A second key makes the two 96 bytes, so that no tensor changes its place within the alignment.
    filler = struct.pack("<Q", 25) + b"f" * 25 + struct.pack("<II", U32, 0)
    keys = int.from_bytes(content[16:24], "little")
    path = tmp_path / "dense.gguf"
    path.write_bytes(content[:16] + struct.pack("<Q", keys + 2) + one_of_one + filler + content[24:])
    assert ask_llama(path).signal
    assert "no layer has it" in _refusal(path)


WRONG: dict[str, tuple[list[tuple[str, int, object]], str]] = {
    "an endless architecture": ([("general.architecture", STRING, "a" * 60_000)], "60,000 characters"),
    "architecture that is a number": ([("general.architecture", U32, 1)], "is not a text"),
    "no context length": (
        [key for key in DECODER if key[0] != "qwen3moe.context_length"],
        "context_length' is missing",
    ),
    "text for a number": (_with({"block_count": (STRING, "2")}), "should be an integer, but is a text"),
    "fraction for a number": (_with({"block_count": (6, 2.0)}), "should be an integer, but is a float"),
    "yes for a number": (_with({"block_count": (BOOL, True)}), "should be an integer, but is a bool"),
    "heads for three layers": (
        _with({"attention.head_count": (ARRAY, (U32, [1, 2, 3]))}),
        "has 3 entries for 2 layers",
    ),
    "heads that are texts": (_with({"attention.head_count": (ARRAY, (STRING, ["1", "2"]))}), "entries of type string"),
    "heads that are fractions": (_with({"attention.head_count": (ARRAY, (6, [1.0, float("nan")]))}), "of type f32"),
    "endless heads": (_with({"attention.head_count": (U32, 2**32 - 1)}), "between 0 and 65536"),
    "no embedding": (_with({"embedding_length": (U32, 0)}), "embedding_length' is 0"),
    "no list of sliding layers": (
        _with({"attention.sliding_window": (U32, 4)}, "step35"),
        "list of sliding-window layers",
    ),
    "no window": (_with({}, "gpt-oss"), "'gpt-oss.attention.sliding_window' is missing"),
    "an endless split": ([*DECODER, ("split.count", U16, 65535)], "split.count is 65535"),
    "a split that is a text": ([*DECODER, ("split.count", STRING, "3")], "split.count is '3'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_keys_that_cannot_be_right_are_refused(tmp_path: Path, forge: Forge, what: str) -> None:
    keys, words = WRONG[what]
    path = tmp_path / "wrong.gguf"
    path.write_bytes(forge(keys))
    assert words in _refusal(path)


def test_layers_of_no_architecture_are_refused(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "nameless.gguf"
    path.write_bytes(forge([], [("blk.0.attn_q.weight", [32], 0, 0)], content=128))
    assert "does not say which architecture" in _refusal(path)
