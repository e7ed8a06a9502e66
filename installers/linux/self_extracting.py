"""Makes an installer for one user: a shell script with the program behind it, for any Linux with Debian 12's C library.

What the script asks and refuses stands in `run_header.sh`; this puts script and program together.
"""

import gzip
import hashlib
import platform
import shutil
import tarfile
from pathlib import Path
from typing import IO

from installers.bundle.freeze import Bundling, Packaged, source_time
from installers.bundle.sizes import size_bytes
from installers.linux.deb import QT_NEEDS

_FILES = "files.txt"


def make(packaged: Packaged, bundling: Bundling) -> Path:
    """Write `hypnos-VERSION-linux-MACHINE.run` into `bundling.out` and return it."""
    seconds = source_time(bundling.root, bundling.environment)
    extra = bundling.work / "run"
    shutil.rmtree(extra, ignore_errors=True)
    extra.mkdir()
    linux = bundling.root / "installers" / "linux"
    shutil.copyfile(linux / "uninstall.sh", extra / "uninstall.sh")
    (extra / "uninstall.sh").chmod(0o755)
    (extra / "share").mkdir()
    shutil.copyfile(linux / "hypnos.desktop", extra / "share" / "hypnos.desktop")
    shutil.copyfile(bundling.root / "resources" / "icons" / "hypnos.svg", extra / "share" / "hypnos.svg")
    names = sorted([_FILES, *_files(packaged.folder), *_files(extra)])
    (extra / _FILES).write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    payload = bundling.work / "payload.tar.gz"
    pack([packaged.folder, extra], payload, seconds)
    target = bundling.out / f"hypnos-{packaged.version}-linux-{platform.machine()}.run"
    header = (linux / "run_header.sh").read_text(encoding="utf-8")
    join(header, payload, target, packaged.version, size_bytes(packaged.folder))
    payload.unlink()
    return target


def _files(folder: Path) -> list[str]:
    """Everything below a folder that is no folder itself, as paths inside it."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]


def pack(folders: list[Path], target: Path, seconds: int) -> None:
    """Write a compressed archive of what is below the folders; the same files always give the same bytes."""
    with target.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=seconds) as zipped:  # noqa: SIM117
        with tarfile.open(fileobj=zipped, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for folder in folders:
                for path in sorted(folder.rglob("*")):
                    _add(archive, path, str(path.relative_to(folder)), seconds)


def _add(archive: tarfile.TarFile, path: Path, name: str, seconds: int) -> None:
    entry = archive.gettarinfo(path, name)
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = seconds
    entry.mode = 0o777 if entry.issym() else 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    if entry.islnk():  # two names of one file: written twice, as not every file system can link
        entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", path.stat().st_size
    if entry.isreg():
        with path.open("rb") as content:
            archive.addfile(entry, content)
    else:
        archive.addfile(entry)


def join(header: str, payload: Path, target: Path, version: str, unpacked_bytes: int) -> None:
    """Write the script with its blanks filled in, then the archive; the result can be executed."""
    with payload.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    blanks = {
        "VERSION": version,
        "SHA256": digest,
        "BYTES": str(payload.stat().st_size),
        "KILOBYTES": str(-(-unpacked_bytes // 1024)),
        "LINE": str(header.count("\n") + 1),
        "MACHINE": platform.machine(),
        "PACKAGES": " ".join(sorted(QT_NEEDS)),
    }
    for name, value in blanks.items():
        header = header.replace(f"@{name}@", value)
    with target.open("wb") as written, payload.open("rb") as opened:
        written.write(header.encode())
        _copy(opened, written)
    target.chmod(0o755)


def _copy(source: IO[bytes], target: IO[bytes]) -> None:
    shutil.copyfileobj(source, target, 2**20)
