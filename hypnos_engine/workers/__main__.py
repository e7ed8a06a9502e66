"""Starts a worker: `python -m hypnos_engine.workers --kind KIND [--parent PID] [--handles-fd N]`, or `--probe`.

Decides which engine runs; must not import an engine before the supervisor has been greeted.
"""

import argparse
import os
import sys
import traceback

from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.ipc import messages as m
from hypnos_engine.workers import process
from hypnos_engine.workers.channel import Channel

EXIT_FAILED = 1
_SHORT_NAMES = {"llama": EngineKind.LLAMA, "fake": EngineKind.FAKE}


def main(argv: list[str] | None = None) -> int:
    """Run one worker to its end and return its exit status."""
    arguments = _parser().parse_args(argv)
    process.leave_no_core()
    if arguments.render:
        from hypnos_engine.workers.llama import template_program

        template_program.main(arguments.parent)
        return 0
    process.leave_interrupts_to_parent()
    read_fd, write_fd = process.take_over_channel()
    process.end_with_parent(arguments.parent)
    if arguments.probe:
        from hypnos_engine.workers.llama.probe import report

        Channel[m.ToWorker](read_fd, write_fd).send(report())
        return 0
    return _serve(arguments.kind, read_fd, write_fd)


def _serve(kind: EngineKind, read_fd: int, write_fd: int) -> int:
    if kind is EngineKind.FAKE:
        from hypnos_engine.workers import fake

        fake_channel = Channel[m.ToWorker](read_fd, write_fd)
        fake_channel.send(m.Hello(m.PROTOCOL_VERSION, kind, os.getpid()))
        fake_channel.start_reading()
        return fake.run(fake_channel)

    from hypnos_engine.workers.llama import start

    channel = start.open_channel(read_fd, write_fd)
    channel.send(m.Hello(m.PROTOCOL_VERSION, kind, os.getpid()))
    channel.start_reading()
    return start.run(channel)


def _kind(name: str) -> EngineKind:
    kind = _SHORT_NAMES.get(name)
    if kind is None and name in _SHORT_NAMES.values():
        kind = EngineKind(name)
    if kind is None:
        known = ", ".join([*_SHORT_NAMES, *_SHORT_NAMES.values()])
        raise argparse.ArgumentTypeError(f"no engine '{name}' in this program; it has {known}")
    return kind


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hypnos-worker",
        description="Runs one model for a Hypnos supervisor; speaks its protocol on stdin and stdout.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--kind", type=_kind, help="engine to run")
    what.add_argument("--probe", action="store_true", help="print what the inference library can use and exit")
    what.add_argument("--render", action="store_true", help="render a worker's chat template; started by the worker")
    parser.add_argument("--parent", type=int, help="process id of whoever started this; it ends with it")
    parser.add_argument("--handles-fd", type=int, help="descriptor of the socket that passes blocks")
    return parser


def _end(status: int) -> None:
    # Threads may be inside native calls, and native libraries do not all survive the interpreter's teardown.
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    try:
        _status = main()
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        _status = EXIT_FAILED
    _end(_status)
