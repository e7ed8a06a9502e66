"""The program's icons, painted from the drawings in `resources/icons` at every size that a desktop may ask for."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from PySide6.QtCore import QByteArray, QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPen, QPixmap
from PySide6.QtSvg import QSvgRenderer

import hypnos_engine
from app.presenters.faces import STEPS, Mood

SIZES = (16, 20, 22, 24, 32, 44, 48, 64, 128)
"""Pixels; trays take the nearest."""


@dataclass(frozen=True, slots=True)
class Paint:
    """Colours of a tile. None as tile: the shape alone, for trays that colour it themselves."""

    tile: str | None
    glyph: str


NIGHT = {False: Paint("#4b46c4", "#ffffff"), True: Paint("#6e6af0", "#ffffff")}
ALARM = {False: Paint("#b45309", "#ffffff"), True: Paint("#f0a13c", "#2a1a05")}
TEMPLATE = Paint(None, "#000000")


def drawing(name: str) -> bytes:
    """The text of one drawing. Raises FileNotFoundError."""
    return (_folder() / f"{name}.svg").read_bytes()


def _folder() -> Traversable:
    """Inside the engine's package in a wheel, beside it in a checkout."""
    inside = resources.files(hypnos_engine) / "resources"
    base = inside if inside.is_dir() else Path(hypnos_engine.__file__).parent.parent / "resources"
    return base / "icons"


@lru_cache(maxsize=1)
def program_icon() -> QIcon:
    """The icon of windows and of the program itself."""
    icon = QIcon()
    renderer = QSvgRenderer(QByteArray(drawing("hypnos")))
    for size in (*SIZES, 256):
        icon.addPixmap(_painted(size, lambda painter, area: renderer.render(painter, area)))
    return icon


@lru_cache(maxsize=128)
def tray_icon(mood: Mood, step: int | None, *, dark: bool, template: bool = sys.platform == "darwin") -> QIcon:
    """A face of the tray icon. `step` of STEPS is how far a load is; None draws the ring without saying how far."""
    paint = TEMPLATE if template else (ALARM if mood is Mood.ATTENTION else NIGHT)[dark]
    renderer = QSvgRenderer(QByteArray(drawing(mood.value).replace(b"currentColor", paint.glyph.encode())))
    icon = QIcon()
    for size in SIZES:
        icon.addPixmap(_painted(size, lambda painter, area: _paint_face(painter, area, paint, renderer, mood, step)))
    icon.setIsMask(template)
    return icon


def _painted(size: int, paint: Callable[[QPainter, QRectF], None]) -> QPixmap:
    pixmap = QPixmap(size, size)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    paint(painter, QRectF(0, 0, size, size))
    painter.end()
    return pixmap


def _paint_face(
    painter: QPainter, area: QRectF, paint: Paint, renderer: QSvgRenderer, mood: Mood, step: int | None
) -> None:
    inset = 0.0
    if paint.tile is not None:
        painter.setBrush(QColor(paint.tile))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.drawRoundedRect(area, area.width() * 0.24, area.width() * 0.24)
        inset = area.width() * 0.11
    inner = area.adjusted(inset, inset, -inset, -inset)
    renderer.render(painter, inner)
    if mood is Mood.LOADING:
        _paint_ring(painter, inner, QColor(paint.glyph), step)


def _paint_ring(painter: QPainter, area: QRectF, colour: QColor, step: int | None) -> None:
    width = area.width() * 0.115
    ring = area.adjusted(width, width, -width, -width)
    faint = QColor(colour)
    faint.setAlphaF(0.35)
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.setPen(QPen(faint, width))
    painter.drawEllipse(ring)
    if step:
        painter.setPen(QPen(colour, width, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap))
        painter.drawArc(ring, 90 * 16, -round(360 * 16 * step / STEPS))
    elif step is None:
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colour)
        painter.drawEllipse(QPointF(ring.center().x(), ring.top()), width * 0.9, width * 0.9)
