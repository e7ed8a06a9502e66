"""A table of plain rows for Qt's views: named columns, sort keys, and only what changed is painted anew."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, Qt

from app.desktop.stalls import watched
from app.presenters.tables import Column, Row

Index = QModelIndex | QPersistentModelIndex
_NOWHERE = QModelIndex()


class Role(IntEnum):
    """Roles beside Qt's own."""

    SORT = Qt.ItemDataRole.UserRole + 1
    """Native value that the column is sorted by."""
    MODEL = Qt.ItemDataRole.UserRole + 2
    """Id of the row's model."""
    WARNING = Qt.ItemDataRole.UserRole + 3
    """Whether the cell says that something is wrong."""


class RowsTable(QAbstractTableModel):
    """Rows of one kind; `show_rows` replaces them."""

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__()
        self._columns = tuple(columns)
        self._rows: tuple[Row, ...] = ()

    @watched
    def show_rows(self, rows: Sequence[Row]) -> None:
        """Show these rows. Equal ones are left alone; selections stay while the models are the same."""
        before, after = self._rows, tuple(rows)
        if before == after:
            return
        if [row.model for row in before] != [row.model for row in after]:
            self.beginResetModel()
            self._rows = after
            self.endResetModel()
            return
        self._rows = after
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            if old != new:
                self.dataChanged.emit(self.index(number, 0), self.index(number, len(self._columns) - 1))

    def row_of(self, model: str) -> int | None:
        """Number of a model's row; None when it has none."""
        return next((number for number, row in enumerate(self._rows) if row.model == model), None)

    # --- what Qt asks ---

    def rowCount(self, parent: Index = _NOWHERE) -> int:  # noqa: N802
        return 0 if parent.isValid() else len(self._rows)

    def columnCount(self, parent: Index = _NOWHERE) -> int:  # noqa: N802
        return 0 if parent.isValid() else len(self._columns)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        row, column = self._rows[index.row()], self._columns[index.column()]
        cell = row.cells[index.column()]
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return cell.text
            case Qt.ItemDataRole.ToolTipRole:
                return row.about
            case Qt.ItemDataRole.AccessibleTextRole:
                return f"{column.title}: {cell.text}"
            case Qt.ItemDataRole.TextAlignmentRole:
                return int(_alignment(column))
            case Role.SORT:
                return cell.sort
            case Role.MODEL:
                return row.model
            case Role.WARNING:
                return cell.is_warning
        return None

    def headerData(  # noqa: N802
        self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ) -> Any:
        if orientation is not Qt.Orientation.Horizontal or not 0 <= section < len(self._columns):
            return None
        column = self._columns[section]
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return column.title
            case Qt.ItemDataRole.ToolTipRole:
                return column.about
            case Qt.ItemDataRole.TextAlignmentRole:
                return int(_alignment(column))
        return None


def _alignment(column: Column) -> Qt.AlignmentFlag:
    side = Qt.AlignmentFlag.AlignRight if column.is_number else Qt.AlignmentFlag.AlignLeft
    return side | Qt.AlignmentFlag.AlignVCenter
