"""Files and folders that this user may not use: `serve` refuses in one sentence, `doctor` names what to mend."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

AS_ANOTHER_USER = """
import importlib, os, sys
for name in (  # what another user may not be able to load: the tester's Python can lie in a closed folder
    "aiohttp.web", "asyncio", "encodings.idna", "encodings.utf_8_sig", "filelock", "http.client", "msgspec",
    "platformdirs.unix", "psutil", "pwd", "resource", "ssl", "stringprep", "uvloop", "hypnos_engine.daemon",
    "hypnos_engine.api.error_table", "hypnos_engine.cli.checks", "hypnos_engine.cli.command_line",
    "hypnos_engine.hardware.ggml",
):
    importlib.import_module(name)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.exit(sys.modules["hypnos_engine.cli.command_line"].run(sys.argv[1:]))
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A home that belongs to the user whom `run` becomes."""
    with tempfile.TemporaryDirectory() as name:
        own(Path(name))
        yield Path(name)
        for path in Path(name).rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)


def own(path: Path) -> Path:
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    return path


def folder(home: Path, *names: str) -> Path:
    path = home
    for name in names:
        path = path / name
        if not path.exists():
            path.mkdir(mode=0o700)
            own(path)
    return path


def run(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", AS_ANOTHER_USER, *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", **variables},
        cwd="/",
        timeout=60,
    )


def refused(home: Path, code: int, *says: str, **variables: str) -> None:
    answer = run(home, "serve", **variables)
    assert answer.returncode == code, answer.stderr
    assert "Traceback" not in answer.stderr
    assert "inside Hypnos" not in answer.stderr
    for part in says:
        assert part in answer.stderr


def found(home: Path, **variables: str) -> dict[str, dict[str, Any]]:
    answer = run(home, "doctor", "--json", **variables)
    assert "Traceback" not in answer.stderr
    assert answer.stdout, answer.stderr
    return {check["name"]: check for check in json.loads(answer.stdout)["checks"]}


PLACES = {
    "log file": ("log", "hypnos.log"),
    "lock file": ("run", "engine.lock"),
}


@pytest.mark.parametrize("kind", ["closed", "folder"])
@pytest.mark.parametrize("name", PLACES)
def test_a_file_of_the_engine_that_cannot_be_used_is_told(home: Path, name: str, kind: str) -> None:
    where, file = PLACES[name]
    path = folder(home, ".local", "state", "hypnos", where) / file
    if kind == "folder":
        path.mkdir()
    else:
        path.touch()
        path.chmod(0)
    refused(home, 45, str(path), "Remove it")
    check = found(home)[name]
    assert check["verdict"] == "broken"
    assert str(path) in check["says"] + check["mend"]


def test_a_folder_in_the_place_of_the_address_file_is_told(home: Path) -> None:
    path = folder(home, ".local", "state", "hypnos", "run") / "engine.json"
    path.mkdir()
    assert found(home)["address file"]["verdict"] == "broken"


def test_a_configuration_folder_that_cannot_be_entered_is_told(home: Path) -> None:
    path = folder(home, ".config", "hypnos")
    path.chmod(0)
    refused(home, 41, str(path / "hypnos.toml"), "may not read")
    checks = found(home)
    assert checks["configuration"]["verdict"] == "broken"
    assert checks["configuration folder"]["verdict"] == "broken"


def test_a_home_that_cannot_be_entered_is_told(home: Path) -> None:
    closed = folder(home, "closed")
    closed.chmod(0)
    refused(closed, 45, str(closed), "Change its owner or mode")
    checks = found(closed)
    for name in ("configuration folder", "state folder", "run folder", "logs folder", "models folder", "log file"):
        assert checks[name]["verdict"] == "broken", name
        assert f"may not look into {closed}" in checks[name]["says"]


def test_models_folders_that_cannot_be_entered_are_told(home: Path) -> None:
    closed = folder(home, "closed")
    config = home / "mine.toml"
    config.write_text(f'models_dirs = ["{home}", "{closed / "below"}"]\n', encoding="utf-8")
    own(config)
    closed.chmod(0)
    answer = run(home, "doctor", "--json", "--config", str(config))
    assert "Traceback" not in answer.stderr
    says = [check["says"] for check in json.loads(answer.stdout)["checks"] if check["verdict"] == "broken"]
    assert any(f"may not look into {closed}" in line for line in says)
    assert found(home, HYPNOS_MODELS_DIR=str(closed / "below"))["models folder"]["verdict"] == "broken"


def test_a_home_whose_name_is_not_utf_8_is_told(home: Path) -> None:
    odd = folder(home, os.fsdecode(b"caf\xe9"))
    refused(odd, 45, "not UTF-8")
    found(odd)
