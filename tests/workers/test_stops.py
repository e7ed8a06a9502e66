"""Stop strings: found wherever the text is cut, never shown, nothing held back for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.workers.stops import StopFinder


def _shown(stops: tuple[str, ...], pieces: list[str]) -> tuple[str, bool]:
    finder = StopFinder(stops)
    shown = "".join(finder.feed(piece) for piece in pieces)
    return shown + ("" if finder.found else finder.finish()), finder.found


def _expected(stops: tuple[str, ...], text: str) -> tuple[str, bool]:
    """By definition: the first position where some stop string is complete, and the longest one that ends there."""
    for end in range(1, len(text) + 1):
        complete = [len(stop) for stop in stops if stop and text[:end].endswith(stop)]
        if complete:
            return text[: end - max(complete)], True
    return text, False


@given(
    st.lists(st.text(alphabet="ab\n", max_size=5), max_size=4).map(tuple),
    st.lists(st.text(alphabet="ab\n", max_size=4), max_size=12),
)
def test_the_cut_of_the_text_does_not_matter(stops: tuple[str, ...], pieces: list[str]) -> None:
    assert _shown(stops, pieces) == _expected(stops, "".join(pieces))


def test_what_cannot_become_a_stop_is_shown_at_once() -> None:
    finder = StopFinder(("END",))
    assert finder.feed("the E") == "the "
    assert finder.feed("N") == ""
    assert finder.feed("d") == "ENd"


def test_nothing_follows_a_stop() -> None:
    finder = StopFinder(("#",))
    assert finder.feed("a#b") == "a"
    assert (finder.feed("c"), finder.finish()) == ("", "")


@pytest.mark.timeout(10)
def test_a_stop_as_long_as_a_body_may_be_takes_linear_time() -> None:
    stop = "ab" * 500_000 + "c"
    shown, found = _shown((stop,), ["ab" * 1000] * 20)
    assert (len(shown), found) == (40_000, False)
