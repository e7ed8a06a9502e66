"""Many conversations in few cells: changed, cancelled, growing, refused to grow; no answer fails or is another's."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hypnos_engine.ipc import messages as m
from tests.workers.driver import Reply, Worker, chat
from tests.workers.memory_kinds import KINDS, KV_TYPE, STATEFUL, WINDOWED, write_all

WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa")
CONVERSATIONS, KEYS, SLOTS, CELLS = 4, 2, 3, 1024
ROUNDING_IN = 20
"""One answer in so many may differ: cells that others left are filled later, lie in another order then, and sums with
them. A wrong state shows in nearly all answers."""


@dataclass(slots=True)
class _Storm:
    """Sends rounds of requests, answers wishes for a larger cache at random, and keeps what came of each request."""

    worker: Worker
    draw: random.Random
    may_grow: bool
    sent: dict[int, m.Generate] = field(default_factory=dict)
    wishes: int = 0

    def rage(self, rounds: int) -> Iterator[tuple[m.Generate, Reply]]:
        talks = [[self._words(60)] for _ in range(CONVERSATIONS)]
        for _ in range(rounds):
            numbers = [self._ask(talks) for _ in range(self.draw.randint(1, 5))]
            if self.draw.random() < 0.3:
                self.worker.send(m.Cancel(self.draw.choice(numbers)))
            if self.may_grow and self.draw.random() < 0.1:
                self.worker.send(m.ResizeContext(2 * CELLS))
            self.worker.until(lambda numbers=numbers: self._answered_wishes() and self._over(numbers))  # type: ignore[misc]
        for number, request in self.sent.items():
            yield request, self.worker.reply(number)

    def _over(self, numbers: list[int]) -> bool:
        return all(self.worker.reply(number).over for number in numbers)

    def _answered_wishes(self) -> bool:
        wanted = self.worker.all_of(m.ContextWanted)
        while self.wishes < len(wanted):
            size = wanted[self.wishes].context_len
            self.wishes += 1
            granted = self.may_grow and self.draw.random() < 0.5
            self.worker.send(m.ResizeContext(size) if granted else m.DenyContext())
        return True

    def _ask(self, talks: list[list[str]]) -> int:
        """Go on with a conversation, change its last question, go back a turn, begin anew, or ask the same again."""
        which = self.draw.randrange(len(talks))
        talk, fate = talks[which], self.draw.random()
        if fate < 0.5 and len(talk) < 7:
            talk += [self._words(6), self._words(30)]
        elif fate < 0.6:
            talk[-1] = self._words(30)
        elif fate < 0.7 and len(talk) > 2:
            del talk[-2:]
        elif fate < 0.75:
            talk[:] = [self._words(60)]
        number = len(self.sent) + 1
        sampling = m.Sampling(temperature=0.0, seed=7 if self.draw.random() < 0.2 else None)
        tokens = self.draw.choice([1, 4, 16, 40])
        request = chat(number, *talk, max_tokens=tokens, scope=f"key {which % KEYS}", sampling=sampling)
        self.sent[number] = request
        self.worker.start(request)
        return number

    def _words(self, most: int) -> str:
        return " ".join(self.draw.choice(WORDS) for _ in range(self.draw.randint(1, most)))


def _weather(path: Path, *, rounds: int, seed: int, may_grow: bool) -> tuple[int, int, int]:
    """Returns how many answers were checked, how many differ from a fresh worker's, and the tokens that were cached."""
    with Worker("llama") as worker:
        worker.load(path, context_len=CELLS, slots=SLOTS, threads=1, kv_type=KV_TYPE)
        results = list(_Storm(worker, random.Random(seed), may_grow).rage(rounds))
    checked = other = cached = 0
    with Worker("llama") as worker:
        worker.load(path, context_len=8 * CELLS, slots=1, threads=1, kv_type=KV_TYPE)
        for number, (request, reply) in enumerate(results):
            if reply.failed is not None and reply.failed.code == "engine_failed":
                # Random weights may run away: then they do so without a cache, too, after the same text.
                fresh = worker.ask(_without_cache(number, request))
                assert fresh.failed is not None
                assert (fresh.failed.code, fresh.text) == ("engine_failed", reply.text)
                continue
            if reply.failed is not None:
                assert reply.failed.code in ("cancelled", "invalid_request"), reply.failed
                assert reply.failed.code == "cancelled" or "window" in reply.failed.message
                continue
            fresh = worker.ask(_without_cache(number, request))
            assert fresh.end.cached_tokens == 0
            # A window that was refused may end an answer early, within a character.
            whole = reply.end.completion_tokens == fresh.end.completion_tokens
            same = reply.text == fresh.text if whole else fresh.text.startswith(reply.text.rstrip("\ufffd"))
            checked, other, cached = checked + 1, other + (not same), cached + reply.end.cached_tokens
    return checked, other, cached


def _without_cache(number: int, request: m.Generate) -> m.Generate:
    """The same conversation under a name of its own, for which nothing is cached."""
    texts = [message.text() for message in request.messages]
    return chat(1, *texts, max_tokens=request.max_tokens, scope=f"fresh {number}")


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_all(tmp_path_factory.mktemp("kinds"))


@pytest.mark.parametrize("kind", ["full", STATEFUL[0], WINDOWED[0]])
def test_a_storm(kinds: Mapping[str, Path], kind: str) -> None:
    checked, other, cached = _weather(kinds[kind], rounds=10, seed=1, may_grow=True)
    assert checked > 15
    assert cached > 0
    assert other <= (0 if kind == "recurrent" else checked // ROUNDING_IN)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("may_grow", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_long_storm(kinds: Mapping[str, Path], kind: str, may_grow: bool) -> None:
    for seed in (2, 3):
        checked, other, cached = _weather(kinds[kind], rounds=40, seed=seed, may_grow=may_grow)
        assert checked > 80
        assert cached > 0
        assert other <= (0 if kind == "recurrent" else checked // ROUNDING_IN)
