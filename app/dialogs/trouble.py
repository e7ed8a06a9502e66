"""The window that is shown instead of a traceback when the engine cannot start."""

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtGui import QCloseEvent, QIcon
from PySide6.QtWidgets import QDialog, QHBoxLayout, QLabel, QPushButton, QVBoxLayout

from app.desktop.stalls import watched
from app.dialogs.parts import GAP, heading
from app.presenters.trouble import GiveUp, Remedy, Trouble

ICON_PX = 48
WIDTH = 560


class TroubleWindow(QDialog):
    """`chosen` is called with each remedy that the person picks; closing the window gives up."""

    def __init__(self, trouble: Trouble, icon: QIcon, chosen: Callable[[Remedy], None]) -> None:
        super().__init__()
        self._chosen = chosen
        self.setWindowTitle("Hypnos")
        picture = QLabel()
        picture.setPixmap(icon.pixmap(ICON_PX))
        words = QVBoxLayout()
        words.setSpacing(GAP)
        words.addWidget(heading(trouble.title, larger=1.25))
        for part in (trouble.text, trouble.advice):
            label = QLabel(part)
            label.setTextFormat(Qt.TextFormat.PlainText)
            label.setWordWrap(True)
            label.setTextInteractionFlags(
                Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
            )
            words.addWidget(label)
        words.addStretch()
        head = QHBoxLayout()
        head.setSpacing(20)
        head.addWidget(picture, 0, Qt.AlignmentFlag.AlignTop)
        head.addLayout(words, 1)
        buttons = QHBoxLayout()
        buttons.addStretch()
        for number, choice in enumerate(trouble.choices):
            button = QPushButton(choice.text)
            button.setDefault(number == 0)
            button.setAutoDefault(number == 0)
            button.clicked.connect(lambda _checked=False, remedy=choice.remedy: self._chosen(remedy))
            buttons.addWidget(button)
            if number == 0:
                button.setFocus()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(20, 20, 20, 16)
        layout.setSpacing(2 * GAP)
        layout.addLayout(head, 1)
        layout.addLayout(buttons)
        self.setAccessibleName(trouble.title)
        self.setAccessibleDescription(f"{trouble.text} {trouble.advice}")
        self.setMinimumWidth(WIDTH)

    @watched
    def reject(self) -> None:
        """Escape and the close button."""
        self._chosen(GiveUp())

    @watched
    def closeEvent(self, event: QCloseEvent) -> None:  # noqa: N802
        event.accept()
        self._chosen(GiveUp())
