"""`./run.sh`: sets Hypnos up when that is needed and then becomes the command that was asked for.

Decides the order of things only; must run on nothing but a Python 3.11-3.13 and its standard library.
"""

import argparse
import os
import platform
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
# Run as a file, this has its own folder as the first place to import from: exchange that for the clone.
if sys.path and Path(sys.path[0] or ".").resolve() == ROOT / "installers":
    sys.path[0] = str(ROOT)

from installers import choices, toolchain  # noqa: E402
from installers.children import replace_with  # noqa: E402
from installers.environment import (  # noqa: E402
    Environment,
    Stamp,
    clean_environment,
    inputs_hash,
    python_of,
    python_tag,
    read_stamp,
)
from installers.locks import only_one  # noqa: E402
from installers.progress import Display  # noqa: E402
from installers.refusal import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, SetupRefused  # noqa: E402

HELP = """\
usage: ./run.sh [set-up options]                      set up if needed, then start the app; serve without a display
       ./run.sh [set-up options] COMMAND [ARGUMENT]   set up if needed, then run `hypnos COMMAND`, as in ./run.sh serve
       ./run.sh [set-up options] app [ARGUMENT]       set up if needed, then start the app with these arguments
       ./run.sh setup [set-up options] [PART ...]     set up only; PART: desktop voice documents images entities all
       ./run.sh test [pytest arguments]               run the test suite (adds the test tools to .venv)
       ./run.sh screenshots [FOLDER]                  paint every window and menu into build/screenshots

set-up options:
  --backend {cpu,cuda,metal,vulkan}   what llama.cpp computes on (default: the best that can be built here)
  --native                            code for this machine's processor only (default: code that others run too)
  --portable                          the opposite of --native, which is remembered
  --rebuild                           compile llama.cpp again even when a build is kept

environment:
  PYTHON             the Python to use (3.11, 3.12 or 3.13)
  CMAKE_ARGS         more arguments for the compile of llama.cpp
  HYPNOS_CACHE_DIR   where compiled wheels are kept

`./run.sh serve --help` and `./run.sh doctor` tell more once Hypnos is set up.
exit codes of set-up: 1 it failed, 2 the command line is wrong or names what this version does not have, 130 interrupted
"""

EVERYDAY = "not slow and not soak and not bundle"
"""Which tests everybody runs; the others take minutes each."""

OWN_COMMANDS = ("setup", "test", "app", "screenshots")
"""Everything else is a command of `hypnos`."""


@dataclass(frozen=True)
class Call:
    """The command line of `./run.sh`, taken apart."""

    backend: str
    """Empty = not said."""
    native: bool | None
    """None = not said."""
    rebuild: bool
    command: str
    """`setup`, `test`, `app`, `screenshots` or `hypnos`."""
    arguments: tuple[str, ...]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SetupRefused(f"{message[:1].upper()}{message[1:]}; see ./run.sh --help.", exit_code=EXIT_USAGE)


def read_call(arguments: Sequence[str]) -> Call:
    """Take the command line apart. Options before the command belong to set-up, what follows it to the command."""
    own, rest = _split(arguments)
    command, following = ("hypnos", rest) if not rest or rest[0] not in OWN_COMMANDS else (rest[0], rest[1:])
    if command == "setup":
        own, following = own + following, []
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--backend", choices=[str(backend) for backend in choices.Backend], default="")
    parser.add_argument("--native", action="store_true", default=None)
    parser.add_argument("--portable", action="store_false", dest="native")
    parser.add_argument("--rebuild", action="store_true")
    parser.add_argument("parts", nargs="*")
    options = parser.parse_intermixed_args(own)
    return Call(options.backend, options.native, options.rebuild, command, (*options.parts, *following))


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        if argument == "--backend":
            position += 2
        elif argument in ("--native", "--portable", "--rebuild") or argument.startswith("--backend="):
            position += 1
        else:
            break
    return list(arguments[:position]), list(arguments[position:])


def pytest_arguments(arguments: Sequence[str]) -> list[str]:
    """What `./run.sh test` gives to pytest: everything but what takes minutes, unless the person chose with -m.

    The whole suite runs in two processes, file by file: tests mostly wait for processes and loops of their own.
    """
    if not arguments:
        return ["-m", EVERYDAY, "-n", "2", "--dist", "loadfile"]
    chosen = any(argument.startswith("-m") for argument in arguments)
    return list(arguments) if chosen else ["-m", EVERYDAY, *arguments]


def wanted_stamp(call: Call, extras: frozenset[str]) -> Stamp:
    """What `.venv` has to be like for that call."""
    return Stamp(
        inputs=inputs_hash(ROOT),
        python=python_tag(),
        root=str(ROOT),
        extras=tuple(sorted(extras)),
        backend=call.backend,
        native=call.native,
    )


def set_up(call: Call, extras: frozenset[str], display: Display) -> bool:
    """Bring `.venv` to what `call` needs. Returns whether anything was done. Raises SetupRefused."""
    wanted = wanted_stamp(call, extras)
    if not call.rebuild and _is_done(wanted):
        return False
    waiting = "Another set-up is running in this folder; waiting for it to end ..."
    with only_one(ROOT / ".cache" / "setup.lock", lambda: display.line(waiting)) as lock:
        if not call.rebuild and _is_done(wanted):
            return False  # whoever held the lock did it
        _set_up_alone(wanted, rebuild=call.rebuild, display=display, lock=lock)
    return True


def _is_done(wanted: Stamp) -> bool:
    stamp = read_stamp(ROOT / ".venv")
    return stamp is not None and stamp.covers(wanted) and python_of(ROOT / ".venv").exists()


def _set_up_alone(wanted: Stamp, *, rebuild: bool, display: Display, lock: int) -> None:
    display.line(f"Setting up Hypnos in {ROOT}")
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    before = read_stamp(ROOT / ".venv")
    goal = wanted if before is None else wanted.keeping(before)
    machine = toolchain.look_at_machine(os.environ)
    build = choices.choose_build(
        machine,
        choices.binding_version(pyproject),
        goal.backend or None,
        native=bool(goal.native),
        extra_cmake=os.environ.get("CMAKE_ARGS", ""),
    )
    log = ROOT / ".cache" / "setup.log"
    log.write_text("", encoding="utf-8")
    environment = Environment(ROOT, clean_environment(os.environ), log, display, lock)
    environment.check(build, machine, rebuild=rebuild)
    environment.make()
    environment.fill(goal, sorted(set(goal.extras) & choices.existing_extras(pyproject)), build, machine, rebuild)
    display.line(f"Set-up is done; how llama.cpp was built stands in {ROOT / '.venv' / 'hypnos-build.json'}")


def run(arguments: Sequence[str], display: Display) -> int:
    """Do what the command line asks. Raises SetupRefused; on POSIX it does not return from running a command."""
    if arguments and arguments[0] in ("-h", "--help", "help"):
        display.line(HELP.rstrip())
        return 0
    call = read_call(arguments)
    if call.command == "setup":
        return _only_set_up(call, display)
    command = call.command
    if command == "hypnos" and not call.arguments and choices.has_display(platform.system(), os.environ):
        command = "app"
    set_up(call, _EXTRAS.get(command, choices.EVERYDAY_EXTRAS), display)
    python = str(python_of(ROOT / ".venv"))
    if command == "test":
        return replace_with([python, "-m", "pytest", *pytest_arguments(call.arguments)], os.environ, ROOT)
    if command == "screenshots":
        return replace_with([python, "-m", "tests.app.pictures", *call.arguments], os.environ, ROOT)
    # -P: a file in the folder where the person stands must not stand in for a module.
    package = "app" if command == "app" else "hypnos_engine"
    return replace_with([python, "-P", "-m", package, *call.arguments], os.environ, None)


_EXTRAS = {"test": choices.TEST_EXTRAS, "app": choices.APP_EXTRAS, "screenshots": choices.APP_EXTRAS}


def _only_set_up(call: Call, display: Display) -> int:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    version = choices.project_version(pyproject)
    extras, left_out = choices.choose_parts(call.arguments, choices.existing_extras(pyproject), version)
    if not set_up(call, extras, display):
        display.line("Hypnos is set up as asked; nothing to do.")
    if left_out:
        display.line(f"Not part of Hypnos {version} yet and left out: {', '.join(left_out)}.")
    return 0


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def main(arguments: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    if not choices.python_fits(sys.version_info[:2]):
        found = ".".join(str(part) for part in sys.version_info[:3])
        sys.stderr.write(f"Hypnos needs Python 3.11, 3.12 or 3.13, and this is {found}; set PYTHON to another one.\n")
        return EXIT_USAGE
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _interrupt)
    display = Display(sys.stdout)
    try:
        return run(arguments, display)
    except SetupRefused as refused:
        display.clear()
        sys.stderr.write(f"{refused}\n")
        return refused.exit_code
    except OSError as error:
        display.clear()
        where = f" ({error.filename})" if error.filename else ""
        sys.stderr.write(f"Set-up cannot go on: {error.strerror or error}{where}.\n")
        return EXIT_FAILED
    except KeyboardInterrupt:
        display.clear()
        sys.stderr.write("Set-up was interrupted; the next ./run.sh repairs what is half done.\n")
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
