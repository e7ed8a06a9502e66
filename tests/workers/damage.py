"""Does to model files what bad disks, bad copies and careless hands do; for tests."""

import struct
from pathlib import Path

from hypnos_engine.testing import tiny_gguf

TENSORS_BYTES = 40_000
"""At the end of a tiny llama's file there is nothing but tensors in so many bytes."""
NOT_A_NUMBER = b"\xff\x7f" * (TENSORS_BYTES // 2)
"""Half-precision NaN."""


def overwrite_tensors(path: Path, content: bytes) -> None:
    """Change the weights where they lie; whoever has mapped the file computes with them at once."""
    with path.open("r+b") as file:
        file.seek(-TENSORS_BYTES, 2)
        file.write(content)


def cut(path: Path, size_bytes: int) -> None:
    """Take away what lies beyond; whoever has mapped it and reads it is sent SIGBUS."""
    with path.open("r+b") as file:
        file.truncate(size_bytes)


def write_aborting(path: Path) -> None:
    """Write a sound file with one wrong number in its header, at which ggml aborts the process in the middle of a load.

    It is a number that says nothing about sizes, so that only the library minds.
    """
    tiny_gguf.write_moe(path)
    content = bytearray(path.read_bytes())
    key = b"qwen3moe.rope.dimension_count"
    at = content.index(struct.pack("<Q", len(key)) + key) + 8 + len(key) + 4
    struct.pack_into("<I", content, at, 64)
    path.write_bytes(content)
