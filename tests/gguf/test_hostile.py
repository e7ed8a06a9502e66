"""Whatever bytes a file holds: a shape or LoadFailed, in bounded time and memory."""

import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypnos_engine.domain.errors import LoadFailed
from hypnos_engine.domain.model import ModelShape
from hypnos_engine.gguf import read_header, read_shape
from hypnos_engine.testing import tiny_gguf
from hypnos_engine.testing.tiny_gguf import Geometry

Forge = Callable[..., bytes]
U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
SMALL = Geometry(layers=2, embedding=32, heads=1, kv_heads=1, feed_forward=32)
SEED = 20_240_611
NUMBERS = (
    0,
    1,
    2,
    7,
    8,
    9,
    31,
    33,
    255,
    512,
    513,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**33,
    2**63 - 1,
    2**63,
    2**64 - 1,
)


def _consistent(shape: ModelShape) -> None:
    """What every accepted file has to obey, however odd it is."""
    assert 0 <= len(shape.layers) <= 512
    assert shape.non_layer_bytes >= 0
    assert 0 <= shape.tensor_bytes <= shape.file_bytes
    assert shape.expert_used_count <= max(shape.expert_count, 1)
    for layer in shape.layers:
        assert min(layer.weight_bytes, layer.expert_bytes, layer.sliding_window, layer.recurrent_state_bytes) >= 0
        assert min(layer.k_elements_per_cell, layer.v_elements_per_cell) >= 0


@dataclass
class Outcome:
    accepted: int = 0
    refused: int = 0
    slowest_s: float = 0.0

    def read(self, path: Path) -> None:
        begin = time.process_time()
        refusal = f"{path.name}: "
        try:
            _consistent(read_shape(path))
            self.accepted += 1
        except LoadFailed as error:
            refusal = error.message
            self.refused += 1
        self.slowest_s = max(self.slowest_s, time.process_time() - begin)
        assert refusal.startswith(f"{path.name}: ")
        assert len(refusal) < 1000


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[bytes, int]]:
    """Small files of every kind, each with the length of its header."""
    folder = tmp_path_factory.mktemp("originals")
    tiny_gguf.write_llama(folder / "llama.gguf", SMALL)
    tiny_gguf.write_sliding_window(folder / "sliding.gguf", SMALL)
    tiny_gguf.write_hybrid(folder / "hybrid.gguf", SMALL, attention_layers=(1,))
    tiny_gguf.write_delta_net(folder / "delta.gguf", SMALL)
    tiny_gguf.write_moe(folder / "moe.gguf", SMALL)
    tiny_gguf.write_mla(folder / "mla.gguf", SMALL)
    tiny_gguf.write_shared_kv(folder / "shared.gguf", Geometry(layers=4, embedding=32, heads=1), shared_layers=2)
    tiny_gguf.write_encoder(folder / "encoder.gguf", SMALL)
    return [(path.read_bytes(), read_header(path).tensors[0].offset) for path in sorted(folder.iterdir())]


def _positions_of_lengths(content: bytes, header_bytes: int, draw: random.Random) -> int:
    """Somewhere near a name, where counts, lengths, types and values stand; elsewhere most bytes are vocabulary."""
    names = (
        b"count",
        b"length",
        b"layers",
        b"weight",
        b".size",
        b"window",
        b"kernel",
        b"alignment",
        b"split",
        b"interval",
    )
    at = content.find(draw.choice(names), draw.randrange(header_bytes))
    return min(max(at + draw.randint(-40, 60), 0), header_bytes - 1) if at >= 0 else draw.randrange(header_bytes)


def _mutated(content: bytes, header_bytes: int, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at = _positions_of_lengths(content, header_bytes, draw) if draw.random() < 0.7 else draw.randrange(header_bytes)
        choice = draw.randrange(7)
        if choice == 0:
            changed[at] ^= 1 << draw.randrange(8)
        elif choice == 1:
            changed[at : at + 8] = struct.pack("<Q", draw.choice(NUMBERS))
        elif choice == 2:
            changed[at : at + 4] = struct.pack("<I", draw.choice(NUMBERS) & 0xFFFFFFFF)
        elif choice == 3:
            del changed[at : at + draw.choice((1, 4, 8, 32))]
        elif choice == 4:
            changed[at:at] = draw.randbytes(draw.choice((1, 4, 8, 32)))
        elif choice == 5:
            start = draw.randrange(header_bytes)
            changed[at:at] = content[start : start + draw.randrange(200)]
        else:
            changed[8 + draw.choice((0, 8)) : 16 + draw.choice((0, 8))] = struct.pack("<Q", draw.choice(NUMBERS))
    if draw.random() < 0.1:
        del changed[draw.randrange(len(changed)) :]
    return bytes(changed)


def _attack(path: Path, originals: list[tuple[bytes, int]], rounds: int, seed: int) -> Outcome:
    draw = random.Random(seed)
    outcome = Outcome()
    for _ in range(rounds):
        content, header_bytes = draw.choice(originals)
        path.write_bytes(_mutated(content, header_bytes, draw))
        outcome.read(path)
    return outcome


def test_two_thousand_damaged_headers(tmp_path: Path, originals: list[tuple[bytes, int]]) -> None:
    outcome = _attack(tmp_path / "damaged.gguf", originals, 2_000, SEED)
    assert outcome.refused > 1_000
    assert outcome.accepted > 100
    assert outcome.slowest_s < 1


def test_damaged_headers_cannot_make_the_reader_hold_much(tmp_path: Path, originals: list[tuple[bytes, int]]) -> None:
    tracemalloc.start()
    _attack(tmp_path / "damaged.gguf", originals, 300, SEED + 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 << 20


@pytest.mark.slow
def test_ten_thousand_damaged_headers(tmp_path: Path, originals: list[tuple[bytes, int]]) -> None:
    outcome = _attack(tmp_path / "damaged.gguf", originals, 10_000, SEED + 2)
    assert outcome.refused > 5_000
    assert outcome.accepted > 500
    assert outcome.slowest_s < 1


ARCHITECTURES = [
    "afmoe",
    "bert",
    "cohere2",
    "cohere2moe",
    "deepseek2",
    "dots3note",
    "exaone4",
    "falcon-h1",
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma4",
    "glm-dsa",
    "glm5-next",
    "gpt-oss",
    "graniteswitch",
    "hunyuan-dense",
    "hy_v4",
    "jamba",
    "kimi-linear",
    "laguna",
    "lfm2",
    "llama",
    "llama4",
    "mamba2",
    "minimax-01",
    "minimax-m3",
    "nanbeige",
    "nemotron_h",
    "plamo2",
    "qwen35",
    "rwkv7",
    "smallthinker",
    "step35",
    "no such thing",
]
SHORT_NAMES = [
    "block_count",
    "context_length",
    "embedding_length",
    "nextn_predict_layers",
    "feed_forward_length",
    "expert_count",
    "expert_used_count",
    "expert_group_count",
    "expert_group_used_count",
    "vocab_size",
    "num_loops",
    "full_attention_interval",
    "leading_dense_block_count",
    "token_shift_count",
    "rope.scaling.type",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.key_length_swa",
    "attention.value_length_swa",
    "attention.key_length_mla",
    "attention.value_length_mla",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.shared_kv_layers",
    "attention.recurrent_layers",
    "attention.indexer.key_length",
    "attention.indexer.top_k",
    "attention.indexer.types",
    "ssm.conv_kernel",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.group_count",
    "kda.head_dim",
    "wkv.head_size",
    "shortconv.l_cache",
]
SCALARS = st.one_of(
    st.tuples(st.just(U32), st.integers(0, 40)),
    st.tuples(st.just(U32), st.sampled_from([number for number in NUMBERS if number < 2**32])),
    st.tuples(st.just(U64), st.sampled_from(NUMBERS)),
    st.tuples(st.just(I32), st.integers(-3, 3)),
    st.tuples(st.just(F32), st.floats(width=32)),
    st.tuples(st.just(BOOL), st.booleans()),
    st.tuples(st.just(STRING), st.sampled_from(["", "linear", "yarn", "x" * 50])),
)
ARRAYS = st.one_of(
    st.lists(st.integers(0, 4), max_size=12).map(lambda entries: (ARRAY, (U32, entries))),
    st.lists(st.booleans(), max_size=12).map(lambda entries: (ARRAY, (BOOL, entries))),
    st.lists(st.floats(width=32), max_size=3).map(lambda entries: (ARRAY, (F32, entries))),
    st.lists(st.text(max_size=3), max_size=3).map(lambda entries: (ARRAY, (STRING, [e.encode() for e in entries]))),
)


@st.composite
def metadata(draw: st.DrawFn) -> list[tuple[str, int, object]]:
    """Keys that a decoder needs, sound ones for the most part, and any others with any value."""
    architecture = draw(st.sampled_from(ARCHITECTURES))
    layers = draw(st.integers(1, 12))
    keys: dict[str, tuple[int, object]] = {
        "block_count": (U32, layers),
        "context_length": (U32, 128),
        "embedding_length": (U32, 64),
        "attention.head_count": (U32, 4),
        "attention.sliding_window": (U32, draw(st.integers(0, 9))),
        **{name: (U32, 4) for name in SHORT_NAMES if name.startswith(("ssm.", "kda.", "wkv.", "shortconv."))},
    }
    names = draw(st.lists(st.sampled_from(SHORT_NAMES), max_size=5, unique=True))
    keys.update({name: draw(SCALARS | ARRAYS) for name in names})
    marks = draw(st.lists(st.booleans(), min_size=layers, max_size=layers))
    if draw(st.booleans()):
        keys["attention.sliding_window_pattern"] = (ARRAY, (BOOL, marks))
    if draw(st.booleans()):
        keys["attention.head_count_kv"] = (ARRAY, (U32, [int(mark) for mark in marks]))
    return [("general.architecture", STRING, architecture)] + [
        (f"{architecture}.{name}", kind, value) for name, (kind, value) in keys.items()
    ]


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("forged") / "forged.gguf"


@given(keys=metadata())
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_keys_give_a_shape_or_a_refusal(forged: Path, forge: Forge, keys: list[tuple[str, int, object]]) -> None:
    forged.write_bytes(forge(keys, [("blk.0.attn_q.weight", [32], 0, 0)], content=128))
    Outcome().read(forged)


@given(
    content=st.binary(max_size=400), version=st.integers(2, 3), counts=st.tuples(st.integers(0, 9), st.integers(0, 9))
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_after_the_magic_give_a_shape_or_a_refusal(
    forged: Path, content: bytes, version: int, counts: tuple[int, int]
) -> None:
    forged.write_bytes(b"GGUF" + struct.pack("<IQQ", version, *counts) + content)
    Outcome().read(forged)
