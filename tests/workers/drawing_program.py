"""Run as a program: draws seeded texts token by token, then with guesses, right and wrong ones; prints both as JSON.

Arguments: the model file, the temperature. The worker itself makes no guesses for seeded requests.
"""

import json
import random
import sys

from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.llama import model as weights
from hypnos_engine.workers.llama import native
from hypnos_engine.workers.llama.context import Context, ContextShape, Outcome
from hypnos_engine.workers.llama.drafter import check
from hypnos_engine.workers.llama.drafts import Guess
from hypnos_engine.workers.llama.gain import Draft, Hits
from hypnos_engine.workers.llama.job import Job
from hypnos_engine.workers.llama.sampler import Chain
from hypnos_engine.workers.llama.slots import Slot
from hypnos_engine.workers.llama.steps import Piece

PROMPT = list(range(5, 45))
LENGTH, GUESSES = 200, 7


def _decode(context: Context, piece: Piece) -> int:
    context.batch.clear()
    position = len(piece.slot.cached)
    row = context.batch.add(piece.slot.number, piece.tokens, position, want_logits=True, guessed=piece.guessed)
    assert context.decode() is Outcome.DONE
    return row


def draw(context: Context, sampling: m.Sampling, known: list[int]) -> tuple[list[int], int]:
    """The drawn tokens and how many steps they took; guesses are taken from the known text, if there is any."""
    choose = random.Random(0)
    context.clear()
    job = Job(m.Generate(1, "", (), LENGTH, sampling=sampling), prompt=PROMPT, chain=Chain(sampling))
    job.draft = Draft(PROMPT, Hits())
    slot = Slot(0, job=job)
    text: list[int] = []
    steps = 0
    pending = PROMPT
    while len(text) < LENGTH:
        guesses = known[len(text) : len(text) + GUESSES] if text else []
        if guesses and choose.random() < 0.5:
            guesses[choose.randrange(len(guesses))] ^= 1
        job.draft.guess = Guess(guesses, 2)
        piece = Piece(slot, pending + guesses, True, guessed=len(guesses))
        text += check(context, piece, _decode(context, piece), ends=())
        pending = text[-1:]
        steps += 1
        assert slot.cached == PROMPT + text[:-1]
    job.free()
    return text[:LENGTH], steps


def main(path: str, temperature: str) -> None:
    native.start()
    model = weights.load(m.Load("tiny", path), lambda _: True)
    context = Context(model, ContextShape(1024, 1, "q8_0", 1, rows=1 + GUESSES))
    answers = []
    for seed in range(3):
        sampling = m.Sampling(temperature=float(temperature), top_k=0, seed=seed)
        plain, steps = draw(context, sampling, [])
        assert steps == LENGTH
        guessed, fewer = draw(context, sampling, plain)
        answers.append({"plain": plain, "guessed": guessed, "steps": fewer})
    print(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
