"""`hypnos`: hands the command line to the command it names; imports nothing else until then."""

import sys

from hypnos_engine.cli.command_line import run


def main() -> int:
    """Entry point of the `hypnos` command; returns the exit code."""
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
