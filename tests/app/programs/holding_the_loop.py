"""Holds the desktop's loop in each way that there is, and prints who was recorded for it."""

import asyncio
import os
import time

os.environ["QT_QPA_PLATFORM"] = "offscreen"

from PySide6.QtCore import QTimer
from PySide6.QtGui import QPaintEvent
from PySide6.QtWidgets import QApplication, QWidget

from app.desktop.loop import BEAT_S, Heartbeat, WatchedLoop, run_to_the_end
from app.desktop.stalls import HERE, watched

HOLD_S = 0.2
"""Processor time; long beside whatever else the program does in a turn."""


def hold() -> None:
    """Compute for so long."""
    until = time.thread_time() + HOLD_S
    while time.thread_time() < until:
        pass


class SlowPicture(QWidget):
    def __init__(self) -> None:
        super().__init__()
        self.painted = asyncio.Event()

    @watched
    def paintEvent(self, event: QPaintEvent) -> None:
        if not self.painted.is_set():
            hold()
            self.painted.set()


async def slow_coroutine() -> None:
    hold()


async def main() -> None:
    await asyncio.create_task(slow_coroutine(), name="slow task")
    picture = SlowPicture()
    picture.show()
    await picture.painted.wait()
    picture.close()
    Heartbeat(beats=3).start()
    QTimer.singleShot(0, hold)
    await asyncio.sleep(4 * BEAT_S)


if __name__ == "__main__":
    application = QApplication([])
    application.setQuitOnLastWindowClosed(False)
    run_to_the_end(WatchedLoop(application), main())
    for stall in HERE.recent:
        if stall.held_s >= HOLD_S / 2:
            print(stall.who)
