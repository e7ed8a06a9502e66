"""Makes a Debian package: the program in /opt, a command, a menu entry and an icon; it starts nothing by itself.

What it needs of the system is read from the libraries that are in it, by Debian's own tool.
"""

import gzip
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from installers.bundle import contents
from installers.bundle.freeze import Bundling, Packaged, settle_times, source_time
from installers.bundle.sizes import size_bytes
from installers.refusal import BuildRefused

QT_NEEDS = (
    *("libdbus-1-3", "libegl1", "libfontconfig1", "libgl1", "libglib2.0-0", "libxkbcommon0"),
    *("libxcb-cursor0", "libxcb-icccm4", "libxcb-image0", "libxcb-keysyms1", "libxcb-render-util0"),
    *("libxcb-shape0", "libxcb-xkb1", "libxkbcommon-x11-0"),
)
"""Packages that Qt's windows need; most are found in its libraries too, but some it opens by name."""
OPENED_BY_NAME = ("ca-certificates",)
"""Also used when they are there: certificates for downloads over TLS."""
_DOCUMENTS = Path("usr/share/doc/hypnos")

_CONTROL = """\
Package: hypnos
Version: {version}
Architecture: {architecture}
Maintainer: The Hypnos authors <hypnos@localhost>
Installed-Size: {kilobytes}
Depends: {depends}
Recommends: {recommends}
Section: utils
Priority: optional
Description: local AI server that moves models between GPU memory, RAM and disk
 Hypnos serves many models through one OpenAI-compatible address on this
 computer, from a tray icon or headless with "hypnos serve". A small chat
 model is included.
"""


def make(packaged: Packaged, bundling: Bundling) -> Path:
    """Write `hypnos_VERSION_ARCHITECTURE.deb` into `bundling.out` and return it. Raises BuildRefused."""
    architecture = _run(["dpkg", "--print-architecture"], bundling.work).strip()
    tree = bundling.work / "deb"
    shutil.rmtree(tree, ignore_errors=True)
    lay_out(packaged, tree, bundling.root)
    _describe(packaged, tree, architecture, needs(packaged.folder, bundling.work))
    settle_times(tree, source_time(bundling.root, bundling.environment))
    target = bundling.out / f"hypnos_{packaged.version}_{architecture}.deb"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(source_time(bundling.root, bundling.environment))}
    # zstd: the weights do not compress further, and xz takes ten times as long to find that out.
    command = ["dpkg-deb", "--root-owner-group", "-Zzstd", "-z6", "--build", str(tree), str(target)]
    _run(command, bundling.work, environment)
    shutil.rmtree(tree)
    return target


def lay_out(packaged: Packaged, tree: Path, root: Path) -> None:
    """Put the files of the package where they will be installed, below `tree`."""
    program = tree / "opt" / "hypnos"
    shutil.copytree(packaged.folder, program, symlinks=True)
    command = tree / "usr" / "bin" / contents.PROGRAM
    command.parent.mkdir(parents=True)
    command.symlink_to(f"/opt/hypnos/{contents.PROGRAM}")
    _put(tree / "usr/share/applications/hypnos.desktop", (root / "installers/linux/hypnos.desktop").read_bytes())
    icons = tree / "usr/share/icons/hicolor"
    for size, picture in packaged.icons.items():
        _put(icons / f"{size}x{size}" / "apps" / "hypnos.png", picture.read_bytes())
    _put(icons / "scalable" / "apps" / "hypnos.svg", (root / "resources/icons/hypnos.svg").read_bytes())
    notice = (root / "NOTICE").read_text(encoding="utf-8")
    where = "The licence texts of all components are in /opt/hypnos/licences; that of Hypnos is also in\n"
    where += "/usr/share/common-licenses/Apache-2.0.\n\n"
    _put(tree / _DOCUMENTS / "copyright", (where + notice).encode())
    changes = (root / "CHANGELOG.md").read_bytes()
    _put(tree / _DOCUMENTS / "changelog.gz", gzip.compress(changes, mtime=0))
    _put(tree / "DEBIAN" / "prerm", (root / "installers/linux/prerm").read_bytes(), mode=0o755)


def _describe(packaged: Packaged, tree: Path, architecture: str, needed: tuple[Sequence[str], Sequence[str]]) -> None:
    control = _CONTROL.format(
        version=packaged.version,
        architecture=architecture,
        kilobytes=-(-size_bytes(tree) // 1024),
        depends=", ".join(needed[0]),
        recommends=", ".join([*needed[1], *OPENED_BY_NAME]),
    )
    _put(tree / "DEBIAN" / "control", control.encode())
    sums = (
        f"{hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()}  {file.relative_to(tree)}\n"
        for file in sorted(tree.rglob("*"))
        if file.is_file() and not file.is_symlink() and file.relative_to(tree).parts[0] != "DEBIAN"
    )
    _put(tree / "DEBIAN" / "md5sums", "".join(sums).encode())


def needs(program: Path, work: Path) -> tuple[list[str], list[str]]:
    """Packages that the program cannot do without, and those that only optional plugins of Qt use."""
    files = [file for file in sorted(program.rglob("*")) if not file.is_symlink() and _is_native(file)]
    optional = [file for file in files if contents.OPTIONAL_LIBRARIES.search(str(file))]
    required = _packages_of([file for file in files if file not in optional], program, work, strict=True)
    wished = _packages_of(optional, program, work, strict=False)
    depends = join_needs([*required, *QT_NEEDS])
    known = {name_of(entry) for entry in depends}
    return depends, [entry for entry in join_needs(wished) if name_of(entry) not in known]


def join_needs(entries: Iterable[str]) -> list[str]:
    """Each package once, the entry with a version preferred; sorted by name."""
    joined: dict[str, str] = {}
    for entry in entries:
        name = name_of(entry)
        if len(entry) > len(joined.get(name, "")):
            joined[name] = entry
    return [joined[name] for name in sorted(joined)]


def name_of(entry: str) -> str:
    """`libc6` of `libc6 (>= 2.36)`."""
    return entry.split(" ", 1)[0]


def _is_native(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return opened.read(4) == b"\x7fELF"


def _packages_of(files: Sequence[Path], program: Path, work: Path, *, strict: bool) -> list[str]:
    """What `dpkg-shlibdeps` finds; it wants the source package's description beside it."""
    if not files:
        return []
    description = work / "debian" / "control"
    _put(description, b"Source: hypnos\n\nPackage: hypnos\nArchitecture: any\n")
    folders = {file.parent for file in program.rglob("*.so*")}
    lenient = [] if strict else ["--ignore-missing-info"]
    private = [f"-l{folder}" for folder in sorted(folders)]
    # Libraries without a package's description are the program's own.
    command = ["dpkg-shlibdeps", "-O", "--warnings=0", "--ignore-missing-info", *private]
    found = subprocess.run(
        [*command, *lenient, *(f"-e{file}" for file in files)],
        cwd=work,
        check=False,
        capture_output=True,
        text=True,
    )
    if found.returncode != 0:
        if not strict:
            return []
        raise BuildRefused(f"dpkg-shlibdeps cannot say what the program needs:\n{found.stderr.strip()[-2000:]}")
    said = re.search(r"^shlibs:Depends=(.*)$", found.stdout, re.MULTILINE)
    return [entry.strip() for entry in said[1].split(",")] if said else []


def _put(file: Path, content: bytes, mode: int = 0o644) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.chmod(mode)


def _run(command: Sequence[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, check=False, capture_output=True, text=True, errors="replace"
        )
    except FileNotFoundError:
        raise BuildRefused(f"{command[0]} is not installed: run `sudo apt install dpkg-dev`.") from None
    if done.returncode != 0:
        raise BuildRefused(f"{command[0]} failed:\n{done.stderr.strip()[-2000:]}")
    return done.stdout
