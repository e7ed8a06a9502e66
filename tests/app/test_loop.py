"""The loop that Qt and asyncio share, each time in a process of its own: a crash in Qt must not be the suite's end."""

import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]
NOISE = 500
"""References that the interpreter takes and gives while a loop turns; a faulty binding gives one for each turn."""


def run(name: str) -> str:
    """What the program printed."""
    answer = subprocess.run(
        [sys.executable, str(PROGRAMS / name)],
        env={"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_none_loses_no_references_over_50_000_turns_timers_and_socket_lines() -> None:
    assert abs(int(run("none_references.py"))) < NOISE


def test_whoever_holds_the_loop_is_recorded_by_name() -> None:
    recorded = run("holding_the_loop.py").splitlines()
    assert "slow_coroutine (slow task)" in recorded
    assert "SlowPicture.paintEvent" in recorded
    assert "Qt's own layout and painting" in recorded
