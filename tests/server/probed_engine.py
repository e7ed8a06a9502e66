"""`hypnos serve` with a probe on its loop: how long anything in the process kept the loop from turning.

Started by `tests.server.probing`. For each line of its stdin it prints one of JSON: the figures since the last one.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import threading
import time
from pathlib import Path

import uvloop

from hypnos_engine.daemon import Announcement, ServeRequest, serve

TICK_S = 0.001


class Probe:
    """Compares the clocks each millisecond.

    A stall is told in seconds of the process's own processor time between two ticks, all threads together: whoever held
    the loop or the interpreter's lock used it, and other programs on the machine did not. The wall clock is kept too.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._forget()
        self._tick()

    def _forget(self) -> None:
        self.stalls_s: list[float] = []
        self.lags_s: list[float] = []
        self._wall_s, self._used_s = time.perf_counter(), time.process_time()

    def _tick(self) -> None:
        wall_s, used_s = time.perf_counter(), time.process_time()
        self.stalls_s.append(used_s - self._used_s)
        self.lags_s.append(wall_s - self._wall_s - TICK_S)
        self._wall_s, self._used_s = wall_s, used_s
        self.loop.call_later(TICK_S, self._tick)

    def tell(self) -> None:
        """Print what was seen and begin anew."""
        self._print()
        self._forget()

    def _print(self) -> None:
        stalls, lags = sorted(self.stalls_s) or [0.0], sorted(self.lags_s) or [0.0]
        figures = {
            "ticks": len(stalls),
            "stall_ms": stalls[-1] * 1e3,
            "worst_ms": [round(stall * 1e3, 2) for stall in stalls[-5:]],
            "lag_ms": lags[-1] * 1e3,
            "lag_p99_ms": lags[int(len(lags) * 0.99)] * 1e3,
            "files": _files(),
            "peak_bytes": _peak_bytes(),
        }
        print(json.dumps(figures), flush=True)


def _answer_questions(probe: Probe) -> None:
    for _ in sys.stdin:
        probe.loop.call_soon_threadsafe(probe.tell)


def _files() -> list[str]:
    """What every open descriptor leads to."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(descriptor.readlink()))
    return found


def _peak_bytes() -> int:
    """Most memory that the process had at once; `getrusage` would count that of whoever started it."""
    status = Path("/proc/self/status").read_text("ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--demo", action="store_true")
    options = parser.parse_args()

    def announce(announcement: Announcement) -> None:
        probe = Probe(asyncio.get_running_loop())
        threading.Thread(target=_answer_questions, args=(probe,), daemon=True).start()
        print(announcement.address, flush=True)

    request = ServeRequest(config=options.config, port=options.port, demo=options.demo)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(request, announce=announce, announce_ready=lambda _announcement: None))


if __name__ == "__main__":
    main()
