"""All that is on the screen: the tray icon and the windows, fed with views and notices. Sends intents to one place."""

import logging
import sys
from collections.abc import Callable
from datetime import datetime

import PySide6
from PySide6.QtCore import QTimer, qVersion
from PySide6.QtWidgets import QWidget

from app.compose.application import Application
from app.compose.components import parts
from app.desktop.icons import program_icon
from app.desktop.loop import Heartbeat
from app.desktop.stalls import watched
from app.dialogs.about import AboutWindow
from app.dialogs.requests import RequestsWindow
from app.dialogs.status import StatusWindow
from app.presenters import intents
from app.presenters.about import About, about
from app.presenters.faces import face
from app.presenters.menu import Desk, Menu, menu
from app.presenters.notices import Notice, Weight
from app.state import View
from app.tray import Tray
from hypnos_engine import __version__

log = logging.getLogger("hypnos.app")

TRAY_LOOKS_S = (0.5, 1, 2, 4, 8, 15, 30)
"""When to look again for a tray that was not there: panels start after the programs of a login."""

Emit = Callable[[intents.Intent], None]


class Screen:
    """`starts_at_login` says whether the login entry is there; None where there can be none."""

    def __init__(self, application: Application, emit: Emit, starts_at_login: Callable[[], bool | None]) -> None:
        self._application = application
        self._emit = emit
        self._starts_at_login = starts_at_login
        self._view = View("", own=True)
        self._unseen = 0
        self._tray = Tray(self._menu, emit)
        self._status = StatusWindow(
            emit, lines=self._menu, looked_at=self._status_looked_at, closed=self._status_closed
        )
        self._requests = RequestsWindow()
        self._about = AboutWindow(_about(), program_icon())
        self._looks = list(TRAY_LOOKS_S)
        self._heartbeat = Heartbeat()
        application.styleHints().colorSchemeChanged.connect(lambda _scheme: self._show_face())

    @property
    def has_tray(self) -> bool:
        return self._tray.is_shown

    def appear(self, *, at_login: bool) -> None:
        """Show the icon, or a normal window where there is no tray; started by hand, the window too."""
        self._show_face()
        if Tray.is_possible():
            self._tray.appear()
        else:
            self._look_again_later()
        self._warm_up()
        if not at_login:
            self.show_status()
        elif not self.has_tray:
            self._status.showMinimized()

    def disappear(self) -> None:
        """Take everything off the screen, for good."""
        self._tray.disappear()
        for window in self._windows():
            window.hide()

    # --- what is shown ---

    @watched
    def show_view(self, view: View) -> None:
        """Paint a view wherever it can be seen."""
        self._view = view
        self._show_face()
        if any(window.isVisible() for window in self._windows()):
            self._heartbeat.start()
        if self._status.isVisible():
            self._status.show_view(view)
        if self._requests.isVisible():
            self._requests.show_view(view)

    def tell(self, notice: Notice) -> None:
        """Show a notice once: in the desktop's way, and in the status window's list."""
        log.info("told: %s: %s", notice.title, notice.text)
        self._status.add_notice(notice, datetime.now().astimezone())
        looked_at = self._status.isActiveWindow()
        if notice.weight is Weight.PROBLEM and not looked_at:
            self._unseen += 1
        if not looked_at and self._tray.is_shown:
            self._tray.tell(notice)
        self._show_face()

    @watched
    def show_status(self) -> None:
        self._status.show_view(self._view)
        self._raise(self._status)
        self._status_looked_at()

    @watched
    def show_requests(self) -> None:
        self._requests.show_view(self._view)
        self._raise(self._requests)

    @watched
    def show_about(self) -> None:
        self._raise(self._about)

    def _show_face(self) -> None:
        self._tray.show_face(face(self._view, unseen=self._unseen), dark=self._application.is_dark)

    def _menu(self) -> Menu:
        return menu(self._view, Desk(self._starts_at_login(), self._unseen))

    # --- the tray that comes later ---

    def _look_again_later(self) -> None:
        if self._looks:
            QTimer.singleShot(int(self._looks.pop(0) * 1000), self._look_for_tray)

    @watched
    def _look_for_tray(self) -> None:
        if Tray.is_possible():
            self._tray.appear()
        else:
            self._look_again_later()

    def _status_looked_at(self) -> None:
        self._heartbeat.start()
        if self._unseen:
            self._unseen = 0
            self._show_face()

    def _status_closed(self) -> None:
        # A program without a tray icon and without a window could not be reached any more.
        if not self.has_tray:
            self._emit(intents.Quit())

    # --- windows ---

    def _raise(self, window: QWidget) -> None:
        if window.isMinimized():
            window.showNormal()
        window.show()
        window.raise_()
        window.activateWindow()
        self._heartbeat.start()

    def _windows(self) -> tuple[QWidget, ...]:
        return (self._status, self._requests, self._about)

    def _warm_up(self) -> None:
        """Lay each window out and paint it once unseen, while no stream waits: the first time takes the longest."""
        for window in self._windows():
            window.grab()
            window.winId()


def _about() -> About:
    bundled = bool(getattr(sys, "frozen", False))
    return about(version=__version__, qt=qVersion(), parts=parts(), qt_folder=PySide6.__path__[0], bundled=bundled)
