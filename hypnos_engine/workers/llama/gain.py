"""Decides how many guessed tokens a step checks, from measured times and from how often guesses came true.

Must never go on guessing at a loss: what is spent on trials stays below a hundredth of the time.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypnos_engine.workers.llama.drafts import NOTHING, Guess, History

SIZES = (1, 3, 7, 15)
"""Guesses for one answer in one step: with the token before them whole tiles of the usual kernels."""
WIDEST = 63
"""Tokens of a step with guesses: from 64 on a processor takes another kernel, and answers change."""
WORTH = 1.05
"""How much faster an answer has to become, by the estimate; less is lost in the noise of the times."""
TRIALS = 0.01
"""Part of the time that may be spent on guesses that are not expected to pay, so that a change is noticed."""
_TRIAL = 3
_CREDIT_STEPS = 10
_LEARN = 0.25
_ENOUGH_TO_LEARN = 32
_OUTLIER = 2.0
_SURER = (0.35, 0.6, 0.8, 0.9, 0.95)
"""How often a guess is taken to come true after a match of 2, 4, 8, 16 or 32 tokens, before anything is known."""
_KNOWN_BEFORE = 6.0
"""So many guesses weigh as much as what is taken for true before."""
_KEPT_OF_ONE, _KEPT_OF_ALL = 0.97, 0.995
"""What is left of a guess's weight after the next one, in the record of one request and in that of all."""


class StepTimes:
    """How long a step takes, by the number of its tokens, as measured lately."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._sizes: list[int] = []
        self._prompt_token_s: float | None = None

    def learn(self, tokens: int, seconds: float) -> None:
        """Take a step into account that computed nothing but tokens of answers."""
        known = self._seconds.get(tokens)
        if known is None:
            insort(self._sizes, tokens)
            self._seconds[tokens] = seconds
        else:
            self._seconds[tokens] = known + _LEARN * (min(seconds, _OUTLIER * known) - known)

    def learn_prompt(self, tokens: int, seconds: float) -> None:
        """Take a step with parts of prompts into account: it tells what a further token costs at most."""
        if tokens >= _ENOUGH_TO_LEARN:
            self._prompt_token_s = seconds / tokens

    def of(self, tokens: int) -> float | None:
        """Seconds of a step; None when nothing of the kind was measured."""
        measured = self._seconds.get(tokens)
        if measured is not None or not self._sizes:
            return measured
        index = bisect_left(self._sizes, tokens)
        if index == 0:
            return None
        below = self._sizes[index - 1]
        start_s = self._seconds[below]
        if index < len(self._sizes):
            above = self._sizes[index]
            return start_s + (self._seconds[above] - start_s) * (tokens - below) / (above - below)
        slope_s = start_s / below if self._prompt_token_s is None else self._prompt_token_s
        return start_s + (tokens - below) * slope_s


class Hits:
    """How often guesses came true, by how many tokens had matched before them."""

    def __init__(self, wider: "Hits | None" = None) -> None:
        self._wider = wider
        """The record of all requests, which stands in where this one knows little."""
        self._kept = _KEPT_OF_ALL if wider is None else _KEPT_OF_ONE
        self._true = [0.0] * len(_SURER)
        self._tried = [0.0] * len(_SURER)

    def learn(self, matched: int, came_true: int, *, failed: bool) -> None:
        """Take `came_true` guesses after a match into account, and one more that failed."""
        for further in range(came_true + failed):
            kind = _kind(matched + further)
            self._true[kind] = self._true[kind] * self._kept + (further < came_true)
            self._tried[kind] = self._tried[kind] * self._kept + 1
        if self._wider is not None:
            self._wider.learn(matched, came_true, failed=failed)

    def chance(self, matched: int) -> float:
        """How likely the next guess comes true."""
        kind = _kind(matched)
        before = _SURER[kind] if self._wider is None else self._wider.chance(matched)
        return (self._true[kind] + _KNOWN_BEFORE * before) / (self._tried[kind] + _KNOWN_BEFORE)


_READ_AT_ONCE = 1024
"""Tokens of a prompt that are looked through between two steps: about 1 ms."""


@dataclass(eq=False, slots=True)
class Draft:
    """The guesses of one request: what they are made of and what became of them."""

    prompt: list[int]
    hits: Hits
    history: History = field(default_factory=History)
    guess: Guess = NOTHING
    """What is being checked."""
    last: int = 0
    """The step in which the answer was guessed for the last time."""
    tokens: int = 0
    """All guesses that were checked."""
    came_true: int = 0
    _later: list[int] = field(default_factory=list)
    """Tokens of the answer that follow the prompt, while not all of that has been read."""

    def drawn(self, token: int) -> None:
        """The answer has one more token."""
        self._later.append(token)

    def read_on(self) -> bool:
        """Read some more of the text; True when all of it has been read."""
        done = len(self.history)
        if done < len(self.prompt):
            self.history.extend(self.prompt[done : done + _READ_AT_ONCE])
            if len(self.history) < len(self.prompt):
                return False
        self.history.extend(self._later)
        self._later.clear()
        return True

    def judge(self, came_true: int) -> None:
        """`came_true` of the guesses that were checked were right; the next one, if there was one, was not."""
        self.tokens += len(self.guess.tokens)
        self.came_true += came_true
        self.hits.learn(self.guess.matched, came_true, failed=came_true < len(self.guess.tokens))
        self.guess = NOTHING


@dataclass(frozen=True, slots=True)
class Offer:
    """Guesses for one answer: how many there are, how long a match led to them, and the answer's record."""

    guesses: int
    matched: int
    hits: Hits
    waited: int = 0
    """Steps since the answer was guessed for the last time."""

    def tokens(self, guesses: int) -> float:
        """Tokens that a step is expected to add to the answer if it checks so many guesses."""
        expected = likely = 1.0
        for further in range(guesses):
            likely *= self.hits.chance(self.matched + further)
            expected += likely
        return expected


@dataclass(frozen=True, slots=True)
class Choice:
    """So many guesses of this offer."""

    offer: int
    guesses: int


class Gain:
    """Weighs what guesses cost and bring; knows the worker's steps."""

    def __init__(self) -> None:
        self.times = StepTimes()
        self.hits = Hits()
        self._credit_s = 0.0
        self._trial = False

    def choose(self, answers: int, offers: Sequence[Offer]) -> Choice | None:
        """Return which guesses a step of `answers` answers checks; None when it had better check none.

        Worth it is what makes the answers faster in the geometric mean: that the others become slower counts as much
        as that the one becomes faster. Of the offers that are worth it each has its turn, the better ones more often.
        """
        plain_s = self.times.of(answers)
        if not offers or not plain_s:
            return None
        best = [self._best(answers, offer, plain_s) for offer in offers]
        worth_it = [index for index, (faster, _) in enumerate(best) if faster >= math.log(WORTH)]
        if not worth_it:
            return self._trial_of(answers, offers, plain_s)
        index = max(worth_it, key=lambda index: best[index][0] * (1 + offers[index].waited))
        return Choice(index, best[index][1])

    def _best(self, answers: int, offer: Offer, plain_s: float) -> tuple[float, int]:
        """How much faster the answers become at best, as the sum of the logarithms, and by how many guesses."""
        best = (0.0, 0)
        for size in SIZES:
            guesses = min(size, offer.guesses)
            step_s = self.times.of(answers + guesses)
            if step_s and answers + guesses <= WIDEST:
                faster = math.log(offer.tokens(guesses)) - answers * math.log(step_s / plain_s)
                best = max(best, (faster, guesses))
        return best

    def _trial_of(self, answers: int, offers: Sequence[Offer], plain_s: float) -> Choice | None:
        """A few guesses although they will hardly pay, if there is credit for them."""
        index = max(range(len(offers)), key=lambda index: offers[index].tokens(_TRIAL))
        guesses = min(_TRIAL, offers[index].guesses)
        step_s = self.times.of(answers + guesses)
        if answers + guesses > WIDEST or step_s is None or step_s - plain_s > self._credit_s:
            return None
        self._trial = True
        return Choice(index, guesses)

    def learn(self, answers: int, tokens: int, seconds: float) -> None:
        """Take a step of nothing but answers into account, the guesses among its tokens or none."""
        self.times.learn(tokens, seconds)
        plain_s = self.times.of(answers) or seconds
        self._credit_s = min(self._credit_s + TRIALS * seconds, _CREDIT_STEPS * plain_s)
        if self._trial:
            self._credit_s -= max(0.0, seconds - plain_s)
        self._trial = False


def _kind(matched: int) -> int:
    return max(0, min(matched.bit_length() - 2, len(_SURER) - 1))
