"""Maps a file, uses every page of it, and prints how many bytes that took from the disk; started by tests."""

import mmap
import sys
from pathlib import Path


def from_disk() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


before = from_disk()
with Path(sys.argv[1]).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
    total = sum(mapped[position] for position in range(0, len(mapped), mmap.PAGESIZE))
print(from_disk() - before)
