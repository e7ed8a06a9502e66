"""Writes the program's icon in the form that each system takes, from the one drawing in `resources`.

Needs Qt to draw, and no other library; the containers of Windows and macOS hold plain PNG files.
"""

import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

from installers.refusal import BuildRefused

SIZES = (16, 32, 48, 64, 128, 256, 512)
"""Edge lengths in pixels."""
_ICO_LARGEST = 256
_ICNS_TYPES = {16: b"icp4", 32: b"icp5", 64: b"icp6", 128: b"ic07", 256: b"ic08", 512: b"ic09"}
_DRAW = """
import sys
from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QImage, QPainter
from PySide6.QtSvg import QSvgRenderer
source, folder, sizes = sys.argv[1], sys.argv[2], [int(size) for size in sys.argv[3:]]
renderer = QSvgRenderer(source)
assert renderer.isValid(), source
for size in sizes:
    image = QImage(size, size, QImage.Format.Format_ARGB32)
    image.fill(Qt.GlobalColor.transparent)
    painter = QPainter(image)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    renderer.render(painter, QRectF(0, 0, size, size))
    painter.end()
    assert image.save(f"{folder}/{size}.png"), folder
"""


def draw(python: Path, drawing: Path, folder: Path, environment: Mapping[str, str]) -> dict[int, Path]:
    """Draw the SVG file `drawing` at every size; returns the PNG files by size. Raises BuildRefused."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(python), "-c", _DRAW, str(drawing), str(folder), *map(str, SIZES)]
    done = subprocess.run(
        command,
        env={**environment, "QT_QPA_PLATFORM": "offscreen"},
        check=False,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode != 0:
        raise BuildRefused(f"The icon {drawing} could not be drawn:\n{done.stderr.strip()}")
    return {size: folder / f"{size}.png" for size in SIZES}


def ico(pictures: Mapping[int, bytes]) -> bytes:
    """A Windows icon of PNG files by edge length in pixels; sizes above 256 have no place in it."""
    entries = sorted((size, png) for size, png in pictures.items() if size <= _ICO_LARGEST)
    head = struct.pack("<HHH", 0, 1, len(entries))
    offset = len(head) + 16 * len(entries)
    table = b""
    for size, png in entries:
        edge = size % _ICO_LARGEST  # 256 is written as 0
        table += struct.pack("<BBBBHHII", edge, edge, 0, 0, 1, 32, len(png), offset)
        offset += len(png)
    return head + table + b"".join(png for _, png in entries)


def icns(pictures: Mapping[int, bytes]) -> bytes:
    """A macOS icon of PNG files by edge length in pixels; sizes that it has no type for are left out."""
    blocks = b"".join(
        _ICNS_TYPES[size] + struct.pack(">I", len(png) + 8) + png
        for size, png in sorted(pictures.items())
        if size in _ICNS_TYPES
    )
    return b"icns" + struct.pack(">I", len(blocks) + 8) + blocks
