"""Windows paint what they are given and emit what is clicked; offscreen and without a loop."""

from datetime import UTC, datetime
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QCheckBox, QLabel, QMenu, QPushButton, QTextBrowser, QWidget
from pytestqt.qtbot import QtBot

from app.desktop import icons
from app.dialogs.about import AboutWindow
from app.dialogs.notices import KEPT, NoticeCard, NoticeList
from app.dialogs.requests import RequestsWindow
from app.dialogs.status import StatusWindow
from app.dialogs.tables import RowsView
from app.dialogs.trouble import TroubleWindow
from app.presenters import intents, tables
from app.presenters.about import Part, about
from app.presenters.faces import STEPS, Mood
from app.presenters.menu import Desk, menu
from app.presenters.notices import Notice
from app.presenters.trouble import GiveUp, Remedy, Surroundings, TryAgain, trouble
from app.qtmodels.menus import LiveMenu
from app.qtmodels.rows_table import Role, RowsTable
from app.state import View
from hypnos_engine.domain.errors import PortInUse
from hypnos_engine.domain.kinds import Tier
from tests.app.examples import STARTING, entry, household, idle_model, ready

PLAIN = Desk(starts_at_login=False)
TOLD_AT = datetime(2026, 5, 4, 14, 23, tzinfo=UTC)


class Wishes(list[Any]):
    """What a window emitted."""


@pytest.fixture
def wishes() -> Wishes:
    return Wishes()


def status_window(qtbot: QtBot, view: View, wishes: Wishes, events: list[str] | None = None) -> StatusWindow:
    told = events if events is not None else []
    window = StatusWindow(
        wishes.append,
        lines=lambda: menu(view, PLAIN),
        looked_at=lambda: told.append("looked at"),
        closed=lambda: told.append("closed"),
    )
    qtbot.addWidget(window)
    window.show_view(view)
    return window


def button(widget: QWidget, text: str) -> QPushButton:
    return next(found for found in widget.findChildren(QPushButton) if found.text().replace("&", "") == text)


# --- the table ------------------------------------------------------------------------------------------------------


def test_a_table_tells_qt_its_words_sort_keys_and_headings(qtbot: QtBot) -> None:
    table = RowsTable(tables.MODEL_COLUMNS)
    table.show_rows(tables.model_rows(ready(*household())))
    index = table.index(0, 0)
    assert (table.rowCount(), table.columnCount()) == (7, 6)
    assert table.data(index) == "gemma4:26b-q4"
    assert table.data(index, Role.MODEL) == "gemma4:26b-q4"
    assert table.data(index, Qt.ItemDataRole.AccessibleTextRole) == "Model: gemma4:26b-q4"
    assert table.data(table.index(0, 4), Role.SORT) == 2.0
    assert table.headerData(1, Qt.Orientation.Horizontal) == "For"
    assert table.headerData(9, Qt.Orientation.Horizontal) is None
    assert table.rowCount(index) == 0


def test_only_rows_that_changed_are_painted_anew(qtbot: QtBot) -> None:
    table = RowsTable(tables.MODEL_COLUMNS)
    before = ready(idle_model("a"), idle_model("b"))
    table.show_rows(tables.model_rows(before))
    changed: list[int] = []
    table.dataChanged.connect(lambda first, last: changed.append(first.row()))
    resets: list[None] = []
    table.modelReset.connect(lambda: resets.append(None))
    table.show_rows(tables.model_rows(before))
    assert changed == []
    table.show_rows(tables.model_rows(ready(idle_model("a"), idle_model("b", active_leases=1))))
    assert (changed, resets) == ([1], [])
    table.show_rows(tables.model_rows(ready(idle_model("b"))))
    assert resets == [None]


def test_a_selection_stays_with_its_model_when_others_come_and_go(qtbot: QtBot) -> None:
    chosen: list[str | None] = []
    view = RowsView(tables.MODEL_COLUMNS, "Models", chosen.append)
    qtbot.addWidget(view)
    view.show_rows(tables.model_rows(ready(idle_model("a"), idle_model("b"))))
    assert view.selected == "a"
    view.select("b")
    view.show_rows(tables.model_rows(ready(idle_model("c"), idle_model("a"), idle_model("b"))))
    assert view.selected == "b"
    assert chosen[-1] == "b"


def test_sorting_by_bytes_goes_by_numbers_and_not_by_words(qtbot: QtBot) -> None:
    view = RowsView(tables.MODEL_COLUMNS, "Models", lambda _model: None)
    qtbot.addWidget(view)
    view.show_rows(tables.model_rows(ready(*household())))
    view.sortByColumn(3, Qt.SortOrder.DescendingOrder)
    model = view.model()
    assert [model.index(row, 0).data() for row in range(2)] == ["llama3:70b", "qwen3:32b"]


# --- the status window ----------------------------------------------------------------------------------------------


def test_the_status_window_says_state_and_address(qtbot: QtBot, wishes: Wishes) -> None:
    window = status_window(qtbot, ready(*household()), wishes)
    said = [label.text() for label in window.findChildren(QLabel)]
    assert "Loading whisper:large-v3." in said
    assert any("http://127.0.0.1:9999/v1" in text for text in said)


def test_its_buttons_move_the_chosen_model(qtbot: QtBot, wishes: Wishes) -> None:
    window = status_window(qtbot, ready(idle_model("a")), wishes)
    assert not button(window, "Move to GPU").isEnabled()
    qtbot.mouseClick(button(window, "Move to disk"), Qt.MouseButton.LeftButton)
    assert wishes == [intents.Move("a", Tier.DISK)]


def test_the_box_in_service_shows_what_is_until_the_engine_agrees(qtbot: QtBot, wishes: Wishes) -> None:
    window = status_window(qtbot, ready(idle_model("a")), wishes)
    (box,) = window.findChildren(QCheckBox)
    assert box.isChecked()
    box.click()
    assert wishes == [intents.Switch("a", enabled=False)]
    assert box.isChecked()
    window.show_view(ready(entry("a", enabled=False)))
    assert not box.isChecked()
    box.click()
    assert wishes[-1] == intents.Switch("a", enabled=True)


def test_everything_in_the_status_window_is_reached_by_keyboard(qtbot: QtBot, wishes: Wishes) -> None:
    window = status_window(qtbot, ready(idle_model("a"), idle_model("b")), wishes)
    window.show()
    table = window.findChild(RowsView)
    assert isinstance(table, RowsView)
    table.setFocus()
    qtbot.keyClick(table, Qt.Key.Key_Down)
    assert table.selected == "b"
    reached = set()
    widget = table.nextInFocusChain()
    while widget is not None and widget is not table:
        if widget.focusPolicy() & Qt.FocusPolicy.TabFocus and widget.isVisibleTo(window) and widget.isEnabled():
            reached.add(widget.accessibleName() or getattr(widget, "text", lambda: "")())
        widget = widget.nextInFocusChain()
    assert {"&Copy address", "Open &page", "Move to RAM: b", "Move to disk: b", "In service: b"} <= reached


def test_widgets_that_act_or_show_have_names_for_people_who_do_not_see_them(qtbot: QtBot, wishes: Wishes) -> None:
    window = status_window(qtbot, ready(*household()), wishes)
    table = window.findChild(RowsView)
    assert table is not None
    assert table.accessibleName() == "Models"
    for found in window.findChildren(QPushButton):
        assert found.accessibleName() or found.text()


def test_before_there_is_an_engine_the_window_stands(qtbot: QtBot, wishes: Wishes) -> None:
    window = status_window(qtbot, STARTING, wishes)
    window.show()
    assert wishes == []


def test_looking_at_the_status_window_and_closing_it_are_told(qtbot: QtBot, wishes: Wishes) -> None:
    told: list[str] = []
    window = status_window(qtbot, STARTING, wishes, told)
    with qtbot.waitActive(window):
        window.show()
        window.activateWindow()
    assert set(told) == {"looked at"}
    window.close()
    assert told[-1] == "closed"


# --- notices --------------------------------------------------------------------------------------------------------


def test_a_notice_is_shown_with_its_action(qtbot: QtBot, wishes: Wishes) -> None:
    notices = NoticeList(wishes.append)
    qtbot.addWidget(notices)
    notice = Notice("k", "The engine has ended", "Why.", action=intents.StartHere(), action_text="Start it here")
    notices.add(notice, TOLD_AT)
    qtbot.mouseClick(button(notices, "Start it here"), Qt.MouseButton.LeftButton)
    assert wishes == [intents.StartHere()]


def test_the_newest_notice_is_on_top_and_old_ones_go(qtbot: QtBot, wishes: Wishes) -> None:
    notices = NoticeList(wishes.append)
    qtbot.addWidget(notices)
    for number in range(KEPT + 5):
        notices.add(Notice(str(number), f"Notice {number}", "Text."), TOLD_AT)
    notices.resize(400, 4000)
    notices.show()
    cards = sorted(notices.findChildren(NoticeCard), key=lambda card: card.y())
    shown = [card.accessibleName() for card in cards if card.isVisible()]
    assert shown == [f"Notice {number}" for number in range(KEPT + 4, 4, -1)]


def test_a_notice_s_text_is_never_read_as_markup(qtbot: QtBot, wishes: Wishes) -> None:
    card = NoticeCard(Notice("k", "Title", "<b>x</b> <img src='file:///etc/passwd'>"), TOLD_AT, wishes.append)
    qtbot.addWidget(card)
    assert all(
        label.textFormat() is Qt.TextFormat.PlainText for label in card.findChildren(QLabel) if "<b>" in label.text()
    )


# --- menus ----------------------------------------------------------------------------------------------------------


def test_a_menu_is_filled_when_it_opens_with_what_is_true_then(qtbot: QtBot, wishes: Wishes) -> None:
    views = [STARTING]
    live = LiveMenu("Hypnos", lambda: menu(views[-1], PLAIN), wishes.append)
    qtbot.addWidget(live)
    live.aboutToShow.emit()
    assert not any(action.menu() for action in live.actions())
    views.append(ready(idle_model("a")))
    live.aboutToShow.emit()
    (model,) = [action for action in live.actions() if action.menu()]
    submenu = model.menu()
    assert isinstance(submenu, QMenu)
    move = next(action for action in submenu.actions() if action.text() == "Move to disk")
    move.trigger()
    assert wishes == [intents.Move("a", Tier.DISK)]


def test_opening_a_menu_again_leaves_nothing_of_the_last_time(qtbot: QtBot, wishes: Wishes) -> None:
    live = LiveMenu("Hypnos", lambda: menu(ready(*household()), PLAIN), wishes.append)
    qtbot.addWidget(live)
    live.rebuild()
    lines = len(live.actions())
    for _ in range(20):
        live.rebuild()
    assert len(live.actions()) == lines
    assert len(live._submenus) == 7


def test_an_ampersand_in_a_model_s_name_is_no_shortcut(qtbot: QtBot, wishes: Wishes) -> None:
    live = LiveMenu("Hypnos", lambda: menu(ready(idle_model("this&that")), PLAIN), wishes.append)
    qtbot.addWidget(live)
    live.rebuild()
    assert any(action.text().startswith("this&&that") for action in live.actions())


# --- the other windows ----------------------------------------------------------------------------------------------


def test_the_requests_window_says_when_nothing_was_decided(qtbot: QtBot) -> None:
    window = RequestsWindow()
    qtbot.addWidget(window)
    window.show_view(ready(*household()))
    said = [label.text() for label in window.findChildren(QLabel) if label.isVisibleTo(window)]
    assert "Nothing was decided yet." in said


def test_about_escapes_what_it_shows_and_links_addresses(qtbot: QtBot) -> None:
    text = about(version="1", qt="6", parts=(Part("<evil>", "1", "MIT"),), qt_folder="/x", bundled=False)
    window = AboutWindow(text, icons.program_icon())
    qtbot.addWidget(window)
    browser = window.findChild(QTextBrowser)
    assert isinstance(browser, QTextBrowser)
    assert "<evil>" in browser.toPlainText()
    assert 'href="https://code.qt.io"' in browser.toHtml()


def test_trouble_emits_the_remedy_that_is_picked_and_enter_takes_the_first(qtbot: QtBot) -> None:
    picked: list[Remedy] = []
    shown = trouble(PortInUse("Port 9999 is in use."), Surroundings(free_port=10000))
    window = TroubleWindow(shown, icons.program_icon(), picked.append)
    qtbot.addWidget(window)
    window.show()
    qtbot.keyClick(window, Qt.Key.Key_Return)
    qtbot.mouseClick(button(window, "Try again"), Qt.MouseButton.LeftButton)
    qtbot.keyClick(window, Qt.Key.Key_Escape)
    assert picked == [TryAgain(10000), TryAgain(None), GiveUp()]


# --- icons ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mood", list(Mood))
def test_every_mood_has_its_own_picture_on_light_and_dark(qtbot: QtBot, mood: Mood) -> None:
    pictures = [
        icons.tray_icon(mood, None, dark=dark, template=template).pixmap(22).toImage()
        for dark, template in ((False, False), (True, False), (False, True))
    ]
    assert all(not picture.isNull() for picture in pictures)
    assert pictures[0] != pictures[1]
    others = [other for other in Mood if other is not mood]
    assert all(icons.tray_icon(other, None, dark=False).pixmap(22).toImage() != pictures[0] for other in others)


def test_progress_is_seen_in_the_icon(qtbot: QtBot) -> None:
    few, many = (icons.tray_icon(Mood.LOADING, step, dark=False).pixmap(22).toImage() for step in (2, STEPS - 2))
    assert few != many


def test_a_template_icon_is_a_mask_of_one_colour(qtbot: QtBot) -> None:
    icon = icons.tray_icon(Mood.WORKING, None, dark=False, template=True)
    assert icon.isMask()
    picture = icon.pixmap(32).toImage()
    seen = {
        picture.pixelColor(x, y).rgb() & 0xFFFFFF
        for x in range(32)
        for y in range(32)
        if picture.pixelColor(x, y).alpha()
    }
    assert seen == {0}
