"""The About window: version, licences, and the rights that Qt's licence gives."""

import re
from html import escape

from PySide6.QtCore import Qt
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QHBoxLayout, QLabel, QTextBrowser, QVBoxLayout

from app.dialogs.parts import GAP, heading, soft
from app.presenters.about import About

ICON_PX = 64


class AboutWindow(QDialog):
    """Shows one text."""

    def __init__(self, about: About, icon: QIcon) -> None:
        super().__init__()
        self.setWindowTitle("About Hypnos")
        picture = QLabel()
        picture.setPixmap(icon.pixmap(ICON_PX))
        picture.setAccessibleName("Hypnos")
        text = soft(QLabel(about.text))
        words = QVBoxLayout()
        words.setSpacing(4)
        words.addWidget(heading(about.title, larger=1.5))
        words.addWidget(text)
        words.addStretch(1)
        head = QHBoxLayout()
        head.setSpacing(2 * GAP)
        head.addWidget(picture, 0, Qt.AlignmentFlag.AlignTop)
        head.addLayout(words, 1)
        licences = QTextBrowser()
        licences.setOpenExternalLinks(True)
        licences.setHtml(_html(about))
        licences.setAccessibleName("Licences")
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.rejected.connect(self.close)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(20, 20, 20, 16)
        layout.setSpacing(GAP)
        layout.addLayout(head)
        layout.addWidget(licences, 1)
        layout.addWidget(buttons)
        self.resize(640, 520)


def _html(about: About) -> str:
    lines = "".join(
        f"<tr><td>{escape(part.name)}</td><td>{escape(part.version)}</td><td>{escape(part.licence)}</td></tr>"
        for part in about.parts
    )
    paragraphs = "".join(f"<p>{_linked(paragraph)}</p>" for paragraph in about.qt_notice.split("\n\n"))
    return f"<h4>Qt and its licence</h4>{paragraphs}<h4>Components</h4><table cellpadding='3'>{lines}</table>"


def _linked(text: str) -> str:
    """Escaped, with web addresses as links."""
    return re.sub(r"https://[\w./]*\w", lambda found: f'<a href="{found[0]}">{found[0]}</a>', escape(text))
