"""Downloads from a hub that cuts, stalls, lies and refuses: what arrives is right, whole, and fetched once."""

import asyncio
import hashlib
import itertools
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hypnos_engine.catalog.downloads.records import JobState
from hypnos_engine.catalog.downloads.terms import Patience
from hypnos_engine.domain.errors import InvalidRequest, ModelBusy, NotFound
from hypnos_engine.testing.local_hub import Fault, LocalHub
from tests.catalog.download_bench import (
    BLOCK,
    KIB,
    REPO,
    bench,
    children,
    content,
    contents_of,
    held,
    small_disk,
    wanted,
)

SIZE = 3 * BLOCK + 1000
LATE = BLOCK + 100 * KIB


async def test_files_and_whole_folders_arrive_under_their_names(tmp_path: Path, hub: LocalHub) -> None:
    """[§6.2-31, §6.2-33]"""
    big, small = content(SIZE), b"{}"
    commit = hub.repository(REPO, **{"m.gguf": big, "sub__a.json": small, "sub__deep__b.bin": big[:99]}).at("main")
    assert commit is not None
    async with bench(tmp_path, hub) as made:
        job = await made.pull(wanted(), wanted("sub/", "folder ü/"))
        assert (job.state, job.error) == (JobState.DONE, None)
        assert (made.root / "m.gguf").read_bytes() == big
        assert (made.root / "folder ü" / "a.json").read_bytes() == small
        assert (made.root / "folder ü" / "deep" / "b.bin").read_bytes() == big[:99]
        assert not made.unfinished()
        assert job.done_bytes == job.total_bytes == SIZE + 2 + 99
        assert {piece.revision for piece in job.pieces} == {commit[0]}
        assert job.digests[0] == hashlib.sha256(big).hexdigest()
        assert hub.sent_bytes == job.total_bytes
        states = [told.state for told in made.told if told.id == job.id]
        assert states[:2] == [JobState.QUEUED, JobState.RUNNING]
        assert JobState.VERIFYING in states
        counts = [told.done_bytes for told in made.told]
        assert counts == sorted(counts)


async def test_the_one_file_that_a_pattern_fits(tmp_path: Path, hub: LocalHub) -> None:
    hub.repository(REPO, **{"mmproj-x-Q8_0.gguf": b"right", "mmproj-x-F16.gguf": b"wrong"})
    async with bench(tmp_path, hub) as made:
        job = await made.pull(wanted("mmproj*Q8_0.gguf", "p.gguf"))
        assert (job.state, (made.root / "p.gguf").read_bytes()) == (JobState.DONE, b"right")
        job = await made.pull(wanted("mmproj*.gguf", "q.gguf"))
        assert job.state is JobState.FAILED
        assert "fits 2 files" in str(job.error)


@pytest.mark.parametrize("etag", [True, False])
async def test_a_file_of_a_plain_address(tmp_path: Path, hub: LocalHub, *, etag: bool) -> None:
    """[§6.2-32]"""
    hub.plain["models v1/a.onnx"], hub.etag_of_plain = content(SIZE), etag
    hub.faults.append(Fault(cut_at=LATE))
    async with bench(tmp_path, hub) as made:
        job = await made.pull(wanted("models v1/a.onnx", "a.onnx", repo=f"{hub.address}/plain/"))
        assert job.state is JobState.DONE, job.error
        assert (made.root / "a.onnx").read_bytes() == content(SIZE)
    assert hub.sent_bytes < SIZE + 100 * KIB


async def test_what_is_there_is_not_fetched_unless_asked(tmp_path: Path, hub: LocalHub) -> None:
    hub.repository(REPO, **{"m.gguf": b"abc"})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "m.gguf").write_bytes(b"xyz")
    async with bench(tmp_path, hub, roots=(tmp_path / "models", tmp_path / "other")) as made:
        assert (await made.pull(wanted())).state is JobState.DONE
        assert hub.sent == []
        assert (await made.pull(wanted(), again=True)).state is JobState.DONE
        assert (made.root / "m.gguf").read_bytes() == b"abc"


async def test_files_are_replaced_only_while_nobody_has_them_open(tmp_path: Path, hub: LocalHub) -> None:
    hub.repository(REPO, **{"m.gguf": content(SIZE), "sub__a.json": b"{}"})
    root = tmp_path / "models"
    (root / "sub").mkdir(parents=True)
    for path in (root / "m.gguf", root / "sub" / "a.json"):
        path.write_bytes(b"old")
    seen: list[tuple[str, bytes, bytes]] = []
    busy = [True]

    @asynccontextmanager
    async def release(files: Sequence[Path], _: float) -> AsyncIterator[None]:
        if busy:
            busy.pop()
            raise ModelBusy("in use")
        one = files[0] if files[0].is_file() else files[0] / "a.json"
        before = one.read_bytes()
        yield
        seen.append((files[0].name, before, one.read_bytes()))

    async with bench(tmp_path, hub, given={"release": release}) as made:
        job = await made.pull(wanted(), wanted("sub/", "sub/"), again=True)
        assert job.state is JobState.DONE, job.error
        assert any("in use" in str(told.error) for told in made.told)
    assert seen == [("m.gguf", b"old", content(SIZE)), ("sub", b"old", b"{}")]
    assert hub.sent_bytes == SIZE + 2


async def test_a_cut_connection_goes_on_where_it_was(tmp_path: Path, hub: LocalHub) -> None:
    hub.repository(REPO, **{"m.gguf": content(SIZE)})
    hub.faults += [Fault(cut_at=LATE), Fault(cut_at=LATE + 10), Fault(status=503), Fault(cut_at=2 * BLOCK)]
    async with bench(tmp_path, hub) as made:
        job = await made.pull(wanted())
        assert job.state is JobState.DONE, job.error
        assert (made.root / "m.gguf").read_bytes() == content(SIZE)
    assert hub.sent_bytes < SIZE + 4 * 64 * KIB


async def test_wrong_bytes_are_found_and_only_their_block_is_kept_anew(tmp_path: Path, hub: LocalHub) -> None:
    hub.repository(REPO, **{"m.gguf": content(SIZE)})
    hub.faults.append(Fault(flip_at=BLOCK + 5))
    async with bench(tmp_path, hub) as made:
        job = await made.pull(wanted())
        assert job.state is JobState.DONE, job.error
        assert (made.root / "m.gguf").read_bytes() == content(SIZE)
    assert [(one.start, one.count) for one in hub.sent] == [(0, SIZE), (0, BLOCK), (BLOCK, BLOCK)]


async def test_bytes_that_stay_wrong_are_never_shown(tmp_path: Path, hub: LocalHub) -> None:
    hub.plain["m.gguf"] = content(SIZE)
    async with bench(tmp_path, hub) as made:
        job = await made.pull(wanted(repo=f"{hub.address}/plain", size_bytes=SIZE, sha256="0" * 64))
        assert job.state is JobState.FAILED
        assert "other bytes than those listed" in str(job.error)
        assert not (made.root / "m.gguf").exists()
    assert hub.sent_bytes == 2 * SIZE


async def test_another_file_than_the_catalog_lists_is_refused_before_it_is_fetched(
    tmp_path: Path, hub: LocalHub
) -> None:
    hub.repository(REPO, **{"m.gguf": content(SIZE)})
    async with bench(tmp_path, hub) as made:
        for wrong in (wanted(size_bytes=SIZE - 1), wanted(sha256="0" * 64)):
            job = await made.pull(wrong)
            assert (job.state, "Update the catalog" in str(job.error)) == (JobState.FAILED, True)
    assert hub.sent == []


async def test_a_wish_to_wait_is_respected(tmp_path: Path, hub: LocalHub) -> None:
    hub.repository(REPO, **{"m.gguf": b"abc"})
    hub.refusals.append(Fault(status=429, retry_after="1"))
    async with bench(tmp_path, hub) as made:
        job = await made.downloads.request("test", [wanted()])
        await made.until(lambda: made.downloads.job(job.id).error is not None)
        waiting = made.downloads.job(job.id)
        assert waiting.state is JobState.QUEUED
        assert "asks to wait" in str(waiting.error)
        assert len(hub.requests) == 1
        assert (await made.over(job)).state is JobState.DONE


async def test_a_revision_is_stayed_with_when_the_file_changes(tmp_path: Path, hub: LocalHub) -> None:
    old, new = content(SIZE, 1), content(SIZE, 2)
    repository = hub.repository(REPO, **{"m.gguf": old})
    hub.faults.append(Fault(hold_at=LATE))
    async with bench(tmp_path, hub) as made:
        job = await made.downloads.request("test", [wanted()])
        await held(hub)
        await made.downloads.pause(job.id)
        repository.put({"m.gguf": new})
        await made.downloads.resume(job.id)
        assert (await made.over(job)).state is JobState.DONE
        assert (made.root / "m.gguf").read_bytes() == old


@pytest.mark.parametrize("size", [SIZE, SIZE + 5])
async def test_a_plain_file_that_changes_meanwhile_is_begun_again(tmp_path: Path, hub: LocalHub, size: int) -> None:
    hub.plain["m.gguf"] = content(SIZE, 1)
    hub.faults.append(Fault(hold_at=LATE))
    async with bench(tmp_path, hub) as made:
        job = await made.downloads.request("test", [wanted(repo=f"{hub.address}/plain")])
        await held(hub)
        await made.downloads.pause(job.id)
        hub.plain["m.gguf"] = content(size, 2)
        await made.downloads.resume(job.id)
        assert (await made.over(job)).state is JobState.DONE
        assert (made.root / "m.gguf").read_bytes() == content(size, 2)


async def test_a_server_without_ranges_is_begun_again(tmp_path: Path, hub: LocalHub) -> None:
    hub.plain["m.gguf"], hub.ranges = content(SIZE), False
    hub.faults += [Fault(cut_at=LATE), Fault(cut_at=LATE)]
    async with bench(tmp_path, hub) as made:
        job = await made.pull(wanted(repo=f"{hub.address}/plain"))
        assert job.state is JobState.DONE, job.error
        assert (made.root / "m.gguf").read_bytes() == content(SIZE)


async def test_a_file_whose_size_nobody_tells(tmp_path: Path, hub: LocalHub) -> None:
    hub.plain["m.gguf"], hub.length, hub.ranges = content(SIZE), False, False
    async with bench(tmp_path, hub) as made:
        job = await made.pull(wanted(repo=f"{hub.address}/plain"))
        assert job.state is JobState.DONE, job.error
        assert (made.root / "m.gguf").read_bytes() == content(SIZE)


async def test_a_connection_that_is_silent_or_drips_is_given_up_and_taken_up_again(
    tmp_path: Path, hub: LocalHub
) -> None:
    hub.repository(REPO, **{"m.gguf": content(SIZE)})
    hub.faults += [Fault(hold_at=LATE), Fault(drip_at=2 * BLOCK)]
    async with bench(tmp_path, hub, stall_s=3.0) as made:
        job = await made.pull(wanted())
        assert job.state is JobState.DONE, job.error
        assert (made.root / "m.gguf").read_bytes() == content(SIZE)
        assert any("Nothing came" in str(told.error) for told in made.told)


async def test_a_pause_keeps_every_byte_and_a_cancel_none(tmp_path: Path, hub: LocalHub) -> None:
    hub.repository(REPO, **{"m.gguf": content(SIZE)})
    hub.faults.append(Fault(hold_at=LATE))
    async with bench(tmp_path, hub) as made:
        job = await made.downloads.request("test", [wanted()])
        await held(hub)
        await made.until(lambda: made.downloads.job(job.id).done_bytes > LATE - 64 * KIB)
        assert (await made.downloads.pause(job.id)).state is JobState.PAUSED
        assert not children()
        assert made.unfinished()
        resumed = await made.downloads.request("test", [wanted()])
        assert resumed.id == job.id
        assert (await made.over(job)).state is JobState.DONE
        assert hub.sent_bytes < SIZE + 2 * 64 * KIB
        with pytest.raises(InvalidRequest, match="done already"):
            await made.downloads.cancel(job.id)
        (made.root / "m.gguf").unlink()
        hub.faults.append(Fault(hold_at=LATE))
        job = await made.downloads.request("test", [wanted()])
        await held(hub)
        assert (await made.downloads.cancel(job.id)).state is JobState.CANCELLED
        assert not made.unfinished()
        assert not (made.root / "m.gguf").exists()
        with pytest.raises(NotFound):
            await made.downloads.pause("dl-unknown")


async def test_a_restart_goes_on_without_being_asked(tmp_path: Path, hub: LocalHub) -> None:
    hub.repository(REPO, **{"m.gguf": content(SIZE)})
    hub.faults.append(Fault(hold_at=LATE))
    async with bench(tmp_path, hub) as made:
        job = await made.downloads.request("test", [wanted()])
        await held(hub)
        await made.until(lambda: made.downloads.job(job.id).done_bytes > LATE - 64 * KIB)
    async with bench(tmp_path, hub, go_on=False) as made:
        assert made.downloads.job(job.id).state is JobState.PAUSED
    hub.release()
    async with bench(tmp_path, hub) as made:
        assert (await made.over(job)).state is JobState.DONE
        assert (made.root / "m.gguf").read_bytes() == content(SIZE)
    assert hub.sent_bytes < SIZE + 2 * 64 * KIB


async def test_two_run_at_once_and_none_with_a_common_file(tmp_path: Path, hub: LocalHub) -> None:
    hub.repository(REPO, **{f"{name}.gguf": content(SIZE, seed) for seed, name in enumerate("abcd")})
    hub.faults += [Fault(hold_at=LATE), Fault(hold_at=LATE)]
    async with bench(tmp_path, hub) as made:
        names = [("a",), ("a", "b"), ("c",), ("d",)]
        jobs = [await made.downloads.request("t", [wanted(f"{n}.gguf") for n in name]) for name in names]
        await held(hub)
        await held(hub)
        states = [made.downloads.job(job.id).state for job in jobs]
        assert states == [JobState.RUNNING, JobState.QUEUED, JobState.RUNNING, JobState.QUEUED]
        hub.release()
        for job in jobs:
            assert (await made.over(job)).state is JobState.DONE


async def test_unknown_names_are_refused_for_good(tmp_path: Path, hub: LocalHub) -> None:
    hub.repository(REPO, **{"m.gguf": b"abc"})
    async with bench(tmp_path, hub) as made:
        for file, word in (
            (wanted("n.gguf"), "does not have the file"),
            (wanted(repo="no/body"), "no such repository"),
            (wanted(revision="f" * 40), "does not have the file"),
            (wanted(repo="http://example.org/base"), "no https address"),
        ):
            job = await made.pull(file)
            assert job.state is JobState.FAILED
            assert word in str(job.error)
        with pytest.raises(InvalidRequest):
            await made.downloads.request("test", [wanted(local="../m.gguf")])


async def test_a_folder_cannot_lead_out_of_itself(tmp_path: Path, hub: LocalHub) -> None:
    hub.repository(REPO).put({"../../evil": b"abc", "good": b"abc"})
    async with bench(tmp_path, hub) as made:
        job = await made.pull(wanted("/", "folder/"))
        assert job.state is JobState.FAILED
        assert "is no path" in str(job.error)
    assert not {"evil", "good"} & contents_of(tmp_path).keys()


async def test_a_disk_that_would_become_too_full_is_left_alone(tmp_path: Path, hub: LocalHub) -> None:
    hub.repository(REPO, **{"m.gguf": content(SIZE)})
    async with bench(tmp_path, hub, floor_bytes=10**18) as made:
        job = await made.pull(wanted())
        assert job.state is JobState.FAILED
        assert "Make room and resume" in str(job.error)
    assert hub.sent == []


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="mounts a small disk")
async def test_a_full_disk_stops_the_job_and_room_lets_it_go_on(tmp_path: Path, hub: LocalHub) -> None:
    disk = tmp_path / "models"
    hub.repository(REPO, **{"m.gguf": content(3 * 1024 * KIB)})
    with small_disk(disk, "4m"):
        async with bench(tmp_path, hub) as made:
            hub.faults.append(Fault(hold_at=1024 * KIB))
            job = await made.downloads.request("test", [wanted()])
            await held(hub)
            (disk / "other").write_bytes(bytes(2 * 1024 * KIB))  # while it runs, somebody else takes the room
            hub.release()
            job = await made.over(job)
            assert job.state is JobState.FAILED
            assert "full" in str(job.error)
            (disk / "other").unlink()
            await made.downloads.resume(job.id)
            assert (await made.over(job)).state is JobState.DONE
            assert (disk / "m.gguf").read_bytes() == content(3 * 1024 * KIB)


async def test_a_child_that_is_killed_is_followed_by_another(tmp_path: Path, hub: LocalHub) -> None:
    hub.repository(REPO, **{"m.gguf": content(SIZE)})
    hub.faults.append(Fault(hold_at=LATE))
    async with bench(tmp_path, hub) as made:
        job = await made.downloads.request("test", [wanted()])
        await held(hub)
        (child,) = children()
        child.kill()
        job = await made.over(job)
        assert job.state is JobState.DONE, job.error
        assert (made.root / "m.gguf").read_bytes() == content(SIZE)


async def test_nothing_is_asked_until_somebody_asks(tmp_path: Path, hub: LocalHub) -> None:
    async with bench(tmp_path, hub) as made:
        await asyncio.sleep(0)
        assert made.downloads.jobs() == ()
        assert not children()
    assert hub.requests == []


async def test_clocks_that_jump_change_nothing(tmp_path: Path, hub: LocalHub) -> None:
    """The wall clock goes back by years; the other one leaps, as after a night's sleep."""
    hub.repository(REPO, **{"m.gguf": content(SIZE)})
    hub.faults += [Fault(cut_at=LATE), Fault(status=500), Fault(status=500)]
    leaps, years = itertools.count(), itertools.count()
    terms = {"clock": lambda: next(leaps) * 50_000.0, "wall": lambda: 2e9 - next(years) * 3e7}
    async with bench(tmp_path, hub, given=terms) as made:
        jobs = [await made.pull(wanted()), await made.pull(wanted(), again=True)]
        assert [job.state for job in jobs] == [JobState.DONE, JobState.DONE]
        assert jobs[0].created_unix_ms > jobs[1].created_unix_ms
        assert all((told.bytes_per_s or 0) >= 0 and (told.eta_s or 0) >= 0 for told in made.told)
        assert [job.id for job in made.downloads.jobs()] == [job.id for job in reversed(jobs)]
    async with bench(tmp_path, hub) as made:
        assert {job.state for job in made.downloads.jobs()} == {JobState.DONE}


async def test_somebody_is_told_when_nothing_came_for_too_long(tmp_path: Path, hub: LocalHub) -> None:
    hub.repository(REPO, **{"m.gguf": b"abc"})
    hub.refusals += [Fault(status=500)] * 3
    patience = Patience(first_s=0.01, longest_s=0.01, give_up_s=0.0, least_tries=2)
    async with bench(tmp_path, hub, patience=patience) as made:
        job = await made.pull(wanted())
        assert (job.state, len(hub.requests)) == (JobState.FAILED, 3)
        assert "at the moment (500)" in str(job.error)
        await made.downloads.resume(job.id)
        assert (await made.over(job)).state is JobState.DONE


def test_waits_grow_to_a_bound_and_are_never_shorter_than_asked() -> None:
    patience = Patience()
    waits = [patience.wait_s(failures, None) for failures in range(1, 60)]
    assert all(0 < wait <= patience.longest_s for wait in waits)
    assert waits[0] <= 1.0 < waits[5]
    assert patience.wait_s(1, 3600.0) == 3600.0
    assert patience.wait_s(1, 1e9) == patience.most_asked_s
    assert not patience.is_over(100, 3600.0, crashed=False)
    assert not patience.is_over(1, 1e9, crashed=False)
    assert patience.is_over(100, 1e9, crashed=False)
    assert patience.is_over(7, 0.0, crashed=True)
