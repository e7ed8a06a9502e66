"""Shows what set-up is doing: one live line on a terminal, plain lines elsewhere; never decides what is done."""

import contextlib
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

_PLAIN_EVERY_S = 30.0
_SHOW_AFTER_S = 1.0
_COMPILE_STEP = re.compile(r"^\s*\[(\d+)/(\d+)\]\s")
_PIP_LINE = re.compile(r"^\s*(?:Collecting|Downloading|Using cached|Processing|Building wheel for|Installing) \S+")
_FEWEST_STEPS = 20
"""A count below this belongs to one of CMake's own checks, not to the compile."""


def clock(seconds: float) -> str:
    """`0:07`, `12:30`, `1:02:03`."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


@dataclass
class Reading:
    """What pip's and ninja's output has said so far about how far they are."""

    done: int = 0
    total: int = 0
    doing: str = ""

    def take(self, line: str) -> None:
        """Learn from one line of output; lines that say nothing are ignored."""
        step = _COMPILE_STEP.match(line)
        if step:
            done, total = int(step[1]), int(step[2])
            # A nested build (Vulkan's shader compiler) counts its own, smaller total.
            if total >= max(self.total, _FEWEST_STEPS):
                self.done, self.total = done, total
        elif _PIP_LINE.match(line):
            self.doing = " ".join(line.split()[:3])[:60].rstrip(":")

    def phrase(self) -> str:
        """Where the work stands; empty when nothing is known."""
        if self.total:
            return f"{self.done}/{self.total} files"
        return self.doing


@dataclass
class Display:
    """Writes steps to one stream. On a terminal the current step is redrawn in place."""

    stream: TextIO
    now: Callable[[], float] = time.monotonic
    live: bool = field(init=False)
    _started: float = field(default=0.0, init=False)
    _said: float = field(default=0.0, init=False)
    _title: str = field(default="", init=False)
    _drawn: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.live = self.stream.isatty()

    def line(self, text: str) -> None:
        """Write one line that stays."""
        self.clear()
        self._write(text + "\n")

    def start(self, title: str) -> None:
        """Begin a step; on a pipe its title is written at once."""
        self._title, self._started, self._said = title, self.now(), self.now()
        if not self.live:
            self.line(f"  {title} ...")

    def update(self, phrase: str) -> None:
        """Show how far the current step is. May be called as often as you like."""
        elapsed = self.now() - self._started
        if self.live:
            if elapsed >= _SHOW_AFTER_S:
                self._draw(f"  {self._title}  {clock(elapsed)}  {phrase}")
        elif self.now() - self._said >= _PLAIN_EVERY_S:
            self._said = self.now()
            self.line(f"  {self._title}: {clock(elapsed)} {phrase}".rstrip())

    def finish(self, note: str = "done") -> None:
        """End the current step with a line that stays."""
        self.line(f"  {self._title}: {note} ({clock(self.now() - self._started)})")

    def _draw(self, text: str) -> None:
        width = max(20, shutil.get_terminal_size().columns - 1)
        self._write("\r" + text[:width].ljust(width))
        self._drawn = True

    def clear(self) -> None:
        """Take the live line away, if one is drawn."""
        if self._drawn:
            self._write("\r" + " " * max(20, shutil.get_terminal_size().columns - 1) + "\r")
            self._drawn = False

    def _write(self, text: str) -> None:
        """Whoever read the output may be gone (`./run.sh setup | head`): the work goes on."""
        with contextlib.suppress(OSError):
            self.stream.write(text)
            self.stream.flush()
