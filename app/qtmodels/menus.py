"""Makes Qt's menus of a menu that is data, anew each time. Decides no line of them."""

from collections.abc import Callable

from PySide6.QtWidgets import QMenu

from app.desktop.stalls import watched
from app.presenters.intents import Intent
from app.presenters.menu import Entry, Menu, Separator

Emit = Callable[[Intent], None]


class LiveMenu(QMenu):
    """A menu that asks for its lines each time it opens: never stale, and nothing is done while it is closed."""

    def __init__(self, title: str, lines: Callable[[], Menu], emit: Emit) -> None:
        super().__init__(title)
        self._lines = lines
        self._emit = emit
        self._submenus: list[QMenu] = []
        self.setToolTipsVisible(True)
        self.setAccessibleName(title)
        self.aboutToShow.connect(self.rebuild)

    @watched
    def rebuild(self) -> None:
        """Fill the menu with what is true now."""
        self.clear()
        for submenu in self._submenus:
            submenu.deleteLater()
        self._submenus.clear()
        self._fill(self, self._lines())

    def _fill(self, menu: QMenu, lines: Menu) -> None:
        for line in lines:
            if isinstance(line, Separator):
                menu.addSeparator()
            elif line.children:
                submenu = QMenu(_literal(line.text), self)
                submenu.setToolTipsVisible(True)
                self._submenus.append(submenu)
                self._fill(submenu, line.children)
                menu.addMenu(submenu)
            else:
                self._add(menu, line)

    def _add(self, menu: QMenu, line: Entry) -> None:
        action = menu.addAction(_literal(line.text))
        action.setEnabled(line.enabled)
        action.setToolTip(line.hint)
        if line.checked is not None:
            action.setCheckable(True)
            action.setChecked(line.checked)
        intent = line.intent
        if intent is not None:
            action.triggered.connect(lambda _checked=False: self._emit(intent))


def _literal(text: str) -> str:
    """A text in which & is no mark of a shortcut."""
    return text.replace("&", "&&")
