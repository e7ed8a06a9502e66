"""NVIDIA's driver as recorded: every figure, those that it does not have, and cards that go and come back."""

import inspect
import os
from pathlib import Path
from typing import Any

import pynvml
import pytest

from hypnos_engine.domain.kinds import Accelerator
from hypnos_engine.domain.memory import Device
from hypnos_engine.hardware.monitor import GpuSample, Reading
from hypnos_engine.hardware.nvidia import FIGURES_EVERY_S, DriverSilent, NvidiaCards, Nvml, is_ours
from tests.hardware import recorded
from tests.hardware.recorded import RecordedNvml

MIB = 2**20


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def cards_of(name: str, folder: Path, clock: Clock | None = None, ours: int = 0) -> tuple[NvidiaCards, RecordedNvml]:
    nvml = recorded.machine(name, folder).nvml
    assert nvml is not None
    return NvidiaCards(nvml, lambda pid: pid == ours, clock or Clock(), lambda: 1793481600.123), nvml


def device(bus_id: str, total_bytes: int = 0) -> Device:
    return Device(0, "card", Accelerator.CUDA, total_bytes, 5, unified=False, library_name="CUDA0", bus_id=bus_id)


FIRST = device("0000:01:00.0")


def gpu_of(reading: Reading) -> GpuSample:
    assert reading.gpu is not None
    return reading.gpu


def test_the_recordings_pass_through_the_functions_of_the_real_library() -> None:
    names = [name for name in vars(Nvml) if name.startswith("nvml")]
    assert len(names) > 15
    for name in names:
        real = inspect.signature(getattr(pynvml, name))
        asked = [p for p in inspect.signature(getattr(RecordedNvml, name)).parameters.values() if p.name != "self"]
        real.bind(*(object() for _ in asked))  # raises when the real one takes something else


def test_this_machine_has_cards_or_says_why_not() -> None:
    real: Any = pynvml
    try:
        names = [card.name for card in NvidiaCards(real).cards()]
    except DriverSilent as silent:
        names = [str(silent)]
    assert all(names)


def test_every_figure_of_a_busy_card(tmp_path: Path) -> None:
    """[§14.1-17]"""
    cards, _ = cards_of("two_cards", tmp_path, ours=4711)
    reading = cards.read(FIRST)
    assert reading.free_bytes == 25757220864 - 3100 * MIB
    assert reading.others_bytes == 512 * MIB, "each process once, and not our own"
    assert reading.gpu == GpuSample(
        name="NVIDIA GeForce RTX 4090",
        utilization_percent=87,
        temperature_celsius=71,
        power_watts=348.2,
        sm_clock_mhz=2520,
        throttle_reasons=4,
        ecc_uncorrected_errors=0,
        retired_pages_pending=False,
        sampled_unix_ms=1793481600123,
    )
    assert gpu_of(reading).throttled is True


@pytest.mark.parametrize(
    ("reasons", "throttled"), [(0, False), (1, False), (2 | 16 | 256, False), (8, True), (64, True)]
)
def test_only_power_heat_and_faults_count_as_throttling(tmp_path: Path, reasons: int, throttled: bool) -> None:
    cards, nvml = cards_of("two_cards", tmp_path)
    nvml.devices[1]["event_reasons"] = reasons
    sample = gpu_of(cards.read(FIRST))
    assert (sample.throttle_reasons, sample.throttled) == (reasons, throttled)


def test_an_idle_card_beside_it_is_another_card(tmp_path: Path) -> None:
    cards, _ = cards_of("two_cards", tmp_path)
    reading = cards.read(device("0000:0b:00.0"))
    assert reading.free_bytes == 12884901888 - 350 * MIB
    assert gpu_of(reading).throttled is False
    assert reading.others_bytes == 0


def test_wddm_hides_what_processes_have_and_laptops_hide_power(tmp_path: Path) -> None:
    cards, _ = cards_of("wddm_laptop", tmp_path)
    reading = cards.read(device("0000:02:00.0"))
    assert reading.free_bytes == 25648562176 - 1700 * MIB
    assert reading.others_bytes is None
    sample = gpu_of(reading)
    assert (sample.power_watts, sample.temperature_celsius) == (None, 55)
    assert (sample.ecc_uncorrected_errors, sample.retired_pages_pending) == (0, False)


@pytest.mark.parametrize(("total_bytes", "free_bytes"), [(42278584320, 42209378304), (10468982784, 10452205568)])
def test_an_instance_of_a_divided_card_is_asked_for_its_own_memory(
    tmp_path: Path, total_bytes: int, free_bytes: int
) -> None:
    cards, _ = cards_of("mig", tmp_path)
    reading = cards.read(device("0000:17:00.0", total_bytes))
    assert reading.free_bytes == free_bytes
    sample = gpu_of(reading)
    assert (sample.utilization_percent, sample.power_watts) == (None, 71.2)
    assert sample.retired_pages_pending is True, "a row waits to be remapped"


def test_an_old_driver_is_asked_by_the_old_names(tmp_path: Path) -> None:
    cards, _ = cards_of("volta", tmp_path)
    sample = gpu_of(cards.read(device("0000:15:00.0")))
    assert (sample.throttle_reasons, sample.throttled) == (64, True)
    assert (sample.ecc_uncorrected_errors, sample.retired_pages_pending) == (2, True)


def test_where_memory_is_the_host_s_the_library_s_figure_stands(tmp_path: Path) -> None:
    cards, _ = cards_of("shared_memory_cuda", tmp_path)
    reading = cards.read(device("000f:01:00.0"))
    assert (reading.free_bytes, gpu_of(reading).power_watts) == (5, 12.0)


def test_figures_are_asked_for_every_few_seconds_and_memory_each_time(tmp_path: Path) -> None:
    """[§14.1-16]"""
    clock = Clock()
    cards, nvml = cards_of("two_cards", tmp_path, clock)
    first = cards.read(FIRST)
    nvml.devices[1] |= {"temperature": 80, "memory": {"total": 25757220864, "free": 7, "used": 25757220857}}
    clock.now += FIGURES_EVERY_S / 2
    second = cards.read(FIRST)
    assert (second.free_bytes, second.gpu) == (7, first.gpu)
    clock.now += FIGURES_EVERY_S
    assert gpu_of(cards.read(FIRST)).temperature_celsius == 80


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED]
)
def test_a_card_that_fell_off_the_bus_is_lost_at_once_and_found_again(tmp_path: Path, code: int) -> None:
    cards, nvml = cards_of("two_cards", tmp_path)
    whole = nvml.devices[1]["memory"]
    assert cards.read(FIRST).free_bytes
    nvml.devices[1]["memory"] = {"error": code}
    lost = cards.read(FIRST)
    assert lost.free_bytes is None
    assert "NVIDIA's driver says" in lost.why_lost
    assert cards.read(device("0000:0b:00.0")).free_bytes, "the other card answers"
    nvml.devices[1]["memory"] = whole
    assert cards.read(FIRST).free_bytes == whole["free"]


def test_an_error_that_may_pass_is_forgiven_twice(tmp_path: Path) -> None:
    cards, nvml = cards_of("two_cards", tmp_path)
    free_bytes = cards.read(FIRST).free_bytes
    nvml.devices[1]["memory"] = {"error": pynvml.NVML_ERROR_UNKNOWN}
    assert [cards.read(FIRST).free_bytes for _ in range(3)] == [free_bytes, free_bytes, None]


def test_a_driver_that_is_being_restarted_is_lost_until_it_is_back(tmp_path: Path) -> None:
    cards, nvml = cards_of("two_cards", tmp_path)
    assert cards.read(FIRST).free_bytes
    nvml.init, kept = {"error": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}, nvml.devices
    nvml.devices = []
    cards.close()
    lost = cards.read(FIRST)
    assert (lost.free_bytes, lost.why_lost) == (None, "NVIDIA's driver does not work (Driver Not Loaded)")
    nvml.init = None
    assert "does not list it" in cards.read(FIRST).why_lost, "the driver is back, the card not yet"
    nvml.devices = kept
    assert cards.read(FIRST).free_bytes


def test_the_library_is_let_go_of_as_often_as_it_was_opened(tmp_path: Path) -> None:
    cards, nvml = cards_of("two_cards", tmp_path)
    for _ in range(3):
        cards.read(FIRST)
        cards.close()
    assert nvml.starts == 0


def test_this_process_is_ours_and_the_first_one_is_not() -> None:
    assert is_ours(os.getpid())
    assert not is_ours(1)
    assert not is_ours(2**22 + 1)
