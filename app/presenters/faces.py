"""Which face the tray icon shows. The most urgent state wins; never more than one."""

from dataclasses import dataclass
from enum import StrEnum, auto

from app.presenters.words import api_address, condition
from app.state import Phase, View


class Mood(StrEnum):
    """Faces of the icon, from least to most urgent."""

    IDLE = auto()
    WORKING = auto()
    LOADING = auto()
    ATTENTION = auto()


STEPS = 20
"""How many different amounts of progress the icon can show: each costs a repaint of the tray."""


@dataclass(frozen=True, slots=True)
class Face:
    """What the icon shows; equal faces need no repaint."""

    mood: Mood
    step: int | None
    """How much of a load is done, in steps; None where nothing loads or nothing is known."""
    tooltip: str


def face(view: View, *, unseen: int) -> Face:
    """The icon for a view; `unseen` notices that nobody looked at ask for attention."""
    step = None
    if unseen or view.phase is Phase.UNREACHABLE:
        mood = Mood.ATTENTION
    elif any(model.is_loading for model in view.models) or view.phase is Phase.STARTING:
        mood, step = Mood.LOADING, _step(view)
    elif any(model.leases or model.waiting for model in view.models):
        mood = Mood.WORKING
    else:
        mood = Mood.IDLE
    lines = [f"Hypnos: {condition(view)}"]
    if view.address:
        lines.append(api_address(view))
    if unseen:
        lines.append("1 new notice" if unseen == 1 else f"{unseen} new notices")
    return Face(mood, step, "\n".join(lines))


def _step(view: View) -> int | None:
    """The least advanced load decides."""
    known = [model.progress for model in view.models if model.is_loading and model.progress is not None]
    return int(min(known) * STEPS) if known else None
