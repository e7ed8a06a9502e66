"""The probe's child process: a report, or a typed error with the child's last words."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from hypnos_engine.domain.errors import EngineFailed
from hypnos_engine.hardware.ggml import Prober, probe


def child(program: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program)


@pytest.mark.starter
async def test_the_real_library_reports_this_processor() -> None:
    report = await probe()
    assert report.library == "llama-cpp-python"
    assert any(device.kind == "cpu" and device.total_bytes > 0 for device in report.devices)
    assert all(re.fullmatch(r"([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])?", one.bus_id) for one in report.devices)


async def test_a_missing_library_is_named() -> None:
    with pytest.raises(EngineFailed, match="No module named 'llama_cpp'"):
        await probe(child("raise ModuleNotFoundError(\"No module named 'llama_cpp'\")"))


async def test_garbage_is_no_report() -> None:
    with pytest.raises(EngineFailed, match="no readable report"):
        await probe(child("import sys; sys.stdout.buffer.write(b'\\x04\\0\\0\\0junk')"))


async def test_a_hanging_probe_is_ended() -> None:
    with pytest.raises(EngineFailed, match="did not answer"):
        await probe(child("import sys; sys.stdin.read(); import threading; threading.Event().wait()"), timeout_s=0.5)


async def test_a_program_that_cannot_start_is_an_error() -> None:
    with pytest.raises(EngineFailed, match="cannot be started"):
        await probe(("/nowhere/hypnos-worker",))


async def test_whoever_cancels_the_probe_ends_its_child_and_what_that_started(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    forks = "import os, sys, threading; os.fork(); sys.stdout.flush(); f = open(sys.argv[1], 'w'); f.write('x'); "
    hangs = "f.flush(); threading.Event().wait()"
    asked = asyncio.create_task(probe((*child(forks + hangs), str(tmp_path / "alive")), timeout_s=600.0))
    with await asyncio.to_thread(open, tmp_path / "alive") as alive:
        assert await asyncio.to_thread(alive.read, 2) == "xx", "both processes run"
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert await asyncio.to_thread(alive.read) == "", "nobody holds the pipe any more"
    async with asyncio.timeout(10):
        await asyncio.get_running_loop().shutdown_default_executor()


async def test_a_question_on_a_thread_is_ended_from_another_with_its_child(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    hangs = "import sys, threading; f = open(sys.argv[1], 'w'); f.write('x'); f.flush(); threading.Event().wait()"
    prober = Prober((*child(hangs), str(tmp_path / "alive")), timeout_s=600.0)
    asked = asyncio.create_task(asyncio.to_thread(prober.ask))
    with await asyncio.to_thread(open, tmp_path / "alive") as alive:
        assert await asyncio.to_thread(alive.read, 1) == "x"
        prober.end()
        with pytest.raises(EngineFailed):
            await asked
        assert await asyncio.to_thread(alive.read) == ""
    with pytest.raises(EngineFailed, match="taken back"):
        prober.ask()
