"""What a person does with the tray icon and the windows on a display, through xdotool."""

import contextlib
from collections.abc import Callable

from tests.e2e.app_process import Display, until

ICON_PX = 22
A_MOMENT_S = 5.0
"""How long something that was clicked may take before it is clicked again."""


def icon(screen: Display) -> str:
    """The tray icon's window."""
    found: list[str] = []

    def look() -> bool:
        found[:] = [window for window in screen.windows("Hypnos") if screen.size(window) == (ICON_PX, ICON_PX)]
        return bool(found)

    until(look, "the tray icon")
    return found[0]


def open_menu(screen: Display) -> None:
    """The icon's menu, by a click with the right button."""
    window, before = icon(screen), set(screen.windows(""))

    def click() -> bool:
        x, y = screen.position(window)
        screen.do("mousemove", str(x + ICON_PX // 2), str(y + ICON_PX // 2), "click", "3")
        return came(lambda: bool(set(screen.windows("")) - before), A_MOMENT_S)

    until(click, "the menu")


def close_menu(screen: Display) -> None:
    """By a click beside it: without a window manager nobody has the keyboard after a window was closed."""
    screen.do("mousemove", "5", "890", "click", "1")


def came(condition: Callable[[], bool], within_s: float) -> bool:
    with contextlib.suppress(AssertionError):
        until(condition, "it", within_s)
        return True
    return False


def dialogs(screen: Display) -> list[str]:
    """Windows of the program that are more than an icon or a menu."""
    return [window for window in screen.windows("Hypnos") if screen.size(window)[0] > 500]
