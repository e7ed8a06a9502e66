"""Writes docs/cli.md from the parsers and the table of errors; `python -m hypnos_engine.cli.reference` prints it."""

import argparse
import inspect
import signal
import sys
from collections.abc import Iterator

from hypnos_engine.api.error_table import row_of
from hypnos_engine.cli import command_line
from hypnos_engine.cli.streams import EXIT_INTERRUPTED
from hypnos_engine.domain import errors

_HEAD = """\
# Command line

`./run.sh COMMAND` is `hypnos COMMAND` in the environment that set-up made; `./run.sh --help` shows what set-up itself
takes. This page is generated from the program.
"""
_STARTS = (
    (errors.StartRefused, "Hypnos cannot start as asked"),
    (errors.ConfigurationInvalid, "the configuration has problems; all of them are named, with file and line"),
    (errors.PortInUse, "another program has the port"),
    (errors.AlreadyRunning, "this user's Hypnos already serves; the message says where"),
    (errors.BindRefused, "an address that others can reach, and no API key"),
    (errors.FolderUnusable, "a folder or a file of the engine cannot be made or written to"),
)


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for parser in _parsers(command_line.build_parser()):
        parts.append(f"## {parser.prog}\n\n```\n{parser.format_help().strip()}\n```\n")
    parts.append(_exit_codes())
    return "\n".join(parts)


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _parsers(below)


def _exit_codes() -> str:
    rows = [
        ("0", "all went well; `serve` was told to end and ended"),
        (
            str(command_line.EXIT_UNEXPECTED),
            "something unexpected; for `doctor` and `catalog`: something has to be mended or is missing",
        ),
        (str(command_line.EXIT_USAGE), "the command line is wrong"),
        *((str(row_of(error("")).exit_code), meaning) for error, meaning in _STARTS),
        (str(EXIT_INTERRUPTED), "ended at once: a second Ctrl-C (SIGINT), or one while the program was being loaded"),
        (str(128 + signal.SIGTERM), "ended at once: a second SIGTERM, or one while the program was being loaded"),
    ]
    table = "\n".join(f"| {code} | {meaning} |" for code, meaning in rows)
    return (
        inspect.cleandoc(
            """
        ## Exit codes

        A failure is one sentence on standard error; `-v` adds where in the program it happened.

        | code | meaning |
        |---|---|
        """
        )
        + f"\n{table}\n"
    )


if __name__ == "__main__":
    sys.stdout.write(page())
