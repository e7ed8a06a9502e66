"""Writes overlays in processes that are killed: at every line of the writer in turn, and at random moments.

Prints how many were killed; fails with what was found when an overlay was neither the old nor the new one.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from hypnos_engine.config import overlay as written
from hypnos_engine.config.overlay import Overlay, PoolChanges
from hypnos_engine.domain.kinds import EngineKind, Modality
from hypnos_engine.domain.model import ModelId, ModelSpec

RANDOM_KILLS = 150


def spec(name: str, slots: int = 4) -> ModelSpec:
    return ModelSpec(ModelId(name), Modality.TEXT, EngineKind.FAKE, "", name="x" * 200, slots=slots)


def killed_while(work: Callable[[], None]) -> bool:
    """Whether a child of this process was killed before it had done the work."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def at_line(number: int, work: Callable[[], None]) -> None:
    """Do some work and be killed before the line of the writer with that number, counted as they run."""
    left = number

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != written.__file__:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    work()


def within(seconds: float, work: Callable[[], None]) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)  # nobody handles it: it ends the process where it stands
    work()


def check(overlay: Overlay, before: PoolChanges, after: PoolChanges) -> None:
    found = overlay.read()
    if found not in (before, after):
        raise SystemExit(f"neither the old nor the new one: {overlay.path.read_bytes()!r}")


def main(folder: Path) -> None:
    overlay = Overlay(folder / "hypnos.models.toml", folder / "hypnos.toml")
    by_line = at_random = slots = 0
    dice = random.Random(7)
    while True:
        slots += 1
        before, new = overlay.read(), spec("a", slots % 200 + 1)
        killed = killed_while(lambda new=new, number=slots: at_line(number, lambda: overlay.put(new)))  # type: ignore[misc]
        check(overlay, before, before.with_model(new))
        if not killed:
            break
        by_line += 1
    started_s = time.perf_counter()
    overlay.put(spec("b"))
    takes_s = time.perf_counter() - started_s
    for number in range(RANDOM_KILLS):
        before, new = overlay.read(), spec(f"m{number % 5}", number % 200 + 1)
        killed = killed_while(lambda new=new: within(dice.uniform(1e-5, takes_s), lambda: overlay.put(new)))  # type: ignore[misc]
        at_random += killed
        check(overlay, before, before.with_model(new))
    overlay.put(spec("last"))
    left = sorted(path.name for path in folder.iterdir() if path.name.endswith(".draft"))
    print(by_line, at_random, *left)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
