"""What the operating system keeps of files in memory, for tests of the holder: asked, and pushed out."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypnos_engine.testing.holder_conformance import file
from hypnos_engine.workers.holder.files import HeldFile


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder that everybody may look into, on a file system with a disk behind it."""
    for parent in (tempfile.gettempdir(), "/var/tmp", Path.cwd()):
        with tempfile.TemporaryDirectory(dir=parent) as name:
            folder = Path(name)
            folder.chmod(0o755)
            probe = file(folder, "probe")
            push_out(probe)
            if resident_bytes(probe) == 0:
                probe.unlink()
                yield folder
                return
    raise AssertionError("no folder of this machine has a disk behind it")


def push_out(path: Path, start: int = 0, length: int = 0) -> None:
    """Have the system forget pages of a file that nobody holds; length 0 = up to the end."""
    with path.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), start, length, os.POSIX_FADV_DONTNEED)


def drop_caches() -> None:
    """All of the machine's, where the tester may do that."""
    switch = Path("/proc/sys/vm/drop_caches")
    if os.access(switch, os.W_OK):
        switch.write_text("1")


def resident_bytes(path: Path) -> int:
    """Bytes of a file in memory, asked by this process."""
    held = HeldFile(os.fsencode(path))
    try:
        return held.size_bytes - sum(found[1] for found in held.missing() if found is not None)
    finally:
        held.close()


def status_of(pid: int | str | None, name: str) -> int:
    """Bytes that a line of a process's status gives."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def read_by(pid: int | None) -> int:
    """Bytes that a process took from the disk."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(lines["read_bytes"])
