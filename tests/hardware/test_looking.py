"""Which driver is asked about which device, and when the library is asked whether it still sees them."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec

from hypnos_engine.hardware.looking import FIRST_AGAIN_S, LAST_AGAIN_S, PROBE_EVERY_S, DriversLook
from hypnos_engine.hardware.machine import HostMemory, snapshot
from hypnos_engine.hardware.nvidia import NvidiaCards
from hypnos_engine.ipc.messages import ProbeReport
from tests.hardware import recorded
from tests.hardware.recorded import Machine

HOST = HostMemory(2**36, 2**36, 8)


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def look_at(machine: Machine, clock: Clock, *, nvidia: bool = True) -> DriversLook:
    cards = NvidiaCards(machine.nvml) if nvidia and machine.nvml is not None else None
    devices = snapshot(HOST, machine.probe.report).devices
    return DriversLook(devices, cards, machine.probe, machine.pci_folder, clock)


def without(report: ProbeReport | None, name: str) -> ProbeReport:
    assert report is not None
    return msgspec.structs.replace(report, devices=tuple(d for d in report.devices if d.name != name))


def test_cards_with_a_driver_that_tells_do_not_cost_a_process(tmp_path: Path) -> None:
    machine, clock = recorded.machine("two_cards", tmp_path), Clock()
    look = look_at(machine, clock)
    clock.now += 100 * PROBE_EVERY_S
    assert all(reading.free_bytes and reading.gpu for reading in look(slept=False))
    assert machine.probe.asked == 0


def test_amdgpu_tells_by_files(tmp_path: Path) -> None:
    machine, clock = recorded.machine("igpu_beside_card", tmp_path), Clock()
    look = look_at(machine, clock, nvidia=False)
    clock.now += 100 * PROBE_EVERY_S
    (reading,) = look(slept=False)
    assert reading.free_bytes == 25753026560 - 900 * 2**20
    used = machine.pci_folder / "0000:03:00.0" / "mem_info_vram_used"
    used.write_text("25753026560\n")
    assert look(slept=False)[0].free_bytes == 0
    used.unlink()
    lost = look(slept=False)[0]
    assert (lost.free_bytes, lost.why_lost) == (None, "amdgpu does not list it any more")
    assert machine.probe.asked == 0


def test_of_a_device_without_a_driver_that_tells_the_library_is_asked_now_and_then(tmp_path: Path) -> None:
    machine, clock = recorded.machine("two_cards", tmp_path), Clock()
    look = look_at(machine, clock, nvidia=False)
    assert [reading.free_bytes for reading in look(slept=False)] == [device.free_bytes for device in look.devices]
    assert machine.probe.asked == 0
    whole = machine.probe.report
    assert whole is not None
    less = tuple(msgspec.structs.replace(device, free_bytes=1) for device in whole.devices)
    machine.probe.report = msgspec.structs.replace(whole, devices=less)
    clock.now += PROBE_EVERY_S
    assert [reading.free_bytes for reading in look(slept=False)] == [1, 1]
    look(slept=False)
    assert machine.probe.asked == 1


def test_after_sleep_a_card_that_the_library_does_not_see_is_lost_although_its_driver_answers(tmp_path: Path) -> None:
    machine, clock = recorded.machine("two_cards", tmp_path), Clock()
    whole = machine.probe.report
    look = look_at(machine, clock)
    machine.probe.report = without(whole, "CUDA1")
    first, second = look(slept=True)
    assert first.free_bytes
    assert (second.free_bytes, second.why_lost) == (None, "llama.cpp does not see it any more")

    machine.probe.report = whole
    assert look(slept=False)[1].free_bytes is None, "it is not asked again at once"
    clock.now += 2 * FIRST_AGAIN_S
    assert look(slept=False)[1].free_bytes
    assert machine.probe.asked == 2


def test_a_library_that_stays_silent_is_asked_ever_less_often(tmp_path: Path) -> None:
    machine, clock = recorded.machine("two_cards", tmp_path), Clock()
    machine.probe.report = None
    look = look_at(recorded.machine("two_cards", tmp_path / "again"), clock)
    look = replace_probe(look, machine)
    readings = look(slept=True)
    assert [reading.free_bytes for reading in readings] == [None, None]
    assert "llama.cpp does not answer" in readings[0].why_lost
    asked_at: list[float] = []
    for _ in range(400):
        clock.now += 1.0
        before = machine.probe.asked
        look(slept=False)
        if machine.probe.asked > before:
            asked_at.append(clock.now)
    waits = [later - earlier for earlier, later in pairwise(asked_at)]
    assert waits == sorted(waits)
    assert waits[-1] == LAST_AGAIN_S


def replace_probe(look: DriversLook, machine: Machine) -> DriversLook:
    return replace(look, probe=machine.probe)


def test_the_end_ends_a_question_that_is_being_asked(tmp_path: Path) -> None:
    machine = recorded.machine("two_cards", tmp_path)
    look_at(machine, Clock()).stop()
    assert machine.probe.ended
