"""The holder's process and the operating system: what is locked or resident, for whom, and what is left of it."""

import asyncio
import os
import re
import resource
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.engines.holder import Held, HolderProcess
from hypnos_engine.engines.runtimes import WorkerRuntime, default_runtime
from hypnos_engine.engines.watch import Patience
from hypnos_engine.testing.holder_conformance import WITHIN_S, Losses, file, ignore
from tests.engines.page_cache import disk, drop_caches, push_out, read_by, resident_bytes, status_of
from tests.engines.test_workers import kept

__all__ = ["disk"]

HERE = Path(__file__).parent
MIB = 2**20
SIZE_BYTES = 48 * MIB + 77
NOBODY = 65534


class News:
    """Knows when a holder's report has changed."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def __call__(self) -> None:
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def holding(
    runtime: WorkerRuntime | None = None, losses: Losses | None = None, news: News | None = None, **options: object
) -> AsyncIterator[HolderProcess]:
    settings: dict[str, object] = {"check_every_s": 0.05, "on_change": news or (lambda: None), **options}
    holder = HolderProcess(runtime or default_runtime(), losses or ignore, **settings)  # type: ignore[arg-type]
    try:
        yield holder
    finally:
        await holder.stop()


def nobody(limit_bytes: int = 8 * MIB) -> WorkerRuntime:
    """A holder of a user who may lock little; of the tester himself where he cannot become another one."""
    program = (sys.executable, "-P", str(HERE / "other_user.py"), str(limit_bytes))
    return WorkerRuntime("nobody", program, frozenset())


@pytest.fixture(params=["own", "others'"])
def weights(request: pytest.FixtureRequest, disk: Path) -> Path:
    """A file that the holder's user may write, and one that he may only read: he is not told what of it is cached."""
    path = file(disk, "weights", SIZE_BYTES)
    if os.geteuid() == 0 and request.param == "own":
        os.chown(path, NOBODY, NOBODY)
    path.chmod(0o644 if os.geteuid() == 0 else 0o600 if request.param == "own" else 0o400)
    return path


def from_disk(path: Path) -> int:
    """Bytes that another process takes from the disk to use the whole file."""
    answer = subprocess.run(
        [sys.executable, "-P", str(HERE / "page_reader.py"), str(path)], check=True, capture_output=True, text=True
    )
    return int(answer.stdout)


def locked_by(pid: int | None) -> int:
    return status_of(pid, "VmLck")


def oom_score_adjustment(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def whole_pages(size_bytes: int) -> int:
    return -(-size_bytes // resource.getpagesize()) * resource.getpagesize()


def is_locked_whole(holder: HolderProcess) -> bool:
    return all(held.locked_bytes == held.size_bytes for held in holder.report().held)


# --- what a promotion from tier 2 reads -----------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", [default_runtime(), nobody()], ids=["tester", "nobody"])
async def test_what_is_held_is_used_without_the_disk(runtime: WorkerRuntime, disk: Path) -> None:
    path = file(disk, "weights", SIZE_BYTES)
    path.chmod(0o644)
    push_out(path)
    assert from_disk(path) >= SIZE_BYTES * 9 // 10
    push_out(path)
    async with holding(runtime) as holder:
        assert await holder.fill("weights", [path], ignore) == SIZE_BYTES
        assert from_disk(path) == 0


async def test_locked_pages_stay_when_the_caches_are_dropped(disk: Path) -> None:
    path, free = file(disk, "weights", SIZE_BYTES), file(disk, "free", SIZE_BYTES)
    losses = Losses()
    async with holding(losses=losses) as holder:
        await holder.fill("weights", [path], ignore)
        if not is_locked_whole(holder):  # a tester who may lock little
            assert "ulimit" in str(holder.report().why_not_locked)
            return
        assert locked_by(holder.pid) == whole_pages(SIZE_BYTES)
        for one in (path, free):
            push_out(one)
        drop_caches()
        assert resident_bytes(free) == 0
        assert resident_bytes(path) == SIZE_BYTES
        assert from_disk(free) >= SIZE_BYTES * 9 // 10
        assert from_disk(path) == 0
        await holder.drop("weights")
        assert locked_by(holder.pid) == 0
        push_out(path)
        assert resident_bytes(path) == 0
    assert losses.told == []


# --- a user who may lock little -------------------------------------------------------------------------------------


async def test_a_user_with_a_small_limit_locks_what_fits_and_is_told_what_mends_it(weights: Path) -> None:
    async with holding(nobody()) as holder:
        assert await holder.fill("weights", [weights], ignore) == SIZE_BYTES
        report = holder.report()
        assert report.held == (Held("weights", SIZE_BYTES, SIZE_BYTES, 8 * MIB),)
        assert locked_by(holder.pid) == 8 * MIB
        assert not report.locking
        assert report.why_not_locked is not None
        for part in ("8 MiB", "ulimit -l", "kept warm"):
            assert part in report.why_not_locked
        assert re.search(r"sudo tee \S+limits\.d/\S+|--ulimit memlock=", report.why_not_locked)
        assert resident_bytes(weights) == SIZE_BYTES


async def test_a_user_who_may_lock_nothing_holds_all_the_same(weights: Path) -> None:
    async with holding(nobody(0)) as holder:
        assert await holder.fill("weights", [weights], ignore) == SIZE_BYTES
        assert holder.report().held[0].locked_bytes == 0
        assert "0 MiB" in str(holder.report().why_not_locked)


async def test_a_set_that_leaves_makes_room_for_the_locks_of_another(disk: Path) -> None:
    first, second = file(disk, "first", 6 * MIB), file(disk, "second", 7 * MIB)
    news = News()
    for path in (first, second):
        path.chmod(0o644)
    async with holding(nobody(), news=news) as holder:
        await holder.fill("first", [first], ignore)
        assert holder.report().locking
        await holder.fill("second", [second], ignore)
        assert [held.locked_bytes for held in holder.report().held] == [6 * MIB, 2 * MIB]
        await holder.drop("first")
        await news.until(lambda: holder.report().locking)
        assert [held.locked_bytes for held in holder.report().held] == [7 * MIB]


async def test_a_few_pages_that_were_pushed_out_are_brought_back(weights: Path) -> None:
    losses, other = Losses(), file(weights.parent, "other")
    other.chmod(0o644)
    async with holding(nobody(), losses) as holder, asyncio.timeout(WITHIN_S):
        await holder.fill("weights", [weights], ignore)
        before = read_by(holder.pid)
        while read_by(holder.pid) == before:
            push_out(weights, 20 * MIB, 4 * MIB)
            while resident_bytes(weights) < SIZE_BYTES:
                await holder.fill("other", [other], ignore)
    assert losses.told == []


async def test_pages_that_were_pushed_out_by_the_many_are_a_loss(weights: Path) -> None:
    losses = Losses()
    async with holding(nobody(), losses) as holder:
        await holder.fill("weights", [weights], ignore)
        push_out(weights)
        assert await losses.until(1) == ["weights"]
        assert holder.report().held == ()
        assert locked_by(holder.pid) == 0
        assert await holder.fill("weights", [weights], ignore) == SIZE_BYTES


# --- files that change ----------------------------------------------------------------------------------------------


def replace(path: Path) -> None:
    other = file(path.parent, "other", SIZE_BYTES)
    other.replace(path)


def grow(path: Path) -> None:
    with path.open("ab") as opened:
        opened.write(b"more")


def move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


CHANGES: dict[str, Callable[[Path], None]] = {
    "cut short": lambda path: os.truncate(path, 5),
    "emptied": lambda path: os.truncate(path, 0),
    "deleted": Path.unlink,
    "replaced": replace,
    "grown": grow,
    "its folder moved": move_folder,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_a_file_that_changes_is_a_loss_and_the_others_stay(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    folder, losses = tmp_path / "models", Losses()
    folder.mkdir()
    path, projector = file(folder, "weights", SIZE_BYTES), file(tmp_path, "projector")
    async with holding(losses=losses) as holder:
        await holder.fill("changes", [projector, path], ignore)
        await holder.fill("stays", [projector], ignore)
        pid = holder.pid
        change(path)
        assert await losses.until(1) == ["changes"]
        assert [held.files for held in holder.report().held] == ["stays"]
        assert holder.pid == pid
        assert await holder.fill("stays too", [projector], ignore) == 3_000_001


async def test_a_file_that_is_written_in_place_stays_held(tmp_path: Path) -> None:
    path, losses = file(tmp_path, "weights", SIZE_BYTES), Losses()
    witness = file(tmp_path, "witness")
    async with holding(losses=losses) as holder:
        await holder.fill("weights", [path], ignore)
        await holder.fill("witness", [witness], ignore)
        with path.open("r+b") as opened:
            opened.write(b"touched up")
        os.truncate(witness, 5)
        assert await losses.until(1) == ["witness"]
        assert [held.held_bytes for held in holder.report().held] == [SIZE_BYTES]


async def test_links_to_one_file_count_once(tmp_path: Path) -> None:
    path = file(tmp_path, "weights")
    link, hard = tmp_path / "link", tmp_path / "hard"
    link.symlink_to(path)
    hard.hardlink_to(path)
    async with holding() as holder:
        assert await holder.fill("weights", [path, link, hard], ignore) == 3_000_001


async def test_names_that_are_no_text_are_held(tmp_path: Path) -> None:
    path = file(tmp_path, "weights")
    odd = path.rename(tmp_path / os.fsdecode(b"caf\xe9"))
    async with holding() as holder:
        assert await holder.fill("odd", [odd], ignore) == 3_000_001
        assert await holder.fill("gone", [odd.with_suffix(".gone")], ignore) == 0


async def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    async with holding() as holder:
        assert await holder.fill("pipe", [tmp_path / "pipe"], ignore) == 0


async def test_a_file_larger_than_memory_is_not_begun(tmp_path: Path) -> None:
    path, progress = tmp_path / "huge", list[float]()
    with path.open("wb") as opened:
        opened.truncate(2 * psutil.virtual_memory().total)
    async with holding() as holder:
        assert await holder.fill("huge", [path], progress.append) == 0
        assert progress == []
        assert locked_by(holder.pid) == 0


# --- the process ----------------------------------------------------------------------------------------------------


async def test_the_process_is_small_and_the_first_to_go(tmp_path: Path) -> None:
    async with holding() as holder:
        await holder.fill("weights", [file(tmp_path, "weights", SIZE_BYTES)], ignore)
        assert status_of(holder.pid, "RssAnon") < 20_000_000
        assert oom_score_adjustment(holder.pid) == 1000


async def test_a_holder_that_does_not_let_go_is_ended(tmp_path: Path, expected_log: list[str]) -> None:
    expected_log.append("The process that holds files in memory did not let go of a file in time")
    path, losses = file(tmp_path, "weights"), Losses()
    async with holding(losses=losses, answer_within_s=0.2) as holder:
        await holder.fill("a", [path], ignore)
        await holder.fill("b", [path], ignore)
        assert holder.pid is not None
        os.kill(holder.pid, signal.SIGSTOP)
        await holder.drop("a")
        assert losses.told == ["b"]
        assert not holder.report().alive
        assert await holder.fill("a", [path], ignore) == 3_000_001


async def test_a_fill_whose_disk_hangs_is_given_up(tmp_path: Path, expected_log: list[str]) -> None:
    expected_log.append("The process that holds files in memory read nothing for")
    path, losses = file(tmp_path, "weights"), Losses()
    async with holding(losses=losses, fill_patience=Patience(0.5, 0.0, 1.0)) as holder:
        await holder.fill("a", [path], ignore)
        assert holder.pid is not None
        os.kill(holder.pid, signal.SIGSTOP)
        assert await holder.fill("b", [path], ignore) == 0
        assert losses.told == ["a"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("/nowhere/hypnos-worker",), "Nothing can be held in memory: the program '/nowhere/hypnos-worker'"),
        ((sys.executable, "-c", "raise SystemExit(3)"), "The process that holds files in memory ended with status 3"),
        ((sys.executable, "-c", "print('x' * 99)"), "The process that holds files in memory sent what is no message"),
        (
            (*default_runtime().argv, "--kind", EngineKind.FAKE),
            "The process that holds files in memory ended with status 2",
        ),
    ],
    ids=["missing", "ends", "garbage", "another program"],
)
async def test_a_program_that_is_no_holder_gives_nothing(
    argv: tuple[str, ...], says: str, tmp_path: Path, expected_log: list[str]
) -> None:
    expected_log.append(says)
    async with holding(WorkerRuntime("bad", argv, frozenset())) as holder:
        assert await holder.fill("a", [file(tmp_path, "weights")], ignore) == 0
        assert not holder.report().alive


async def test_starting_filling_and_stopping_leaves_nothing(tmp_path: Path) -> None:
    path = file(tmp_path, "weights")

    async def cycle(number: int) -> None:
        async with holding() as holder:
            filling = asyncio.create_task(holder.fill("a", [path], ignore))
            if number % 2:
                await filling
            else:
                await asyncio.sleep(0)
                filling.cancel()
                await asyncio.gather(filling, return_exceptions=True)

    await cycle(0)
    await cycle(1)
    before = kept()
    for number in range(8):
        await cycle(number)
    assert kept() == before


def test_a_supervisor_that_is_killed_leaves_no_holder() -> None:
    program = [sys.executable, str(HERE / "holder_supervisor.py")]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        watched = os.pidfd_open(int(supervisor.stdout.readline()))
        supervisor.kill()
    try:
        assert select.select([watched], [], [], WITHIN_S)[0]
    finally:
        os.close(watched)
