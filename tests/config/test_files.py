"""Whatever the named file is, the reader says so in one sentence and never waits for it."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypnos_engine.config.documents import LARGEST_BYTES
from hypnos_engine.config.load import load
from hypnos_engine.config.paths import Folders
from hypnos_engine.config.settings import Settings
from hypnos_engine.domain.errors import ConfigurationInvalid


def read(path: Path) -> Settings:
    folders = Folders(**{name: path.parent / name for name in ("config", "state", "run", "logs", "cache", "models")})
    return load(path, {}, {}, folders=folders)


def problem_of(path: Path) -> str:
    """Return the one problem of a file, its path taken off."""
    with pytest.raises(ConfigurationInvalid) as caught:
        read(path)
    (line,) = str(caught.value).split("\n")[1:]
    return line.strip().removeprefix(str(path))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "häuschen 🙂.toml"


@pytest.mark.parametrize("content", [b"", b"\n\n", b"# nothing\r\n", b"\xef\xbb\xbf"])
def test_an_empty_file_means_the_defaults(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert read(file).server.port == 9999


@pytest.mark.parametrize(
    "content", [b"\xef\xbb\xbf[server]\nport = 1", b"[server]\r\nport = 1\r\n", b"server.port = 1"]
)
def test_marks_and_line_ends_of_other_systems_are_read(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert read(file).server.port == 1


def test_lines_are_counted_the_same_with_windows_line_ends(file: Path) -> None:
    file.write_bytes(b"# a\r\n[server]\r\nport = 0\r\n")
    assert problem_of(file).startswith(":3: server.port")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a = 1\nb = \xff\xff", ":2: byte 5 of the line (0xff) is not UTF-8; save the file as UTF-8"),
        ("a = 1".encode("utf-16"), ":1: the file is UTF-16; save it as UTF-8"),
        (
            b"[server]\nport = abc",
            ":2: column 8: this is not TOML: invalid value, in `port = abc`; a text must",
        ),
        (b"[server]\nport 9999\n", ":2: column 6: this is not TOML: expected '=' after a key in a key/value pair, in "),
        (
            b"[server\nport = 1",
            ":1: column 8: this is not TOML: expected ']' at the end of a table declaration, in `[server`",
        ),
        (b"port = 1\nport = 2", ":2: column 9: this is not TOML: the same setting stands twice, in `"),
        (
            b"[server]\n[limits]\n[server]",
            ':3: column 8: this is not TOML: the section "server" stands twice, in `',
        ),
        (
            b'[[models]]\nid = "x\n',
            ":2: column 8: this is not TOML: illegal character '\\n', in `id = \"x`; the text lacks its closing",
        ),
        (b"[hardware]\nthreads = [1,\n\n", ":2: column 14: this is not TOML: "),
        (
            b'models_dir = "C:\\Users\\me"',
            ':1: column 19: this is not TOML: invalid hex value, in `models_dir = "C:\\Users\\me"`; write',
        ),
        (b"a = " + b"[" * 100_000, ": the lists or tables in it are nested too deeply"),
        (b"a = 1" + b"0" * 10_000, ": a number in it has too many digits"),
        (b" " * (LARGEST_BYTES + 1), f": the file is larger than {LARGEST_BYTES} bytes; this is no configuration"),
    ],
)
def test_what_is_no_toml_is_shown_with_line_and_column(file: Path, content: bytes, problem: str) -> None:
    file.write_bytes(content)
    assert problem_of(file).startswith(problem)


@pytest.mark.parametrize(
    "broken",
    [
        'api_keys = ["sk-1", sk-secret]',
        'api_keys = [\n "sk-secret\n]',
        '[[server.keys]]\nkey = "sk-secret',
        "[[server.keys]]\nkey = sk-secret",
        'port = 1 api_keys = ["sk-secret"]',
        '[server] api_keys = ["sk-secret"]',
        "'sk-secret' = = 1",
    ],
)
def test_the_shown_line_never_holds_a_key(file: Path, broken: str) -> None:
    """§2-33."""
    file.write_text(f"[server]\n{broken}\n")
    assert "not TOML" in problem_of(file)
    assert "secret" not in problem_of(file)


def test_a_folder_is_no_file(file: Path) -> None:
    file.mkdir()
    assert problem_of(file) == ": this is a folder, not a file; name the hypnos.toml inside it"


def test_a_pipe_without_a_writer_is_refused_and_not_waited_for(file: Path) -> None:
    os.mkfifo(file)
    assert problem_of(file) == ": this is not a regular file; write the configuration into a file"


def test_a_path_through_a_file_and_a_ring_of_links_are_told(tmp_path: Path, file: Path) -> None:
    (tmp_path / "plain").write_text("")
    assert problem_of(tmp_path / "plain" / "hypnos.toml").startswith(": there is no such file")
    file.symlink_to(file)
    assert problem_of(file).startswith(": the file cannot be read (ELOOP")


def test_a_broken_link_is_told_whether_it_was_named_or_not(file: Path) -> None:
    file.symlink_to("nowhere")
    assert problem_of(file) == ": this is a link to a file that is not there; correct it, or remove it"
    standard = file.parent / "config" / "hypnos.toml"
    standard.parent.mkdir()
    standard.symlink_to("nowhere")
    folders = Folders(**{name: file.parent / name for name in ("config", "state", "run", "logs", "cache", "models")})
    with pytest.raises(ConfigurationInvalid, match="a link to a file that is not there"):
        load(None, {}, {}, folders=folders)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, unlike those of `tmp_path`."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


AS_ANOTHER_USER = """
import os, sys
from pathlib import Path
from hypnos_engine.config.load import load
from hypnos_engine.config.paths import Folders
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
path = Path(sys.argv[1])
folders = Folders(**{name: path.parent / name for name in ("config", "state", "run", "logs", "cache", "models")})
try:
    load(path, {}, {}, folders=folders)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_file_that_this_user_may_not_read_is_told(open_folder: Path) -> None:
    path = open_folder / "hypnos.toml"
    path.write_text("[server]\nport = 1")
    path.chmod(0)
    done = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER_USER, str(path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("ConfigurationInvalid The configuration has a problem")
    assert f"{path}: this user may not read the file; change its owner or its mode" in done.stdout
