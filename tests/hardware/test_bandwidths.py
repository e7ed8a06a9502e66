"""How fast the disk is: measured past the page cache, remembered, refined; damaged memory of it is no memory."""

import itertools
from pathlib import Path

import pytest

from hypnos_engine.hardware.bandwidths import (
    LEAST_BYTES,
    LONGEST_S,
    Bandwidths,
    Transfer,
    measure_disk,
)

MIB = 2**20
CARDS = "NVIDIA GeForce RTX 4090"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.gguf"
    with path.open("wb") as file:
        for number in range(40):
            file.write(bytes([number]) * MIB)
    return path


def test_a_file_s_head_is_read_from_its_disk(weights: Path) -> None:
    ticks = itertools.count(0.0, LONGEST_S / 1000)
    measured = measure_disk(weights, clock=lambda: next(ticks))
    assert measured.size_bytes == 40 * MIB
    assert measured.tells
    assert measured.bytes_per_s > 0


def test_no_more_is_read_than_asked_for(weights: Path) -> None:
    assert measure_disk(weights, 8 * MIB).size_bytes == 8 * MIB


def test_a_slow_disk_is_not_kept_busy(weights: Path) -> None:
    ticks = itertools.count(0.0, LONGEST_S / 2)
    measured = measure_disk(weights, clock=lambda: next(ticks))
    assert 0 < measured.size_bytes <= 8 * MIB


@pytest.mark.parametrize("name", ["nothing", "."])
def test_what_cannot_be_read_tells_nothing(tmp_path: Path, name: str) -> None:
    assert not measure_disk(tmp_path / name).tells


def test_a_small_file_tells_nothing(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"x" * MIB)
    assert not measure_disk(path).tells


def test_a_measured_speed_is_there_after_a_restart(tmp_path: Path, weights: Path) -> None:
    memory = tmp_path / "bandwidths.json"
    first = Bandwidths(memory, CARDS)
    first.lies_on(weights)
    assert (first.disk_bytes_per_s, first.device_bytes_per_s) == (None, None)
    first.measured_disk(Transfer(3000 * MIB, 1.0))
    first.measured_device(Transfer(16000 * MIB, 1.0))

    again = Bandwidths(memory, CARDS)
    again.lies_on(weights)
    assert (again.disk_bytes_per_s, again.device_bytes_per_s) == (3000.0 * MIB, 16000.0 * MIB)
    assert memory.stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_later_measurements_weigh_half(tmp_path: Path, weights: Path) -> None:
    speeds = Bandwidths(tmp_path / "file", CARDS)
    speeds.lies_on(weights)
    speeds.measured_disk(Transfer(1000 * MIB, 1.0))
    speeds.measured_disk(Transfer(2000 * MIB, 1.0))
    assert speeds.disk_bytes_per_s == 1500.0 * MIB


def test_other_cards_have_other_speeds(tmp_path: Path) -> None:
    memory = tmp_path / "file"
    Bandwidths(memory, CARDS).measured_device(Transfer(1000 * MIB, 1.0))
    assert Bandwidths(memory, "another").device_bytes_per_s is None
    assert Bandwidths(memory, CARDS).device_bytes_per_s == 1000.0 * MIB


def test_where_nothing_is_copied_nothing_is_learnt(tmp_path: Path) -> None:
    speeds = Bandwidths(tmp_path / "file")
    speeds.measured_device(Transfer(1000 * MIB, 1.0))
    assert speeds.device_bytes_per_s is None
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("transfer", [Transfer(LEAST_BYTES - 1, 1.0), Transfer(LEAST_BYTES, 0.0)])
def test_what_tells_nothing_is_not_remembered(tmp_path: Path, weights: Path, transfer: Transfer) -> None:
    speeds = Bandwidths(tmp_path / "file", CARDS)
    speeds.lies_on(weights)
    speeds.measured_disk(transfer)
    speeds.measured_device(transfer)
    assert (speeds.disk_bytes_per_s, speeds.device_bytes_per_s) == (None, None)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"disk": 7}', b'{"disk": {"1": -1.0}}', b"\xff\xfe"])
def test_a_damaged_file_is_started_anew(tmp_path: Path, weights: Path, content: bytes) -> None:
    memory = tmp_path / "file"
    memory.write_bytes(content)
    speeds = Bandwidths(memory, CARDS)
    speeds.lies_on(weights)
    assert speeds.disk_bytes_per_s is None
    speeds.measured_disk(Transfer(1000 * MIB, 1.0))
    assert Bandwidths(memory)._known.disk.values()


def test_a_folder_that_cannot_be_written_to_costs_only_the_memory(weights: Path) -> None:
    speeds = Bandwidths(weights / "no folder" / "file", CARDS)
    speeds.lies_on(weights)
    speeds.measured_disk(Transfer(1000 * MIB, 1.0))
    assert speeds.disk_bytes_per_s == 1000.0 * MIB
