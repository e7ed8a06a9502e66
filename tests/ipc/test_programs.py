"""How another process of this program is started, from an interpreter and from a packaged program."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from hypnos_engine.ipc import programs
from hypnos_engine.ipc.programs import Program

SAY = "import json, sys; print(json.dumps([sys.path, sys.argv, 'site' in sys.modules]))"


@pytest.mark.parametrize("program", list(Program))
def test_every_program_has_an_entry(program: Program) -> None:
    assert callable(import_module(program.value).main)


def test_a_process_finds_what_this_one_finds_and_not_its_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "with 'quotes' and ü" / "said.py"
    module.parent.mkdir()
    module.write_text(f"def main(arguments):\n    {SAY}\n    return len(arguments)\n")
    monkeypatch.syspath_prepend(str(module.parent))
    command = programs.command(Program.WORKER, "one", "two words")
    assert command[-3:] == [Program.WORKER.value, "one", "two words"]
    command[command.index(Program.WORKER.value)] = "said"
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    path, arguments, reads_site = json.loads(done.stdout)
    assert done.returncode == 2
    assert path == [str(Path(entry).absolute()) for entry in sys.path]
    assert arguments[1:] == ["one", "two words"]
    assert str(tmp_path) not in path
    assert not reads_site


def test_the_package_is_found_wherever_this_process_found_it(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(programs.__file__).parents[2]
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if Path(entry).resolve() != root])
    done = subprocess.run(programs.command(Program.WORKER, "--help"), cwd="/", capture_output=True, check=True)
    assert b"--kind" in done.stderr


@pytest.mark.parametrize("program", list(Program))
def test_the_packaged_executable_knows_what_it_is_to_be(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    executable, *arguments = programs.command(program, "--kind", "fake")
    assert Path(executable).parent == Path(sys.executable).parent
    assert programs.asked_for(arguments) == (program, ["--kind", "fake"])
