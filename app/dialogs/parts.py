"""Small widgets that several windows are made of: headings, gauges and cards. Paints what it is given."""

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPalette
from PySide6.QtWidgets import QHBoxLayout, QLabel, QSizePolicy, QVBoxLayout, QWidget

from app.desktop.stalls import watched
from app.presenters.tables import Gauge

GAP = 12
"""Pixels between groups."""
QUIET = 0.68
"""Share of the text's colour in less important text."""
WARNING = {False: "#a84300", True: "#f5a94b"}


def heading(text: str, *, larger: float = 1.0) -> QLabel:
    """A title; `larger` multiplies the font size."""
    label = QLabel(text)
    font = label.font()
    font.setBold(True)
    font.setPointSizeF(font.pointSizeF() * larger)
    label.setFont(font)
    return label


def soft(label: QLabel) -> QLabel:
    """The label in the palette's colour for less important text."""
    palette = label.palette()
    palette.setColor(QPalette.ColorRole.WindowText, quiet_colour(palette))
    label.setPalette(palette)
    return label


def quiet_colour(palette: QPalette) -> QColor:
    """Between text and background, readable on both schemes."""
    text, back = palette.color(QPalette.ColorRole.Text), palette.color(QPalette.ColorRole.Window)
    return QColor.fromRgbF(
        *(
            QUIET * of_text + (1 - QUIET) * of_back
            for of_text, of_back in (
                (text.redF(), back.redF()),
                (text.greenF(), back.greenF()),
                (text.blueF(), back.blueF()),
            )
        )
    )


def warning_colour(palette: QPalette) -> QColor:
    """For words that warn."""
    return QColor(WARNING[is_dark(palette)])


def is_dark(palette: QPalette) -> bool:
    """Whether windows are darker than their text."""
    window, text = palette.color(QPalette.ColorRole.Window), palette.color(QPalette.ColorRole.WindowText)
    return window.lightness() < text.lightness()


class Bar(QWidget):
    """How full something is, as a bar."""

    def __init__(self) -> None:
        super().__init__()
        self._part = 0.0
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:  # noqa: N802
        return QSize(160, 10)

    def show_part(self, part: float) -> None:
        """`part` is 0 to 1."""
        if part != self._part:
            self._part = part
            self.update()

    @watched
    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        area = QRectF(self.rect())
        radius = area.height() / 2
        trough = self.palette().color(QPalette.ColorRole.Text)
        trough.setAlphaF(0.14)
        painter.setBrush(trough)
        painter.drawRoundedRect(area, radius, radius)
        if self._part > 0:
            area.setWidth(max(area.height(), area.width() * self._part))
            painter.setBrush(self.palette().color(QPalette.ColorRole.Highlight))
            painter.drawRoundedRect(area, radius, radius)
        painter.end()


class GaugeBox(QWidget):
    """A gauge with its title and its figures."""

    def __init__(self) -> None:
        super().__init__()
        self._title = QLabel()
        self._text = soft(QLabel())
        self._text.setAlignment(Qt.AlignmentFlag.AlignRight)
        self._bar = Bar()
        line = QHBoxLayout()
        line.addWidget(self._title)
        line.addStretch()
        line.addWidget(self._text)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        layout.addLayout(line)
        layout.addWidget(self._bar)

    def show_gauge(self, gauge: Gauge) -> None:
        self._title.setText(gauge.title)
        self._text.setText(gauge.text)
        self._bar.show_part(gauge.part)
        self.setAccessibleName(gauge.title)
        self.setAccessibleDescription(gauge.text)
