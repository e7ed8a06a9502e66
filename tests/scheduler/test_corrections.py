"""Corrections: what one measurement changes in the next plan, and for whom."""

from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.domain.memory import Footprint
from hypnos_engine.scheduler.corrections import (
    KEPT_CORRECTIONS,
    NO_CORRECTION,
    Correction,
    Corrections,
    corrected,
    correction,
    error_fraction,
)

MIB = 2**20
PLANNED = Footprint(
    file_pages=900 * MIB, repacked=50 * MIB, anonymous=96 * MIB, device=500 * MIB, kv=90 * MIB, workspace=20 * MIB
)
lines = st.builds(
    Footprint,
    file_pages=st.integers(0, 2**34),
    repacked=st.integers(0, 2**30),
    anonymous=st.integers(2**27, 2**30),
    device=st.integers(2**20, 2**34),
    kv=st.integers(0, 2**30),
    workspace=st.integers(0, 2**30),
)


def test_a_worker_reports_private_memory_as_one_number() -> None:
    measured = Footprint(file_pages=900 * MIB, anonymous=270 * MIB, device=520 * MIB)
    learnt = correction(PLANNED, measured)
    assert learnt == Correction(host_bytes=14 * MIB, device_bytes=20 * MIB)
    better = corrected(PLANNED, learnt)
    assert better.anonymous == 110 * MIB
    assert (better.kv, better.workspace, better.repacked) == (PLANNED.kv, PLANNED.workspace, PLANNED.repacked)
    assert better.peak == better.total
    assert error_fraction(better, measured) == 0.0


def test_a_model_in_host_memory_learns_nothing_about_a_device() -> None:
    planned = Footprint(anonymous=10)
    assert correction(planned, Footprint(anonymous=12, device=5)) == Correction(2, 0)
    assert corrected(planned, Correction(0, 7)).device == 0


def test_a_line_never_becomes_negative() -> None:
    assert corrected(Footprint(anonymous=5, device=5), Correction(-9, -9)) == Footprint()


def test_the_error_is_a_fraction_of_what_was_measured() -> None:
    assert error_fraction(Footprint(anonymous=90), Footprint(anonymous=100)) == 0.1
    assert error_fraction(Footprint(anonymous=110), Footprint(anonymous=100)) == -0.1
    assert error_fraction(Footprint(anonymous=110), Footprint()) == 0.0


@given(planned=lines, measured=lines)
def test_one_measurement_makes_the_next_plan_exact_or_keeps_the_librarys_promises(
    planned: Footprint, measured: Footprint
) -> None:
    better = corrected(planned, correction(planned, measured))
    assert better.device == measured.device
    private = better.total - better.file_pages - better.device
    promised = planned.repacked + planned.kv + planned.workspace
    assert private == max(measured.repacked + measured.anonymous + measured.kv + measured.workspace, promised)


def test_a_correction_belongs_to_a_file_and_a_context() -> None:
    known = Corrections()
    assert known.find("a.gguf", 4096) == NO_CORRECTION
    known.learn("a.gguf", 4096, Footprint(anonymous=10), Footprint(anonymous=11))
    known.learn("a.gguf", 8192, Footprint(anonymous=10), Footprint(anonymous=13))
    known.learn("b.gguf", 4096, Footprint(anonymous=10), Footprint(anonymous=50))
    assert known.find("a.gguf", 4096) == Correction(1, 0)
    assert known.find("a.gguf", 8192) == Correction(3, 0)
    assert known.find("a.gguf", 16_384) == Correction(3, 0)
    assert known.find("c.gguf", 4096) == NO_CORRECTION
    known.learn("a.gguf", 4096, Footprint(anonymous=10), Footprint(anonymous=12))
    assert known.find("a.gguf", 512) == Correction(2, 0)


def test_old_corrections_are_forgotten() -> None:
    known = Corrections()
    for cells in range(KEPT_CORRECTIONS + 1):
        known.learn(f"{cells}.gguf", 4096, Footprint(anonymous=1), Footprint(anonymous=2))
    assert known.find("0.gguf", 4096) == NO_CORRECTION
    assert known.find("1.gguf", 4096) == Correction(1, 0)
