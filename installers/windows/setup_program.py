"""Makes the installer for Windows with NSIS, which runs on other systems too; the program must come from Windows.

What the installer does stands in `hypnos.nsi`; this names the files that it takes in and takes away again.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

from installers.bundle import icons
from installers.bundle.freeze import Bundling, Packaged
from installers.bundle.sizes import size_bytes
from installers.refusal import BuildRefused

EXECUTABLES = ("hypnos.exe", "hypnos-worker.exe", "hypnos-console.exe")


@dataclass(frozen=True)
class Setup:
    """What an installer is made from."""

    payload: Path
    version: str
    icon: Path
    licence: Path
    compressor: str = "/SOLID lzma"


def make(packaged: Packaged, bundling: Bundling) -> Path:
    """Write `hypnos-VERSION-windows-setup.exe` into `bundling.out` and return it. Raises BuildRefused."""
    icon = bundling.work / "hypnos.ico"
    icon.write_bytes(icons.ico({size: file.read_bytes() for size, file in packaged.icons.items()}))
    setup = Setup(packaged.folder, packaged.version, icon, bundling.root / "LICENSE")
    target = bundling.out / f"hypnos-{packaged.version}-windows-setup.exe"
    compile_setup(setup, bundling.root / "installers" / "windows" / "hypnos.nsi", target, bundling.work)
    return target


def compile_setup(setup: Setup, script: Path, target: Path, work: Path) -> None:
    """Run NSIS's compiler. Raises BuildRefused, with its last lines when it fails."""
    absent = [name for name in EXECUTABLES if not (setup.payload / name).is_file()]
    if absent:
        raise BuildRefused(f"{setup.payload} is no program for Windows: it lacks {', '.join(absent)}.")
    program = shutil.which("makensis")
    if program is None:
        raise BuildRefused("NSIS is not installed, or its makensis is not in the search path.")
    list_of_removals = work / "removals.nsh"
    list_of_removals.write_text(removals(setup.payload), encoding="utf-8-sig")
    values = {
        "OUTFILE": target,
        "PAYLOAD": setup.payload,
        "ICON": setup.icon,
        "LICENCE": setup.licence,
        "REMOVALS": list_of_removals,
        "VERSION": setup.version,
        "KILOBYTES": -(-size_bytes(setup.payload) // 1024),
        "COMPRESSOR": setup.compressor,
    }
    defined = [f"-D{name}={value}" for name, value in values.items()]
    done = subprocess.run(
        [program, "-V2", "-WX", "-INPUTCHARSET", "UTF8", *defined, str(script)],
        env={**os.environ, "LC_ALL": "C.UTF-8"},  # elsewhere than on Windows it reads names by the locale
        check=False,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode != 0:
        raise BuildRefused(f"makensis failed:\n{(done.stdout + done.stderr).strip()[-2000:]}")


def removals(payload: Path) -> str:
    """NSIS commands that delete exactly the files of `payload`, and then its folders where they are empty."""
    folders = sorted((path for path in payload.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
    files = sorted(path for path in payload.rglob("*") if not path.is_dir())
    return _commands("Delete", files, payload) + _commands("RMDir", folders, payload)


def _commands(command: str, paths: Iterable[Path], payload: Path) -> str:
    return "".join(f'{command} "$INSTDIR\\{_escaped(path.relative_to(payload))}"\n' for path in paths)


def _escaped(inside: Path) -> str:
    return str(PureWindowsPath(inside)).replace("$", "$$")
