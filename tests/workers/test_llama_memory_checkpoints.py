"""Where checkpoints are taken in a prompt, and which of them are given up; no model is needed."""

import numpy as np
import pytest

from hypnos_engine.workers.llama.checkpoints import (
    LEAST_GAIN,
    MOST_BYTES,
    MOST_PER_SLOT,
    SPACING,
    Checkpoint,
    Shelf,
    points,
)

OPEN, CLOSE = 1, 2
CONTROL = frozenset({OPEN, CLOSE})


def _turn(length: int) -> list[int]:
    """A message as ChatML writes it: a header of two tokens, so many letters, the end and a line break."""
    return [OPEN, 10, 11, *[20] * length, CLOSE, 12]


def _prompt(*lengths: int, answer_header: tuple[int, ...] = (OPEN, 10, 11)) -> list[int]:
    return [token for length in lengths for token in _turn(length)] + list(answer_header)


def _copy(length: int, size_bytes: int = 10) -> Checkpoint:
    return Checkpoint(length, np.zeros(size_bytes, np.uint8))


def _warm(_slot: int) -> float:
    return 1.0


# --- where ------------------------------------------------------------------------------------------------------------


def test_before_the_answer_before_the_last_message_and_after_the_first() -> None:
    prompt = _prompt(200, 150, 100, 300)
    found = points(prompt, CONTROL, 0, 1)
    system, before_last, before_answer = 203, 203 + 2 + 153 + 2 + 103, len(prompt) - 5
    assert found == [system, before_last, before_answer]
    assert [prompt[length] for length in found] == [CLOSE] * 3


def test_an_opened_thought_belongs_to_the_header_of_the_answer() -> None:
    plain = _prompt(200)
    thinking = _prompt(200, answer_header=(OPEN, 10, 11, 40, 41, 42))
    assert points(plain, CONTROL, 0, 1) == points(thinking, CONTROL, 0, 1) == [203]


def test_what_is_reused_needs_no_checkpoint() -> None:
    prompt = _prompt(200, 150, 100, 300)
    every = points(prompt, CONTROL, 0, 1)
    assert points(prompt, CONTROL, every[0], 1) == every[1:]
    assert points(prompt, CONTROL, len(prompt) - 1, 1) == []


def test_of_two_that_are_close_the_later_is_taken() -> None:
    prompt = _prompt(200, LEAST_GAIN - 20)
    assert points(prompt, CONTROL, 0, 1) == [len(prompt) - 5]


def test_a_template_without_control_tokens() -> None:
    prompt = [20] * 500
    assert points(prompt, CONTROL, 0, 1) == [484]
    assert points([OPEN, *prompt], CONTROL, 0, 1) == [485]


def test_a_short_prompt_is_cheaper_than_its_copy() -> None:
    assert points(_prompt(20), CONTROL, 0, 1) == []
    assert points([], CONTROL, 0, 1) == []


def test_a_chat_of_single_words_is_divided_too() -> None:
    prompt = _prompt(200, *[1] * 100)
    found = points(prompt, CONTROL, 0, 1)
    assert 0 < len(prompt) - found[-1] <= 2 * LEAST_GAIN
    assert len(found) >= 2


def test_a_long_text_has_some_inside() -> None:
    prompt = _prompt(3 * SPACING)  # the answer's header begins right behind the third of them
    assert points(prompt, CONTROL, 0, 1) == [SPACING, 2 * SPACING, len(prompt) - 5]


@pytest.mark.parametrize("block", [64, 512])
def test_whole_blocks_where_an_answer_has_to_be_reproducible(block: int) -> None:
    prompt = _prompt(1000, 700, 2000)
    found = points(prompt, CONTROL, 0, block)
    assert found
    assert all(length % block == 0 for length in found)
    assert found[-1] == (len(prompt) - 5) // block * block


# --- which ------------------------------------------------------------------------------------------------------------


def test_the_longest_that_fits_is_found() -> None:
    shelf = Shelf(1000)
    for length in (100, 300, 200):
        assert shelf.keep(0, _copy(length), _warm)
    assert shelf.lengths(0) == [100, 200, 300]
    found = [shelf.best(0, at_most) for at_most in (99, 100, 299, 1000)]
    assert [checkpoint.length if checkpoint else None for checkpoint in found] == [None, 100, 200, 300]


def test_slots_share_nothing() -> None:
    shelf = Shelf(1000)
    shelf.keep(0, _copy(100), _warm)
    assert shelf.best(1, 1000) is None
    shelf.keep(1, _copy(50), _warm)
    shelf.cut(0, 99)
    assert shelf.best(0, 1000) is None
    assert shelf.lengths(1) == [50]
    assert shelf.held_bytes == 10


def test_one_of_the_same_length_takes_the_others_place() -> None:
    shelf = Shelf(1000)
    shelf.keep(0, _copy(100, 10), _warm)
    shelf.keep(0, _copy(100, 30), _warm)
    assert shelf.lengths(0) == [100]
    assert shelf.held_bytes == 30


def test_a_slot_keeps_few_and_spreads_them() -> None:
    shelf = Shelf(1000)
    lengths = [1000, *range(1100, 1100 + 10 * MOST_PER_SLOT, 10)]
    for length in lengths:
        shelf.keep(0, _copy(length), _warm)
    kept = shelf.lengths(0)
    assert len(kept) == MOST_PER_SLOT
    assert kept[0] == 1000  # the tokens before it are the most that any of them saves
    assert kept[-1] == lengths[-1]  # what was just taken is never the one to go


def test_bytes_are_bounded_and_the_warm_slot_keeps_more() -> None:
    shelf = Shelf(100)
    for slot in (0, 1):
        for length in (100, 200, 300, 400, 500):
            shelf.keep(slot, _copy(length), lambda number: 0.1 if number == 0 else 1.0)
    assert shelf.held_bytes == 100
    shelf.keep(1, _copy(600, 40), lambda number: 0.1 if number == 0 else 1.0)
    assert shelf.held_bytes <= 100
    assert len(shelf.lengths(0)) == 1
    assert shelf.lengths(1) == [100, 200, 300, 400, 500, 600]


def test_what_is_larger_than_all_the_room_is_not_taken() -> None:
    shelf = Shelf(100)
    shelf.keep(0, _copy(100), _warm)
    assert not shelf.keep(0, _copy(200, 101), _warm)
    assert shelf.lengths(0) == [100]
    assert shelf.keep(0, _copy(200, 100), _warm)
    assert shelf.lengths(0) == [200]


def test_a_huge_cache_does_not_make_the_shelf_huge() -> None:
    assert Shelf(2**40).limit_bytes == MOST_BYTES
