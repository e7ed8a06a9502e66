"""Conversations go on in another worker as they would have gone on in their own; and only what fits comes back."""

import os
import signal
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from llama_cpp import _utils

from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.blocks import Block
from hypnos_engine.testing import tiny_gguf
from hypnos_engine.workers.llama import native
from tests.workers.decisive import LONG, SHORT, Texts, conversation, drawn
from tests.workers.driver import WITHIN_S, Reply, Worker, chat
from tests.workers.memory_kinds import KINDS, KV_TYPE, WINDOWED, write_all

ROOM = 64 * 2**20
DRAWN = 16
TAIL = 64
"""Tokens at the end of a prompt that a next turn may have to compute again."""
EVERYDAY = ("full", "sliding_window", "hybrid", "recurrent")
SOME_SLOW = [kind if kind in EVERYDAY else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
MOST_SLOW = [kind if kind == "hybrid" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    native.start()
    yield write_all(tmp_path_factory.mktemp("kinds"))
    _utils.outnull_file.close()  # the binding leaves them to the collector, which complains
    _utils.errnull_file.close()


@contextmanager
def loaded(path: Path, **options: object) -> Iterator[Worker]:
    with Worker("llama", blocks=True) as worker:
        worker.load(path, **{"context_len": 4096, "slots": 3, "threads": 1, "kv_type": KV_TYPE, **options})
        yield worker


def park(worker: Worker, size_bytes: int = ROOM) -> tuple[Block, m.Parked]:
    """The block, which the test closes, and what the worker says about it."""
    block = Block.create(size_bytes)
    number, seen = worker.hand_over(block), len(worker.all_of(m.Parked))
    worker.send(m.ParkKv(number, size_bytes))
    parked = worker.next_of(m.Parked, seen)
    assert parked.block == number
    return block, parked


def restore(worker: Worker, block: Block) -> m.Restored:
    number, seen = worker.hand_over(block), len(worker.all_of(m.Restored))
    worker.send(m.RestoreKv(number, block.size_bytes))
    restored = worker.next_of(m.Restored, seen)
    assert restored.block == number
    return restored


def cached(reply: Reply) -> int:
    assert reply.accepted is not None
    assert reply.accepted.cached_tokens == reply.end.cached_tokens
    return reply.end.cached_tokens


def told(reply: Reply) -> tuple[int, int, str]:
    """What a client sees of an answer."""
    return reply.end.prompt_tokens, cached(reply), reply.text


def turns(text: str) -> tuple[Texts, Texts]:
    """A question and the next one."""
    first = (f"{text} What is it about?",)
    return first, (*first, "About sentences.", "How many?")


def asked(texts: Texts, scope: str = "local", *, tokens: int = DRAWN) -> m.Generate:
    return chat(1, *texts, scope=scope, max_tokens=tokens)


def uninterrupted(path: Path, kind: str) -> list[tuple[int, int, str]]:
    """What one worker answers to a whole conversation."""
    with loaded(path) as worker:
        return [told(worker.ask(asked(texts, tokens=drawn(kind)))) for texts in conversation(path, kind)]


def is_as_without(found: tuple[int, int, str], expected: tuple[int, int, str], kind: str) -> bool:
    """A window is saved without what has left it: where it could still be cut, a checkpoint before is gone back to."""
    least = expected[1] - (TAIL if kind in WINDOWED else 0)
    return (found[0], found[2]) == (expected[0], expected[2]) and least <= found[1] <= expected[1]


def parked_after(path: Path, texts: Texts, tokens: int = DRAWN) -> Block:
    """What a worker parks after one answer; it is killed before the block is looked at."""
    with loaded(path) as worker:
        worker.ask(asked(texts, tokens=tokens))
        block, parked = park(worker)
        assert (parked.slots, parked.problem) == (1, "")
        worker.process.send_signal(signal.SIGKILL)
        worker.process.wait()
    return block


# --- the same as without ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SOME_SLOW)
def test_a_conversation_goes_on_in_another_worker(kinds: Mapping[str, Path], kind: str) -> None:
    """[§14.3-03] [§14.3-05] [§14.3-07] [§14.3-19], also for a worker that was killed after it had parked."""
    expected = uninterrupted(kinds[kind], kind)
    first, *rest = conversation(kinds[kind], kind)
    with parked_after(kinds[kind], first, drawn(kind)) as block, loaded(kinds[kind]) as worker:
        restored = restore(worker, block)
        assert (restored.slots, restored.problem) == (1, "")
        assert restored.tokens >= expected[0][0]
        for texts, wanted in zip(rest, expected[1:], strict=True):
            assert is_as_without(told(worker.ask(asked(texts, tokens=drawn(kind)))), wanted, kind)


@pytest.mark.parametrize("kind", MOST_SLOW)
def test_a_conversation_moves_as_often_as_one_likes(kinds: Mapping[str, Path], kind: str) -> None:
    expected = uninterrupted(kinds[kind], kind)
    block = Block.create(8192)
    for texts, wanted in zip(conversation(kinds[kind], kind), expected, strict=True):
        with block, loaded(kinds[kind]) as worker:
            restore(worker, block)
            assert is_as_without(told(worker.ask(asked(texts, tokens=drawn(kind)))), wanted, kind)
            block, parked = park(worker)
            assert (parked.slots, parked.problem) == (1, "")
    block.close()


def test_a_seed_gives_the_same_text_in_half_precision_too(tmp_path: Path) -> None:
    """What was computed in whole blocks counts as such in the next worker."""
    tiny_gguf.write_llama(tmp_path / "tiny.gguf")
    hot = m.Sampling(seed=3, temperature=1.5)
    request = chat(1, LONG, max_tokens=24, sampling=hot)
    with loaded(tmp_path / "tiny.gguf", kv_type="f16") as worker:
        first = told(worker.ask(request))
        again = told(worker.ask(request))
        worker.ask(request)
        block, _ = park(worker)
    with block, loaded(tmp_path / "tiny.gguf", kv_type="f16") as worker:
        restore(worker, block)
        third = told(worker.ask(request))
    assert first[2] == again[2] == third[2]
    assert again[1] == third[1] > 0


def test_settings_that_change_no_state_do_not_matter(kinds: Mapping[str, Path]) -> None:
    first, second = turns(SHORT)
    with (
        parked_after(kinds["mixture"], first) as block,
        loaded(kinds["mixture"], threads=2, draft="ngram", load_mode="read", cpu_expert_layers=1) as worker,
    ):
        assert restore(worker, block).slots == 1
        assert cached(worker.ask(asked(second))) > 0


# --- several slots ----------------------------------------------------------------------------------------------------


def test_every_slot_comes_back_for_its_own_key(kinds: Mapping[str, Path]) -> None:
    """[§14.3-04]: all used slots; nobody else's key can go on from them."""
    first, second = turns(SHORT)
    with loaded(kinds["full"]) as worker:
        for scope in ("a", "b"):
            worker.ask(asked(first, scope))
        expected = [told(worker.ask(asked(second, scope))) for scope in ("a", "b", "c")]
    with loaded(kinds["full"]) as worker:
        for scope in ("a", "b"):
            worker.ask(asked(first, scope))
        block, parked = park(worker)
        assert parked.slots == 2
    with block, loaded(kinds["full"]) as worker:
        restored = restore(worker, block)
        assert (restored.slots, restored.tokens) == (2, parked.tokens)
        stranger = worker.ask(asked(second, "c"))
        assert told(stranger) == expected[2]
        assert cached(stranger) == 0
        assert [told(worker.ask(asked(second, scope))) for scope in ("a", "b")] == expected[:2]


def test_a_small_block_takes_what_is_worth_most(kinds: Mapping[str, Path]) -> None:
    first, second = turns(LONG)
    with loaded(kinds["full"]) as worker:
        worker.ask(asked(first, "long"))
        worker.ask(asked(("Hello.",), "short"))
        whole, everything = park(worker)
        whole.close()
        block, parked = park(worker, everything.size_bytes - 2048)
        assert parked.slots == 1
        assert "no room for 1 of" in parked.problem
        assert parked.size_bytes <= block.size_bytes
        nothing, none = park(worker, 4096)
        nothing.close()
        assert (none.slots, none.size_bytes) == (0, 0)
        assert none.problem
    with block, loaded(kinds["full"]) as worker:
        assert restore(worker, block).tokens == parked.tokens
        assert cached(worker.ask(asked(second, "long"))) > 0


def test_early_checkpoints_are_left_out_first(kinds: Mapping[str, Path]) -> None:
    first, second = turns(LONG)
    third = (*second, "Many.", "Is that all?")
    with loaded(kinds["hybrid"]) as worker:
        worker.ask(asked(first))
        worker.ask(asked(second))
        whole, everything = park(worker)
        whole.close()
        block, parked = park(worker, everything.size_bytes - 8)
        assert (parked.slots, parked.tokens, parked.problem) == (1, everything.tokens, "")
        assert parked.size_bytes < everything.size_bytes
        expected = told(worker.ask(asked(third)))
    with block, loaded(kinds["hybrid"]) as worker:
        assert restore(worker, block).slots == 1
        assert told(worker.ask(asked(third))) == expected
        assert expected[1] > 0


@pytest.mark.parametrize("seed", [None, 1], ids=["beside", "set aside"])
def test_a_slot_in_use_is_not_parked(kinds: Mapping[str, Path], seed: int | None) -> None:
    """And one that is set aside for the time of a reproducible answer is."""
    first, second = turns(SHORT)
    story = chat(2, "Tell me a story.", max_tokens=1500, scope="busy", sampling=m.Sampling(seed=seed, temperature=0.0))
    with loaded(kinds["full"]) as worker:
        worker.ask(asked(first))
        expected = told(worker.ask(asked(second)))
        told_undisturbed = worker.ask(story).text
    with loaded(kinds["full"]) as worker:
        worker.ask(asked(first))
        worker.start(story)
        worker.until(lambda: len(worker.reply(2).deltas) > 3)
        block, parked = park(worker)
        assert parked.slots == 1
        assert not worker.reply(2).over
        worker.until_over(2)
        assert worker.reply(2).text == told_undisturbed
    with block, loaded(kinds["full"]) as worker:
        assert restore(worker, block).slots == 1
        assert cached(worker.ask(chat(2, "Tell me a story.", max_tokens=1, scope="busy"))) == 0
        assert told(worker.ask(asked(second))) == expected


def test_nothing_is_parked_of_a_worker_that_was_not_used(kinds: Mapping[str, Path]) -> None:
    with loaded(kinds["full"]) as worker:
        block, parked = park(worker)
        block.close()
        assert (parked.slots, parked.tokens, parked.size_bytes, parked.problem) == (0, 0, 0, "")


def test_only_empty_slots_are_filled(kinds: Mapping[str, Path]) -> None:
    first, second = turns(SHORT)
    with parked_after(kinds["full"], first) as block, loaded(kinds["full"]) as worker:
        worker.ask(asked(("Hello.",), "other"))
        restored = restore(worker, block)
        assert restored.slots == 0
        assert restored.problem
        assert cached(worker.ask(asked(("Hello.", "Hi.", "Yes?"), "other"))) > 0
        assert cached(worker.ask(asked(second))) == 0


# --- what does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"context_len": 8192}, "the context has 8192 tokens and had 4096"),
        ({"context_len": 2048}, "the context has 2048 tokens and had 4096"),
        ({"slots": 2}, "the model has 2 slots and had 3"),
        ({"kv_type": "f16"}, "the cache is of the type f16 and was of q8_0"),
    ],
)
def test_another_layout_is_computed_anew(kinds: Mapping[str, Path], change: dict[str, object], said: str) -> None:
    """[§14.3-06] [§14.3-18]"""
    first, second = turns(SHORT)
    with loaded(kinds["full"], **change) as worker:
        expected = told(worker.ask(asked(second)))
    with parked_after(kinds["full"], first) as block, loaded(kinds["full"], **change) as worker:
        restored = restore(worker, block)
        assert (restored.slots, restored.tokens, restored.problem) == (0, 0, said)
        assert told(worker.ask(asked(second))) == expected


def test_other_weights_are_noticed(kinds: Mapping[str, Path], tmp_path: Path) -> None:
    """[§14.3-06]: a file that was replaced, touched, or changed under a worker; not one that was only moved."""
    first = turns(SHORT)[0]
    path = tmp_path / "model.gguf"
    path.write_bytes(kinds["full"].read_bytes())
    block = parked_after(path, first)
    moved = path.rename(tmp_path / "moved.gguf")
    with loaded(moved) as worker:
        assert restore(worker, block).slots == 1
        worker.ask(asked(first))
        os.utime(moved, ns=(1, 1))
        changed, parked = park(worker)
        changed.close()
        assert parked.slots == 0
        assert "has changed since it was loaded" in parked.problem
    with block, loaded(moved) as worker:
        restored = restore(worker, block)
        assert (restored.slots, restored.problem) == (0, "the model's file is another one")


def _flip(offset: int) -> Callable[[memoryview], None]:
    def flip(view: memoryview) -> None:
        view[offset] ^= 1

    return flip


def _flip_in_list(view: memoryview) -> None:
    offset, size = struct.unpack_from("<QQ", view, 8)
    view[offset + size // 2] ^= 1


def _zero(view: memoryview) -> None:
    view[:] = bytes(len(view))


def _no_end(view: memoryview) -> None:
    view[8:24] = b"\xff" * 16


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_flip(0), "the block was not finished"),
        (_zero, "the block was not finished"),
        (_no_end, "the block is cut"),
        (_flip_in_list, "the block is damaged"),
        (_flip(70), "the block is damaged"),
        (_flip(20_000), "the block is damaged"),
    ],
    ids=["header", "empty", "no end", "list", "state", "middle"],
)
def test_a_damaged_block_is_dropped(kinds: Mapping[str, Path], damage: Callable[[memoryview], None], said: str) -> None:
    first, second = turns(SHORT)
    with loaded(kinds["full"]) as worker:
        expected = told(worker.ask(asked(second)))
    with parked_after(kinds["full"], first) as block, loaded(kinds["full"]) as worker:
        with block.view as view:
            damage(view)
        restored = restore(worker, block)
        assert (restored.slots, restored.tokens, restored.problem) == (0, 0, said)
        assert told(worker.ask(asked(second))) == expected


@pytest.mark.parametrize("size_bytes", [8, 40, 5000, 0.5, -1])
def test_a_block_that_was_cut_is_dropped(kinds: Mapping[str, Path], size_bytes: float) -> None:
    first, second = turns(SHORT)
    with loaded(kinds["full"]) as worker:
        worker.ask(asked(first))
        block, parked = park(worker)
    end = int(parked.size_bytes * size_bytes) if size_bytes == 0.5 else int(size_bytes) % parked.size_bytes
    with block, Block.create(end) as cut, loaded(kinds["full"]) as worker:
        with block.view as whole, cut.view as part:
            part[:] = whole[:end]
        restored = restore(worker, cut)
        assert (restored.slots, restored.problem) == (0, "the block is cut")
        assert cached(worker.ask(asked(second))) == 0


def test_one_damaged_conversation_does_not_take_the_others_with_it(kinds: Mapping[str, Path]) -> None:
    first, second = turns(SHORT)
    with loaded(kinds["full"]) as worker:
        for scope in ("a", "b"):
            worker.ask(asked(first, scope))
        block, parked = park(worker)
        assert parked.slots == 2
    with block, loaded(kinds["full"]) as worker:
        with block.view as view:
            view[100] ^= 1
        restored = restore(worker, block)
        assert (restored.slots, restored.problem) == (1, "the block is damaged")
        assert sorted(cached(worker.ask(asked(second, scope))) > 0 for scope in ("a", "b")) == [False, True]


def test_a_worker_that_cannot_take_blocks_says_so(kinds: Mapping[str, Path]) -> None:
    with Worker("llama") as worker:
        worker.load(kinds["full"], threads=1)
        worker.send(m.ParkKv(1, ROOM), m.RestoreKv(2, ROOM))
        assert worker.next_of(m.Parked).problem
        assert worker.next_of(m.Restored).problem
        assert worker.ask(asked(("Hello.",))).end


def test_a_block_other_than_the_announced_one_is_refused(kinds: Mapping[str, Path]) -> None:
    with loaded(kinds["full"]) as worker, Block.create(8192) as block:
        worker.send(m.ParkKv(worker.hand_over(block), 8193))
        assert "instead of block" in worker.next_of(m.Parked).problem
        assert worker.ask(asked(("Hello.",))).end


# --- idle conversations -----------------------------------------------------------------------------------------------


def test_an_idle_slot_is_emptied_and_not_parked(kinds: Mapping[str, Path]) -> None:
    """[§14.3-21]"""
    first, second = turns(SHORT)
    with loaded(kinds["full"], kv_idle_timeout_s=0.2) as worker:
        worker.ask(asked(first))
        deadline_s, slots = time.monotonic() + WITHIN_S, 1
        while slots and time.monotonic() < deadline_s:
            block, parked = park(worker, 2**20)
            block.close()
            slots = parked.slots
        assert slots == 0
        assert cached(worker.ask(asked(second))) == 0
    with loaded(kinds["full"], kv_idle_timeout_s=600.0) as worker:
        worker.ask(asked(first))
        block, parked = park(worker)
        block.close()
        assert parked.slots == 1
        assert cached(worker.ask(asked(second))) > 0
