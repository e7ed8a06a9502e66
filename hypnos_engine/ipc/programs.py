"""Decides which command line starts a further process of this program, from an interpreter or packaged; starts nothing.

Each kind of process is a module with `main(arguments)`. A packaged program has one executable for all of them, beside
the program's own; `asked_for` tells it which one it is to be.
"""

import os
import sys
from enum import Enum
from pathlib import Path
from typing import Final


class Program(Enum):
    """What can be started; the value is its module, whose `main(arguments: list[str])` returns an exit status."""

    WORKER = "hypnos_engine.workers.__main__"
    """Runs one model (`--kind`), or says what the inference library can use (`--probe`)."""
    RENDERER = "hypnos_engine.workers.llama.template_program"
    """Renders one model's chat template."""
    READER = "hypnos_engine.server.reading_process"
    """Reads large request bodies."""
    DOWNLOADER = "hypnos_engine.catalog.downloads.child"
    """Downloads one job's files."""


_FLAGS: Final = {Program.RENDERER: "--render", Program.READER: "--read", Program.DOWNLOADER: "--download"}
"""How the packaged executable is told; without any of them it is a worker."""

# The search path is handed over: reading the environment's own settings again would cost as much as a library's import.
_START: Final = (
    "import sys; sys.path[:] = {path!r}; "
    "from importlib import import_module; sys.exit(import_module(sys.argv.pop(1)).main(sys.argv[1:]))"
)


def command(program: Program, *arguments: str) -> list[str]:
    """The argument list that starts `program` of this very installation."""
    if is_packaged():
        return [*packaged_command(Path(sys.executable).parent, program), *arguments]
    return [*interpreter_command(sys.executable, program), *arguments]


def interpreter_command(executable: str, program: Program) -> list[str]:
    """How an interpreter starts `program`, with the search path of this process and without the current folder."""
    return [executable, "-P", "-S", "-c", _START.format(path=_search_path()), program.value]


def packaged_command(folder: Path, program: Program) -> list[str]:
    """How a packaged program starts `program`; `folder` is where its executables lie."""
    name = "hypnos-worker.exe" if sys.platform == "win32" else "hypnos-worker"
    flag = _FLAGS.get(program)
    return [str(folder / name), *([flag] if flag else [])]


def asked_for(arguments: list[str]) -> tuple[Program, list[str]]:
    """Which program the packaged executable is to be, and the arguments of that one."""
    for program, flag in _FLAGS.items():
        if arguments[:1] == [flag]:
            return program, arguments[1:]
    return Program.WORKER, arguments


def is_packaged() -> bool:
    """Whether this process runs from a packaged program, without an interpreter beside it."""
    return bool(getattr(sys, "frozen", False))


def _search_path() -> list[str]:
    """Where this process finds modules, its own package included, also when no path led to that."""
    own = str(Path(__file__).resolve().parents[2])
    path = [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100 - an empty entry is the current folder
    return path if own in path else [own, *path]
