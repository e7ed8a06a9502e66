"""The real worker program, but one that guesses whenever it may, whatever its steps take; for tests only.

What a guess does to an answer must not depend on how fast the machine of the test is.
"""

import runpy
from collections.abc import Sequence

from hypnos_engine.workers.llama import drafter
from hypnos_engine.workers.llama.gain import SIZES, WIDEST, Choice, Gain, Offer


class EagerGain(Gain):
    """Guesses for the answer that waited longest, as many as a step may check, and fewer from time to time."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = 0

    def choose(self, answers: int, offers: Sequence[Offer]) -> Choice | None:
        if not offers:
            return None
        index = max(range(len(offers)), key=lambda index: offers[index].waited)
        self._turn += 1
        guesses = min(SIZES[self._turn % len(SIZES)], offers[index].guesses, WIDEST - answers)
        return Choice(index, guesses) if guesses > 0 else None


vars(drafter)["Gain"] = EagerGain
runpy.run_module("hypnos_engine.workers", run_name="__main__", alter_sys=True)
