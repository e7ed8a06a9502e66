"""The holder's own side, step by step: what it does between two messages, how gently, and what it refuses."""

import contextlib
import errno
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hypnos_engine.ipc import holder_messages as h
from hypnos_engine.ipc.framing import FrameDecoder
from hypnos_engine.testing.holder_conformance import file
from hypnos_engine.workers.holder import shortage
from hypnos_engine.workers.holder.file_set import CannotHold, FileSet, Steps
from hypnos_engine.workers.holder.files import CHUNK_BYTES, FileChanged, HeldFile
from hypnos_engine.workers.holder.keeper import HolderChannel, Keeper
from hypnos_engine.workers.holder.locks import why_refused
from hypnos_engine.workers.holder.shortage import Memory
from tests.engines.page_cache import disk, push_out, status_of

__all__ = ["disk"]

MIB = 2**20
SIZE_BYTES = 48 * MIB + 77
PLENTY = Memory(64 * 2**30, 32 * 2**30, pressed=False)


class Bench:
    """A keeper that a test drives by hand, and all that it said."""

    def __init__(self, gauge: Callable[[], Memory]) -> None:
        self._ours, theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs = theirs
        self._decoder = FrameDecoder[h.FromHolder](h.FromHolder)
        self.channel = HolderChannel(theirs.fileno(), theirs.fileno(), FrameDecoder(h.ToHolder))
        self.keeper = Keeper(self.channel, gauge)
        self.said: list[h.FromHolder] = []

    def tell(self, *messages: h.ToHolder) -> None:
        for message in messages:
            self.channel.inbox.put(message)

    def step(self, count: int = 1) -> list[h.FromHolder]:
        """What was said during so many steps."""
        before = len(self.said)
        for _ in range(count):
            self.keeper.step()
            with contextlib.suppress(BlockingIOError):
                self.said += self._decoder.feed(self._ours.recv(65536))
        return self.said[before:]

    def until_filled(self, number: int) -> h.Filled:
        while True:
            for message in self.step():
                if isinstance(message, h.Filled) and message.number == number:
                    return message

    def close(self) -> None:
        """Lets go of everything."""
        for number in range(10):
            self.tell(h.Drop(number))
        self.step()
        self._ours.close()
        self._theirs.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(lambda: PLENTY)
    yield made
    made.close()


def fill(number: int, *paths: Path) -> h.Fill:
    return h.Fill(number, tuple(os.fsencode(path) for path in paths))


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def run(steps: Steps[None]) -> list[float]:
    return list(steps)


def looked(files: FileSet) -> list[tuple[HeldFile, int, int]]:
    """What a look finds missing."""
    steps = files.look()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            missing: list[tuple[HeldFile, int, int]] = end.value
            return missing


# --- between two messages -------------------------------------------------------------------------------------------


def test_a_drop_is_heard_in_the_middle_of_a_fill(bench: Bench, tmp_path: Path) -> None:
    path = file(tmp_path, "weights", SIZE_BYTES)
    bench.tell(fill(1, path))
    bench.step(4)
    assert is_mapped(path)
    bench.tell(h.Drop(1))
    said = bench.step()
    assert [type(message) for message in said] == [h.Filled, h.Dropped]
    assert isinstance(said[0], h.Filled)
    assert said[0].held_bytes == 0
    assert not is_mapped(path)
    assert status_of("self", "VmLck") == 0


def test_a_drop_takes_a_fill_out_of_the_line(bench: Bench, tmp_path: Path) -> None:
    first, second = file(tmp_path, "first", SIZE_BYTES), file(tmp_path, "second")
    bench.tell(fill(1, first), fill(2, second), h.Drop(2))
    said = bench.step()
    assert said[0] == h.Filled(2, 0, "It was dropped before it was read.")
    assert bench.until_filled(1).held_bytes == SIZE_BYTES
    assert not is_mapped(second)


def test_a_drop_of_an_unknown_set_is_answered(bench: Bench) -> None:
    bench.tell(h.Drop(7))
    assert bench.step() == [h.Dropped(7)]


def test_a_file_cut_short_while_it_is_read_is_given_up(bench: Bench, tmp_path: Path) -> None:
    path = file(tmp_path, "weights", SIZE_BYTES)
    bench.tell(fill(1, path))
    bench.step(4)
    os.truncate(path, CHUNK_BYTES)
    filled = bench.until_filled(1)
    assert filled.held_bytes == 0
    assert "cut short" in filled.why
    assert not is_mapped(path)


def test_progress_is_told_at_most_ten_times_a_second(bench: Bench, tmp_path: Path) -> None:
    path = file(tmp_path, "weights", 64 * MIB)
    began_s = time.monotonic()
    for number in range(1, 6):
        bench.tell(fill(number, path), h.Drop(number - 1))
        bench.until_filled(number)
    told = [message for message in bench.said if isinstance(message, h.FillProgress)]
    assert len(told) <= (time.monotonic() - began_s) * 10
    assert all(0.0 < message.fraction <= 1.0 for message in told)


def test_what_is_held_is_told_once(bench: Bench, tmp_path: Path) -> None:
    bench.tell(h.CheckEvery(0.0), fill(1, file(tmp_path, "weights")))
    assert bench.until_filled(1).held_bytes == 3_000_001
    bench.step(20)
    told = [message for message in bench.said if isinstance(message, h.Holding)]
    assert len(told) == 1
    assert [(held.number, held.held_bytes) for held in told[0].held] == [(1, 3_000_001)]


def test_other_sets_are_looked_at_while_one_is_brought_back(bench: Bench, tmp_path: Path) -> None:
    large, small = file(tmp_path, "large", SIZE_BYTES), file(tmp_path, "small")
    bench.tell(h.CheckEvery(0.0), fill(1, large), fill(2, small))
    bench.until_filled(1)
    bench.until_filled(2)
    os.truncate(small, 5)
    while not any(isinstance(message, h.Lost) for message in bench.step()):
        pass
    (lost,) = [message for message in bench.said if isinstance(message, h.Lost)]
    assert lost.number == 2
    assert "small had 3000001 bytes and has 5 now" in lost.why


# --- memory ---------------------------------------------------------------------------------------------------------


def test_a_fill_that_does_not_fit_says_what_is_free(tmp_path: Path) -> None:
    path = file(tmp_path, "weights", SIZE_BYTES)
    bench = Bench(lambda: Memory(2**30, 300 * MIB, pressed=False))
    bench.tell(fill(1, path))
    filled = bench.until_filled(1)
    assert filled.held_bytes == 0
    assert f"{SIZE_BYTES} bytes more do not fit" in filled.why
    assert f"{300 * MIB} are free" in filled.why
    bench.close()


def test_a_fill_stops_when_memory_goes_elsewhere(tmp_path: Path) -> None:
    path = file(tmp_path, "weights", 160 * MIB)
    answers = iter([PLENTY, PLENTY, Memory(2**30, 257 * MIB, pressed=False)])
    bench = Bench(lambda: next(answers))
    bench.tell(fill(1, path))
    assert bench.until_filled(1).held_bytes == 0
    assert next(answers, None) is None
    assert not is_mapped(path)
    bench.close()


@pytest.mark.parametrize(
    "short",
    [Memory(2**30, 2**30, pressed=True), Memory(2**30, 100 * MIB, pressed=False)],
    ids=["others wait for memory", "little is left"],
)
def test_nothing_is_read_again_while_memory_is_short(short: Memory, disk: Path) -> None:
    path = file(disk, "weights", SIZE_BYTES)
    memory = [short]
    files = FileSet(1, [os.fsencode(path)], lambda: memory[0])
    try:
        push_out(path, 20 * MIB, 4 * MIB)
        missing = looked(files)
        assert missing
        assert run(files.tend(missing, 60.0)) == []
        assert looked(files) == missing
        memory[0] = PLENTY
        pauses = run(files.tend(missing, 60.0))
        assert pauses
        assert min(pauses) > 0.0
        assert looked(files) == []
        assert files.held_bytes == SIZE_BYTES
    finally:
        files.close()


def test_a_set_of_which_much_is_missing_is_lost(disk: Path) -> None:
    path = file(disk, "weights", SIZE_BYTES)
    push_out(path)
    files = FileSet(1, [os.fsencode(path)], lambda: PLENTY)
    try:
        missing = looked(files)
        assert files.held_bytes == 0
        with pytest.raises(CannotHold, match="pushed out of memory"):
            run(files.tend(missing, 60.0))
    finally:
        files.close()


def test_bringing_back_leaves_off_in_time_and_goes_on_later(disk: Path) -> None:
    path = file(disk, "weights", 200 * MIB)
    files = FileSet(1, [os.fsencode(path)], lambda: PLENTY)
    try:
        rounds = 0
        push_out(path, 40 * MIB, 16 * MIB)
        while missing := looked(files):
            assert len(run(files.tend(missing, 0.0))) <= 1
            rounds += 1
        assert 2 <= rounds <= 4  # the system reads a little ahead
    finally:
        files.close()


def test_the_reserve_grows_with_the_machine() -> None:
    assert Memory(2**30, 0, pressed=False).reserve_bytes == 256 * MIB
    assert Memory(100 * 2**30, 0, pressed=False).reserve_bytes == 2 * 2**30
    assert Memory(2**30, 300 * MIB, pressed=False).has_room(44 * MIB)
    assert not Memory(2**30, 300 * MIB, pressed=False).has_room(45 * MIB)


def test_this_machine_tells_its_memory() -> None:
    memory = shortage.measure()
    assert 0 < memory.available_bytes <= memory.total_bytes


# --- files and locks ------------------------------------------------------------------------------------------------


def test_only_the_missing_pages_are_named(disk: Path) -> None:
    path = file(disk, "weights", SIZE_BYTES)
    held = HeldFile(os.fsencode(path))
    try:
        assert [found for found in held.missing() if found] == []
        push_out(path)
        assert [found for found in held.missing() if found] == [(0, SIZE_BYTES)]
        held.end_of_reading()
        held.read(8 * MIB, 4 * MIB)
        assert [found for found in held.missing() if found] == [(0, 8 * MIB), (12 * MIB, SIZE_BYTES - 12 * MIB)]
    finally:
        held.close()


def test_reading_past_the_end_is_a_change_of_the_file(tmp_path: Path) -> None:
    held = HeldFile(os.fsencode(file(tmp_path, "weights")))
    try:
        os.truncate(tmp_path / "weights", 1000)
        with pytest.raises(FileChanged, match="cut short"):
            held.read(0, 3_000_001)
        with pytest.raises(FileChanged, match="has 1000 now"):
            held.check_unchanged()
    finally:
        held.close()


def test_opening_and_closing_leaves_nothing(tmp_path: Path) -> None:
    good, bad = file(tmp_path, "good"), tmp_path / "bad"
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FileNotFoundError):
        FileSet(1, [os.fsencode(good), os.fsencode(bad)], lambda: PLENTY)
    files = FileSet(1, [os.fsencode(good)], lambda: PLENTY)
    files.close()
    files.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert not is_mapped(good)


def test_the_sentence_about_locks_names_what_mends_it() -> None:
    limit, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, most))
    try:
        sentence = why_refused(errno.EPERM)
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, most))
    assert "0 MiB" in sentence
    assert "memlock" in sentence
    assert "Free memory" in why_refused(errno.EIO)
