"""Guesses from a text's own past, held against a search that looks at every place."""

from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.workers.llama.drafts import CANDIDATES, LONGEST_MATCH, NOTHING, Guess, History

FEW = st.integers(0, 3)
ANY = st.integers(0, 300_000)


def _agreement(text: list[int], place: int) -> int:
    """How many tokens before a place agree with those at the end of the text."""
    count = 0
    while count < min(place, LONGEST_MATCH) and text[place - 1 - count] == text[-1 - count]:
        count += 1
    return count


def _searched(text: list[int], most: int) -> Guess:
    """What follows the longest match of at least two tokens, the latest of equals."""
    found = [(_agreement(text, place), place) for place in range(2, len(text))]
    matched, place = max(found, default=(0, 0))
    if matched < 2:
        return NOTHING
    period = text[place:]
    return Guess([period[index % len(period)] for index in range(most)], matched)


@given(st.lists(FEW, max_size=CANDIDATES + 2), st.integers(1, 20))
def test_a_guess_is_what_a_search_of_every_place_finds(text: list[int], most: int) -> None:
    assert History(text).guess(most) == _searched(text, most)


@given(st.lists(FEW, max_size=200) | st.lists(ANY, max_size=200), st.integers(1, 20))
def test_a_guess_followed_the_same_tokens_earlier(text: list[int], most: int) -> None:
    """Where a text is longer than what is looked at, the match need not be the longest, but it is one."""
    guess = History(text).guess(most)
    assert len(guess.tokens) == (most if guess.matched else 0)
    if guess.matched:
        assert guess.matched >= 2
        assert any(
            _agreement(text, place) == guess.matched
            and guess.tokens == [text[place + index % (len(text) - place)] for index in range(most)]
            for place in range(2, len(text))
        )


@given(st.lists(FEW, max_size=60), st.lists(FEW, max_size=60))
def test_it_does_not_matter_in_which_parts_a_text_arrives(first: list[int], second: list[int]) -> None:
    grown = History(first)
    for token in second:
        grown.extend([token])
    assert len(grown) == len(first + second)
    assert grown.guess(8) == History(first + second).guess(8)


@given(st.lists(ANY, min_size=8, max_size=300, unique=True), st.integers(2, 100), st.integers(1, 12))
def test_a_quotation_is_found_wherever_it_stands(text: list[int], start: int, most: int) -> None:
    """Tokens that occur once: the quoted ones are the only match, and the guess goes on with the text."""
    start = start % (len(text) - 4) + 2
    quoted = text[max(0, start - LONGEST_MATCH) : start]
    guess = History(text + quoted).guess(most)
    whole = text + quoted
    assert guess == Guess(whole[start : start + most] + whole[start:][: max(0, most - len(whole) + start)], len(quoted))


def test_a_repetition_is_guessed_beyond_the_end_of_the_text() -> None:
    assert History([7, 1, 2, 3, 1, 2, 3]).guess(7) == Guess([1, 2, 3, 1, 2, 3, 1], 3)


def test_the_longer_match_counts_more_than_the_later_one() -> None:
    assert History([9, 1, 2, 3, 4, 5, 0, 3, 4, 6, 9, 1, 2, 3, 4]).guess(1) == Guess([5], 5)


def test_nothing_is_guessed_without_a_match_or_a_wish() -> None:
    assert History([1, 2, 3, 4]).guess(5) == History([1, 1]).guess(0) == History().guess(3) == NOTHING
    assert History([5, 1, 6, 1]).guess(3) == NOTHING  # one token in common is too little


def test_no_more_places_are_looked_at_in_a_long_text() -> None:
    """A text whose every place matches, of a length at which looking at all of them would take minutes."""
    text = [1, 2] * 100_000
    history = History(text)
    for _ in range(1000):
        assert history.guess(15).matched == LONGEST_MATCH
        history.extend([1, 2])
