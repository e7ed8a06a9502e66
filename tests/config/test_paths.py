"""The folders of a running engine follow the platform, are private, and say what to do when they cannot be used."""

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypnos_engine.config.paths import (
    Folders,
    is_absent,
    overlay_path,
    prepare,
    private_folder,
    standard_folders,
    usable_folder,
    write_new,
)
from hypnos_engine.domain.errors import FolderUnusable

XDG = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")

linux = pytest.mark.skipif(sys.platform != "linux", reason="the XDG variables are Linux's")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in XDG:
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@linux
def test_the_xdg_variables_are_respected(home: Path) -> None:
    folders = standard_folders()
    assert folders.config_file == home / "xdg_config_home" / "hypnos" / "hypnos.toml"
    assert folders.state == home / "xdg_state_home" / "hypnos"
    assert folders.run == folders.state / "run"
    assert folders.models == home / "xdg_data_home" / "hypnos" / "models"
    assert folders.cache == home / "xdg_cache_home" / "hypnos"
    assert folders.logs.is_relative_to(folders.state)


@linux
def test_engines_of_one_user_share_their_run_folder_whatever_the_login(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "xdg_runtime_dir").mkdir(mode=0o700)
    first = standard_folders().run
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert standard_folders().run == first


def test_what_is_absent_is_told_from_what_is_broken(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    assert is_absent(tmp_path / "nothing")
    assert is_absent(tmp_path / "file" / "below")
    assert not is_absent(tmp_path / "file")
    assert not is_absent(tmp_path / "link")
    assert not is_absent(tmp_path / "null\0character")


def test_a_text_that_is_not_utf_8_is_told_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(FolderUnusable, match="not UTF-8"):
        write_new(tmp_path / "hypnos.toml", "models_dir = '/caf\udce9'")
    assert list(tmp_path.iterdir()) == []


def test_folders_are_made_private_with_their_parents(tmp_path: Path) -> None:
    names = ("config", "state", "run", "logs", "cache", "models")
    folders = Folders(**{name: tmp_path / "a" / "ü 🙂" / name for name in names})
    prepare(folders)
    prepare(folders)
    for folder in (tmp_path / "a", tmp_path / "a" / "ü 🙂", folders.state, folders.run, folders.logs):
        assert mode(folder) == 0o700
    assert not folders.config.exists()


def test_an_existing_folder_is_closed_only_where_it_must_be_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    usable_folder(tmp_path)
    assert mode(tmp_path) == 0o755
    private_folder(tmp_path)
    assert mode(tmp_path) == 0o700


@pytest.mark.parametrize("name", ["file", "file/below", "x" * 300, "null\0character"])
def test_a_place_where_no_folder_can_be_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderUnusable, match=r"\. (Change|Move)"):
        private_folder(tmp_path / name)


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o555)
        yield Path(name)


AS_ANOTHER_USER = """
import os, sys
from pathlib import Path
from hypnos_engine.config.paths import private_folder, write_new
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for attempt in (lambda p: private_folder(p), lambda p: private_folder(p / "new"), lambda p: write_new(p / "f", "x")):
    try:
        attempt(Path(sys.argv[1]))
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_folder_that_this_user_cannot_write_to_says_what_to_do(closed_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER_USER, str(closed_folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("FolderUnusable") and "Change its owner or mode" in line for line in lines)


NO_HOME = """
import os, pwd
def unknown(uid):
    raise KeyError(uid)
pwd.getpwuid = unknown  # a user whom the user database does not know, such as one of a container
from hypnos_engine.config.paths import standard_folders
try:
    print(standard_folders())
except Exception as error:
    print(type(error).__name__, error)
"""


@linux
def test_a_user_without_a_home_is_told_to_set_it() -> None:
    environ = {name: value for name, value in os.environ.items() if name not in (*XDG, "HOME")}
    done = subprocess.run(
        [sys.executable, "-c", NO_HOME], capture_output=True, text=True, timeout=60, check=True, env=environ
    )
    assert done.stdout.startswith("FolderUnusable No home folder is known")


def test_the_overlay_lies_beside_the_file_under_its_name() -> None:
    """§6.4-07, §19-32."""
    assert overlay_path(Path("/a/hypnos.toml")) == Path("/a/hypnos.models.toml")
    assert overlay_path(Path("my.conf.toml")) == Path("my.conf.models.toml")
    assert overlay_path(Path("/")) == Path("/.models.toml")
