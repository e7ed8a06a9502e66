"""What logind says of sleep, over the system's D-Bus (Linux)."""

from collections.abc import Callable

from PySide6.QtCore import SLOT, QObject, Slot
from PySide6.QtDBus import QDBusConnection

from app.desktop.stalls import watched

_SIGNAL = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "PrepareForSleep")


class LoginBus(QObject):
    """Calls `told` with True before sleep and False after it. `connected` is False where there is no such bus."""

    def __init__(self, told: Callable[[bool], None], bus: QDBusConnection | None = None) -> None:
        super().__init__()
        self._told = told
        self._bus = bus or QDBusConnection.systemBus()
        # It takes what SLOT gives, a str, although its signature says bytes.
        self.connected = self._bus.isConnected() and bool(
            self._bus.connect(*_SIGNAL, self, SLOT("on_sleep(bool)"))  # type: ignore[call-overload]
        )

    @Slot(bool)
    @watched
    def on_sleep(self, begins: bool) -> None:
        self._told(begins)
