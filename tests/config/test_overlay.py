"""The overlay: what was changed in the pool is applied at the next start, and is never half there."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypnos_engine.config.documents import LARGEST_BYTES
from hypnos_engine.config.load import load
from hypnos_engine.config.overlay import Overlay, PoolChanges
from hypnos_engine.config.paths import overlay_path
from hypnos_engine.domain.errors import FolderUnusable
from hypnos_engine.domain.kinds import EngineKind, Modality
from hypnos_engine.domain.model import ModelId, ModelSpec
from tests.config.test_render import MODELS

HERE = Path(__file__).parent
CONFIG = """\
config_version = 1  # a comment
[[models]]
id = "a"
modality = "text_generation"
engine = "fake"
[[models]]
id = "b"
modality = "text_generation"
engine = "fake"
"""


def fake(name: str, **changes: object) -> ModelSpec:
    return ModelSpec(ModelId(name), Modality.TEXT, EngineKind.FAKE, "", **changes)  # type: ignore[arg-type]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "hypnos.toml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def overlay_of(config: Path) -> Overlay:
    return Overlay(overlay_path(config), config)


def pool(config: Path) -> dict[str, ModelSpec]:
    """The models of the next start."""
    return {model.id: model for model in load(config).models}


def program(name: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / name), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), *sys.path])}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def output(started: "subprocess.Popen[str]") -> str:
    said, complaints = started.communicate(timeout=120)
    assert started.returncode == 0, complaints
    return said


def test_an_added_model_is_there_at_the_next_start(config: Path) -> None:
    """[§6.4-07] [§6.4-08] [§6.4-09] [§19-32]"""
    overlay_of(config).put(fake("c", slots=2))
    assert pool(config) == {"a": fake("a"), "b": fake("b"), "c": fake("c", slots=2)}
    assert (config.parent / "hypnos.models.toml").is_file()
    assert config.read_text(encoding="utf-8") == CONFIG


def test_a_replaced_model_takes_the_place_of_its_block(config: Path) -> None:
    overlay_of(config).put(fake("a", slots=2))
    overlay_of(config).put(fake("a", slots=3))
    assert list(pool(config)) == ["a", "b"]
    assert pool(config)["a"].slots == 3


def test_a_removed_model_is_gone_and_may_come_back(config: Path) -> None:
    overlay = overlay_of(config)
    overlay.remove(ModelId("a"))
    assert list(pool(config)) == ["b"]
    overlay.put(fake("a", slots=1))
    assert pool(config)["a"].slots == 1
    assert overlay.read().removed == ()


def test_what_only_the_overlay_had_leaves_no_trace(config: Path) -> None:
    """Else a block of that name, written into the configuration years later, would be missing without a word."""
    overlay = overlay_of(config)
    overlay.put(fake("c"))
    overlay.remove(ModelId("c"))
    assert overlay.read() == PoolChanges()


def test_a_replaced_model_of_the_configuration_that_is_removed_stays_away(config: Path) -> None:
    overlay = overlay_of(config)
    overlay.put(fake("a", slots=2))
    overlay.remove(ModelId("a"))
    assert list(pool(config)) == ["b"]


def test_a_configuration_that_cannot_be_read_counts_as_having_every_model(config: Path) -> None:
    config.write_text("[[models", encoding="utf-8")
    overlay_of(config).remove(ModelId("c"))
    assert overlay_of(config).read().removed == (ModelId("c"),)


def test_without_a_configuration_there_is_nothing_to_take_out(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path / "hypnos.models.toml", None)
    overlay.put(fake("c"))
    overlay.remove(ModelId("c"))
    assert overlay.read() == PoolChanges()


@settings(max_examples=40, deadline=None)
@given(changes=st.lists(st.tuples(MODELS, st.booleans()), max_size=6))
def test_any_changes_read_back_as_what_they_were(changes: list[tuple[ModelSpec, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        overlay = Overlay(Path(folder) / "hypnos.models.toml", None)
        reference: dict[ModelId, ModelSpec] = {}
        for spec, stays in changes:
            overlay.put(spec)
            reference[spec.id] = spec
            if not stays:
                overlay.remove(spec.id)
                del reference[spec.id]
        assert {model.id: model for model in overlay.read().models} == reference


def test_an_overlay_that_cannot_be_read_is_left_as_it_is(config: Path) -> None:
    path = overlay_path(config)
    path.write_text("[[models]]\nid = 3\n", encoding="utf-8")
    with pytest.raises(FolderUnusable, match=r"models\.id"):
        overlay_of(config).put(fake("c"))
    assert path.read_text(encoding="utf-8") == "[[models]]\nid = 3\n"


def test_an_overlay_of_another_version_is_left_as_it_is(config: Path) -> None:
    path = overlay_path(config)
    path.write_text("config_version = 2\n", encoding="utf-8")
    with pytest.raises(FolderUnusable, match="version 2"):
        overlay_of(config).remove(ModelId("a"))
    assert path.read_text(encoding="utf-8") == "config_version = 2\n"


def test_it_does_not_grow_beyond_what_the_next_start_reads(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path / "hypnos.models.toml", None)
    overlay.put(fake("a"))
    with pytest.raises(FolderUnusable, match="larger"):
        overlay.put(replace(fake("b"), weights_path="x" * LARGEST_BYTES))
    assert overlay.read().models == (fake("a"),)


def test_a_link_stays_a_link(config: Path) -> None:
    elsewhere = config.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "real.toml").write_text("config_version = 1\n", encoding="utf-8")
    overlay_path(config).symlink_to(elsewhere / "real.toml")
    overlay_of(config).put(fake("c"))
    assert overlay_path(config).is_symlink()
    assert 'id = "c"' in (elsewhere / "real.toml").read_text(encoding="utf-8")
    assert [path.name for path in elsewhere.iterdir()] == ["real.toml"]


@pytest.mark.skipif(os.name != "posix", reason="modes mean nothing there")
def test_a_new_one_is_private_and_an_old_one_keeps_its_mode(config: Path) -> None:
    overlay_of(config).put(fake("c"))
    assert overlay_path(config).stat().st_mode & 0o777 == 0o600
    overlay_path(config).chmod(0o640)
    overlay_of(config).put(fake("d"))
    assert overlay_path(config).stat().st_mode & 0o777 == 0o640


def test_a_folder_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "none").write_text("", encoding="utf-8")
    with pytest.raises(FolderUnusable, match="is a file where a folder is needed"):
        Overlay(tmp_path / "none" / "hypnos.models.toml", None).put(fake("a"))


def test_a_folder_that_is_missing_is_made(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path / "new" / "hypnos.models.toml", None)
    overlay.put(fake("a"))
    assert overlay.read().models == (fake("a"),)


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    """A folder that others may look into and not write to."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o700)


@pytest.mark.skipif(os.name != "posix", reason="modes mean nothing there")
def test_a_folder_that_may_only_be_read_is_said(closed_folder: Path) -> None:
    said = output(program("overlay_of_another_user.py", closed_folder / "hypnos.models.toml"))
    assert "cannot be written to" in said
    assert not list(closed_folder.iterdir())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_any_moment_it_leaves_the_old_or_the_new_overlay(config: Path) -> None:
    by_line, at_random, *drafts = output(program("overlay_program.py", config.parent)).split()
    assert int(by_line) > 30, "every line of the writer was a moment to be killed at"
    assert int(at_random) > 0
    assert not drafts, "what killed writers left is cleared away by the next one"
    assert "last" in pool(config)


def test_two_programs_that_write_at_once_lose_nothing(config: Path) -> None:
    started = [program("overlay_writers.py", overlay_path(config), name, 15) for name in ("x", "y")]
    for one in started:
        output(one)
    assert {f"{name}-{number}" for name in ("x", "y") for number in range(15)} <= set(pool(config))
