"""The Qt application, and what it does when the system, a signal or a mistake ends it."""

import logging
import os
import signal
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable
from types import FrameType, TracebackType

from PySide6.QtCore import QEvent
from PySide6.QtWidgets import QApplication

from app.desktop.icons import program_icon
from app.dialogs.parts import is_dark

log = logging.getLogger("hypnos.app")

STOP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")


class Application(QApplication):
    """Qt's application. `asked_to_quit` is called instead of quitting: running answers may end first."""

    def __init__(self) -> None:
        super().__init__(["hypnos"])
        self.asked_to_quit: Callable[[], None] = self.exit
        self.setApplicationName("hypnos")
        self.setApplicationDisplayName("Hypnos")
        self.setDesktopFileName("hypnos")
        self.setWindowIcon(program_icon())
        self.setQuitOnLastWindowClosed(False)
        self.commitDataRequest.connect(lambda _session: self.asked_to_quit())
        # Whether it starts at login is decided by its entry, not by what ran when the session ended.
        self.saveStateRequest.connect(lambda session: session.setRestartHint(session.RestartHint.RestartNever))

    def event(self, event: QEvent) -> bool:
        """As Qt's, but a wish to quit (the dock, the end of the session) is passed on."""
        if event.type() is QEvent.Type.Quit:
            self.asked_to_quit()
            return True
        return super().event(event)

    @property
    def is_dark(self) -> bool:
        return is_dark(self.palette())


def watch_signals(loop: AbstractEventLoop, asked_to_quit: Callable[[], None]) -> None:
    """The first signal asks to quit; a second one ends the process at once, and its workers with it."""
    asked = 0

    def stop(number: int) -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            os._exit(128 + number)
        asked_to_quit()

    def from_outside(number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop, number)

    for name in STOP_SIGNALS:
        number = getattr(signal, name, None)
        if number is None:
            continue
        if sys.platform == "win32":
            signal.signal(number, from_outside)
        else:
            loop.add_signal_handler(number, stop, number)


def log_mistakes(loop: AbstractEventLoop) -> None:
    """What a slot or a task raises goes to the log, and the program goes on."""

    def of_slot(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        log.error("a mistake in a window", exc_info=(kind, error, trace))

    def of_task(_loop: AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        log.error("%s", context.get("message"), exc_info=error if isinstance(error, BaseException) else None)

    sys.excepthook = of_slot
    loop.set_exception_handler(of_task)
