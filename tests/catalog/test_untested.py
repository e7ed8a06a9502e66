"""A file of the user's own is loaded when its architecture was tested, or when that is said to be no matter."""

from dataclasses import replace
from pathlib import Path

import pytest

from hypnos_engine.domain.errors import ModelNotAvailable
from hypnos_engine.domain.kinds import EngineKind, Modality
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.runtime.inspection import inspect_files
from hypnos_engine.testing.tiny_gguf import write_llama

SPEC = ModelSpec(ModelId("mine"), Modality.TEXT, EngineKind.LLAMA, "mine.gguf")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_llama(tmp_path / "mine.gguf")
    return tmp_path


def test_a_tested_architecture_is_served(folder: Path) -> None:
    seen = inspect_files(SPEC, [folder], None, lambda: frozenset({"llama"}))
    assert seen.problem is None
    assert seen.shape is not None
    assert inspect_files(SPEC, [folder], seen, lambda: frozenset({"llama"})) is seen


def test_another_one_is_refused_with_what_to_do(folder: Path) -> None:
    seen = inspect_files(SPEC, [folder], None, lambda: frozenset({"gemma4"}))
    assert isinstance(seen.problem, ModelNotAvailable)
    assert '"llama"' in seen.problem.message
    assert "allow_untested = true" in seen.problem.message
    assert seen.shape is None


def test_the_owner_may_allow_it(folder: Path) -> None:
    allowed = inspect_files(replace(SPEC, allow_untested=True), [folder], None, lambda: frozenset())
    assert allowed.problem is None
    assert allowed.shape is not None
    withdrawn = inspect_files(SPEC, [folder], allowed, lambda: frozenset())
    assert withdrawn.problem is not None


def test_without_a_catalog_nothing_is_untested(folder: Path) -> None:
    assert inspect_files(SPEC, [folder], None, lambda: None).problem is None
    assert inspect_files(SPEC, [folder]).problem is None
