"""The library's memory of every kind, bit by bit: cut, copied, returned to a checkpoint, moved to another context."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from llama_cpp import _utils
from numpy.typing import NDArray

from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.llama import model as weights
from hypnos_engine.workers.llama import native
from hypnos_engine.workers.llama.context import Context, ContextShape, Outcome
from hypnos_engine.workers.llama.job import Job
from hypnos_engine.workers.llama.slots import SlotTable
from tests.workers.memory_kinds import KINDS, KV_TYPE, STATEFUL, UNCUTTABLE, WINDOW, WINDOWED, write_all

QUANTISED = (KV_TYPE, "q4_0")
BLOCK = 64
TEXT = [int(token) for token in np.random.default_rng(1).integers(3, 270, 1200)]
OTHER = [int(token) for token in np.random.default_rng(2).integers(3, 270, 1200)]
PREFIX, ENDING = 640, 60
"""Tokens to return to, and those that follow."""
ROUNDING = 0.06
"""Largest difference seen in a logit for cells in another order: 0.03, of logits that spread by 0.4."""

Logits = NDArray[np.float32]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    native.start()
    yield write_all(tmp_path_factory.mktemp("kinds"))
    _utils.outnull_file.close()  # the binding leaves them to the collector, which complains
    _utils.errnull_file.close()


@contextmanager
def _context(path: Path, kv_type: str, *, cells: int = 4096, slots: int = 2) -> Iterator[Context]:
    model = weights.load(m.Load("tiny", str(path)), lambda _: True)
    context = Context(model, ContextShape(cells, slots, kv_type, 1))
    try:
        yield context
    finally:
        context.free()
        model.free()


def _read(context: Context, tokens: list[int], position: int = 0, sequence: int = 0, block: int = BLOCK) -> Logits:
    """Compute tokens and return the logits of the last one."""
    row = -1
    for start in range(0, len(tokens), block):
        context.batch.clear()
        row = context.batch.add(sequence, tokens[start : start + block], position + start, want_logits=True)
        assert context.decode() is Outcome.DONE
    return context.logits(row)


def _fresh(context: Context, tokens: list[int]) -> Logits:
    """What computing these tokens anew gives; empties the context."""
    context.clear()
    logits = _read(context, tokens)
    context.clear()
    return logits


def _same(one: Logits, other: Logits) -> bool:
    return bool(np.isfinite(one).all() and np.array_equal(one, other))


def _like(one: Logits, other: Logits, kind: str) -> bool:
    """The same; where a window's cells may lie in another order, but for what adding up in another order makes."""
    return bool(np.abs(one - other).max() < ROUNDING) if kind in WINDOWED else _same(one, other)


def _other(one: Logits, other: Logits, kind: str) -> bool:
    """So different that `_like` would tell."""
    return bool(np.abs(one - other).max() > (2 * ROUNDING if kind in WINDOWED else 0.05))


@pytest.mark.parametrize("kind", KINDS)
def test_bits_depend_on_nothing_but_the_tokens(kinds: Mapping[str, Path], kind: str) -> None:
    """What the comparisons of this file and of `test_llama_memory_reuse` rest on; and early tokens do count."""
    with _context(kinds[kind], KV_TYPE, slots=3) as context:
        fresh = _fresh(context, TEXT[:900])
        for block in (37, 512):
            _read(context, TEXT[:850], block=block)
            assert _same(_read(context, TEXT[850:900], 850, block=1), fresh)
            context.clear()
        _read(context, OTHER[:300], sequence=1)
        _read(context, TEXT[:450], sequence=2, block=37)
        _read(context, OTHER[300:350], 300, sequence=1)
        assert _like(_read(context, TEXT[450:900], 450, sequence=2), fresh, kind)
        assert _other(_fresh(context, OTHER[:840] + TEXT[840:900]), fresh, kind)


@pytest.mark.parametrize("kv_type", QUANTISED)
@pytest.mark.parametrize("kind", UNCUTTABLE)
def test_a_checkpoint_returns_to_what_was(kinds: Mapping[str, Path], kind: str, kv_type: str) -> None:
    with _context(kinds[kind], kv_type) as context:
        fresh = _fresh(context, TEXT[: PREFIX + ENDING])
        _read(context, TEXT[:PREFIX])
        state = context.save_uncuttable(0)
        assert state is not None
        assert state.nbytes == context.uncuttable_bytes(0)
        if kind != "recurrent":
            assert state.nbytes < context.state_bytes(0)
        elsewhere = _read(context, OTHER, PREFIX)  # the window's cells are used again
        assert not context.can_shorten(0, PREFIX)
        for _ in range(2):  # as often as one likes
            assert context.go_back(0, state, PREFIX)
            again = _read(context, TEXT[PREFIX : PREFIX + ENDING], PREFIX)
            assert _like(again, fresh, kind)
            assert _other(again, elsewhere, kind)
            _read(context, OTHER, PREFIX + ENDING)


@pytest.mark.parametrize("kind", UNCUTTABLE)
def test_a_checkpoint_that_is_none_leaves_the_sequence_empty(kinds: Mapping[str, Path], kind: str) -> None:
    with _context(kinds[kind], KV_TYPE) as context:
        fresh = _fresh(context, TEXT[:200])
        _read(context, TEXT[:100])
        state = context.save_uncuttable(0)
        assert state is not None
        for broken in (state[: state.nbytes // 2].copy(), np.full(state.nbytes, 255, np.uint8)):
            _read(context, OTHER[:50], sequence=1)
            assert not context.go_back(0, broken, 100)
            assert not context.can_shorten(0, 1)
            assert _same(_read(context, TEXT[:200]), fresh)
            context.truncate(0, 0)
            context.truncate(1, 0)
            _read(context, TEXT[:100])
        assert not context.go_back(0, state, 110)  # taken at another length
        assert not context.can_shorten(0, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_is_cut_only_where_nothing_is_lost(kinds: Mapping[str, Path], kind: str) -> None:
    with _context(kinds[kind], KV_TYPE) as context:
        fresh = _fresh(context, TEXT[:1050])
        cut: list[int] = []
        for length in (1000, 1100 - WINDOW - 1, 600, 300, 1):
            _read(context, TEXT[:1100])
            possible = context.can_shorten(0, length)
            assert context.shorten(0, length) is possible
            if possible:
                assert _like(_read(context, TEXT[length:1050], length), fresh, kind)
                cut.append(length)
            else:  # all is there still
                assert context.shorten(0, 1100)
            context.truncate(0, 0)
        assert not context.can_shorten(0, 1)
        if kind in STATEFUL:
            assert not cut
        elif kind in UNCUTTABLE:
            assert cut
            assert 1 not in cut
        else:
            assert len(cut) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_another_context_goes_on_where_the_old_one_stopped(kinds: Mapping[str, Path], kind: str) -> None:
    """Two sequences, the second with a checkpoint, move to a larger context with another number of slots."""
    with _context(kinds[kind], KV_TYPE, cells=2048) as old, _context(kinds[kind], KV_TYPE, slots=3) as new:
        fresh = [_fresh(new, TEXT[:900]), _fresh(new, OTHER[:950])]
        for start in range(0, 800, 100):
            _read(old, TEXT[start : start + 100], start, sequence=0)
            _read(old, OTHER[start : start + 100], start, sequence=1)
        checkpoint = old.save_uncuttable(1)
        _read(old, TEXT[:100], 800, sequence=1)
        states = [old.save(0), old.save(1)]
        for sequence, length in ((1, 900), (0, 800)):
            state = states[sequence]
            assert state is not None
            assert new.restore(sequence, state, length)
        assert _like(_read(new, TEXT[800:900], 800, sequence=0), fresh[0], kind)
        if kind in UNCUTTABLE:
            assert checkpoint is not None
            assert new.go_back(1, checkpoint, 800)
        else:
            assert new.shorten(1, 800)
        assert _like(_read(new, OTHER[800:950], 800, sequence=1), fresh[1], kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_is_none_is_refused(kinds: Mapping[str, Path], kind: str) -> None:
    with _context(kinds[kind], KV_TYPE) as context, _context(kinds[kind], "q4_0") as other:
        _read(context, TEXT[:100])
        state = context.save(0)
        assert state is not None
        assert not context.restore(1, state[:-50].copy(), 100)
        assert not context.restore(1, np.full(500, 7, np.uint8), 100)
        assert not context.restore(1, state, 99)
        assert not context.can_shorten(1, 1)
        if kind != "recurrent":  # it has no cache whose type could differ
            assert not other.restore(0, state, 100)
        assert context.restore(1, state, 100)


def test_a_context_in_anothers_place_computes_with_as_many_threads(kinds: Mapping[str, Path]) -> None:
    with _context(kinds["full"], KV_TYPE) as context:
        context.set_threads(3)
        assert context.shape == ContextShape(4096, 2, KV_TYPE, 3)
        context.set_threads(0)
        assert context.shape.threads == 1


@pytest.mark.parametrize("kind", ["full", "hybrid"])
def test_a_request_whose_state_is_lost_is_computed_anew(kinds: Mapping[str, Path], kind: str) -> None:
    """A larger context without the saved states: what runs begins again, what is idle is forgotten."""
    with _context(kinds[kind], KV_TYPE) as old, _context(kinds[kind], KV_TYPE) as new:
        table = SlotTable(old, BLOCK)
        running, idle = (Job(m.Generate(number, "local", (), 50)) for number in (1, 2))
        for job, text in ((running, TEXT), (idle, OTHER)):
            job.set_prompt(text[:300], 0)
            slot = table.grant(job)
            assert slot is not None
            _read(old, text[:200], sequence=slot.number)
            slot.cached, slot.pending = text[:200], text[200:300]
            table.advanced(slot)
        table.release(table.slots[1])
        table.move_to(new, {})
        first, second = table.slots
        assert (first.job, first.cached, first.pending) == (running, [], TEXT[:300])
        assert (second.job, second.cached, second.pending) == (None, [], [])
        assert table.shelf.held_bytes == 0
        assert _same(_read(new, first.pending), _fresh(old, TEXT[:300]))
