"""Asks real workers for vectors, and the bare library for the same ones; for tests."""

import json
import math
import subprocess
import sys
from array import array
from dataclasses import dataclass, field
from pathlib import Path

from hypnos_engine.ipc import messages as m
from tests.workers.driver import Worker, environment

BARE = Path(__file__).with_name("bare_embedding.py")
EXACT, CLOSE, COMPANY = 1e-6, 2e-5, 2e-3
"""How far elements of vectors of length 1 may be apart: computed alone; in a batch of the same kernels; in any batch.

llama.cpp's attention sums values up in half precision for batches below 64 tokens and in single precision above, so a
short text differs between alone and in company, and so does a long one between whole and in parts.
"""
TEXTS = (
    "a cat sat on the mat",
    "stocks fell",
    "",
    "an old lighthouse keeper counts the ships that pass at night and writes their names into a book",
    "a cat sat on the mat",
    "x",
)
MEAN, FROM_FILE = 1, -1


@dataclass(slots=True)
class Reply:
    """What a worker said about one request."""

    rows: list[list[float]] = field(default_factory=list)
    embedded: m.Embedded | None = None
    failed: m.Failed | None = None

    @property
    def end(self) -> m.Embedded:
        assert self.failed is None, self.failed
        assert self.embedded is not None
        return self.embedded


def replies(worker: Worker, *numbers: int) -> list[Reply]:
    """Read until the requests are over; each number is used once for a worker."""

    def ends() -> set[int]:
        return {message.id for message in worker.journal if isinstance(message, m.Embedded | m.Failed)}

    worker.until(lambda: ends() >= set(numbers))
    found = {number: Reply() for number in numbers}
    for message in worker.journal:
        reply = found.get(getattr(message, "id", -1))
        match message:
            case m.Vectors() if reply is not None:
                assert message.first == len(reply.rows)
                assert reply.embedded is None
                values = array("f", message.packed)
                assert len(values) % message.dimensions == 0
                starts = range(0, len(values), message.dimensions)
                reply.rows += [list(values[start : start + message.dimensions]) for start in starts]
            case m.Embedded() if reply is not None:
                reply.embedded = message
            case m.Failed() if reply is not None:
                reply.failed = message
            case _:
                pass
    return [found[number] for number in numbers]


def embed(worker: Worker, number: int, *texts: str, **options: bool) -> Reply:
    worker.send(m.Embed(number, texts, **options))
    return replies(worker, number)[0]


def bare(path: Path, texts: tuple[str, ...], pooling: int = FROM_FILE) -> list[tuple[int, list[float]]]:
    """Tokens and vector of each text, from the library."""
    command = [sys.executable, str(BARE), str(path), str(pooling)]
    done = subprocess.run(
        command, input=json.dumps(texts), capture_output=True, text=True, env=environment(), check=True
    )
    return [(count, vector) for count, vector in json.loads(done.stdout)]


def unit(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in vector))
    return [value / length for value in vector]


def distance(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
