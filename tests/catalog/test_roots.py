"""A model's files are found in the first folder that holds them; what is not there has a reason."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.catalog.roots import Absence, Located, Missing, locate


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    first, second = tmp_path / "first", tmp_path / "zweiter Ordner 🙂"
    first.mkdir()
    second.mkdir()
    return first, second


def missing(found: Located | Missing) -> Missing:
    assert isinstance(found, Missing)
    assert found.message.endswith(".")
    assert found.message.encode("utf-8")
    return found


def test_the_first_root_that_holds_it_wins(roots: tuple[Path, Path]) -> None:
    for root in reversed(roots):
        (root / "m.gguf").write_text("")
        assert locate("m.gguf", roots) == Located(root / "m.gguf", root, is_folder=False)


@pytest.mark.parametrize(
    "name", ["a b/ü.gguf", "模型/🙂👩‍👩‍👧.gguf", "…", "-rf", "a'\"$`;.gguf", "x" * 200, "/".join(["d" * 200] * 15)]
)
def test_any_name_is_found(roots: tuple[Path, Path], name: str) -> None:
    path = roots[1] / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    assert locate(name, roots) == Located(path, roots[1], is_folder=False)


def test_a_folder_is_located_as_one(roots: tuple[Path, Path]) -> None:
    """§19-27: voices may be a folder or one file."""
    (roots[0] / "voices").mkdir()
    assert locate("voices", roots) == Located(roots[0] / "voices", roots[0], is_folder=True)


def test_a_link_may_lead_out_of_its_root(roots: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "elsewhere.gguf").write_text("")
    (roots[0] / "m.gguf").symlink_to(tmp_path / "elsewhere.gguf")
    assert isinstance(locate("m.gguf", roots), Located)


def test_an_absolute_path_is_taken_as_it_is(
    roots: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.gguf").write_text("")
    assert locate(str(tmp_path / "m.gguf"), roots) == Located(tmp_path / "m.gguf", None, is_folder=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate("~/m.gguf", ()) == Located(tmp_path / "m.gguf", None, is_folder=False)
    assert missing(locate(str(tmp_path / "no.gguf"), roots)).because is Absence.NOT_FOUND


@pytest.mark.parametrize("path", ["../m", "a/../../m", "a/..", "..", "/etc/../etc/passwd", "", " ", ".", "./", "a\0b"])
def test_a_path_that_leaves_its_root_or_names_nothing_is_refused(roots: tuple[Path, Path], path: str) -> None:
    assert missing(locate(path, roots)).because is Absence.REFUSED


def test_two_dots_inside_a_name_are_only_a_name(roots: tuple[Path, Path]) -> None:
    (roots[0] / "a..b").write_text("")
    assert isinstance(locate("a..b", roots), Located)


def test_an_absent_disk_is_told_apart_from_an_absent_file(roots: tuple[Path, Path], tmp_path: Path) -> None:
    assert missing(locate("m", roots)).because is Absence.NOT_FOUND
    disk = tmp_path / "disk"
    found = missing(locate("m", (*roots, disk)))
    assert (found.because, found.absent_roots, found.searched) == (Absence.DISK_ABSENT, (disk,), (*roots, disk))
    assert "disk" in found.message
    (roots[1] / "m").write_text("")
    assert isinstance(locate("m", (disk, *roots)), Located)
    assert "no models folder" in missing(locate("m", ())).message


def test_impossible_names_are_only_absent(roots: tuple[Path, Path]) -> None:
    (roots[0] / "file").write_text("")
    (roots[0] / "ring").symlink_to("ring")
    (roots[0] / "nowhere").symlink_to("no")
    for name in ("file/below", "ring", "nowhere", "x" * 300, "x/" * 3000, "\ud800", "\udcff"):
        assert missing(locate(name, roots)).because is Absence.NOT_FOUND


@given(path=st.text(max_size=30), root=st.text(max_size=10))
def test_any_text_is_answered(path: str, root: str) -> None:
    found = locate(path, (Path("/nowhere") / root,))
    if isinstance(found, Missing):
        missing(found)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


AS_ANOTHER_USER = """
import os, sys
from pathlib import Path
from hypnos_engine.catalog.roots import locate
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
root = Path(sys.argv[1])
print(locate("m.gguf", [root / "locked"]).because, locate(str(root / "locked" / "m.gguf"), []).because)
"""


def test_a_folder_that_this_user_may_not_enter_is_told(open_folder: Path) -> None:
    (open_folder / "locked").mkdir()
    (open_folder / "locked" / "m.gguf").write_text("")
    (open_folder / "locked").chmod(0)
    done = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER_USER, str(open_folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["unreadable", "unreadable"]
    (open_folder / "locked").chmod(0o700)
    assert list((open_folder / "locked").iterdir()) == [open_folder / "locked" / "m.gguf"]
