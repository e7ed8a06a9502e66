"""What of the catalog is on disk: states of files, roots and disks."""

import os
from pathlib import Path

import pytest

from hypnos_engine.catalog.entries import Catalog, Platform
from hypnos_engine.catalog.files import Architectures, VariantState, look
from hypnos_engine.catalog.roots import Absence
from hypnos_engine.catalog.shelf import Shelf
from hypnos_engine.domain.errors import NotFound
from hypnos_engine.testing.tiny_gguf import write_llama
from tests.catalog.small_catalog import catalog_of, entry, write_catalog

LONG = "/".join(["very long folder name " * 4] * 6)
NAMES = ["tiny.gguf", "with some spaces.gguf", "übergrößen/モデル.gguf", "rakete 🚀.gguf", f"{LONG}/tiny.gguf"]


def files(*locals_: str) -> str:
    roles = ("weights", *["data"] * (len(locals_) - 1))
    rest = 'repo = "own/er", size_bytes = 4'
    made = (
        f'{{ role = "{role}", remote = "f{at}", local = "{name}", {rest} }}'
        for at, (role, name) in enumerate(zip(roles, locals_, strict=True))
    )
    return ", ".join(made)


def only(catalog: Catalog, *roots: Path, platform: Platform = Platform.OTHER) -> VariantState:
    (state,) = look(catalog, roots, platform)
    return state.variants[0]


def put(path: Path, content: bytes = b"1234") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_present_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    """[§6.2-40] [§6.2-42]"""
    catalog = catalog_of(entry(files=files(name)))
    assert not only(catalog, tmp_path).installed
    put(tmp_path / name)
    state = only(catalog, tmp_path)
    assert (state.installed, state.outdated, state.files[0].path) == (True, False, tmp_path / name)


def test_another_size_is_outdated_and_still_installed(tmp_path: Path) -> None:
    """[§6.2-41] [§6.2-43]"""
    catalog = catalog_of(entry(files=files("a", "b")))
    put(tmp_path / "a", b"12345")
    assert (only(catalog, tmp_path).installed, only(catalog, tmp_path).outdated) == (False, True)
    put(tmp_path / "b")
    assert (only(catalog, tmp_path).installed, only(catalog, tmp_path).outdated) == (True, True)


def test_a_size_that_is_not_known_is_never_outdated(tmp_path: Path) -> None:
    listed = '{ role = "weights", repo = "own/er", remote = "f", about_bytes = 4 }'
    put(tmp_path / "f", b"other")
    assert not only(catalog_of(entry(files=listed, extra="verified = false")), tmp_path).outdated


def test_a_folder_is_present_when_it_holds_something(tmp_path: Path) -> None:
    """[§6.2-33] [§6.2-37] [§6.2-40]"""
    listed = '{ role = "weights", repo = "own/er", remote = "onnx/", local = "all/", entry = "model.onnx" }'
    catalog = catalog_of(entry(files=listed, extra="verified = false"))
    assert only(catalog, tmp_path).files[0].absence is Absence.NOT_FOUND
    (tmp_path / "all").mkdir()
    assert not only(catalog, tmp_path).installed
    put(tmp_path / "all" / "model.onnx")
    assert only(catalog, tmp_path).installed
    assert catalog.entries[0].default_variant.files[0].configured_path == "all/model.onnx"


def test_a_folder_is_no_file_and_a_file_no_folder(tmp_path: Path) -> None:
    folder = '{ role = "weights", repo = "own/er", remote = "a/", local = "a/" }'
    (tmp_path / "b").mkdir()
    put(tmp_path / "a")
    assert not only(catalog_of(entry(files=folder, extra="verified = false")), tmp_path).installed
    assert not only(catalog_of(entry(files=files("b"))), tmp_path).installed


def test_files_may_lie_in_several_roots(tmp_path: Path) -> None:
    catalog = catalog_of(entry(files=files("a", "b")))
    put(tmp_path / "first" / "a")
    put(tmp_path / "second" / "b")
    put(tmp_path / "second" / "a", b"shadowed")
    state = only(catalog, tmp_path / "first", tmp_path / "second")
    assert (state.installed, state.outdated) == (True, False)


def test_an_absent_disk_is_a_state(tmp_path: Path) -> None:
    catalog = catalog_of(entry(files=files("a", "b")))
    put(tmp_path / "here" / "a")
    state = only(catalog, tmp_path / "here", tmp_path / "unplugged")
    assert [one.absence for one in state.files] == [None, Absence.DISK_ABSENT]
    assert not state.installed


def test_a_variant_for_another_machine_is_never_installed(tmp_path: Path) -> None:
    listed = files("a").replace("size_bytes = 4", 'size_bytes = 4, platform = "macos-arm64"')
    put(tmp_path / "a")
    catalog = catalog_of(entry(files=listed))
    assert not only(catalog, tmp_path).installed
    assert only(catalog, tmp_path, platform=Platform.MACOS_ARM64).installed


def test_a_read_only_root_is_looked_at_like_any_other(tmp_path: Path) -> None:
    put(tmp_path / "shared" / "a")
    (tmp_path / "shared").chmod(0o555)
    assert only(catalog_of(entry(files=files("a"))), tmp_path / "mine", tmp_path / "shared").installed


def test_a_gguf_of_another_architecture_is_a_problem(tmp_path: Path) -> None:
    """[§6.2-44]"""
    weights = tmp_path / "tiny.gguf"
    write_llama(weights)
    listed = f'{{ role = "weights", repo = "own/er", remote = "tiny.gguf", size_bytes = {weights.stat().st_size} }}'
    assert only(catalog_of(entry(files=listed)), tmp_path).problem is None
    other = entry(files=listed).replace('architecture = "llama"', 'architecture = "qwen3"')
    problem = only(catalog_of(other), tmp_path).problem
    assert problem is not None
    assert "'llama', not 'qwen3'" in problem


def test_a_file_that_is_no_gguf_is_no_problem_of_this_kind(tmp_path: Path) -> None:
    put(tmp_path / "tiny.gguf", b"GGUF")
    assert only(catalog_of(entry()), tmp_path).problem is None


def test_what_did_not_change_is_read_once_and_what_did_again(tmp_path: Path) -> None:
    weights = tmp_path / "tiny.gguf"
    write_llama(weights)
    known = Architectures()
    assert known.of(weights) == "llama"
    kept = weights.stat()
    weights.write_bytes(b"\0" * kept.st_size)
    os.utime(weights, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    assert known.of(weights) == "llama"
    os.utime(weights, ns=(kept.st_atime_ns, kept.st_mtime_ns + 1))
    assert known.of(weights) is None
    assert known.of(tmp_path / "nothing") is None


# --- the shelf ------------------------------------------------------------------------------------------------------


def test_a_catalog_is_read_again_when_it_changed(tmp_path: Path) -> None:
    path = write_catalog(tmp_path / "models.catalog.toml", entry("one"))
    shelf = Shelf([tmp_path], path, Platform.OTHER)
    assert shelf.catalog() is shelf.catalog()
    write_catalog(path, entry("one"), entry("two", files("b")))
    assert [state.entry.id for state in shelf.states()] == ["one", "two"]
    assert shelf.tested_architectures() == frozenset({"llama", "qwen3"})


def test_without_a_usable_catalog_nothing_is_known_and_it_is_said_why(tmp_path: Path) -> None:
    path = tmp_path / "models.catalog.toml"
    shelf = Shelf([tmp_path], path)
    with pytest.raises(NotFound, match="no model catalog"):
        shelf.catalog()
    assert shelf.tested_architectures() is None
    path.write_text("catalog_version = 7")
    with pytest.raises(NotFound, match="version 1"):
        shelf.states()
    write_catalog(path, entry())
    assert shelf.catalog().entry("tiny:1m") is not None
    path.unlink()
    with pytest.raises(NotFound, match="no model catalog"):
        shelf.catalog()
