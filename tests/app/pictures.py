"""`./run.sh screenshots [FOLDER]`: every window and the open menu, at 100 % and 200 %, light and dark, as pictures.

Each look is painted by a process of its own, because Qt takes scale and scheme at its start. Looks at no engine.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PySide6.QtGui import QPalette

SCALES = (1, 2)
SCHEMES = ("light", "dark")
SCREEN = {"screens": [{"name": "large", "x": 0, "y": 0, "width": 3840, "height": 2160, "logicalDpi": 96, "dpr": 1}]}
"""Qt's own made-up screen is 800 pixels square: at 200 % a menu with some models would be cut."""


def main() -> int:
    """Paint all pictures; returns the exit code of the first that failed."""
    if len(sys.argv) == 4:  # one look: FOLDER SCALE SCHEME
        return paint(Path(sys.argv[1]), sys.argv[3], f"{sys.argv[2]}00")
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/screenshots").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        screen = Path(scratch) / "screen.json"
        screen.write_text(json.dumps(SCREEN), encoding="utf-8")
        for scale, scheme in itertools.product(SCALES, SCHEMES):
            environment = {
                **os.environ,
                "QT_SCALE_FACTOR": str(scale),
                "QT_QPA_PLATFORM": f"offscreen:configfile={screen}",
                "QT_LOGGING_RULES": "qt.qpa.*=false;default.warning=false;default.info=false",
            }
            command = [sys.executable, "-m", "tests.app.pictures", str(folder), str(scale), scheme]
            if code := subprocess.run(command, env=environment, check=False).returncode:
                return code
    sys.stdout.write(f"{len(list(folder.glob('*.png')))} pictures are in {folder}\n")
    return 0


def paint(folder: Path, scheme: str, scale: str) -> int:
    """Paint one look of everything."""
    from PySide6.QtWidgets import QApplication, QMenu, QWidget

    application = QApplication(["hypnos"])
    application.setStyle("Fusion")
    application.setPalette(palette(dark=scheme == "dark"))
    from tests.app import exhibits

    def keep(name: str, widget: QWidget) -> None:
        widget.show()
        application.processEvents()
        picture = widget.grab()
        picture.save(str(folder / f"{name}-{scheme}-{scale}.png"))
        widget.close()

    for name, make in exhibits.WINDOWS.items():
        keep(name, make())
    for name, menu in exhibits.menus().items():
        menu.rebuild()
        keep(name, menu)
        for action in menu.actions():
            submenu = action.menu()
            if isinstance(submenu, QMenu) and submenu.title().startswith(exhibits.OPENED):
                keep(f"{name}-model", submenu)
    exhibits.faces(dark=scheme == "dark").save(str(folder / f"tray-faces-{scheme}-{scale}.png"))
    return 0


def palette(*, dark: bool) -> "QPalette":
    """Fusion's colours; a platform without a desktop knows only the light ones."""
    from PySide6.QtGui import QColor, QPalette

    if not dark:
        return QPalette(QColor("#efefef"), QColor("#efefef"))
    colours = QPalette(QColor("#3a3a3d"), QColor("#2b2b2e"))
    role = QPalette.ColorRole
    for name, colour in ((role.Base, "#1e1e21"), (role.AlternateBase, "#26262a"), (role.Highlight, "#3d7fd6")):
        colours.setColor(name, QColor(colour))
    colours.setColor(role.HighlightedText, QColor("#ffffff"))
    colours.setColor(role.Link, QColor("#8ab4f8"))
    return colours


if __name__ == "__main__":
    sys.exit(main())
