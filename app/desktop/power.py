"""Tells when the computer goes to sleep and when it wakes, by what the system says.

Listens only: it neither delays sleep nor keeps the computer awake. Where the system says nothing, nobody is told.
"""

import sys
from collections.abc import Callable

from PySide6.QtCore import QAbstractNativeEventFilter, QByteArray, QCoreApplication

Told = Callable[[bool], None]
"""Called with True before sleep and with False after it."""

_POWER_BROADCAST = 0x0218
_SUSPEND = 0x0004
_RESUME = 0x0012


class PowerBroadcasts(QAbstractNativeEventFilter):
    """Window messages of Windows."""

    def __init__(self, told: Told) -> None:
        super().__init__()
        self._told = told

    def nativeEventFilter(self, kind: QByteArray | bytes | bytearray | memoryview, message: int) -> object:  # noqa: N802
        if sys.platform == "win32" and bytes(kind) == b"windows_generic_MSG":
            from ctypes import wintypes

            posted = wintypes.MSG.from_address(int(message))
            if posted.message == _POWER_BROADCAST and posted.wParam in (_SUSPEND, _RESUME):
                self._told(posted.wParam == _SUSPEND)
        return False, 0


def listen(told: Told, application: QCoreApplication) -> object:
    """Begin to listen in the way of this system; keep what is returned for as long as it shall go on."""
    if sys.platform == "win32":
        broadcasts = PowerBroadcasts(told)
        application.installNativeEventFilter(broadcasts)
        return broadcasts
    if sys.platform == "darwin":
        from app.desktop.workspace_notices import WorkspaceNotices

        return WorkspaceNotices(told)
    from app.desktop.login_bus import LoginBus

    return LoginBus(told)
