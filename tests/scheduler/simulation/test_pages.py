"""The page cache that every policy gets: what is read stays until somebody needs the room."""

from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.scheduler.simulation.pages import PageCache


def test_the_second_reading_comes_from_memory() -> None:
    pages = PageCache(100)
    assert pages.read("a", 60) == 60
    assert pages.read("a", 60) == 0


def test_the_file_that_was_read_longest_ago_loses_as_much_as_is_needed() -> None:
    pages = PageCache(100)
    for files in "aba":
        pages.read(files, 40)
    pages.read("c", 50)
    assert (pages.cached("a"), pages.cached("b"), pages.cached("c")) == (40, 10, 50)
    assert pages.read("b", 40) == 30


def test_a_file_larger_than_the_cache_keeps_the_part_that_fits() -> None:
    pages = PageCache(100)
    assert pages.read("a", 250) == 250
    assert pages.read("a", 250) == 150


def test_kept_pages_stay_and_may_be_taken_once_nobody_keeps_them() -> None:
    pages = PageCache(100)
    pages.read("a", 60)
    pages.keep("a", "held", 60)
    pages.keep("a", "worker", 50)
    pages.read("b", 80)
    assert (pages.cached("a"), pages.cached("b")) == (60, 40)
    assert pages.kept_bytes == 60
    pages.keep("a", "held", 0)
    pages.read("b", 80)
    assert (pages.cached("a"), pages.cached("b")) == (50, 50)
    pages.drop("a")
    assert pages.cached("a") == 50
    pages.keep("a", "worker", 0)
    pages.drop("a")
    assert pages.cached("a") == 0


def test_a_smaller_cache_lets_go_at_once() -> None:
    pages = PageCache(100)
    pages.read("a", 60)
    pages.resize(25)
    assert pages.cached("a") == 25
    pages.resize(-5)
    assert pages.cached("a") == 0


_ACTIONS = st.one_of(
    st.tuples(st.just("read"), st.sampled_from("abc"), st.integers(0, 120)),
    st.tuples(st.just("keep"), st.sampled_from("abc"), st.integers(0, 40)),
    st.tuples(st.just("drop"), st.sampled_from("abc"), st.just(0)),
    st.tuples(st.just("resize"), st.just(""), st.integers(0, 150)),
)


@given(st.lists(_ACTIONS, max_size=30))
def test_it_never_holds_more_than_its_room_but_for_what_is_kept(actions: list[tuple[str, str, int]]) -> None:
    room = 100
    pages = PageCache(room)
    for action, files, amount in actions:
        if action == "read":
            had = pages.cached(files)
            assert pages.read(files, amount) == max(0, amount - had)
        elif action == "keep":
            pages.keep(files, "worker", min(amount, pages.cached(files)))
        elif action == "drop":
            pages.drop(files)
        else:
            pages.resize(room := amount)
        total = sum(pages.cached(name) for name in "abc")
        assert total <= max(room, pages.kept_bytes)
        assert all(pages.cached(name) >= pages.kept(name) for name in "abc")
