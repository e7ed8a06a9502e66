"""The probe's child process: a report, or a typed error with the child's last words."""

import sys

import pytest

from hypnos_engine.domain.errors import EngineFailed
from hypnos_engine.hardware.ggml import probe


def child(program: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program)


@pytest.mark.starter
async def test_the_real_library_reports_this_processor() -> None:
    report = await probe()
    assert report.library == "llama-cpp-python"
    assert any(device.kind == "cpu" and device.total_bytes > 0 for device in report.devices)


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
