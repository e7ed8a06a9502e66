"""`hypnos`: hands the command line to the command it names; imports nothing else until then.

From here to the end of the process no interrupt and no closed stream may show a traceback.
"""

import sys

from hypnos_engine.cli import streams


def main() -> int:
    """Entry point of the `hypnos` command; returns the exit code."""
    streams.end_quietly_when_interrupted()
    streams.open_missing()
    from hypnos_engine.cli.command_line import run

    try:
        return run(sys.argv[1:])
    finally:
        streams.end_quietly_when_interrupted()
        streams.settle()


if __name__ == "__main__":
    sys.exit(main())
