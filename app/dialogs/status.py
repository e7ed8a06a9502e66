"""The status window: the engine's state, its memory, its models and the last notices. Everything works by keyboard."""

from collections.abc import Callable
from datetime import datetime

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QAction, QCloseEvent, QKeySequence, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QMainWindow, QPushButton, QSplitter, QVBoxLayout, QWidget

from app.desktop.stalls import watched
from app.dialogs.model_actions import ModelActions
from app.dialogs.notices import NoticeList
from app.dialogs.parts import GAP, GaugeBox, heading, soft
from app.dialogs.tables import RowsView
from app.presenters import intents, tables, words
from app.presenters.menu import Menu, model_actions, models
from app.presenters.notices import Notice
from app.qtmodels.menus import LiveMenu
from app.state import View


class StatusWindow(QMainWindow):
    """`emit` is called with what the person wants; `lines` gives the program's menu each time it opens.

    `looked_at` is called when the window comes to the front or gets another size, `closed` when it was closed.
    """

    def __init__(
        self,
        emit: Callable[[intents.Intent], None],
        *,
        lines: Callable[[], Menu],
        looked_at: Callable[[], None],
        closed: Callable[[], None],
    ) -> None:
        super().__init__()
        self._emit = emit
        self._looked_at = looked_at
        self._closed = closed
        self._view: View | None = None
        self.setWindowTitle("Hypnos")
        self._condition = heading("Starting.", larger=1.35)
        self._condition.setAccessibleName("State of the engine")
        self._about = soft(QLabel())
        self._gauges = (GaugeBox(), GaugeBox())
        self._models = RowsView(tables.MODEL_COLUMNS, "Models", self._choose)
        self._actions = ModelActions(emit)
        self._notices = NoticeList(emit)
        self._menus = (LiveMenu("&Hypnos", lines, emit), LiveMenu("&Models", self._model_lines, emit))
        for live in self._menus:
            self.menuBar().addMenu(live)
        self._lay_out()
        self._add_shortcuts()
        self.resize(860, 620)

    def _lay_out(self) -> None:
        upper = QWidget()
        above = QVBoxLayout(upper)
        above.setContentsMargins(0, 0, 0, 0)
        above.addWidget(self._models, 1)
        above.addWidget(self._actions)
        lower = QWidget()
        below = QVBoxLayout(lower)
        below.setContentsMargins(0, GAP // 2, 0, 0)
        below.addWidget(heading("Notices"))
        below.addWidget(self._notices, 1)
        halves = QSplitter(Qt.Orientation.Vertical)
        halves.addWidget(upper)
        halves.addWidget(lower)
        halves.setSizes([300, 210])
        halves.setStretchFactor(0, 1)
        halves.setChildrenCollapsible(False)
        whole = QWidget()
        layout = QVBoxLayout(whole)
        layout.setContentsMargins(16, GAP, 16, 16)
        layout.setSpacing(GAP)
        layout.addLayout(self._head())
        gauges = QHBoxLayout()
        gauges.setSpacing(2 * GAP)
        for gauge in self._gauges:
            gauges.addWidget(gauge, 1)
            gauge.hide()
        layout.addLayout(gauges)
        layout.addWidget(halves, 1)
        self.setCentralWidget(whole)

    def _head(self) -> QHBoxLayout:
        words_ = QVBoxLayout()
        words_.setSpacing(2)
        words_.addWidget(self._condition)
        self._about.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        words_.addWidget(self._about)
        head = QHBoxLayout()
        head.addLayout(words_, 1)
        for text, intent in (("&Copy address", intents.CopyAddress()), ("Open &page", intents.OpenPage())):
            button = QPushButton(text)
            button.clicked.connect(lambda _checked=False, intent=intent: self._emit(intent))
            head.addWidget(button, 0, Qt.AlignmentFlag.AlignTop)
        return head

    def _add_shortcuts(self) -> None:
        for keys, slot in (
            (QKeySequence(QKeySequence.StandardKey.Close), self.close),
            (QKeySequence(QKeySequence.StandardKey.Quit), lambda: self._emit(intents.Quit())),
        ):
            action = QAction(self)
            action.setShortcut(keys)
            action.triggered.connect(slot)
            self.addAction(action)

    @watched
    def show_view(self, view: View) -> None:
        """Paint a view."""
        self._view = view
        self._condition.setText(words.condition(view))
        where = view.memory.device_name if view.memory else ""
        self._about.setText("  ·  ".join(part for part in (words.api_address(view), where) if part))
        gauges = tables.gauges(view)
        for box, gauge in zip(self._gauges, gauges, strict=False):
            box.show_gauge(gauge)
        for number, box in enumerate(self._gauges):
            box.setVisible(number < len(gauges))
        self._models.show_rows(tables.model_rows(view))
        self._choose(self._models.selected)

    def add_notice(self, notice: Notice, told_at: datetime) -> None:
        """Put a notice on top of the list."""
        self._notices.add(notice, told_at)

    @watched
    def _choose(self, model: str | None) -> None:
        chosen = self._view.model(model) if self._view is not None and model is not None else None
        if self._view is None or chosen is None:
            self._actions.show_actions("", ())
        else:
            self._actions.show_actions(chosen.id, model_actions(chosen, self._view))

    def _model_lines(self) -> Menu:
        return models(self._view) if self._view is not None else ()

    @watched
    def changeEvent(self, event: QEvent) -> None:  # noqa: N802
        super().changeEvent(event)
        if event.type() is QEvent.Type.ActivationChange and self.isActiveWindow():
            self._looked_at()

    @watched
    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802
        super().resizeEvent(event)
        self._looked_at()

    @watched
    def closeEvent(self, event: QCloseEvent) -> None:  # noqa: N802
        super().closeEvent(event)
        self._closed()
