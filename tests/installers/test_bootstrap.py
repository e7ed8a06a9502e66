"""`./run.sh`: how its command line is read, and that it says one sentence where it cannot go on."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from installers import bootstrap
from installers.refusal import SetupRefused

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("arguments", "command", "rest"),
    [
        ([], "hypnos", ()),
        (["--port", "1234"], "hypnos", ("--port", "1234")),
        (["serve", "--demo"], "hypnos", ("serve", "--demo")),
        (["test", "-k", "setup", "--native"], "test", ("-k", "setup", "--native")),
        (["app", "--demo"], "app", ("--demo",)),
        (["screenshots", "pictures"], "screenshots", ("pictures",)),
        (["setup"], "setup", ()),
        (["setup", "desktop", "voice"], "setup", ("desktop", "voice")),
        (["--backend", "cpu", "--port", "1"], "hypnos", ("--port", "1")),
        (["--native", "doctor", "--json"], "hypnos", ("doctor", "--json")),
    ],
)
def test_what_follows_the_command_belongs_to_it(arguments: list[str], command: str, rest: tuple[str, ...]) -> None:
    call = bootstrap.read_call(arguments)
    assert (call.command, call.arguments) == (command, rest)


def test_set_up_options_stand_before_or_after_setup() -> None:
    before = bootstrap.read_call(["--backend", "vulkan", "--native", "setup", "desktop"])
    after = bootstrap.read_call(["setup", "desktop", "--native", "--backend=vulkan"])
    assert before == after
    assert (after.backend, after.native, after.rebuild) == ("vulkan", True, False)
    assert bootstrap.read_call(["setup", "--portable", "--rebuild"]).native is False
    assert bootstrap.read_call([]).native is None


@pytest.mark.parametrize("arguments", [["--backend"], ["--backend", "abacus"], ["setup", "--frobnicate"]])
def test_a_wrong_option_is_refused_and_points_to_the_help(arguments: list[str]) -> None:
    with pytest.raises(SetupRefused, match=r"see \./run\.sh --help") as refused:
        bootstrap.read_call(arguments)
    assert refused.value.exit_code == 2


def test_the_everyday_suite_leaves_the_slow_tests_out_unless_asked() -> None:
    assert bootstrap.pytest_arguments([]) == ["-m", bootstrap.EVERYDAY, "-n", "2", "--dist", "loadfile"]
    assert bootstrap.pytest_arguments(["-k", "a"]) == ["-m", bootstrap.EVERYDAY, "-k", "a"]
    assert bootstrap.pytest_arguments(["-m", "slow"]) == ["-m", "slow"]
    assert bootstrap.pytest_arguments(["-mslow"]) == ["-mslow"]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What set-up reads of a clone, in a folder whose name has a space and letters beyond ASCII."""
    folder = tmp_path / "meine Träume 夢"
    folder.mkdir()
    for name in ("run.sh", "pyproject.toml"):
        shutil.copy2(ROOT / name, folder / name)
    shutil.copytree(ROOT / "installers", folder / "installers", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def call(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHON": sys.executable, **variables}
    return subprocess.run(
        [str(folder / "run.sh"), *arguments],
        check=False,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment,
        cwd="/",
        timeout=60,
    )


def test_the_help_needs_no_set_up_and_shows_every_option(clone: Path) -> None:
    answer = call(clone, "--help")
    assert answer.returncode == 0
    for word in ("setup", "test", "--backend", "--native", "--portable", "--rebuild", "PYTHON", "HYPNOS_CACHE_DIR"):
        assert word in answer.stdout
    assert not (clone / ".venv").exists()


def test_it_can_be_called_through_a_link(clone: Path) -> None:
    link = clone.parent / "hypnos"
    link.symlink_to(clone / "run.sh")
    environment = {"PATH": os.environ["PATH"], "PYTHON": sys.executable}
    answer = subprocess.run([str(link), "help"], check=False, capture_output=True, env=environment)
    assert answer.returncode == 0
    assert answer.stdout.startswith(b"usage: ./run.sh")


def test_a_part_that_does_not_exist_yet_is_one_sentence_and_exit_code_2(clone: Path) -> None:
    answer = call(clone, "setup", "entities")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.count("\n") == 1
    assert "yet: entities" in answer.stderr


def test_a_python_that_does_not_work_is_one_sentence_and_exit_code_2(clone: Path) -> None:
    answer = call(clone, "--help", PYTHON="/nowhere/python")
    assert answer.returncode == 2
    assert answer.stderr == ("PYTHON is set to /nowhere/python, which is not a working Python 3.11, 3.12 or 3.13.\n")


def test_a_machine_without_python_is_one_sentence_and_exit_code_2(clone: Path) -> None:
    tools = clone.parent / "bin"
    tools.mkdir()
    for name in ("sh", "dirname", "readlink"):
        (tools / name).symlink_to(shutil.which(name) or name)
    answer = call(clone, "--help", PYTHON="", PATH=str(tools))
    assert answer.returncode == 2
    assert answer.stderr.startswith("Hypnos needs Python 3.11, 3.12 or 3.13 and none was found")


def test_a_cache_that_cannot_be_made_is_one_sentence(clone: Path) -> None:
    wall = clone / "wall"
    wall.touch()
    answer = call(clone, "setup", HYPNOS_CACHE_DIR=str(wall / "cache"))
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"Set-up cannot go on: Not a directory ({wall / 'cache'}")
    assert answer.stderr.count("\n") == 1


def test_without_a_compiler_set_up_ends_with_one_sentence(clone: Path) -> None:
    tools = clone.parent / "bin"
    tools.mkdir()
    for name in ("sh", "dirname", "readlink"):
        (tools / name).symlink_to(shutil.which(name) or name)
    answer = call(clone, "setup", PATH=str(tools), HYPNOS_CACHE_DIR=str(clone / "cache"))
    assert answer.returncode == 1
    assert "there is no C and C++ compiler here: run `" in answer.stderr
    assert "Traceback" not in answer.stderr + answer.stdout
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize(("shell", "script"), [("sh", "run.sh"), ("bash", ".ci/run")])
def test_the_scripts_can_be_started(shell: str, script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run([shell, "-n", str(ROOT / script)], check=True)


def test_ci_runs_the_readmes_own_test_command() -> None:
    command = "./run.sh test"
    assert f"\n{command} " in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f" {command}\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
