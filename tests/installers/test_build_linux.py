"""The installers for Linux, made of a small stand-in for the program and really installed, updated and removed."""

import io
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from installers.bundle.freeze import Bundling, Packaged, link_equal_files, settle_times, source_time
from installers.linux import deb, self_extracting
from installers.progress import Display

ROOT = Path(__file__).resolve().parents[2]
TIME = 1_700_000_000
pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="installers for Linux are made on Linux")


@pytest.fixture
def bundling(tmp_path: Path) -> Bundling:
    """A build whose results and work lie in a folder of the test, with the repository's own texts."""
    root = tmp_path / "root"
    for name in ("installers", "resources"):
        shutil.copytree(ROOT / name, root / name)
    for name in ("NOTICE", "CHANGELOG.md"):
        shutil.copyfile(ROOT / name, root / name)
    made = Bundling(root, tmp_path / "out", {"SOURCE_DATE_EPOCH": str(TIME)}, Display(io.StringIO()))
    made.work.mkdir(parents=True)
    made.out.mkdir()
    return made


@pytest.fixture
def packaged(bundling: Bundling) -> Packaged:
    """A program that can run: a copy of `sleep`, which waits until it is ended."""
    folder = bundling.out / "Hypnos"
    (folder / "_internal" / "lib").mkdir(parents=True)
    sleep = shutil.which("sleep")
    assert sleep is not None
    shutil.copyfile(sleep, folder / "hypnos")
    (folder / "hypnos").chmod(0o755)
    (folder / "_internal" / "file with blank ü.txt").write_text("one", encoding="utf-8")
    (folder / "_internal" / "lib" / "libx.so.1").symlink_to("../file with blank ü.txt")
    picture = bundling.work / "256.png"
    picture.write_bytes(b"\x89PNG")
    return Packaged(folder, {256: picture}, "0.1.0")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "Heim mit Ümläut"
    folder.mkdir()
    return folder


def sh(*arguments: str | Path, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", *map(str, arguments)],
        env={"PATH": os.environ["PATH"], "HOME": str(home), "LC_ALL": "C.UTF-8"},
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def installer(packaged: Packaged, bundling: Bundling) -> Path:
    return self_extracting.make(packaged, bundling)


def left_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or path.is_file()}


def test_the_same_program_gives_the_same_bytes(packaged: Packaged, bundling: Bundling) -> None:
    first = self_extracting.make(packaged, bundling).read_bytes()
    (packaged.folder / "hypnos").touch()
    assert self_extracting.make(packaged, bundling).read_bytes() == first


def test_installing_writes_the_program_a_menu_entry_and_a_command(installer: Path, home: Path) -> None:
    target = home / 'Pro"gramme $1 100%' / "Hypnos"
    done = sh(installer, "--target", target, home=home)
    assert (done.returncode, done.stderr) == (0, "")
    assert (target / "_internal" / "lib" / "libx.so.1").read_text(encoding="utf-8") == "one"
    assert (home / ".local/bin/hypnos").readlink() == target / "hypnos"
    entry = (home / ".local/share/applications/hypnos.desktop").read_text(encoding="utf-8")
    assert f"TryExec={target}/hypnos\n" in entry
    quoted = str(target / "hypnos").replace('"', '\\\\"').replace("$", "\\\\$").replace("%", "%%")
    assert f'Exec="{quoted}"\n' in entry


def test_removing_takes_away_what_came_and_leaves_what_the_user_put_there(installer: Path, home: Path) -> None:
    assert sh(installer, home=home).returncode == 0
    target = home / ".local/share/hypnos-app"
    (target / "mine.txt").write_text("mine", encoding="utf-8")
    autostart = home / ".config/autostart/hypnos.desktop"
    autostart.parent.mkdir(parents=True)
    autostart.write_text(f'[Desktop Entry]\nExec="{target}/hypnos" "--at-login"\n', encoding="utf-8")
    done = sh(target / "uninstall.sh", home=home)
    assert (done.returncode, done.stderr) == (0, "")
    assert left_in(home) == {".local/share/hypnos-app/mine.txt"}


def test_installing_again_replaces_the_earlier_version_whole(
    installer: Path, packaged: Packaged, bundling: Bundling, home: Path
) -> None:
    assert sh(installer, home=home).returncode == 0
    target = home / ".local/share/hypnos-app"
    (target / "mine.txt").write_text("mine", encoding="utf-8")
    (packaged.folder / "_internal" / "file with blank ü.txt").rename(packaged.folder / "_internal" / "new name.txt")
    shutil.rmtree(packaged.folder / "_internal" / "lib")
    assert sh(self_extracting.make(packaged, bundling), home=home).returncode == 0
    assert (target / "_internal" / "new name.txt").is_file()
    assert (target / "mine.txt").is_file()
    assert not (target / "_internal" / "file with blank ü.txt").exists()
    assert not (target / "_internal" / "lib").exists()
    assert sh(target / "uninstall.sh", home=home).returncode == 0
    assert left_in(home) == {".local/share/hypnos-app/mine.txt"}


@pytest.fixture
def running(installer: Path, home: Path) -> Iterator[Path]:
    """The folder of an installed program that runs."""
    assert sh(installer, home=home).returncode == 0
    target = home / ".local/share/hypnos-app"
    process = subprocess.Popen([target / "hypnos", "600"])
    yield target
    process.kill()
    process.wait()


def test_a_running_program_is_neither_replaced_nor_removed(running: Path, installer: Path, home: Path) -> None:
    for script in (installer, running / "uninstall.sh"):
        refused = sh(script, home=home)
        assert refused.returncode == 1
        assert "quit it first" in refused.stderr
    assert (running / "_internal" / "file with blank ü.txt").is_file()


def test_a_folder_with_other_things_is_refused_and_left_alone(installer: Path, home: Path) -> None:
    (home / "documents").mkdir()
    (home / "documents" / "thesis.txt").write_text("years", encoding="utf-8")
    refused = sh(installer, "--target", home / "documents", home=home)
    assert refused.returncode == 1
    assert "is no Hypnos" in refused.stderr
    assert left_in(home) == {"documents/thesis.txt"}


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_download_installs_nothing(installer: Path, home: Path, damage: str) -> None:
    content = bytearray(installer.read_bytes())
    if damage == "cut":
        del content[-100:]
    else:
        content[-100] ^= 1
    installer.write_bytes(content)
    refused = sh(installer, home=home)
    assert refused.returncode == 1
    assert "download it again" in refused.stderr
    assert left_in(home) == set()


def test_wrong_arguments_and_a_person_without_a_home_are_told(installer: Path, home: Path) -> None:
    assert "--target needs a folder" in sh(installer, "--target", home=home).stderr
    assert sh(installer, "--frobnicate", home=home).returncode == 2
    done = subprocess.run(["sh", installer], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "set HOME" in done.stderr
    assert sh(installer, "--check", home=home).stdout == "Hypnos 0.1.0, whole.\n"


def test_the_scripts_are_sound(installer: Path) -> None:
    for script in ("linux/prerm", "linux/uninstall.sh", "linux/run_header.sh", "macos/make_dmg.sh", "macos/sign.sh"):
        done = subprocess.run(["bash", "-n", ROOT / "installers" / script], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_copies_of_a_library_become_links(tmp_path: Path) -> None:
    for name in ("libllama.so.0.5.0", "libllama.so.0", "libllama.so"):
        (tmp_path / name).write_bytes(b"one library")
    (tmp_path / "libother.so").write_bytes(b"another")
    link_equal_files(tmp_path)
    assert (tmp_path / "libllama.so.0").readlink() == Path("libllama.so")
    assert (tmp_path / "libllama.so.0.5.0").read_bytes() == b"one library"
    assert not (tmp_path / "libother.so").is_symlink()


def test_all_files_get_one_time_and_a_told_one_is_taken(tmp_path: Path) -> None:
    assert source_time(tmp_path, {"SOURCE_DATE_EPOCH": str(TIME)}) == TIME
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to("nowhere")
    settle_times(tmp_path, TIME)
    assert {path.lstat().st_mtime for path in tmp_path.rglob("*")} == {TIME}


def test_each_package_is_required_once_with_its_version() -> None:
    needed = deb.join_needs(["libc6 (>= 2.35)", "zlib1g", "libc6", "libegl1"])
    assert needed == ["libc6 (>= 2.35)", "libegl1", "zlib1g"]


@pytest.mark.bundle
def test_the_debian_package_describes_itself(packaged: Packaged, bundling: Bundling) -> None:
    package = deb.make(packaged, bundling)
    told = subprocess.run(["dpkg-deb", "-f", package], check=True, capture_output=True, text=True).stdout
    for name in deb.QT_NEEDS:
        assert name in told
    assert "libc6 (>= " in told
    listed = subprocess.run(["dpkg-deb", "-c", package], check=True, capture_output=True, text=True).stdout
    assert "./usr/bin/hypnos -> /opt/hypnos/hypnos" in listed
    assert "./usr/share/applications/hypnos.desktop" in listed
    assert "autostart" not in listed
    assert " root/root " in listed
