"""Whatever a file, a variable or a flag holds, the outcome is settings or ConfigurationInvalid, and nothing else."""

import re
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from hypnos_engine.config.load import load
from hypnos_engine.config.paths import Folders
from hypnos_engine.config.setting import Table
from hypnos_engine.config.settings import ROOT, Settings, every_setting
from hypnos_engine.domain.errors import ConfigurationInvalid

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
ZONES = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.sampled_from([0, 1, 2, 64, 4096, 9999, 65536, 1 << 40, -1]),
    st.floats(),
    TEXTS,
    st.sampled_from(
        ["", " ", "auto", "24G", "-1G", "1.5 MiB", "999999999999T", "~", "~/x", "../x", "/x", "::1", "a:b", "*"]
    ),
    st.sampled_from(
        [value for _, setting in every_setting() for value in (setting.default,) if isinstance(value, str)]
    ),
    st.datetimes(timezones=st.none() | ZONES),
    st.sampled_from([datetime.min.replace(tzinfo=timezone(timedelta(hours=5))), datetime.max.replace(tzinfo=UTC)]),
    st.dates(),
    st.times(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.one_of(TEXTS, st.sampled_from(sorted({name.rpartition(".")[2] for name, _ in every_setting()})))


@st.composite
def contents(draw: st.DrawFn, table: Table) -> dict[str, Any]:
    """Draw what may stand in a table: declared settings and tables with any value, and names that nobody declared."""
    content: dict[str, Any] = {}
    for setting in draw(st.lists(st.sampled_from(table.settings), max_size=6, unique_by=lambda s: s.name)):
        content[setting.name] = draw(VALUES)
    for below in table.tables:
        match draw(st.sampled_from(["absent", "absent", "right", "right", "wrong"])):
            case "right" if below.repeated:
                content[below.name] = draw(st.lists(contents(below), min_size=1, max_size=3))
            case "right":
                content[below.name] = draw(contents(below))
            case "wrong":
                content[below.name] = draw(VALUES)
    content.update(draw(st.dictionaries(NAMES, VALUES, max_size=2)))
    return content


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def outcome(
    folder: Path, content: bytes, environ: dict[str, str] | None = None, flags: dict[str, object] | None = None
) -> list[str]:
    """Return the worded problems of a file, none when it loads."""
    path = folder / "hypnos.toml"
    path.write_bytes(content)
    folders = Folders(**{name: folder / name for name in ("config", "state", "run", "logs", "cache", "models")})
    try:
        loaded = load(path, environ, flags, folders=folders)
    except ConfigurationInvalid as error:
        worded = str(error)
        heading, *lines = worded.split("\n")
        assert heading.startswith("The configuration has ")
        assert lines
        assert worded.encode("utf-8")
        return [line.strip().removeprefix(str(path)) for line in lines if not re.fullmatch(r"  and \d+ more", line)]
    assert isinstance(loaded, Settings)
    assert loaded.models_dirs
    assert repr(loaded)
    for notice in (*loaded.warnings, *loaded.without_effect):
        assert str(notice).encode("utf-8")
    return []


def dumped(content: dict[str, Any]) -> bytes:
    try:
        return tomlkit.dumps(content).encode("utf-8")
    except (ValueError, TypeError):  # tomlkit refuses a few keys that TOML knows
        assume(False)
        raise


@settings(max_examples=80, deadline=None)
@given(content=contents(ROOT))
def test_any_value_at_any_setting_is_read_or_refused_with_its_line(folder: Path, content: dict[str, Any]) -> None:
    text = dumped(content)
    count = text.count(b"\n") + 1
    for problem in outcome(folder, text):
        place = re.match(r":(\d+): ", problem)
        assert place, problem
        assert 1 <= int(place[1]) <= count


@pytest.mark.parametrize("name", [name for name, _ in every_setting()])
def test_each_setting_refuses_what_it_does_not_take(folder: Path, name: str) -> None:
    """Every setting is really checked: no setting takes a date in the year 1, a huge number and a table alike."""
    table, _, last = name.rpartition(".")
    repeated = {below.path: below.heading for below in ROOT.below() if below.path}
    parents = [f"{repeated[part]}\n" for part in _paths(table)]
    refused = [
        any(f": {name}: " in problem for problem in outcome(folder, f"{''.join(parents)}{last} = {value}\n".encode()))
        for value in ("0001-01-01", "1" + "0" * 30, "{x = 1}", '"\\u0007"')
    ]
    assert refused.count(True) >= 3, refused


def _paths(table: str) -> list[str]:
    parts = table.split(".") if table else []
    return [".".join(parts[: index + 1]) for index in range(len(parts))]


@settings(max_examples=150, deadline=None)
@given(content=st.binary(max_size=60) | TEXTS.map(str.encode))
@example(content=b"a = " + b"[" * 100_000)
@example(content=b"a = " + b"[" * 400 + b"]" * 400)
@example(content=b"a = " + b"{b=" * 5000)
@example(content=b"a = 1" + b"0" * 10_000)
@example(content=b"a = 0x" + b"f" * 10_000)
@example(content=b"[server]\nport = 0x" + b"f" * 10_000)
@example(content=b".".join([b"a"] * 300_000) + b" = 1")
@example(content=b" . ".join([b"''"] * 100_000) + b" = 1")
@example(content=b"a = {" + b".".join([b"a"] * 300_000) + b" = 1}")
@example(content=b"[" + b".".join([b"a"] * 300_000) + b"]")
@example(content=b"a = 1" + b"." * 300_000)
@example(content=b"a" * 300_000 + b".b" * 63 + b" = 1")
@example(content=b"a = 1e999999")
@example(content=b"a = '''")
@example(content=b"a = 1\rb = 2")
@example(content=b"\x00")
def test_any_bytes_are_read_or_refused(folder: Path, content: bytes) -> None:
    outcome(folder, content)


GOOD = b"""config_version = 1
models_dirs = ["/a", '/b']
[server]
port = 9999 # comment
api_keys = [
  "sk-verysecret1",
]
[[server.keys]]
key = "sk-verysecret2"
label = "l"
[limits]
max_body_bytes = "64MiB"
[[models]]
id = "m"
modality = "text_generation"
engine = "ggml_llama"
weights_path = '''m.gguf'''
[models.arch]
num_layers = 4
"""


@settings(max_examples=250, deadline=None)
@given(
    at=st.integers(0, len(GOOD)),
    cut=st.integers(0, 3),
    put=st.sampled_from([b"", b'"', b"[", b"]", b"=", b"\n", b"\xff", b"x"]),
)
def test_a_damaged_file_is_read_or_refused_and_no_key_is_shown(folder: Path, at: int, cut: int, put: bytes) -> None:
    """§2-33 for the messages of a start that fails."""
    for problem in outcome(folder, GOOD[:at] + put + GOOD[at + cut :]):
        assert re.match(r":\d+: ", problem), problem
        assert "verysecret" not in problem


def test_the_undamaged_file_is_good(folder: Path) -> None:
    assert outcome(folder, GOOD) == []


ANY_TEXT = st.text(st.characters(exclude_characters="\0"), max_size=30)
VARIABLES = ["HYPNOS_PORT", "HYPNOS_HOST", "HYPNOS_API_KEYS", "HYPNOS_MODELS_DIR"]


@settings(max_examples=80, deadline=None)
@given(environ=st.dictionaries(st.sampled_from(VARIABLES), ANY_TEXT | SCALARS.map(str)))
def test_any_environment_is_read_or_refused(folder: Path, environ: dict[str, str]) -> None:
    for problem in outcome(folder, b"", environ):
        assert re.match(r"environment variable HYPNOS_[A-Z_]+: ", problem), problem


@settings(max_examples=80, deadline=None)
@given(flags=st.dictionaries(st.sampled_from([name for name, _ in every_setting()]) | ANY_TEXT, VALUES | ANY_TEXT))
def test_any_flag_is_read_or_refused(folder: Path, flags: dict[str, object]) -> None:
    for problem in outcome(folder, b"", flags=flags):
        assert problem.startswith("flag"), problem


@given(path=ANY_TEXT)
def test_any_name_of_a_file_is_read_or_refused(folder: Path, path: str) -> None:
    folders = Folders(**{name: folder / name for name in ("config", "state", "run", "logs", "cache", "models")})
    try:
        load(None, {"HYPNOS_CONFIG": path}, folders=folders)
    except ConfigurationInvalid as error:
        worded = str(error)
        assert worded.encode("utf-8")
