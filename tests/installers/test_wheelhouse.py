"""The kept wheel of llama.cpp: found by the kind of build, and never taken when it is damaged or unfinished."""

import io
import json
import zipfile
from pathlib import Path

import pytest

from installers.choices import Backend, Build, Machine
from installers.progress import Display
from installers.refusal import SetupRefused
from installers.wheelhouse import Wheelhouse, cache_folder, kept_wheel, write_whole

BUILD = Build("0.3.36", Backend.CPU, False, ("-DGGML_NATIVE=OFF",), "linux-x86_64", "no GPU compiler found")
NOTHING_HERE = Machine("Linux", "linux-x86_64", None, None, 0, (), None, False, False)


def keep(folder: Path) -> Path:
    folder.mkdir(parents=True)
    wheel = folder / "llama_cpp_python-0.3.36-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llama_cpp/__init__.py", "x" * 5000)
    (folder / "build.json").write_text(json.dumps({"wheel": wheel.name, "built": "then"}), encoding="utf-8")
    return wheel


def wheelhouse(root: Path, said: io.StringIO) -> Wheelhouse:
    return Wheelhouse(root, Path("/nowhere/python"), {}, root / "log", Display(said))


def test_a_kept_wheel_is_used_without_a_compiler(tmp_path: Path) -> None:
    path, said = keep(tmp_path / BUILD.key), io.StringIO()
    assert wheelhouse(tmp_path, said).wheel(BUILD, NOTHING_HERE).path == path
    assert "using the build of then" in said.getvalue()


def test_without_a_kept_wheel_a_compiler_is_needed(tmp_path: Path) -> None:
    with pytest.raises(SetupRefused, match="no C and C\\+\\+ compiler"):
        wheelhouse(tmp_path, io.StringIO()).wheel(BUILD, NOTHING_HERE)


def test_rebuilding_ignores_the_kept_wheel(tmp_path: Path) -> None:
    keep(tmp_path / BUILD.key)
    with pytest.raises(SetupRefused, match="compiler"):
        wheelhouse(tmp_path, io.StringIO()).wheel(BUILD, NOTHING_HERE, rebuild=True)


def test_a_truncated_wheel_is_not_taken(tmp_path: Path) -> None:
    wheel = keep(tmp_path / "build")
    wheel.write_bytes(wheel.read_bytes()[:-40])
    assert kept_wheel(tmp_path / "build") is None


def test_a_wheel_with_a_flipped_byte_is_not_taken(tmp_path: Path) -> None:
    wheel = keep(tmp_path / "build")
    content = bytearray(wheel.read_bytes())
    content[2000] ^= 1
    wheel.write_bytes(content)
    assert kept_wheel(tmp_path / "build") is None


@pytest.mark.parametrize("record", [None, "", "{", "[]", "{}", '{"wheel": "other.whl"}', '{"wheel": null}'])
def test_a_folder_without_its_record_is_unfinished(tmp_path: Path, record: str | None) -> None:
    keep(tmp_path / "build")
    (tmp_path / "build" / "build.json").unlink()
    if record is not None:
        (tmp_path / "build" / "build.json").write_text(record, encoding="utf-8")
    assert kept_wheel(tmp_path / "build") is None


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "build.json"
    write_whole(path, "old")
    write_whole(path, "new")
    assert path.read_text(encoding="utf-8") == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_cache_can_be_moved() -> None:
    assert cache_folder({"HYPNOS_CACHE_DIR": "/big disk/c"}) == Path("/big disk/c")
    assert cache_folder({}).is_absolute()
