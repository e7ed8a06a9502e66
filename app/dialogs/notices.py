"""The list of last notices, newest first, each with what can be done about it."""

from collections.abc import Callable
from datetime import datetime

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QScrollArea, QVBoxLayout, QWidget

from app.desktop.stalls import watched
from app.dialogs.parts import heading, soft
from app.presenters.intents import Intent, ShowStatus
from app.presenters.notices import Notice

KEPT = 20


class NoticeCard(QFrame):
    """One notice."""

    def __init__(self, notice: Notice, told_at: datetime, emit: Callable[[Intent], None]) -> None:
        super().__init__()
        self.setFrameShape(QFrame.Shape.StyledPanel)
        self.setAccessibleName(notice.title)
        self.setAccessibleDescription(notice.text)
        words = QVBoxLayout()
        words.setSpacing(2)
        title = QHBoxLayout()
        title.addWidget(heading(notice.title))
        title.addStretch()
        title.addWidget(soft(QLabel(f"{told_at:%H:%M}")))
        words.addLayout(title)
        text = QLabel(notice.text)
        text.setWordWrap(True)
        text.setTextFormat(Qt.TextFormat.PlainText)
        text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        words.addWidget(text)
        layout = QHBoxLayout(self)
        layout.addLayout(words, 1)
        action = notice.action
        # The window that has this list is what the notice of a tray would show.
        if action is not None and notice.action_text and not isinstance(action, ShowStatus):
            button = QPushButton(notice.action_text)
            button.setAccessibleDescription(notice.title)
            button.clicked.connect(lambda _checked=False: emit(action))
            layout.addWidget(button, 0, Qt.AlignmentFlag.AlignVCenter)


class NoticeList(QScrollArea):
    """The last KEPT notices; says so when there is none."""

    def __init__(self, emit: Callable[[Intent], None]) -> None:
        super().__init__()
        self._emit = emit
        self._cards: list[NoticeCard] = []
        self._nothing = soft(QLabel("Nothing has happened that you need to know."))
        inner = QWidget()
        self._layout = QVBoxLayout(inner)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(6)
        self._layout.addWidget(self._nothing)
        self._layout.addStretch()
        self.setWidget(inner)
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setAccessibleName("Notices")

    @watched
    def add(self, notice: Notice, told_at: datetime) -> None:
        """Put a notice on top."""
        self._nothing.hide()
        card = NoticeCard(notice, told_at, self._emit)
        self._cards.insert(0, card)
        self._layout.insertWidget(0, card)
        while len(self._cards) > KEPT:
            oldest = self._cards.pop()
            self._layout.removeWidget(oldest)
            oldest.hide()
            oldest.deleteLater()
