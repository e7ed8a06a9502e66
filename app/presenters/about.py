"""What the program says about itself: its version, whose work is inside, and the rights that Qt's licence gives."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """A component and its licence."""

    name: str
    version: str
    licence: str


@dataclass(frozen=True, slots=True)
class About:
    title: str
    text: str
    parts: tuple[Part, ...]
    qt_notice: str


TEXT = """\
All of your computer's AI behind one local address.
Copyright 2026 The Hypnos authors. Apache License, version 2.0."""

QT_NOTICE = """\
This program uses Qt {qt} and PySide6 under the GNU Lesser General Public License, version 3. They are separate, \
unmodified libraries that are loaded when the program starts, and you may exchange them for your own build:

{relink}

Reverse engineering for debugging such changes is allowed. The licence's text and Qt's source code are at \
https://www.qt.io/licensing and https://code.qt.io; the text is also inside the PySide6 package."""

IN_ENVIRONMENT = """\
Build PySide6 with your Qt and install it into the Python environment that runs Hypnos, over the one that is there \
({folder}). Nothing else has to be built again."""

IN_BUNDLE = """\
Replace the Qt libraries and the PySide6 folder in {folder} by your own build of the same major version, with the \
same file names. Nothing else has to be built again."""


def about(*, version: str, qt: str, parts: tuple[Part, ...], qt_folder: str, bundled: bool) -> About:
    """The text of the About window."""
    relink = (IN_BUNDLE if bundled else IN_ENVIRONMENT).format(folder=qt_folder)
    return About(
        title=f"Hypnos {version}",
        text=TEXT,
        parts=parts,
        qt_notice=QT_NOTICE.format(qt=qt, relink=relink),
    )
