"""The embedding loop when the library fails: whom it costs an answer, and who goes on.

A real library does not fail on demand: a context stands in that fails for chosen tokens, and keeps account of cells.
"""

import math
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from hypnos_engine.domain.embedding import TEXTS_AT_ONCE
from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.framing import from_worker_decoder
from hypnos_engine.workers.channel import Channel
from hypnos_engine.workers.llama.embedding import EmbeddingEngine
from hypnos_engine.workers.llama.embedding_context import Piece, Vector
from hypnos_engine.workers.llama.embedding_texts import EmbedJob, Text, TextReader, TextsRead
from hypnos_engine.workers.llama.native import Buffers
from hypnos_engine.workers.llama.report import MemoryMeter
from hypnos_engine.workers.llama.steps import Pace

if TYPE_CHECKING:
    from hypnos_engine.workers.llama.embedding_context import EmbeddingContext

FAILS, RAISES, NO_NUMBER, FAILS_ONCE = 13, 14, 15, 16
MOST_TOKENS, WINDOW = 8, 40


class StandIn:
    """Tokens are numbers; a vector is the sum of its text's tokens, and their count."""

    window = cells = WINDOW
    most_tokens = MOST_TOKENS
    dimensions = 2
    remembers = True
    buffers = Buffers({}, 0, 0, mapped=False)

    def __init__(self) -> None:
        self.batches: list[list[Piece]] = []
        self.kept: dict[int, list[int]] = {}
        self.failed_once = False

    def compute(self, pieces: list[Piece]) -> bool:
        self.batches.append(pieces)
        assert 1 <= sum(len(piece.tokens) for piece in pieces) <= MOST_TOKENS
        assert len({piece.sequence for piece in pieces}) == len(pieces) <= TEXTS_AT_ONCE
        tokens = [token for piece in pieces for token in piece.tokens]
        if RAISES in tokens:
            raise RuntimeError("nobody foresaw this")
        if FAILS in tokens or (FAILS_ONCE in tokens and not self.failed_once):
            self.failed_once = self.failed_once or FAILS_ONCE in tokens
            return False
        for piece in pieces:
            kept = self.kept.setdefault(piece.sequence, [])
            assert len(kept) == piece.position, "positions are consecutive"
            kept += piece.tokens
        assert sum(map(len, self.kept.values())) <= self.cells
        return True

    def vector(self, sequence: int) -> Vector:
        kept = self.kept[sequence]
        total = math.nan if NO_NUMBER in kept else float(sum(kept))
        return np.array([total, float(len(kept))], np.float32)

    def forget(self, sequence: int) -> None:
        self.kept.pop(sequence, None)

    def clear(self) -> None:
        self.kept.clear()

    def set_threads(self, threads: int) -> None:
        pass


class Reader:
    """Reads texts of numbers at once."""

    def __init__(self, channel: Channel[TextsRead]) -> None:
        self._channel = channel

    def submit(self, job: EmbedJob) -> None:
        read = [[int(word) for word in text.split()] for text in job.request.texts]
        job.texts = deque(Text(index, tokens) for index, tokens in enumerate(read))
        job.prompt_tokens = tuple(map(len, read))
        self._channel.inbox.put(TextsRead(job))


class Desk:
    """The supervisor's end of the channel."""

    def __init__(self, context: StandIn, end: socket.socket, inbox: "Channel[TextsRead]") -> None:
        self.context = context
        self.messages: list[m.FromWorker] = []
        self.status: list[int] = []
        self._end = end
        self._inbox = inbox
        self._decoder = from_worker_decoder()

    def ask(self, *requests: m.Embed) -> None:
        for request in requests:
            self._inbox.inbox.put(request)

    def until_over(self, *numbers: int) -> None:
        """Read until the requests have ended."""

        def ended() -> set[int]:
            return {message.id for message in self.messages if isinstance(message, m.Embedded | m.Failed)}

        while not ended() >= set(numbers):
            self.messages += self._decoder.feed(self._end.recv(65536))

    def failed(self, number: int) -> m.Failed | None:
        return next((said for said in self.messages if isinstance(said, m.Failed) and said.id == number), None)

    def rows(self, number: int) -> list[tuple[float, float]]:
        packed = b"".join(said.packed for said in self.messages if isinstance(said, m.Vectors) and said.id == number)
        return [(float(a), float(b)) for a, b in np.frombuffer(packed, "<f4").reshape(-1, 2)]


@contextmanager
def desk() -> Iterator[Desk]:
    """An engine that runs on a thread for the length of the block."""
    ours, theirs = socket.socketpair()
    ours.settimeout(30.0)
    context = StandIn()
    channel: Channel[TextsRead] = Channel(theirs.fileno(), theirs.fileno())
    reader, meter = cast("TextReader", Reader(channel)), MemoryMeter(0, context.buffers)
    engine = EmbeddingEngine(channel, cast("EmbeddingContext", context), reader, meter, Pace(1e-6))
    on = Desk(context, ours, channel)
    thread = threading.Thread(target=lambda: on.status.append(engine.run()))
    thread.start()
    try:
        yield on
    finally:
        channel.inbox.put(m.Shutdown())
        thread.join(30.0)
        ours.close()
        theirs.close()


def raw(number: int, *texts: str) -> m.Embed:
    return m.Embed(number, texts, normalise=False)


def test_a_text_that_fails_alone_costs_its_own_request_only() -> None:
    with desk() as on:
        on.ask(raw(1, "1 2", "3"), raw(2, "4", f"5 {FAILS}", "6"), raw(3, "7"))
        on.until_over(1, 2, 3)
        failed = on.failed(2)
        assert failed is not None
        assert failed.code == "engine_failed"
        assert "text 1 " in failed.message
        assert (on.rows(1), on.rows(3)) == ([(3, 2), (3, 1)], [(7, 1)])
        on.ask(raw(4, "8 9"))
        on.until_over(4)
        assert on.rows(4) == [(17, 2)]


def test_a_failure_that_passes_costs_nobody_anything() -> None:
    with desk() as on:
        on.ask(raw(1, "1 2", str(FAILS_ONCE)), raw(2, "4"))
        on.until_over(1, 2)
        assert (on.rows(1), on.rows(2)) == ([(3, 2), (16, 1)], [(4, 1)])


def test_a_long_text_is_computed_again_when_its_cells_are_lost() -> None:
    long = " ".join(map(str, [1] * 30))
    with desk() as on:
        on.ask(raw(1, long, "2"), raw(2, "3", f"{FAILS_ONCE}", "5"), raw(3, "6"))
        on.until_over(1, 2, 3)
        assert on.rows(1) == [(30, 30), (2, 1)]
        assert on.rows(2) == [(3, 1), (16, 1), (5, 1)]
        assert on.context.kept == {}


def test_what_is_no_number_is_never_sent() -> None:
    with desk() as on:
        on.ask(raw(1, "1", str(NO_NUMBER)), raw(2, "2"))
        on.until_over(1, 2)
        assert on.rows(2) == [(2, 1)]
        failed = on.failed(1)
        assert failed is not None
        assert "no numbers" in failed.message


@pytest.mark.parametrize("texts", [("1",), ("1", "2 3")])
def test_an_error_that_nobody_foresaw_fails_what_was_in_the_batch(texts: tuple[str, ...]) -> None:
    with desk() as on:
        on.ask(raw(1, str(RAISES)))
        on.until_over(1)
        on.ask(raw(2, *texts))
        on.until_over(2)
        assert len(on.rows(2)) == len(texts)
        assert on.failed(1) is not None


def test_a_library_that_fails_all_the_time_ends_the_process() -> None:
    with desk() as on:
        on.ask(*(raw(number, str(FAILS), "1") for number in range(4)))
        on.until_over(0, 1, 2, 3)
        assert all(on.failed(number) is not None for number in range(4))
    assert on.status == [1]


def test_texts_wait_for_cells_that_a_long_one_holds() -> None:
    long = " ".join(map(str, [1] * 38))
    with desk() as on:
        on.ask(raw(1, long), *(raw(number, "1 1 1", "2 2 2") for number in range(2, 6)))
        on.until_over(1, 2, 3, 4, 5)
        assert on.rows(1) == [(38, 38)]
        assert all(on.rows(number) == [(3, 3), (6, 3)] for number in range(2, 6))


def test_a_text_that_does_not_fit_is_not_passed_over_for_ever() -> None:
    small, large = ("1 1 1",) * 40, ("2 2 2 2 2 2 2",) * 5
    with desk() as on:
        on.ask(raw(1, *small), raw(2, *large), raw(3, *small))
        on.until_over(1, 2, 3)
        ends = [said.id for said in on.messages if isinstance(said, m.Embedded)]
        assert ends[0] == 2
        assert len(on.rows(1)) == len(on.rows(3)) == 40
