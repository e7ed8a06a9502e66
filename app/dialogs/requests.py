"""The requests window: who is asked how much, and what the scheduler decided for it."""

from PySide6.QtCore import QStringListModel, Qt
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QAbstractItemView, QLabel, QListView, QVBoxLayout, QWidget

from app.desktop.stalls import watched
from app.dialogs.parts import GAP, heading, soft
from app.dialogs.tables import RowsView
from app.presenters import tables
from app.state import View


class RequestsWindow(QWidget):
    """Shows, and asks for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.setWindowTitle("Requests – Hypnos")
        self._requests = RowsView(tables.REQUEST_COLUMNS, "Requests by model", lambda _model: None)
        self._lines = QStringListModel()
        self._decisions = QListView()
        self._decisions.setModel(self._lines)
        self._decisions.setAccessibleName("Decisions, newest first")
        self._decisions.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self._decisions.setWordWrap(True)
        self._decisions.setResizeMode(QListView.ResizeMode.Adjust)
        self._decisions.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._decisions.setAlternatingRowColors(True)
        self._nothing = soft(QLabel("Nothing was decided yet."))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, GAP, 16, 16)
        layout.addWidget(heading("Requests by model"))
        layout.addWidget(self._requests, 3)
        layout.addSpacing(GAP)
        layout.addWidget(heading("What the scheduler decided, newest first"))
        layout.addWidget(self._nothing)
        layout.addWidget(self._decisions, 2)
        close = QAction(self)
        close.setShortcuts([QKeySequence(QKeySequence.StandardKey.Close), QKeySequence(Qt.Key.Key_Escape)])
        close.triggered.connect(self.close)
        self.addAction(close)
        self.resize(820, 520)

    @watched
    def show_view(self, view: View) -> None:
        """Paint a view."""
        self._requests.show_rows(tables.request_rows(view))
        lines = list(tables.decision_lines(view))
        if lines != self._lines.stringList():
            self._lines.setStringList(lines)
        self._nothing.setVisible(not lines)
        self._decisions.setVisible(bool(lines))
