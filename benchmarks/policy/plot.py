"""Draws lines over a number axis as one plain SVG text; decides no figures and reads no files."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_COLOURS = ("#0b6e4f", "#c1440e", "#3a5fa0", "#8a5a9e", "#b58900", "#5f6b73", "#c2185b", "#2a9d8f", "#222222")
_WIDTH, _HEIGHT = 660, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 188, 36, 44


@dataclass(frozen=True, slots=True)
class Line:
    """One named line; the first one drawn is drawn thicker."""

    name: str
    points: tuple[tuple[float, float], ...]
    """x and y; y above 0."""


def draw(title: str, x_label: str, y_label: str, lines: Sequence[Line], *, least: float) -> str:
    """Return the picture; y is on a logarithmic axis and everything below `least` is drawn at it."""
    xs = sorted({x for line in lines for x, _ in line.points})
    top = max([least * 10, *(y for line in lines for _, y in line.points)])
    decades = range(math.floor(math.log10(least)), math.ceil(math.log10(top)) + 1)
    span = math.log10(top / least)

    def across(x: float) -> float:
        return _LEFT + (x - xs[0]) / ((xs[-1] - xs[0]) or 1.0) * (_WIDTH - _LEFT - _RIGHT)

    def down(y: float) -> float:
        return _HEIGHT - _BOTTOM - math.log10(max(y, least) / least) / span * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 20, title, "start", weight="bold"),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 10, x_label),
        f'<g transform="rotate(-90 16 {(_TOP + _HEIGHT - _BOTTOM) / 2:.1f})">'
        + _text(16, (_TOP + _HEIGHT - _BOTTOM) / 2, y_label)
        + "</g>",
    ]
    for decade in decades:
        y = 10.0**decade
        if least <= y <= top:
            parts.append(_rule(_LEFT, down(y), _WIDTH - _RIGHT, down(y)))
            parts.append(_text(_LEFT - 6, down(y) + 4, f"{y:g}", "end"))
    for x in xs:
        parts.append(_rule(across(x), _HEIGHT - _BOTTOM, across(x), _HEIGHT - _BOTTOM + 4))
        parts.append(_text(across(x), _HEIGHT - _BOTTOM + 16, f"{x:g}"))
    for number, line in enumerate(lines):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in line.points)
        width = 3 if number == 0 else 1.6
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
        row = _TOP + 10 + 18 * number
        parts.append(
            f'<line x1="{_WIDTH - _RIGHT + 12}" y1="{row}" x2="{_WIDTH - _RIGHT + 34}" y2="{row}" '
            f'stroke="{colour}" stroke-width="{width}"/>'
        )
        parts.append(_text(_WIDTH - _RIGHT + 40, row + 4, line.name, "start"))
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, words: str, anchor: str = "middle", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="#222222">'
        f"{escape(words)}</text>"
    )


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#dddddd"/>'
