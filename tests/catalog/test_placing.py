"""Files come into the models folder as themselves: linked or copied, whole, and never outside of it."""

import hashlib
import os
from pathlib import Path

import pytest

from hypnos_engine.catalog.adopting import find_copies
from hypnos_engine.catalog.entries import CatalogFile, Role
from hypnos_engine.catalog.placing import bring_in
from hypnos_engine.domain.errors import FolderUnusable, InvalidRequest
from tests.catalog.test_files import NAMES, put

OTHER_DISK = Path("/dev/shm")
CONTENT = b"weights of a model"


def listed(remote: str, content: bytes = CONTENT, *, digest: bool = True) -> CatalogFile:
    sha256 = hashlib.sha256(content).hexdigest() if digest else None
    return CatalogFile(Role.WEIGHTS, "own/er", remote, remote, size_bytes=len(content), sha256=sha256)


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


@pytest.mark.parametrize("name", NAMES)
def test_a_file_on_the_same_disk_gets_a_second_name(tmp_path: Path, name: str) -> None:
    source = put(tmp_path / "else" / name, CONTENT)
    placed = bring_in(source, tmp_path / "models", name)
    assert placed == tmp_path / "models" / name
    assert placed.samefile(source)
    assert not placed.is_symlink()
    assert names_in(tmp_path / "models") == [name]


@pytest.mark.skipif(not OTHER_DISK.is_dir(), reason="needs a second disk")
def test_a_file_on_another_disk_is_copied(tmp_path: Path) -> None:
    source = OTHER_DISK / f"hypnos-{os.getpid()}-{tmp_path.name}"
    try:
        source.write_bytes(CONTENT)
        if source.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("both are one disk here")
        placed = bring_in(source, tmp_path, "a/b.gguf")
        assert placed.read_bytes() == CONTENT
        assert not placed.samefile(source)
        assert names_in(tmp_path) == ["a/b.gguf"]
    finally:
        source.unlink(missing_ok=True)


def test_a_link_is_followed_so_that_the_folder_holds_the_file(tmp_path: Path) -> None:
    source = put(tmp_path / "blobs" / "abc", CONTENT)
    link = tmp_path / "link.gguf"
    link.symlink_to(source)
    placed = bring_in(link, tmp_path / "models", "m.gguf")
    assert not placed.is_symlink()
    assert placed.samefile(source)


def test_what_stood_there_is_replaced_and_doing_it_twice_changes_nothing(tmp_path: Path) -> None:
    source = put(tmp_path / "new", CONTENT)
    put(tmp_path / "models" / "m.gguf", b"old")
    for _ in range(2):
        assert bring_in(source, tmp_path / "models", "m.gguf").read_bytes() == CONTENT
    assert names_in(tmp_path / "models") == ["m.gguf"]


def test_a_link_that_stood_there_is_replaced_not_followed(tmp_path: Path) -> None:
    source = put(tmp_path / "new", CONTENT)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m.gguf").symlink_to(source)
    placed = bring_in(source, tmp_path / "models", "m.gguf")
    assert not placed.is_symlink()
    assert source.read_bytes() == CONTENT


@pytest.mark.parametrize("local", ["", ".", "/", "../m.gguf", "a/../../m.gguf", "/etc/m.gguf", "a\0b"])
def test_a_path_that_leaves_the_folder_is_refused(tmp_path: Path, local: str) -> None:
    source = put(tmp_path / "new", CONTENT)
    with pytest.raises(InvalidRequest):
        bring_in(source, tmp_path / "models", local)
    assert not (tmp_path / "m.gguf").exists()


def test_a_folder_that_is_a_link_out_is_refused(tmp_path: Path) -> None:
    source = put(tmp_path / "new", CONTENT)
    (tmp_path / "outside").mkdir()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "sub").symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidRequest, match="Remove the link"):
        bring_in(source, tmp_path / "models", "sub/m.gguf")
    assert names_in(tmp_path / "outside") == []


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for source in (tmp_path / "nothing", tmp_path / "folder"):
        with pytest.raises(InvalidRequest):
            bring_in(source, tmp_path / "models", "m.gguf")
    (tmp_path / "models" / "m.gguf").mkdir(parents=True)
    with pytest.raises(InvalidRequest, match="is a folder"):
        bring_in(put(tmp_path / "new"), tmp_path / "models", "m.gguf")


def test_a_name_that_the_disk_cannot_hold_leaves_nothing(tmp_path: Path) -> None:
    source = put(tmp_path / "new", CONTENT)
    with pytest.raises(FolderUnusable, match="cannot be written"):
        bring_in(source, tmp_path / "models", "n" * 300)
    assert names_in(tmp_path / "models") == []


# --- finding copies -------------------------------------------------------------------------------------------------


def test_a_copy_is_found_by_its_bytes_whatever_its_name(tmp_path: Path) -> None:
    copy = put(tmp_path / "blobs" / "sha256-abc", CONTENT)
    put(tmp_path / "m.gguf", bytes(len(CONTENT)))
    (match,) = find_copies([listed("m.gguf")], tmp_path)
    assert (match.path, match.by_digest) == (copy, True)


def test_without_a_digest_name_and_size_have_to_agree(tmp_path: Path) -> None:
    wanted = listed("deep/m.gguf", digest=False)
    put(tmp_path / "other.gguf", CONTENT)
    put(tmp_path / "a" / "m.gguf", CONTENT + b"!")
    assert find_copies([wanted], tmp_path) == ()
    copy = put(tmp_path / "b" / "m.gguf", CONTENT)
    (match,) = find_copies([wanted], tmp_path)
    assert (match.path, match.by_digest) == (copy, False)


def test_nothing_is_known_of_a_file_without_a_size(tmp_path: Path) -> None:
    put(tmp_path / "m.gguf", CONTENT)
    assert find_copies([CatalogFile(Role.WEIGHTS, "own/er", "m.gguf", "m.gguf", about_bytes=18)], tmp_path) == ()


def test_links_of_a_hub_cache_are_followed_and_loops_end(tmp_path: Path) -> None:
    put(tmp_path / "blobs" / "x", CONTENT)
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "snapshots" / "m.gguf").symlink_to(tmp_path / "blobs" / "x")
    (tmp_path / "snapshots" / "loop").symlink_to(tmp_path)
    (tmp_path / "snapshots" / "gone").symlink_to(tmp_path / "nowhere")
    assert len(find_copies([listed("m.gguf", digest=False)], tmp_path)) == 1
