"""What every holder must do, as tests to inherit: the obligations of `engines.holder.PageHolder`, one by one.

Decides nothing about how pages are held; it only watches results, reports and losses.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hypnos_engine.engines.holder import LostSink, PageHolder

WITHIN_S = 60.0
"""Longest wait for a loss to be told; the machine may be shared."""


def ignore(_: object) -> None:
    """A sink for news that a test does not look at."""


class Losses:
    """A sink for lost sets that can be waited for."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._news = asyncio.Event()

    def __call__(self, files: str) -> None:
        self.told.append(files)
        self._news.set()

    async def until(self, count: int) -> list[str]:
        """All that were told, once there are so many."""
        async with asyncio.timeout(WITHIN_S):
            while len(self.told) < count:
                self._news.clear()
                await self._news.wait()
        return self.told


def file(folder: Path, name: str, size_bytes: int = 3_000_001) -> Path:
    """A file whose size is no multiple of a page."""
    path = folder / name
    path.write_bytes((name.encode() + b"\0") * (size_bytes // (len(name) + 1) + 1))
    with path.open("r+b") as opened:
        opened.truncate(size_bytes)
    return path


class HolderTests:
    """Inherit as a `Test…` class; the three methods below say how to make the holder and how to harm it."""

    def make(self, on_lost: LostSink) -> PageHolder:
        """A new holder."""
        raise NotImplementedError

    def kill(self, holder: PageHolder) -> None:
        """Let the holder die as by a crash."""
        raise NotImplementedError

    def make_lost(self, holder: PageHolder, files: str, path: Path) -> None:
        """Take the pages of a set of one file away."""
        raise NotImplementedError

    @asynccontextmanager
    async def made(self, on_lost: LostSink) -> AsyncIterator[PageHolder]:
        """A holder, stopped in the end."""
        holder = self.make(on_lost)
        try:
            yield holder
        finally:
            await holder.stop()

    async def test_nothing_is_held_before_the_first_fill(self) -> None:
        async with self.made(ignore) as holder:
            report = holder.report()
            assert report.held == ()
            assert not report.alive
            await holder.drop("unknown")

    async def test_a_set_is_held_with_all_its_files(self, tmp_path: Path) -> None:
        paths = [file(tmp_path, "weights"), file(tmp_path, "projector", 5)]
        async with self.made(ignore) as holder:
            assert await holder.fill("both", paths, ignore) == 3_000_006
            report = holder.report()
            (held,) = report.held
            assert report.alive
            assert (held.files, held.size_bytes, held.held_bytes) == ("both", 3_000_006, 3_000_006)
            assert 0 <= held.locked_bytes <= held.held_bytes
            assert report.locking == (held.locked_bytes == held.size_bytes)
            assert report.locking == (report.why_not_locked is None)

    async def test_progress_only_grows(self, tmp_path: Path) -> None:
        path, heard = file(tmp_path, "large", 64_000_000), list[float]()
        async with self.made(ignore) as holder:
            assert await holder.fill("large", [path], heard.append) == 64_000_000
        assert heard == sorted(set(heard))
        assert all(0.0 < fraction <= 1.0 for fraction in heard)

    @pytest.mark.parametrize("harm", ["missing", "folder", "empty", "none", "one of two"])
    async def test_what_cannot_be_read_gives_nothing(self, harm: str, tmp_path: Path) -> None:
        good, bad = file(tmp_path, "good"), tmp_path / "bad"
        if harm == "folder":
            bad.mkdir()
        if harm == "empty":
            bad.touch()
        paths = {"none": [], "one of two": [good, bad]}.get(harm, [bad])
        async with self.made(ignore) as holder:
            assert await holder.fill("bad", paths, ignore) == 0
            assert holder.report().held == ()
            assert await holder.fill("good", [good], ignore) == 3_000_001

    async def test_a_dropped_set_is_gone_and_can_come_back(self, tmp_path: Path) -> None:
        path, losses = file(tmp_path, "weights"), Losses()
        async with self.made(losses) as holder:
            await holder.fill("a", [path], ignore)
            await holder.drop("a")
            await holder.drop("a")
            assert holder.report().held == ()
            assert await holder.fill("a", [path], ignore) == 3_000_001
        assert losses.told == []

    async def test_two_sets_are_filled_at_once_and_leave_one_by_one(self, tmp_path: Path) -> None:
        first, second = file(tmp_path, "first"), file(tmp_path, "second", 1_000)
        async with self.made(ignore) as holder:
            filled = await asyncio.gather(holder.fill("1", [first], ignore), holder.fill("2", [second], ignore))
            assert tuple(filled) == (3_000_001, 1_000)
            assert {held.files for held in holder.report().held} == {"1", "2"}
            await holder.drop("1")
            assert [held.files for held in holder.report().held] == ["2"]

    async def test_a_second_fill_takes_the_place_of_the_first(self, tmp_path: Path) -> None:
        path = file(tmp_path, "weights")
        async with self.made(ignore) as holder:
            fills = await asyncio.gather(*(holder.fill("same", [path], ignore) for _ in range(3)))
            assert sorted(fills) == [0, 0, 3_000_001]
            assert await holder.fill("same", [path], ignore) == 3_000_001
            assert len(holder.report().held) == 1

    async def test_a_drop_during_the_fill_ends_it(self, tmp_path: Path) -> None:
        path = file(tmp_path, "large", 64_000_000)
        async with self.made(ignore) as holder:
            await holder.fill("other", [file(tmp_path, "other")], ignore)
            filling = asyncio.create_task(holder.fill("large", [path], ignore))
            await asyncio.sleep(0)
            await holder.drop("large")
            assert await filling == 0
            assert [held.files for held in holder.report().held] == ["other"]

    async def test_a_cancelled_fill_holds_nothing(self, tmp_path: Path) -> None:
        path = file(tmp_path, "large", 64_000_000)
        async with self.made(ignore) as holder:
            for turns in (0, 1, 2):
                filling = asyncio.create_task(holder.fill("large", [path], ignore))
                for _ in range(turns):
                    await asyncio.sleep(0)
                filling.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await filling
                assert holder.report().held == ()
            assert await holder.fill("large", [path], ignore) == 64_000_000

    async def test_a_loss_is_told_once(self, tmp_path: Path) -> None:
        path, losses = file(tmp_path, "weights"), Losses()
        async with self.made(losses) as holder:
            await holder.fill("lost", [path], ignore)
            await holder.fill("kept", [file(tmp_path, "kept")], ignore)
            self.make_lost(holder, "lost", path)
            assert await losses.until(1) == ["lost"]
            assert [held.files for held in holder.report().held] == ["kept"]
            await holder.drop("lost")
            assert await holder.fill("lost", [file(tmp_path, "weights")], ignore) == 3_000_001
        assert losses.told == ["lost"]

    async def test_the_death_of_the_holder_loses_everything_and_the_next_fill_works(self, tmp_path: Path) -> None:
        path, losses = file(tmp_path, "weights"), Losses()
        large = file(tmp_path, "large", 64_000_000)
        async with self.made(losses) as holder:
            await holder.fill("a", [path], ignore)
            await holder.fill("b", [path], ignore)
            filling = asyncio.create_task(holder.fill("c", [large], ignore))
            await asyncio.sleep(0)
            self.kill(holder)
            assert await filling == 0
            assert sorted(await losses.until(2)) == ["a", "b"]
            assert holder.report().held == ()
            assert not holder.report().alive
            assert await holder.fill("a", [path], ignore) == 3_000_001
            assert holder.report().alive
        assert sorted(losses.told) == ["a", "b"]

    async def test_a_stopped_holder_holds_nothing_for_good(self, tmp_path: Path) -> None:
        path, losses = file(tmp_path, "weights"), Losses()
        holder = self.make(losses)
        await holder.fill("a", [path], ignore)
        await holder.stop()
        await holder.stop()
        assert await holder.fill("a", [path], ignore) == 0
        assert holder.report().held == ()
        assert not holder.report().alive
        assert losses.told == []

    async def test_stopping_ends_a_fill(self, tmp_path: Path) -> None:
        holder = self.make(ignore)
        filling = asyncio.create_task(holder.fill("a", [file(tmp_path, "large", 64_000_000)], ignore))
        await asyncio.sleep(0)
        await holder.stop()
        assert await filling == 0
