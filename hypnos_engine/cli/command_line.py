"""Reads the command line and turns whatever a command raises into one sentence and an exit code.

Commands import what they need when they run, so that `hypnos --version` starts nothing.
"""

import argparse
import contextlib
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from hypnos_engine import __version__
from hypnos_engine.cli import catalog, doctor, logs, models, serve, simulate
from hypnos_engine.cli.layout import HelpLayout
from hypnos_engine.cli.streams import EXIT_INTERRUPTED, let_go
from hypnos_engine.domain.errors import HypnosError

EXIT_UNEXPECTED = 1
EXIT_USAGE = 2

_CATALOG_BLOCK = "--catalog-block"
_TOP_LEVEL_OPTIONS = frozenset({"-h", "--help", "--version"})

Command = Callable[[argparse.Namespace], int]


class _UsageError(Exception):
    pass


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without the usage in front of it."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{message}; see `{self.prog} --help`.")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line; each command has set `run` on what it parses."""
    parser = _Parser(
        prog="hypnos",
        description="Serve this computer's models behind one OpenAI-compatible address.",
        epilog="Without a command Hypnos serves: `hypnos --port 1234` is `hypnos serve --port 1234`.",
        formatter_class=HelpLayout,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hypnos {__version__}", help="show the version and end")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)
    for add in (serve.add, doctor.add, simulate.add, catalog.add, models.add, logs.add):
        command = add(commands)
        command.add_argument(
            "-v",
            "--verbose",
            action="count",
            default=0,
            help="say more, twice even more, and where a failure happened",
        )
    return parser


def with_command(arguments: Sequence[str]) -> list[str]:
    """Put `serve` in front of a command line that names no command (contract §19-33).

    `--catalog-block SPEC` is the name that clients know for `catalog block SPEC` (contract §6.2-48).
    """
    if arguments and arguments[0].partition("=")[0] == _CATALOG_BLOCK:
        _, equals, spec = arguments[0].partition("=")
        return ["catalog", "block", *((spec,) if equals else ()), *arguments[1:]]
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in _TOP_LEVEL_OPTIONS):
        return ["serve", *arguments]
    if arguments[0] == models.NAME:
        return models.with_action(arguments)
    return list(arguments)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Nothing is raised but SystemExit of `--help` and `--version`."""
    _print_anything()
    try:
        options = build_parser().parse_args(with_command(arguments))
    except _UsageError as refused:
        _say(str(refused))
        return EXIT_USAGE
    command: Command = options.run
    try:
        return command(options)
    except HypnosError as error:
        _show_where(options)
        _say(error.message)
        return _exit_code(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        let_go(sys.stdout)  # whoever read the output has left
        return EXIT_UNEXPECTED
    except Exception as error:  # the last stop: a person gets a sentence, -v the place
        _show_where(options)
        hint = "" if options.verbose else "; run it again with -v to see where"
        _say(f"Something went wrong inside Hypnos ({type(error).__name__}: {error}){hint}.")
        return EXIT_UNEXPECTED


def _exit_code(error: HypnosError) -> int:
    from hypnos_engine.api.error_table import row_of

    return row_of(error).exit_code


def _show_where(options: argparse.Namespace) -> None:
    if options.verbose:
        traceback.print_exc()


def _say(sentence: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"hypnos: {sentence}\n")


def _print_anything() -> None:
    """Keep a terminal without Unicode from turning a path into a crash."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
