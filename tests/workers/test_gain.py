"""When guesses pay: decided by a simulated machine's step times and by how often the guesses of a text come true."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypnos_engine.domain.drafting import MOST_DRAFTED
from hypnos_engine.workers.llama.drafts import Guess
from hypnos_engine.workers.llama.gain import SIZES, TRIALS, WIDEST, Draft, Gain, Hits, Offer, StepTimes

Cost = Callable[[int], float]

FLAT: Cost = lambda tokens: 0.02 + 0.0005 * tokens  # noqa: E731 - an accelerator: reading the weights takes the time
STEEP: Cost = lambda tokens: 0.006 * tokens  # noqa: E731 - several tokens bring nothing
USUAL: Cost = lambda tokens: 0.004 + 0.003 * tokens  # noqa: E731 - a processor


class Machine:
    """Generates answers of which guesses come true with a fixed chance; its clock moves by the cost of each step."""

    def __init__(self, cost: Cost, seed: int = 0) -> None:
        self.cost = cost
        self.gain = Gain()
        self.spent_s = self.plain_s = 0.0
        """The time with guesses, and without them for the same tokens."""
        self._random = random.Random(seed)
        self.gain.times.learn_prompt(256, cost(256))

    def answer(self, tokens: int, chance: float, matched: int = 4) -> None:
        """One request of `tokens` tokens, whose every token has a guess that is right with this chance."""
        draft = Draft([], Hits(self.gain.hits))
        drawn = 0
        while drawn < tokens:
            choice = self.gain.choose(1, [Offer(MOST_DRAFTED, matched, draft.hits)])
            count = choice.guesses if choice is not None else 0
            right = next((place for place in range(count) if self._random.random() >= chance), count)
            if count:
                draft.guess = Guess([0] * count, matched)
                draft.judge(right)
            self.gain.learn(1, 1 + count, self.cost(1 + count))
            self.spent_s += self.cost(1 + count)
            self.plain_s += self.cost(1) * (1 + right)
            drawn += 1 + right


def test_sure_guesses_on_an_accelerator_make_an_answer_many_times_as_fast() -> None:
    machine = Machine(FLAT)
    machine.answer(500, 1.0, matched=32)
    assert machine.plain_s / machine.spent_s > 8


def test_sure_guesses_help_a_processor() -> None:
    machine = Machine(USUAL)
    machine.answer(500, 0.98, matched=32)
    assert machine.plain_s / machine.spent_s > 1.5


@pytest.mark.parametrize("cost", [STEEP, USUAL, FLAT])
@pytest.mark.parametrize("matched", [2, 32])
def test_guesses_that_never_come_true_are_soon_given_up(cost: Cost, matched: int) -> None:
    machine = Machine(cost)
    for _ in range(20):
        machine.answer(200, 0.0, matched)
    assert machine.spent_s < 1.03 * machine.plain_s
    machine.spent_s = machine.plain_s = 0.0
    for _ in range(5):
        machine.answer(200, 0.0, matched)
    assert machine.spent_s < 1.02 * machine.plain_s


def test_steps_whose_tokens_cost_their_full_price_stay_plain() -> None:
    machine = Machine(STEEP)
    machine.answer(2000, 1.0, matched=32)
    assert machine.spent_s < 1.02 * machine.plain_s


@settings(deadline=None, max_examples=25)
@given(
    st.floats(0, 0.02), st.floats(1e-5, 0.01), st.floats(0, 1), st.sampled_from([2, 4, 8, 32]), st.integers(0, 2**32)
)
def test_nobody_loses_much(fixed_s: float, each_s: float, chance: float, matched: int, seed: int) -> None:
    machine = Machine(lambda tokens: fixed_s + each_s * tokens, seed)
    for _ in range(10):
        machine.answer(200, chance, matched)
    assert machine.spent_s < 1.06 * machine.plain_s


def test_a_machine_that_becomes_better_at_it_is_noticed() -> None:
    machine = Machine(STEEP)
    machine.answer(2000, 1.0, matched=32)
    machine.cost = FLAT
    machine.spent_s = machine.plain_s = 0.0
    machine.answer(6000, 1.0, matched=32)
    assert machine.plain_s / machine.spent_s > 3


def test_a_text_that_begins_to_repeat_itself_is_noticed() -> None:
    machine = Machine(FLAT)
    machine.answer(2000, 0.0)
    machine.spent_s = machine.plain_s = 0.0
    machine.answer(2000, 1.0)
    assert machine.plain_s / machine.spent_s > 3


def _gain(cost: Cost) -> Gain:
    gain = Gain()
    for tokens in range(1, WIDEST + 1):
        gain.times.learn(tokens, cost(tokens))
    return gain


def _offer(gain: Gain, chance: float, guesses: int = MOST_DRAFTED, waited: int = 0) -> Offer:
    hits = Hits(gain.hits)
    for _ in range(40):
        hits.learn(32, round(chance * 10), failed=chance < 1)
    return Offer(guesses, 32, hits, waited)


def _guesses(gain: Gain, answers: int, *offers: Offer) -> int:
    choice = gain.choose(answers, offers)
    return choice.guesses if choice is not None else 0


def test_a_lone_guesser_does_not_slow_its_company_down_more_than_it_gains() -> None:
    gain = _gain(USUAL)
    alone = _guesses(gain, 1, _offer(gain, 1.0))
    in_company = _guesses(gain, 4, _offer(gain, 1.0))
    assert alone == MOST_DRAFTED
    assert in_company < alone
    assert (1 + in_company) >= (USUAL(4 + in_company) / USUAL(4)) ** 4


def test_of_several_that_gain_the_one_is_taken_that_waited_longest() -> None:
    gain = _gain(FLAT)
    offers = [_offer(gain, 1.0, waited=1), _offer(gain, 0.9, waited=3), _offer(gain, 0.0, waited=9)]
    choice = gain.choose(3, offers)
    assert choice is not None
    assert choice.offer == 1


@settings(deadline=None)
@given(st.integers(1, 80), st.lists(st.integers(1, MOST_DRAFTED), max_size=10))
def test_a_step_is_never_wider_than_its_kernel_allows(answers: int, guesses: list[int]) -> None:
    gain = _gain(FLAT)
    gain.times.learn(answers, FLAT(answers))
    offers = [_offer(gain, 1.0, count) for count in guesses[:answers]]
    choice = gain.choose(answers, offers)
    if choice is not None:
        assert 1 <= choice.guesses <= offers[choice.offer].guesses
        assert answers + choice.guesses <= WIDEST


def test_nothing_is_guessed_before_a_plain_step_is_known() -> None:
    gain = Gain()
    assert gain.choose(1, [_offer(gain, 1.0)]) is None
    assert gain.choose(1, []) is None


def test_trials_cost_their_share_at_the_most() -> None:
    machine = Machine(STEEP)
    machine.answer(5000, 0.0)
    assert machine.spent_s - machine.plain_s <= TRIALS * machine.spent_s + 10 * STEEP(1)


def test_times_between_and_beyond_what_was_measured() -> None:
    times = StepTimes()
    assert times.of(3) is None
    times.learn(2, 1.0)
    assert times.of(1) is None
    assert times.of(4) == pytest.approx(2.0)  # nothing says that a further token is cheaper than these
    times.learn_prompt(8, 0.1)
    assert times.of(4) == pytest.approx(2.0)  # too few tokens to go by
    times.learn_prompt(100, 10.0)
    assert times.of(4) == pytest.approx(1.2)
    times.learn(6, 3.0)
    assert times.of(4) == pytest.approx(2.0)
    assert times.of(8) == pytest.approx(3.2)


def test_one_long_step_says_little() -> None:
    times = StepTimes()
    for _ in range(10):
        times.learn(1, 1.0)
    times.learn(1, 1000.0)
    assert (times.of(1) or 0) < 1.3


def test_a_longer_match_is_trusted_more_until_it_fails() -> None:
    hits = Hits()
    assert [hits.chance(matched) for matched in (2, 4, 8, 16, 32)] == sorted(
        hits.chance(matched) for matched in (2, 4, 8, 16, 32)
    )
    for _ in range(50):
        hits.learn(32, 0, failed=True)
    assert hits.chance(32) < 0.15 < hits.chance(16)
    assert hits.chance(100) == hits.chance(32)


def test_one_request_learns_from_all_others() -> None:
    everybody = Hits()
    first = Hits(everybody)
    for _ in range(60):
        first.learn(4, 0, failed=True)
    assert Hits(everybody).chance(4) < 0.2


def test_the_sizes_reach_what_a_request_may_guess() -> None:
    assert max(SIZES) == MOST_DRAFTED
