"""The icon in the tray and its menu. Paints the face it is given and emits intents."""

from collections.abc import Callable

from PySide6.QtWidgets import QSystemTrayIcon

from app.desktop import icons
from app.desktop.stalls import watched
from app.presenters.faces import Face
from app.presenters.intents import Intent, ShowStatus
from app.presenters.menu import Menu
from app.presenters.notices import Notice, Weight
from app.qtmodels.menus import LiveMenu

TOLD_MS = 10_000


class Tray:
    """Shown by `appear`, on desktops that have a tray."""

    def __init__(self, lines: Callable[[], Menu], emit: Callable[[Intent], None]) -> None:
        self._emit = emit
        self._face: Face | None = None
        self._dark = False
        self._last: Notice | None = None
        self._menu = LiveMenu("Hypnos", lines, emit)
        self._icon = QSystemTrayIcon()
        self._icon.setContextMenu(self._menu)
        self._icon.activated.connect(self._activated)
        self._icon.messageClicked.connect(self._message_clicked)

    @staticmethod
    def is_possible() -> bool:
        """Whether this desktop shows tray icons now; some begin to a while after login."""
        return QSystemTrayIcon.isSystemTrayAvailable()

    @property
    def is_shown(self) -> bool:
        return self._icon.isVisible()

    def appear(self) -> None:
        # Trays that take the menu over a bus ask for it before it is opened for the first time.
        self._menu.rebuild()
        self._icon.show()

    def disappear(self) -> None:
        self._icon.hide()

    @watched
    def show_face(self, face: Face, *, dark: bool) -> None:
        """Paint a face; an equal one is left alone."""
        if face == self._face and dark == self._dark:
            return
        self._face, self._dark = face, dark
        self._icon.setIcon(icons.tray_icon(face.mood, face.step, dark=dark))
        self._icon.setToolTip(face.tooltip)

    def tell(self, notice: Notice) -> None:
        """Show a notice in the desktop's own way."""
        self._last = notice
        kind = QSystemTrayIcon.MessageIcon
        picture = kind.Warning if notice.weight is Weight.PROBLEM else kind.Information
        self._icon.showMessage(notice.title, notice.text, picture, TOLD_MS)

    @watched
    def _activated(self, reason: QSystemTrayIcon.ActivationReason) -> None:
        if reason in (QSystemTrayIcon.ActivationReason.Trigger, QSystemTrayIcon.ActivationReason.DoubleClick):
            self._emit(ShowStatus())

    @watched
    def _message_clicked(self) -> None:
        if self._last is not None:
            self._emit(self._last.action or ShowStatus())
