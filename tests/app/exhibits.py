"""What the pictures show: each window with an engine in a condition that is worth looking at."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from PySide6.QtCore import QRectF, qVersion
from PySide6.QtGui import QPainter, QPixmap
from PySide6.QtWidgets import QApplication, QWidget

from app.compose.components import parts
from app.desktop.icons import program_icon, tray_icon
from app.dialogs.about import AboutWindow
from app.dialogs.parts import is_dark
from app.dialogs.requests import RequestsWindow
from app.dialogs.status import StatusWindow
from app.dialogs.trouble import TroubleWindow
from app.presenters import intents
from app.presenters.about import about
from app.presenters.faces import Mood
from app.presenters.menu import Desk, menu
from app.presenters.notices import Notice
from app.presenters.trouble import Surroundings, trouble
from app.qtmodels.menus import LiveMenu
from app.state import Lost, View, fold
from hypnos_engine import __version__
from hypnos_engine.domain.errors import ConfigurationInvalid, PortInUse
from tests.app.examples import DECISIONS, STARTING, household, idle_model, ready

TOLD_AT = datetime(2026, 5, 4, 14, 23, tzinfo=UTC)
OPENED = "gemma4"
"""The model whose submenu is shown open."""

NOTICES = (
    Notice(
        "1",
        "docling:int8 cannot be served",
        "The file layout_cdla.onnx (weights_path) is not in any of the models folders. Put it there, or change "
        "the path.",
        action=intents.ShowStatus(),
        action_text="Show models",
    ),
    Notice(
        "2",
        "gemma4:26b-q4 had to be restarted",
        "gemma4:26b-q4 lost its worker: it was ended by signal 9. Its next request starts it again.",
        action=intents.ShowStatus(),
        action_text="Show models",
    ),
)


def _status(view: View, *notices: Notice) -> StatusWindow:
    window = StatusWindow(
        lambda _intent: None,
        lines=lambda: menu(view, Desk(starts_at_login=False)),
        looked_at=lambda: None,
        closed=lambda: None,
    )
    for notice in notices:
        window.add_notice(notice, TOLD_AT)
    window.show_view(view)
    return window


def _busy() -> View:
    return replace(ready(*household()), decisions=DECISIONS)


def _requests() -> RequestsWindow:
    window = RequestsWindow()
    window.show_view(_busy())
    return window


def _lost() -> View:
    return fold(ready(idle_model()), Lost("No Hypnos answers at http://127.0.0.1:9999. Start it with `hypnos serve`."))


def _trouble(error: PortInUse | ConfigurationInvalid) -> TroubleWindow:
    around = Surroundings(Path("/home/ada/.config/hypnos/hypnos.toml"), Path("/home/ada/.local/state"), 10000)
    icon = tray_icon(Mood.ATTENTION, None, dark=_is_dark(), template=False)
    return TroubleWindow(trouble(error, around), icon, lambda _remedy: None)


def _is_dark() -> bool:
    application = QApplication.instance()
    assert isinstance(application, QApplication)
    return is_dark(application.palette())


WINDOWS: dict[str, Callable[[], QWidget]] = {
    "status-busy": lambda: _status(_busy(), *NOTICES),
    "status-idle": lambda: _status(ready(idle_model(), one_pool=True)),
    "status-starting": lambda: _status(STARTING),
    "status-lost": lambda: _status(_lost(), NOTICES[1]),
    "requests": _requests,
    "requests-nothing": RequestsWindow,
    "about": lambda: AboutWindow(
        about(
            version=__version__,
            qt=qVersion(),
            parts=parts(),
            qt_folder="/opt/hypnos/lib/python3.13/site-packages/PySide6",
            bundled=False,
        ),
        program_icon(),
    ),
    "trouble-port": lambda: _trouble(
        PortInUse("Port 9999 is in use by nginx (process 812). Stop that program, or choose another port with --port.")
    ),
    "trouble-configuration": lambda: _trouble(
        ConfigurationInvalid(
            "/home/ada/.config/hypnos/hypnos.toml, line 12: server.prot is no setting; did you mean server.port?\n"
            "/home/ada/.config/hypnos/hypnos.toml, line 31: models[2].priority is 'hgih', but has to be one of low, "
            "normal, high, realtime_pinned."
        )
    ),
}


def menus() -> dict[str, LiveMenu]:
    """The tray's menu in several conditions."""
    views = {
        "menu-busy": (_busy(), Desk(starts_at_login=True, unseen=2)),
        "menu-idle": (ready(idle_model(), one_pool=True), Desk(starts_at_login=False)),
        "menu-held": (ready(*household()[3:5], held=True), Desk(starts_at_login=False)),
        "menu-starting": (STARTING, Desk(starts_at_login=None)),
    }
    return {name: LiveMenu("Hypnos", partial(menu, *shown), lambda _intent: None) for name, shown in views.items()}


def faces(*, dark: bool) -> QPixmap:
    """Every face of the tray icon at the sizes of trays, on light, dark and coloured panels, and as template."""
    columns = [(Mood.IDLE, None), (Mood.WORKING, None), (Mood.LOADING, None), (Mood.LOADING, 3), (Mood.LOADING, 14)]
    columns.append((Mood.ATTENTION, None))
    sizes = (16, 22, 32, 64)
    panels = (("#f4f4f4", False), ("#1c1c1e", False), ("#2f6fb0", False), ("#f4f4f4", True))
    cell = 80
    pixmap = QPixmap(cell * len(columns), cell * len(sizes) * len(panels))
    painter = QPainter(pixmap)
    for p, (panel, template) in enumerate(panels):
        for s, size in enumerate(sizes):
            for c, (mood, step) in enumerate(columns):
                area = QRectF(c * cell, (p * len(sizes) + s) * cell, cell, cell)
                painter.fillRect(area, panel)
                icon = tray_icon(mood, step, dark=dark, template=template)
                corner = area.center() - QRectF(0, 0, size, size).center()
                painter.drawPixmap(corner, icon.pixmap(size))
    painter.end()
    return pixmap
