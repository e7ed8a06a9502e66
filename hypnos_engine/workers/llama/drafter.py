"""Adds guesses of the next tokens to a step, where the request permits it and the times make it pay.

Must never touch a request that has to be repeatable, nor guess beyond the cells that a request was promised.

Every token is drawn by the request's own samplers from the logits after the tokens before it, in their order: guesses
change how many tokens a step yields, not which. Whether the logits are the same to the last bit is up to llama.cpp:

1. Weights and KV cache quantised, on a processor: they are (measured on x86-64 as q4_0, q4_1, q5_1 and q8_0).
2. A half-precision cache, several threads and 512 cells or more: a lone token is computed by another kernel than
   several are. Logits differ by up to 1.7 (SmolLM2-135M): where two tokens are about as likely, an answer may go
   another way, as it may in the company of other answers. To stop at such near ties does not help (tried up to a
   distance of 4), for the cells of the tokens before them differ as well.
3. Half-precision weights: another kernel too; they differ by some thousandths.

One answer is guessed for in a step, and its tokens are the last ones in it: what is cut off then leaves no hole in the
cache, into which later tokens of other answers would go, so that sums would have another order.
"""

from collections.abc import Collection
from dataclasses import replace

from hypnos_engine.domain.drafting import MOST_DRAFTED
from hypnos_engine.domain.errors import EngineFailed
from hypnos_engine.workers.llama.context import Context
from hypnos_engine.workers.llama.drafts import NOTHING, Guess
from hypnos_engine.workers.llama.gain import Draft, Gain, Hits, Offer, StepTimes
from hypnos_engine.workers.llama.job import Job
from hypnos_engine.workers.llama.steps import Piece

_WIDE_STEPS = 32
"""After so many steps with guesses one goes without, so that its time stays known."""


class Drafter:
    """Guesses for all requests of a worker whose cache can be cut behind a guess that fails."""

    def __init__(self, ends: Collection[int], threads: int) -> None:
        self._ends = ends
        self._gain = Gain()
        self._times: dict[int, StepTimes] = {}
        self._step = 0
        self._since_plain = 0
        self.set_threads(threads)

    def set_threads(self, threads: int) -> None:
        """Steps are computed by so many threads from now on, and take other times."""
        self._gain.times = self._times.setdefault(threads, StepTimes())

    def begin(self, job: Job) -> Draft | None:
        """The guesses of a new request; None for one that has to give the same text again."""
        return None if job.reproducible else Draft(job.prompt, Hits(self._gain.hits))

    def widen(self, pieces: list[Piece]) -> list[Piece]:
        """Return the pieces of a step, one of them with guesses and then the last of all, if that is worth it.

        Not while prompts are read: their share of the step would grow. Nor in every step (see `_WIDE_STEPS`).
        """
        self._step += 1
        guesses = [self._guess(piece) for piece in pieces]
        places = [place for place, guess in enumerate(guesses) if guess.tokens]
        choice = None
        if all(piece.answers for piece in pieces) and self._since_plain < _WIDE_STEPS:
            choice = self._gain.choose(len(pieces), [self._offer(pieces[place], guesses[place]) for place in places])
        if choice is None:
            self._since_plain = 0
            return pieces
        self._since_plain += 1
        place = places[choice.offer]
        guess = Guess(guesses[place].tokens[: choice.guesses], guesses[place].matched)
        piece = pieces[place]
        draft = _draft_of(piece)
        draft.guess, draft.last = guess, self._step
        widened = replace(piece, tokens=piece.tokens + guess.tokens, guessed=len(guess.tokens))
        return [*(other for other in pieces if other is not piece), widened]

    def learn(self, pieces: list[Piece], seconds: float) -> None:
        """Take the time of a step into account."""
        tokens = sum(len(piece.tokens) for piece in pieces)
        if all(piece.answers for piece in pieces):
            self._gain.learn(len(pieces), tokens, seconds)
        else:
            self._gain.times.learn_prompt(tokens, seconds)

    def _guess(self, piece: Piece) -> Guess:
        job = piece.slot.job
        if job is None or job.draft is None or not job.draft.read_on() or not piece.answers:
            return NOTHING
        # The step yields a token more than there are guesses, and that one takes a cell only in the next step.
        room = job.cells - len(job.prompt) - job.drawn - 1
        guess = job.draft.history.guess(min(MOST_DRAFTED, room))
        end = next((place for place, token in enumerate(guess.tokens) if token in self._ends), None)
        return guess if end is None else Guess(guess.tokens[:end], guess.matched)

    def _offer(self, piece: Piece, guess: Guess) -> Offer:
        draft = _draft_of(piece)
        return Offer(len(guess.tokens), guess.matched, draft.hits, self._step - draft.last)


def check(context: Context, piece: Piece, row: int, ends: Collection[int]) -> list[int]:
    """Draw a token after the last certain one and after each guess that came true; cut the other guesses off.

    `row` is that of the piece's last token. The slot then holds all drawn tokens but the last. Raises NoNumbers, and
    EngineFailed when the cache cannot be cut.
    """
    slot, job, draft = piece.slot, piece.slot.job, _draft_of(piece)
    assert job is not None
    assert job.chain is not None
    certain = len(piece.tokens) - piece.guessed
    drawn: list[int] = []
    for place in range(piece.guessed + 1):
        token = context.sample(job.chain.pointer, row - piece.guessed + place)
        drawn.append(token)
        if token in ends or place == piece.guessed or token != piece.tokens[certain + place]:
            break
    came_true = len(drawn) - 1
    draft.judge(came_true)
    slot.cached += piece.tokens[: certain + came_true]
    if came_true < piece.guessed and not context.shorten(slot.number, len(slot.cached)):
        raise EngineFailed("The cache of this model cannot be cut: set its 'draft' to \"off\".")
    return drawn


def _draft_of(piece: Piece) -> Draft:
    job = piece.slot.job
    assert job is not None
    assert job.draft is not None
    return job.draft
