"""Closed streams, readers who leave and early interrupts, each on a real process."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Hypnos

FreePort = Callable[[], int]


def shell(hypnos: "Hypnos", line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell in which `"$@"` is `python -m hypnos_engine`."""
    return subprocess.run(
        ["/bin/sh", "-c", line, "sh", sys.executable, "-P", "-m", "hypnos_engine"],
        check=False,
        capture_output=True,
        text=True,
        env=hypnos.environment(**variables),
        cwd=hypnos.home,
        timeout=60,
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_stops_nothing(hypnos: "Hypnos", closed: str, free_port: FreePort) -> None:
    answer = shell(hypnos, f'exec "$@" --demo --host 0.0.0.0 --port {free_port()} {closed}')
    assert answer.returncode == 44, answer.stderr
    answer = shell(hypnos, f'exec "$@" --help {closed}')
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_an_engine_without_a_stream_serves_and_keeps_its_log(
    hypnos: "Hypnos", closed: str, free_port: FreePort
) -> None:
    state = hypnos.home / ".local" / "state" / "hypnos"
    line = f'exec "$@" --demo --port {free_port()} {closed}'
    process = subprocess.Popen(
        ["/bin/sh", "-c", line, "sh", sys.executable, "-P", "-m", "hypnos_engine"],
        text=True,
        env=hypnos.environment(),
        cwd=hypnos.home,
    )
    hypnos.started.append(process)
    while not (state / "run" / "engine.json").exists():
        assert process.poll() is None, "it serves"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    assert "stopped" in (state / "log" / "hypnos.log").read_text(encoding="utf-8")


def test_a_reader_who_has_left_is_no_complaint(hypnos: "Hypnos", free_port: FreePort) -> None:
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "hypnos_engine", "--demo", "--port", str(free_port())],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        env=hypnos.environment(),
        cwd=hypnos.home,
    )
    os.close(write)
    hypnos.started.append(process)
    assert os.read(read, 6) == b"Hypnos"
    os.close(read)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert shell(hypnos, '"$@" --help | true; "$@" --help | true').stderr == ""
    assert shell(hypnos, '"$@" --version > /dev/full').stderr == ""


EARLY = """
import os, signal, sys
wanted, module = sys.argv[1:3]
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
sys.argv = ["hypnos", *sys.argv[3:]]
import runpy
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    "module", ["hypnos_engine.cli.command_line", "asyncio", "aiohttp", "msgspec", "hypnos_engine.daemon", "uvloop"]
)
def test_an_interrupt_while_modules_are_imported_is_quiet(hypnos: "Hypnos", module: str, free_port: FreePort) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", EARLY, module, "hypnos_engine", "--demo", "--port", str(free_port())],
        check=False,
        capture_output=True,
        text=True,
        env=hypnos.environment(),
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
