"""`hypnos-app`: reads the command line and starts the desktop program."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from app.desktop.display import why_no_windows

NOT_LOADED = """\
The desktop part of Hypnos cannot be loaded ({error}). Run `./run.sh setup desktop`; Debian and Ubuntu also need
`sudo apt install libdbus-1-3 libegl1 libfontconfig1 libgl1 libxcb-cursor0 libxkbcommon-x11-0`.
Without a desktop, `./run.sh serve` does the same work."""
"""Told instead of a traceback where Qt, or what it needs of the system, is missing."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = _parser().parse_args(arguments)
    if (problem := why_no_windows(os.environ)) is not None:
        sys.stderr.write(f"{problem}\n")
        return 1
    try:
        from app.compose.program import Options
        from app.compose.run import run
        from app.engine_host import ServeRequest
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("PySide6", "qasync", "shiboken6"):
            raise
        sys.stderr.write(f"{NOT_LOADED.format(error=error)}\n")
        return 1
    request = ServeRequest(config=options.config, port=options.port, models_dir=options.models_dir, demo=options.demo)
    return run(Options(request, at_login=options.at_login))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hypnos-app", description="Hypnos with an icon in the tray and windows.", allow_abbrev=False
    )
    parser.add_argument("--port", type=_port, help="TCP port to listen on (9999)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration to read")
    parser.add_argument("--models-dir", type=Path, metavar="FOLDER", help="first folder to look for models in")
    parser.add_argument("--demo", action="store_true", help="serve invented answers, without any weights")
    parser.add_argument("--at-login", action="store_true", help="begin in the tray, without a window")
    return parser


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:6]) <= 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 1 to 65535, not {text[:40]!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
