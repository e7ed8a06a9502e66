"""A sortable table view over plain rows, usable by keyboard alone, that keeps its selection while rows change."""

from collections.abc import Callable, Sequence

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QSize, QSortFilterProxyModel, Qt
from PySide6.QtGui import QPalette
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
)

from app.desktop.stalls import watched
from app.dialogs.parts import GAP, warning_colour
from app.presenters.tables import Column, Row
from app.qtmodels.rows_table import Role, RowsTable


class _Painting(QStyledItemDelegate):
    """Room between columns, and a bold font for cells that warn: a colour alone would not be seen by everybody."""

    def initStyleOption(  # noqa: N802
        self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        super().initStyleOption(option, index)
        if index.data(Role.WARNING):
            option.font.setBold(True)
            palette: QPalette = option.palette
            palette.setColor(QPalette.ColorRole.Text, warning_colour(palette))

    def sizeHint(  # noqa: N802
        self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> QSize:
        wanted = super().sizeHint(option, index)
        return QSize(wanted.width() + 2 * GAP, wanted.height())


class RowsView(QTableView):
    """`chosen` is called with the id of the selected model, or with None."""

    def __init__(self, columns: Sequence[Column], name: str, chosen: Callable[[str | None], None]) -> None:
        super().__init__()
        self._rows = RowsTable(columns)
        self._order = QSortFilterProxyModel()
        self._order.setSourceModel(self._rows)
        self._order.setSortRole(Role.SORT)
        self._chosen = chosen
        self.setModel(self._order)
        self.setItemDelegate(_Painting(self))
        self.setAccessibleName(name)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setTabKeyNavigation(False)  # Tab leaves the table, the arrows move in it
        self.setAlternatingRowColors(True)
        self.setShowGrid(False)
        self.setSortingEnabled(True)
        self.verticalHeader().hide()
        header = self.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        header.setHighlightSections(False)
        header.setSortIndicatorClearable(True)
        header.setSortIndicator(-1, Qt.SortOrder.AscendingOrder)  # as configured, until a heading is clicked
        self.selectionModel().currentRowChanged.connect(self._tell)

    @property
    def selected(self) -> str | None:
        """Id of the model whose row is current."""
        index = self.currentIndex()
        return str(index.data(Role.MODEL)) if index.isValid() else None

    @watched
    def show_rows(self, rows: Sequence[Row]) -> None:
        """Show these rows; the current model stays current while it has one, else the first becomes it."""
        before = self.selected
        self._rows.show_rows(rows)
        if before is not None and self.selected != before:
            self.select(before)
        if self.selected is None and rows:
            self.select(rows[0].model)

    def select(self, model: str) -> None:
        """Make a model's row current; nothing happens when it has none."""
        number = self._rows.row_of(model)
        if number is not None:
            self.setCurrentIndex(self._order.mapFromSource(self._rows.index(number, 0)))

    @watched
    def _tell(self, current: QModelIndex, _before: QModelIndex) -> None:
        self._chosen(str(current.data(Role.MODEL)) if current.isValid() else None)
