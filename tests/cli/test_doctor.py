"""`hypnos doctor` as a real process: it answers whatever is broken, names what mends it, and changes nothing."""

import io
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hypnos_engine.cli.checks import check_folder, check_llama, check_python, check_space
from hypnos_engine.cli.doctor import as_text, marks_for
from hypnos_engine.cli.findings import Verdict, broken, fine, note

if TYPE_CHECKING:
    from tests.cli.conftest import Answer, Hypnos

Findings = dict[str, dict[str, Any]]
EVERY = {
    "python", "packages", "llama.cpp build", "llama.cpp", "configuration", "configuration folder", "state folder",
    "run folder", "logs folder", "models folder", "disk", "address", "memory lock",
}  # fmt: skip


def findings(answer: "Answer") -> Findings:
    assert "Traceback" not in answer.stderr
    report = json.loads(answer.stdout)
    assert report["ok"] is (answer.returncode == 0)
    assert all(check["mend"] for check in report["checks"] if check["verdict"] == "broken")
    return {check["name"]: check for check in report["checks"]}


def test_a_fresh_home_is_well_and_nothing_is_made_in_it(hypnos: "Hypnos", free_port: Callable[[], int]) -> None:
    answer = hypnos.run("doctor", "--json", HYPNOS_PORT=str(free_port()))
    found = findings(answer)
    assert found.keys() >= EVERY
    assert [name for name, check in found.items() if check["verdict"] == "broken"] == []
    assert answer.returncode == 0
    assert "the first start writes" in found["configuration"]["says"]
    assert list(hypnos.home.iterdir()) == []


def test_a_broken_configuration_is_one_finding_among_all(hypnos: "Hypnos") -> None:
    path = hypnos.home / "mine.toml"
    path.write_text("[server]\nprot = 1\n", encoding="utf-8")
    answer = hypnos.run("doctor", "--json", "--config", str(path))
    found = findings(answer)
    assert answer.returncode == 1
    assert found["configuration"]["verdict"] == "broken"
    assert f"{path}:2" in found["configuration"]["says"]
    assert found.keys() >= EVERY - {"models folder"}


def test_without_llama_cpp_it_says_how_to_get_it(hypnos: "Hypnos") -> None:
    stand_in = hypnos.home / "lib" / "llama_cpp"
    stand_in.mkdir(parents=True)
    stand_in.joinpath("__init__.py").touch()
    stand_in.joinpath("llama_cpp.py").write_text("raise ImportError('libllama.so: cannot open shared object file')")
    answer = hypnos.run("doctor", "--json", PYTHONPATH=str(stand_in.parent))
    found = findings(answer)
    assert answer.returncode == 1
    assert found["llama.cpp"]["verdict"] == "broken"
    assert "libllama.so" in found["llama.cpp"]["says"]
    assert found["llama.cpp"]["mend"] == "./run.sh setup"


def test_another_program_on_the_port_is_named(hypnos: "Hypnos", listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    found = findings(hypnos.run("doctor", "--json", HYPNOS_PORT=str(port)))["address"]
    assert found["verdict"] == "broken"
    assert f"port {port} is in use by" in found["says"]
    assert f"(process {os.getpid()})" in found["says"]
    assert "hypnos --port" in found["mend"]


def test_our_own_engine_on_the_port_is_well(hypnos: "Hypnos", free_port: Callable[[], int]) -> None:
    port = free_port()
    process, _ = hypnos.start("--demo", "--port", str(port))
    found = findings(hypnos.run("doctor", "--json", HYPNOS_PORT=str(port)))
    assert found["address"]["verdict"] == "fine"
    assert f"is running at http://127.0.0.1:{port}" in found["address"]["says"]
    assert f"(process {process.pid})" in found["engine"]["says"]


def test_weights_that_are_not_there_are_named(hypnos: "Hypnos") -> None:
    path = hypnos.home / "mine.toml"
    path.write_text(
        'models_dir = "m"\n[[models]]\nid = "a"\nmodality = "text_generation"\nengine = "ggml_llama"\n'
        'weights_path = "a.gguf"\n',
        encoding="utf-8",
    )
    found = findings(hypnos.run("doctor", "--json", "--config", str(path)))
    assert found["model a"]["verdict"] == "broken"
    assert "a.gguf" in found["model a"]["says"]


def test_a_person_gets_plain_marks_on_a_pipe(hypnos: "Hypnos") -> None:
    answer = hypnos.run("doctor", "--config", "nowhere.toml")
    assert answer.returncode == 1
    assert "\x1b" not in answer.stdout
    assert "ok     python" in answer.stdout
    assert "BROKEN configuration" in answer.stdout
    assert "to mend it: " in answer.stdout


class Terminal(io.TextIOWrapper):
    def __init__(self, encoding: str) -> None:
        super().__init__(io.BytesIO(), encoding=encoding)

    def isatty(self) -> bool:
        return True


def test_signs_and_colours_only_where_they_can_be_seen() -> None:
    assert "\x1b[32m✓" in marks_for(Terminal("utf-8"), {})["fine"]
    assert marks_for(Terminal("utf-8"), {"NO_COLOR": "1"}) == {"fine": "✓ ", "note": "! ", "broken": "✗ "}
    assert marks_for(Terminal("utf-8"), {"TERM": "dumb"})["broken"] == "✗ "
    assert marks_for(Terminal("latin-1"), {})["fine"].isascii()
    assert marks_for(io.StringIO(), {})["fine"].isascii()


def test_the_text_tells_what_mends_what() -> None:
    marks = {"fine": "+", "note": "!", "broken": "-"}
    text = as_text([fine("a", "well"), note("bb", "small", "ulimit"), broken("c", "one\ntwo", "./run.sh setup")], marks)
    assert text.splitlines() == [
        "+a   well",
        "!bb  small",
        "    to change it: ulimit",
        "-c   one",
        "    two",
        "    to mend it: ./run.sh setup",
        "",
        "1 to mend.",
    ]
    assert as_text([fine("a", "well")], marks).endswith("All is well.\n")


@pytest.mark.parametrize("record", ["", "{", "[]", '{"backend": "cpu"}'])
def test_a_damaged_build_record_is_a_note(tmp_path: Path, record: str) -> None:
    (tmp_path / "hypnos-build.json").write_text(record, encoding="utf-8")
    assert check_llama(tmp_path / "hypnos-build.json")[0].verdict is Verdict.NOTE


def test_a_build_for_a_device_that_is_not_there_has_to_be_mended(tmp_path: Path) -> None:
    record = {"backend": "cuda", "native": False, "built": "2026-01-01T00:00:00+00:00"}
    (tmp_path / "hypnos-build.json").write_text(json.dumps(record), encoding="utf-8")
    checks = check_llama(tmp_path / "hypnos-build.json")
    assert "cuda, portable code" in checks[0].says
    device = checks[-1]
    assert (device.name, device.verdict) == ("device", Verdict.BROKEN)
    assert "--backend cpu" in (device.mend or "")


def test_a_folder_is_well_when_it_is_there_or_can_be_made(tmp_path: Path) -> None:
    assert check_folder("f", tmp_path).verdict is Verdict.FINE
    assert "will be made" in check_folder("f", tmp_path / "a" / "b").says
    (tmp_path / "file").touch()
    assert check_folder("f", tmp_path / "file" / "b").verdict is Verdict.BROKEN
    assert not (tmp_path / "a").exists()


def test_free_space_is_that_of_the_disk_a_missing_folder_would_be_on(tmp_path: Path) -> None:
    assert "GiB free" in check_space(tmp_path / "not" / "yet").says


def test_this_python_is_one_of_those_the_project_runs_on() -> None:
    assert check_python().verdict is Verdict.FINE
