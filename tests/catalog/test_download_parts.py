"""A part that is cut anywhere goes on from bytes that are right, and loses no finished block."""

import hashlib
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from hypnos_engine.catalog.downloads.parts import Part
from hypnos_engine.catalog.downloads.rates import Rate
from tests.catalog.download_bench import content

BLOCK = 1000
SIZE = 3500
WHOLE = content(SIZE)


def opened(folder: Path, source: str = "a", size: int | None = SIZE) -> Part:
    return Part.open(folder / "0.part", folder / "0.blocks", source, size, block_bytes=BLOCK)


def written(folder: Path, count: int, *, piece: int = 300, note: bool = False) -> Part:
    part = opened(folder)
    while part.offset < count:
        part.write(WHOLE[part.offset : min(count, part.offset + piece)])
    if note:
        part.note()
    return part


def test_what_was_noted_is_gone_on_with_exactly(tmp_path: Path) -> None:
    written(tmp_path, 2345, note=True).close()
    part = opened(tmp_path)
    assert part.offset == 2345
    part.write(WHOLE[2345:])
    part.finish()
    assert part.blocks == tuple(hashlib.sha256(WHOLE[at : at + BLOCK]).hexdigest() for at in range(0, SIZE, BLOCK))
    part.close()
    again = opened(tmp_path)
    assert (again.offset, len(again.blocks)) == (SIZE, 4)
    again.close()


def test_what_was_not_noted_counts_from_the_last_block(tmp_path: Path) -> None:
    written(tmp_path, 2345).close()
    part = opened(tmp_path)
    assert part.offset == 2000
    part.close()


def test_a_part_of_something_else_is_thrown_away(tmp_path: Path) -> None:
    for source, size in (("b", SIZE), ("a", SIZE + 1), ("a", None)):
        written(tmp_path, 2000).close()
        part = opened(tmp_path, source, size)
        assert part.offset == 0
        part.close()


def test_a_note_that_the_bytes_do_not_bear_out_is_not_believed(tmp_path: Path) -> None:
    written(tmp_path, 2345, note=True).close()
    with (tmp_path / "0.part").open("r+b") as file:
        file.seek(2100)
        file.write(b"\0\0\0\0")
    part = opened(tmp_path)
    assert part.offset == 2000
    part.close()


def test_a_damaged_block_is_named_and_mended(tmp_path: Path) -> None:
    part = written(tmp_path, SIZE)
    part.finish()
    with (tmp_path / "0.part").open("r+b") as file:
        file.seek(1500)
        file.write(b"\0\0\0\0")
    read: list[int] = []
    assert part.damaged_blocks(read.append) == [1]
    assert sum(read) == SIZE
    assert part.block_span(3) == (3000, SIZE)
    assert not part.replace_block(1, WHOLE[1000:2000])
    assert part.damaged_blocks(read.append) == []
    assert part.replace_block(2, bytes(BLOCK))
    part.close()
    assert (tmp_path / "0.part").read_bytes() == WHOLE[:2000] + bytes(BLOCK) + WHOLE[3000:]


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(0, SIZE),
    piece=st.integers(1, 1200),
    note=st.booleans(),
    part_cut=st.integers(0, SIZE),
    journal_cut=st.integers(0, 600),
    rubbish=st.binary(max_size=40),
)
def test_no_cut_makes_a_part_lie(
    count: int, piece: int, *, note: bool, part_cut: int, journal_cut: int, rubbish: bytes
) -> None:
    """Whatever of the two files is left after a fault, the bytes that count are those of the source."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written(folder, count, piece=piece, note=note).close()
        data = (folder / "0.part").read_bytes()
        (folder / "0.part").write_bytes(data[: len(data) - part_cut] if part_cut < len(data) else b"")
        journal = (folder / "0.blocks").read_bytes()
        (folder / "0.blocks").write_bytes(journal[: max(0, len(journal) - journal_cut)] + rubbish)
        part = opened(folder)
        there = (folder / "0.part").read_bytes()
        assert part.offset == len(there)
        assert there == WHOLE[: part.offset]
        part.write(WHOLE[part.offset :])
        part.finish()
        part.close()
        again = opened(folder)
        assert again.offset == SIZE
        again.close()


def test_a_rate_needs_two_counts_and_outlives_a_clock_that_goes_back() -> None:
    rate = Rate()
    assert rate.take(0, 100.0) is None
    assert rate.take(1000, 101.0) == 1000.0
    assert rate.take(1500, 50.0) == 1000.0
    assert rate.take(1500, 101.0) == 1000.0
    later = rate.take(2000, 102.0)
    assert later is not None
    assert 0 < later < 10_000
    assert (rate.take(2000, 1000.0) or 0) < 1.0
