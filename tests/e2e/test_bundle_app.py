"""The packaged app as one user installs it: into a folder with blanks and other letters, on a screen with a tray."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypnos_engine.catalog.downloads.orders import End, Ended, Network, Order, line_of, read_said
from hypnos_engine.catalog.entries import CatalogFile, Role
from hypnos_engine.testing.local_hub import local_hub
from tests.e2e.app_process import Display, display
from tests.e2e.bundled import MODEL, ask, chat, icon_in_tray, left_of, processes_of, quit_from_tray, shipped, started
from tests.e2e.engine_process import private_environment

pytestmark = [pytest.mark.bundle, pytest.mark.starter, pytest.mark.display, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def screen() -> Iterator[Display]:
    with display(tray=True) as shown:
        yield shown


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the program, installed by its own installer and removed by its own script."""
    home = tmp_path_factory.mktemp("Heim mit Ümläut 🌙")
    target = home / "Programme 程序" / "Hypnos"
    environment = private_environment(home)
    command = ["sh", str(shipped().run), "--target", str(target)]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "lacks" not in done.stdout
    yield target
    done = subprocess.run(["sh", target / "uninstall.sh"], env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not target.exists()
    assert not [path for path in home.rglob("*") if path.is_file() or path.is_symlink()]


def test_from_the_tray_it_chats_and_quits_and_no_process_is_left(
    installed: Path, screen: Display, tmp_path: Path
) -> None:
    with started([installed / "hypnos"], tmp_path / "ein Heim", installed, screen.environment) as engine:
        answer = chat(engine)
        assert answer["choices"][0]["message"]["content"].strip()
        assert answer["hypnos_telemetry"]["placement"]["allocated_context_len"] > 0
        assert len(engine.workers()) == 1
        assert quit_from_tray(screen, engine) == 0
        assert left_of(installed) == []


def test_killed_in_the_middle_of_an_answer_it_leaves_no_process(
    installed: Path, screen: Display, tmp_path: Path
) -> None:
    with started([installed / "hypnos"], tmp_path, installed, screen.environment) as engine:
        with ask(engine, stream=True, max_tokens=400) as answer:
            assert answer.readline()
            assert len(processes_of(installed)) > 1
            engine.end(signal.SIGKILL)
        assert left_of(installed) == []


def test_a_second_start_hands_over_to_the_first_and_log_out_ends_that_in_order(
    installed: Path, screen: Display, tmp_path: Path
) -> None:
    command = [str(installed / "hypnos"), "--at-login"]
    with started(command, tmp_path, installed, screen.environment) as engine:
        icon_in_tray(screen)
        second = subprocess.run(
            command,
            env={**private_environment(tmp_path), **screen.environment},
            check=False,
            capture_output=True,
            text=True,
        )
        assert (second.returncode, engine.process.poll()) == (0, None)
        assert "runs already" in second.stdout
        assert engine.end() == 0
        assert left_of(installed) == []
        assert "stopped" in engine.log


def test_the_same_executable_serves_without_a_screen(installed: Path, tmp_path: Path) -> None:
    """Large bodies are read, and templates rendered, by processes of the packaged program."""
    no_screen = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "QT_QPA_PLATFORM": ""}
    with started([installed / "hypnos", "serve"], tmp_path, installed, no_screen) as engine:
        assert [model["id"] for model in engine.get("/v1/models")["data"]] == [MODEL]
        answer = chat(engine, metadata={"padding": "x" * 3_000_000})
        assert answer["usage"]["completion_tokens"] > 0
        names = {Path(process.exe()).name for process in processes_of(installed)}
        assert names == {"hypnos", "hypnos-worker"}
        assert engine.end() == 0
        assert left_of(installed) == []


def test_its_download_process_fetches_from_a_hub_and_checks_what_came(installed: Path, tmp_path: Path) -> None:
    content = bytes(range(256)) * 4096
    wanted = (CatalogFile(Role.WEIGHTS, "some/model", "weights.gguf", "some/weights.gguf"),)
    with local_hub() as hub:
        hub.repository("some/model", **{"weights.gguf": content})
        order = Order("one", str(tmp_path), (str(tmp_path),), wanted, network=Network(hub=hub.address), floor_bytes=0)
        child = subprocess.Popen(
            [installed / "hypnos-worker", "--download"],
            env=private_environment(tmp_path / "home"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with child:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(line_of(order))
            child.stdin.flush()  # and kept open: the child ends with whoever listens to it
            *_, last = map(read_said, child.stdout)
    assert last == Ended(End.DONE)
    assert (tmp_path / "some" / "weights.gguf").read_bytes() == content


def test_the_doctor_is_content_with_the_packaged_program(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [installed / "hypnos", "doctor"], env=private_environment(tmp_path), check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert "llama-cpp-python" in done.stdout
    assert "BROKEN" not in done.stdout


def test_the_command_in_the_path_is_this_program(installed: Path) -> None:
    home = installed.parents[1]
    command = home / ".local" / "bin" / "hypnos"
    said = subprocess.run([command, "--version"], check=True, capture_output=True, text=True).stdout
    assert said.strip() == f"hypnos {json.loads((installed / 'build.json').read_text())['hypnos']}"
