"""Starts a worker: `python -m hypnos_engine.workers --kind KIND [--parent PID] [--handles-fd N]`, or `--probe`.

Decides which engine runs; must not import an engine before the supervisor has been greeted.
"""

import os
import sys
from typing import NoReturn

from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.ipc import messages as m
from hypnos_engine.workers import process
from hypnos_engine.workers.channel import Channel

EXIT_FAILED = 1
EXIT_USAGE = 2
HOLDER = "holder"
_KINDS = {name: kind for kind in (EngineKind.LLAMA, EngineKind.FAKE) for name in (kind.value, kind.name.lower())}
_USAGE = f"""\
usage: hypnos-worker (--kind KIND | --probe) [--spare] [--parent PID] [--handles-fd N]

Runs one model for a Hypnos supervisor; speaks its protocol on stdin and stdout.
  --kind KIND      engine to run: {", ".join(_KINDS)}; or {HOLDER}, to keep files in memory
  --probe          say what the inference library can use and exit
  --spare          nobody waits for it yet: leave the processor to others while it gets ready
  --parent PID     process id of whoever started this; it ends with it
  --handles-fd N   descriptor of the socket that passes blocks
"""


def main(arguments: list[str]) -> NoReturn:
    """Run one worker to its end, and end the process with it."""
    try:
        status = _run(arguments)
    except BaseException:
        import traceback

        traceback.print_exc()
        status = EXIT_FAILED
    # Threads may be inside native calls, and native libraries do not all survive the interpreter's teardown.
    sys.stderr.flush()
    os._exit(status)


def _run(arguments: list[str]) -> int:
    asked = _Asked()
    problem = asked.read(arguments)
    if problem or arguments == ["--help"]:
        sys.stderr.write(f"{_USAGE}{problem}")
        return EXIT_USAGE if problem else 0
    process.leave_no_core()
    process.leave_interrupts_to_parent()
    read_fd, write_fd = process.take_over_channel()
    process.end_with_parent(asked.parent)
    if asked.holder:
        from hypnos_engine.workers.holder import keeper

        return keeper.run(read_fd, write_fd)
    if asked.kind is None:
        from hypnos_engine.workers.llama.probe import report

        Channel[m.ToWorker](read_fd, write_fd).send(report())
        return 0
    return _serve(asked.kind, read_fd, write_fd, asked)


def _serve(kind: EngineKind, read_fd: int, write_fd: int, asked: "_Asked") -> int:
    if kind is EngineKind.FAKE:
        from hypnos_engine.workers import fake

        fake_channel = Channel[m.ToWorker](read_fd, write_fd)
        fake_channel.send(m.Hello(m.PROTOCOL_VERSION, kind, os.getpid()))
        fake_channel.start_reading()
        return fake.run(fake_channel)

    from hypnos_engine.workers.llama import start

    channel = start.open_channel(read_fd, write_fd)
    channel.handles_fd = asked.handles_fd
    channel.send(m.Hello(m.PROTOCOL_VERSION, kind, os.getpid()))
    channel.start_reading()
    return start.run(channel, spare=asked.spare)


class _Asked:
    """The command line. Read by hand: the library for it takes longer to import than the supervisor is kept waiting."""

    kind: EngineKind | None = None
    """None for the probe and the holder."""
    holder = False
    spare = False
    parent: int | None = None
    handles_fd: int | None = None

    def read(self, arguments: list[str]) -> str:
        """Take the arguments in; return what is wrong with them, a sentence with its line's end, or nothing."""
        what = 0
        rest = iter(arguments)
        for name in rest:
            value = "" if name in ("--probe", "--spare", "--help") else next(rest, None)
            match name:
                case "--spare":
                    self.spare = True
                case "--probe" | "--help":
                    what += 1
                case "--kind" if value in _KINDS:
                    what, self.kind = what + 1, _KINDS[value]
                case "--kind" if value == HOLDER:
                    what, self.holder = what + 1, True
                case "--kind" if value is not None:
                    return f"There is no engine '{value}' in this program.\n"
                case "--parent" if value is not None and value.isdecimal():
                    self.parent = int(value)
                case "--handles-fd" if value is not None and value.isdecimal():
                    self.handles_fd = int(value)
                case "--kind" | "--parent" | "--handles-fd":
                    return f"The argument {name} needs {'an engine' if name == '--kind' else 'a number'} after it.\n"
                case _:
                    return f"The argument '{name}' is not known.\n"
        return "" if what == 1 else "One of --kind and --probe is needed, and no two of them.\n"


if __name__ == "__main__":
    main(sys.argv[1:])
