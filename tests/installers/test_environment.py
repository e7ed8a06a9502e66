"""The stamp of a finished set-up: when nothing has to be done, and what makes set-up work again."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from installers import environment
from installers.environment import PENDING, STAMP, Stamp, inputs_hash, read_stamp

ROOT = Path(__file__).resolve().parents[2]
DONE = Stamp(inputs="abc", python="3.11", root="/clone", extras=("desktop", "text"), backend="", native=None)


def write(folder: Path, stamp: Stamp) -> None:
    (folder / STAMP).write_text(json.dumps(dataclasses.asdict(stamp)), encoding="utf-8")


def test_a_stamp_reads_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path, DONE)
    assert read_stamp(tmp_path) == DONE


def test_an_interrupted_set_up_has_no_stamp(tmp_path: Path) -> None:
    write(tmp_path, DONE)
    (tmp_path / PENDING).touch()
    assert read_stamp(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"inputs": "abc"}', '{"extras": 3}', "null", "\x00"])
def test_a_damaged_stamp_counts_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / STAMP).write_text(content, encoding="utf-8")
    assert read_stamp(tmp_path) is None


@pytest.mark.parametrize(
    ("changed", "covered"),
    [
        ({}, True),
        ({"extras": ("text",)}, True),
        ({"extras": ("test", "text")}, False),
        ({"inputs": "other"}, False),
        ({"python": "3.12"}, False),
        ({"root": "/moved"}, False),
        ({"backend": "vulkan"}, False),
        ({"native": False}, True),
        ({"native": True}, False),
    ],
)
def test_set_up_is_skipped_only_when_everything_asked_is_there(changed: dict[str, object], covered: bool) -> None:
    assert DONE.covers(dataclasses.replace(DONE, **changed)) is covered  # type: ignore[arg-type]


def test_choices_that_were_made_once_are_kept_until_said_otherwise() -> None:
    chosen = dataclasses.replace(DONE, backend="vulkan", native=True)
    silent = dataclasses.replace(DONE, extras=("test", "text"))
    assert chosen.covers(dataclasses.replace(silent, extras=("text",)))
    assert silent.keeping(chosen) == dataclasses.replace(chosen, extras=("desktop", "test", "text"))
    assert dataclasses.replace(silent, backend="cpu", native=False).keeping(chosen).backend == "cpu"
    assert dataclasses.replace(silent, native=False).keeping(chosen).native is False


@pytest.mark.parametrize("name", ["pyproject.toml", "installers/starter.lock.toml"])
def test_a_change_of_what_is_installed_asks_for_a_new_set_up(tmp_path: Path, name: str) -> None:
    (tmp_path / "installers").mkdir()
    for source in ("pyproject.toml", "installers/starter.lock.toml"):
        shutil.copy(ROOT / source, tmp_path / source)
    before = inputs_hash(tmp_path)
    assert before == inputs_hash(ROOT)
    with (tmp_path / name).open("a") as opened:
        opened.write("\n")
    assert inputs_hash(tmp_path) != before


def test_pip_works_in_the_environment_whatever_the_person_has_set() -> None:
    own = {"PYTHONPATH": "/x", "PYTHONHOME": "/y", "PIP_TARGET": "/z"}
    variables = environment.clean_environment({**own, "PIP_USER": "1", "PIP_INDEX_URL": "mirror", "A": "b"})
    assert own.keys().isdisjoint(variables)
    assert (variables["PIP_USER"], variables["PIP_INDEX_URL"], variables["A"]) == ("0", "mirror", "b")
