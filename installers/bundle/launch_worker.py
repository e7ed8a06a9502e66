"""The executable `hypnos-worker`: becomes whichever child process its first argument names."""

import sys
from importlib import import_module

from hypnos_engine.ipc.programs import asked_for


def main() -> int:
    """Entry point; returns the exit code, unless the child ends the process itself."""
    program, arguments = asked_for(sys.argv[1:])
    status: int = import_module(program.value).main(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
