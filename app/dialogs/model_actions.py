"""The row of buttons that moves the chosen model and switches it on and off: the menu's actions, by keyboard."""

from collections.abc import Callable

from PySide6.QtWidgets import QCheckBox, QHBoxLayout, QLabel, QPushButton, QWidget

from app.desktop.stalls import watched
from app.dialogs.parts import soft
from app.presenters.intents import Intent, Move, Switch
from app.presenters.menu import Entry, Menu


class ModelActions(QWidget):
    """What can be done with one model; without one it says how to choose."""

    def __init__(self, emit: Callable[[Intent], None]) -> None:
        super().__init__()
        self._emit = emit
        self._moves = [QPushButton() for _ in range(3)]
        self._intents: dict[QPushButton | QCheckBox, Intent] = {}
        self._in_service = QCheckBox("In &service")
        self._said = soft(QLabel())
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self._said, 1)
        for button in self._moves:
            button.clicked.connect(lambda _checked=False, button=button: self._wish(button))
            layout.addWidget(button)
        self._in_service.clicked.connect(lambda _checked=False: self._wish(self._in_service))
        layout.addWidget(self._in_service)
        self.show_actions("", ())

    @watched
    def show_actions(self, model: str, actions: Menu) -> None:
        """The actions of `model`, as its submenu has them."""
        entries = [entry for entry in actions if isinstance(entry, Entry)]
        moves = [entry for entry in entries if isinstance(entry.intent, Move)]
        for button, move in zip(self._moves, moves, strict=False):
            self._label(button, move, model)
            button.setText(move.text)
        for widget in (*self._moves, self._in_service):
            widget.setVisible(bool(entries))
        for entry in entries:
            if isinstance(entry.intent, Switch):
                self._label(self._in_service, entry, model)
                self._in_service.setChecked(bool(entry.checked))
        hints = {entry.hint for entry in moves if entry.hint}
        self._said.setText(f"{model}: {hints.pop().lower()}" if hints else model or "Choose a model to move it.")

    def _label(self, widget: QPushButton | QCheckBox, entry: Entry, model: str) -> None:
        widget.setEnabled(entry.enabled)
        widget.setToolTip(entry.hint)
        widget.setAccessibleName(f"{entry.text}: {model}")
        if entry.intent is not None:
            self._intents[widget] = entry.intent

    @watched
    def _wish(self, widget: QPushButton | QCheckBox) -> None:
        if widget is self._in_service:
            # The box shows what is, not what was asked for: the engine may refuse.
            self._in_service.setChecked(not self._in_service.isChecked())
        self._emit(self._intents[widget])
