"""`.venv/bin/python installers/build.py`: makes the packaged program and the installers of this system.

Decides what is made from the command line; how, is decided in `bundle`, `linux`, `windows` and `macos`.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if sys.path and Path(sys.path[0] or ".").resolve() == ROOT / "installers":
    sys.path[0] = str(ROOT)

from installers.bundle import contents  # noqa: E402
from installers.bundle.freeze import Bundling, Packaged, freeze, made_before  # noqa: E402
from installers.bundle.licences import COMMON_TEXTS  # noqa: E402
from installers.bundle.sizes import largest_parts, size_bytes  # noqa: E402
from installers.environment import clean_environment  # noqa: E402
from installers.linux import deb, self_extracting  # noqa: E402
from installers.locks import only_one  # noqa: E402
from installers.macos import disk_image  # noqa: E402
from installers.progress import Display  # noqa: E402
from installers.refusal import EXIT_INTERRUPTED, EXIT_USAGE, BuildRefused, SetupRefused  # noqa: E402
from installers.windows import setup_program  # noqa: E402

MAKERS = {"linux": ("deb", "run"), "win32": ("setup",), "darwin": ("dmg",)}
"""Kinds of installers that each system can make of its own program."""


def read_arguments(arguments: Sequence[str], platform: str) -> argparse.Namespace:
    """Take the command line apart for a system (as `sys.platform` names it)."""
    known = ("program", *MAKERS.get(platform, ()))
    parser = argparse.ArgumentParser(prog="installers/build.py", description=__doc__.splitlines()[0])
    parser.add_argument(
        "what",
        nargs="*",
        metavar="WHAT",
        help=f"what to make: {', '.join(known)}; without any, all. The installers take the program that is there",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the results (default: dist)")
    parser.add_argument(
        "--common-licences",
        type=Path,
        default=COMMON_TEXTS,
        metavar="FOLDER",
        help="where the files LGPL-3 and GPL-3 are, which Qt's packages only name (default: Debian's folder)",
    )
    asked = parser.parse_args(arguments)
    for kind in asked.what:
        if kind not in known:
            raise BuildRefused(f"'{kind}' cannot be made on this system: {', '.join(known)} can.", exit_code=EXIT_USAGE)
    asked.what = asked.what or list(known)
    return asked


def run(arguments: Sequence[str], display: Display) -> int:
    """Do what the command line asks. Raises BuildRefused."""
    asked = read_arguments(arguments, sys.platform)
    environment = clean_environment(os.environ)
    bundling = Bundling(ROOT, asked.out.resolve(), environment, display, asked.common_licences)
    bundling.log.parent.mkdir(parents=True, exist_ok=True)
    waiting = "Another build is running in this folder; waiting for it to end ..."
    with only_one(bundling.log.with_name("lock"), lambda: display.line(waiting)):
        bundling.log.write_text("", encoding="utf-8")
        _build(asked.what, bundling)
    return 0


def _build(kinds: Sequence[str], bundling: Bundling) -> None:
    packaged = None if "program" in kinds else made_before(bundling)
    if packaged is None:
        packaged = freeze(bundling)
        _check_size(packaged, bundling.display)
    for kind in kinds:
        if kind != "program":
            bundling.display.start(f"Making the installer ({kind})")
            made = _make(kind, packaged, bundling)
            bundling.display.finish(f"{made.stat().st_size / 1e6:.1f} MB in {made}")


def _check_size(packaged: Packaged, display: Display) -> None:
    size = size_bytes(packaged.folder)
    display.line(f"  {packaged.folder}: {size / 1e6:.1f} MB, of these:")
    for part, part_bytes in largest_parts(packaged.folder, 8):
        display.line(f"  {part_bytes / 1e6:9.1f} MB  {part}")
    if size > contents.LARGEST_BYTES:
        raise BuildRefused(f"The program has {size} bytes, more than the {contents.LARGEST_BYTES} that it may have.")


def _make(kind: str, packaged: Packaged, bundling: Bundling) -> Path:
    match kind:
        case "deb":
            return deb.make(packaged, bundling)
        case "run":
            return self_extracting.make(packaged, bundling)
        case "setup":
            return setup_program.make(packaged, bundling)
        case _:
            return disk_image.make(packaged, bundling)


def main(arguments: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    display = Display(sys.stdout)
    try:
        return run(arguments, display)
    except SetupRefused as refused:
        display.clear()
        sys.stderr.write(f"{refused}\n")
        return refused.exit_code
    except KeyboardInterrupt:
        display.clear()
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
