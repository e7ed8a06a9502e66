"""Which devices a plan is loaded onto, and what a worker's bytes count as on real and on made-up machines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.domain.kinds import Accelerator, Tier, Topology
from hypnos_engine.domain.memory import Device, Footprint, HardwareSnapshot, Placement
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.accelerators import (
    ALL_LAYERS,
    NO_ACCELERATORS,
    Accelerators,
    Onto,
    copied,
    measured_footprint,
)
from hypnos_engine.scheduler.placement import Plan

MIB = 2**20
TWO = Accelerators(("CUDA0", "CUDA1"))
SIMULATED = Accelerators(("", ""), simulated=True)
WHOLE = Placement(gpu_layers=30, vram_weight_bytes=100 * MIB)
SPLIT = Placement(gpu_layers=12, pinned_ram_layers=18, vram_weight_bytes=40 * MIB, pinned_ram_bytes=60 * MIB)
REPORT = m.MemoryReport(
    weights_bytes=100 * MIB,
    device_bytes=0,
    kv_bytes=30 * MIB,
    workspace_bytes=6 * MIB,
    repacked_bytes=50 * MIB,
    anonymous_bytes=150 * MIB,
)


def plan(placement: Placement, shares: tuple[int, ...] = (), layers: tuple[int, ...] = ()) -> Plan:
    return Plan(placement, Footprint(device=sum(shares) or 10), shares, layers)


def test_the_names_are_in_the_order_of_the_budgets() -> None:
    cards = tuple(Device(n, "x", Accelerator.CUDA, 1, 1, unified=False, library_name=f"CUDA{n}") for n in (1, 0))
    hardware = HardwareSnapshot(Topology.DISCRETE, Accelerator.CUDA, "x", 1, 1, 1, cards)
    assert Accelerators.of(hardware) == Accelerators(("CUDA1", "CUDA0"))


def test_what_the_processor_computes_opens_no_accelerator() -> None:
    assert TWO.onto(Plan(Placement(gpu_layers=30), Footprint(file_pages=10))) == Onto(0, ())


@pytest.mark.parametrize(("shares", "name"), [((9, 0), "CUDA0"), ((0, 9), "CUDA1")])
def test_a_model_on_one_device_names_it(shares: tuple[int, ...], name: str) -> None:
    assert TWO.onto(plan(WHOLE, shares, (30, 0))) == Onto(ALL_LAYERS, (name,))


def test_a_part_of_a_model_on_a_device_counts_the_head_as_one_layer_more() -> None:
    assert TWO.onto(plan(SPLIT, (0, 9), (0, 12))) == Onto(13, ("CUDA1",))


def test_a_model_over_several_devices_names_each_with_its_layers() -> None:
    assert TWO.onto(plan(WHOLE, (9, 5), (20, 10))) == Onto(ALL_LAYERS, ("CUDA0", "CUDA1"), (20, 10))


def test_on_one_pool_the_accelerator_that_shares_it_is_named() -> None:
    assert Accelerators(("MTL0",)).onto(plan(WHOLE)) == Onto(ALL_LAYERS, ("MTL0",))
    assert NO_ACCELERATORS.onto(plan(WHOLE)) == Onto(ALL_LAYERS, None), "as the library likes"


def test_experts_stay_with_the_processor_where_the_plan_says_so() -> None:
    experts = Placement(gpu_layers=30, cpu_expert_layers=7)
    assert TWO.onto(plan(experts, (9, 0), (30, 0))).cpu_expert_layers == 7
    assert SIMULATED.onto(plan(experts, (9, 0), (30, 0))).cpu_expert_layers == 0


def test_on_a_made_up_machine_everything_is_computed_by_the_processor() -> None:
    assert SIMULATED.onto(plan(WHOLE, (9, 5), (20, 10))) == Onto(0, ())


def test_a_real_worker_s_bytes_are_what_it_says() -> None:
    assert TWO.booked(REPORT, "mmap", plan(WHOLE, (9, 0), (30, 0))) == measured_footprint(REPORT, "mmap")


def test_a_made_up_device_holds_what_the_worker_holds_for_it() -> None:
    booked = SIMULATED.booked(REPORT, "mmap", plan(WHOLE, (9, 0), (30, 0)))
    assert booked.device == (100 + 30 + 6) * MIB
    assert booked.file_pages == 0
    assert booked.anonymous == (150 - 30 - 6 - 50) * MIB, "and copies in the processor's layout would not be there"


def test_a_made_up_split_divides_weights_by_bytes_and_the_cache_by_layers() -> None:
    booked = SIMULATED.booked(REPORT, "mmap", plan(SPLIT, (9, 0), (12, 0)))
    assert (booked.file_pages, booked.device) == (60 * MIB, (40 + 12 + 6) * MIB)
    assert booked.anonymous == (150 - 12 - 20) * MIB


def test_weights_that_were_read_leave_the_worker_s_own_memory() -> None:
    booked = SIMULATED.booked(REPORT, "read", plan(WHOLE, (9, 0), (30, 0)))
    assert (booked.file_pages, booked.anonymous) == (0, 0), "136 of 150 are the device's, 50 would not be there"
    assert booked.device == 136 * MIB


def test_without_a_share_a_made_up_machine_changes_nothing() -> None:
    on_host = Plan(Placement(gpu_layers=30), Footprint(file_pages=10))
    assert SIMULATED.booked(REPORT, "mmap", on_host) == measured_footprint(REPORT, "mmap")
    assert SIMULATED.booked(REPORT, "mmap", None) == measured_footprint(REPORT, "mmap")


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9), st.booleans())
def test_no_line_is_ever_negative(weights: int, kv: int, workspace: int, anonymous: int, mapped: bool) -> None:
    report = m.MemoryReport(weights, 0, kv, workspace, weights // 2, anonymous)
    for placement in (WHOLE, SPLIT):
        booked = SIMULATED.booked(report, "mmap" if mapped else "read", plan(placement, (9, 0), (30, 0)))
        assert min(booked.device, booked.file_pages, booked.anonymous) >= 0


@pytest.mark.parametrize(
    ("source", "shares", "tells"), [(Tier.RAM, (9,), True), (Tier.DISK, (9,), False), (Tier.RAM, (), False)]
)
def test_only_a_load_from_held_pages_to_a_device_tells_its_speed(
    source: Tier, shares: tuple[int, ...], tells: bool
) -> None:
    phases = m.LoadPhases("mmap", weights_ms=50.0, projector_ms=0.0, context_ms=1.0, total_ms=60.0)
    transfer = copied(plan(WHOLE, shares, (30,) if shares else ()), phases, source)
    assert transfer.tells is tells
    if tells:
        assert transfer.bytes_per_s == 100 * MIB / 0.05
