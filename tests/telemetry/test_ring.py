"""The ring of records: bounded in number and bytes, counted by key, read part by part while it changes."""

from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.telemetry.ring import BESIDE_BYTES, LOOKED_AT_ONCE, Kept, RecordRing


def kept(number: int, *, key: str = "local", size: int = 10, failed: bool = False) -> Kept:
    return Kept(f"req-{number}", key, "model", "/v1/chat/completions", 200, failed, b"x" * size)


def everything(_: Kept) -> bool:
    return True


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 400)), max_size=40),
    st.integers(0, 10),
    st.integers(0, 6000),
)
def test_it_keeps_the_newest_that_fit(added: list[tuple[str, int]], entries: int, max_bytes: int) -> None:
    ring = RecordRing(entries, max_bytes)
    for number, (key, size) in enumerate(added):
        ring.add(kept(number, key=key, size=size))
        assert ring.stored() <= entries
        assert 0 <= ring.bytes <= max_bytes
        assert ring.stored() == sum(ring.stored(name) for name in "abc")
    names = _names(ring)
    assert len(names) == ring.stored()
    assert names == sorted(names, reverse=True)
    assert all(ring.get(f"req-{number}") for number in names)
    for name in "abc":
        ring.clear(name)
    assert (ring.stored(), ring.bytes) == (0, 0)


def test_a_record_larger_than_everything_drives_nothing_out() -> None:
    ring = RecordRing(5, 2 * BESIDE_BYTES)
    ring.add(kept(1))
    ring.add(kept(2, size=3 * BESIDE_BYTES))
    assert _names(ring) == [1]


def test_a_record_is_replaced_in_its_place_and_within_the_bound() -> None:
    ring = RecordRing(5, 4 * BESIDE_BYTES)
    for number in range(3):
        ring.add(kept(number))
    ring.replace(kept(1, size=50))
    assert (_names(ring), ring.bytes) == ([2, 1, 0], 3 * BESIDE_BYTES + 70)
    ring.replace(kept(1, size=BESIDE_BYTES))
    assert _names(ring) == [2, 1]
    ring.clear()
    ring.replace(kept(1))
    assert (ring.stored(), ring.bytes) == (0, 0)


def test_a_page_ends_after_its_bytes_and_the_next_goes_on() -> None:
    ring = RecordRing(100, 10**6)
    for number in range(10):
        ring.add(kept(number, size=100))
    page = ring.page(everything, most=100, most_bytes=250)
    assert len(page.records) == 3
    ring.add(kept(10))  # newer ones belong to the next answer
    rest = ring.page(everything, most=100, most_bytes=10**6, below=page.below)
    assert (len(rest.records), rest.below) == (7, None)


def test_a_search_that_finds_nothing_is_done_in_parts() -> None:
    ring = RecordRing(10**5, 10**9)
    for number in range(LOOKED_AT_ONCE + 5):
        ring.add(kept(number))
    page = ring.page(lambda _: False, most=1, most_bytes=1)
    assert page.records == []
    assert page.below is not None
    assert ring.page(lambda _: False, most=1, most_bytes=1, below=page.below).below is None


def test_what_left_between_two_parts_is_left_out() -> None:
    ring = RecordRing(4, 10**6)
    for number in range(4):
        ring.add(kept(number, key="a" if number % 2 else "b"))
    page = ring.page(everything, most=4, most_bytes=1)
    ring.clear("a")
    rest = ring.page(everything, most=4, most_bytes=10**6, below=page.below)
    assert (len(rest.records), rest.below) == (2, None)
    ring.clear()
    assert ring.page(everything, most=4, most_bytes=1, below=page.below).records == []


def _names(ring: RecordRing) -> list[int]:
    seen: list[int] = []

    def note(record: Kept) -> bool:
        seen.append(int(record.id.removeprefix("req-")))
        return True

    ring.page(note, most=10**6, most_bytes=10**9)
    return seen
