"""The executable `hypnos`: the desktop app, or with a command (`hypnos serve`) that command of the engine.

Decides between the two and nothing else; what children inherit from the packaging is taken away before either starts.
"""

import os
import platform
import sys
from collections.abc import Mapping, Sequence

from installers.choices import has_display

OF_THE_APP = frozenset({"--at-login", "--config", "--demo", "--models-dir", "--port"})
"""Options that the app takes; everything else on a command line is a command, or a question about them."""


def is_for_app(arguments: Sequence[str], environment: Mapping[str, str], system: str) -> bool:
    """Whether a command line without the program's name starts the app; never where there is no display for it.

    `system` as `platform.system()` says.
    """
    return (not arguments or arguments[0].partition("=")[0] in OF_THE_APP) and has_display(system, environment)


def give_back_search_path() -> None:
    """Let programs of the system that are started from here find the system's own libraries again."""
    for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LIBPATH"):
        before = os.environ.pop(f"{name}_ORIG", None)
        if before is not None:
            os.environ[name] = before
        else:
            os.environ.pop(name, None)


def main() -> int:
    """Entry point; returns the exit code."""
    give_back_search_path()
    if is_for_app(sys.argv[1:], os.environ, platform.system()):
        from app.__main__ import main as run_app

        return run_app()
    from hypnos_engine.__main__ import main as run_command

    return run_command()


if __name__ == "__main__":
    sys.exit(main())
