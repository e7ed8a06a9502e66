"""Long steps of set-up: their output is kept, a failure shows its end, and an interruption leaves no process behind."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from installers.children import run_step
from installers.locks import only_one
from installers.progress import Display
from installers.refusal import SetupRefused

ROOT = Path(__file__).resolve().parents[2]


def step(command: str, log: Path) -> None:
    run_step(
        [sys.executable, "-c", command],
        environment=os.environ,
        log=log,
        display=Display(io.StringIO()),
        failure="It could not be done:",
    )


def test_output_goes_to_the_log(tmp_path: Path) -> None:
    step("import sys; print('ä', flush=True); print('b', file=sys.stderr)", tmp_path / "log")
    assert (tmp_path / "log").read_text(encoding="utf-8").splitlines()[-2:] == ["ä", "b"]


def test_a_failure_shows_the_end_of_the_output_and_where_the_rest_is(tmp_path: Path) -> None:
    with pytest.raises(SetupRefused) as refused:
        step("print('\\n'.join(map(str, range(100)))); raise SystemExit(3)", tmp_path / "log")
    lines = str(refused.value).splitlines()
    assert lines[0] == "It could not be done:"
    assert lines[1:-1] == [f"  | {number}" for number in range(85, 100)]
    assert str(tmp_path / "log") in lines[-1]


def test_a_package_index_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupRefused, match="is this computer online"):
        step("raise SystemExit('ERROR: No matching distribution found for a==1')", tmp_path / "log")


def test_bytes_that_are_no_text_do_not_stop_a_step(tmp_path: Path) -> None:
    step("import os; os.write(1, b'\\xff\\xfe' * 9000)", tmp_path / "log")


_INTERRUPTED = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from installers import bootstrap
from installers.children import run_step
from installers.progress import Display
import signal
signal.signal(signal.SIGTERM, bootstrap._interrupt)
child = "import subprocess as s, sys; s.Popen([sys.executable, '-c', sys.argv[1]], pass_fds=[int(sys.argv[2])]).wait()"
grandchild = "import signal; print('[1/193] begun', flush=True); signal.pause()"
class Said(Display):
    def update(self, phrase):
        if phrase:
            os.write(int(sys.argv[3]), b"x")
try:
    run_step([sys.executable, "-c", child, grandchild, sys.argv[3]], environment=os.environ, log=Path(sys.argv[2]),
             display=Said(sys.stderr), keep_open=[int(sys.argv[3])], failure="no")
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_an_interruption_ends_every_process_of_the_step(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    program = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, str(ROOT), str(tmp_path / "log"), str(write_end)], pass_fds=[write_end]
    )
    os.close(write_end)
    with open(read_end, "rb", buffering=0) as alive:  # noqa: PTH123 - a descriptor, not a path
        assert alive.read(1) == b"x", "the innermost process works"
        program.send_signal(signal.SIGTERM)
        while alive.read(4096):
            pass  # ends when the last process that holds the other end is gone
    assert program.wait() == 130


def test_only_one_holds_a_lock_and_the_next_waits_for_it(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
            "from installers.locks import only_one\n"
            "with only_one(Path(sys.argv[2]), lambda: None):\n    print('held', flush=True); sys.stdin.read()",
            str(ROOT),
            str(tmp_path / "lock"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == b"held\n"
    waited: list[bool] = []

    def waiting() -> None:
        waited.append(True)
        holder.kill()

    with only_one(tmp_path / "lock", waiting):
        assert waited == [True]
    holder.communicate()
