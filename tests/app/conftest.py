"""Widgets are tested on Qt's offscreen platform, with pytest-qt and without a loop of their own."""

import os

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
