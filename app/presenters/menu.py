"""The tray's menu as data, made anew each time it opens. Draws nothing and carries nothing out."""

from dataclasses import dataclass

from app.presenters import intents, words
from app.state import Model, Phase, View
from hypnos_engine.domain.kinds import Residency, Tier


@dataclass(frozen=True, slots=True)
class Entry:
    """One line. Without an intent and without children it only informs."""

    text: str
    intent: intents.Intent | None = None
    enabled: bool = True
    checked: bool | None = None
    """None: it cannot be checked."""
    children: tuple["Entry | Separator", ...] = ()
    hint: str = ""
    """Why it cannot be chosen, or what it does."""


@dataclass(frozen=True, slots=True)
class Separator:
    pass


Menu = tuple[Entry | Separator, ...]

LONGEST_LIST = 12
"""More models than this stand in a submenu of their own, so that the menu fits small screens."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What the menu depends on beside the engine."""

    starts_at_login: bool | None
    """None: this system cannot do it."""
    unseen: int = 0
    """Notices that nobody looked at."""


def menu(view: View, desk: Desk) -> Menu:
    """All lines from top to bottom."""
    return (
        *_head(view, desk),
        Separator(),
        *models(view),
        Separator(),
        *_wishes(view),
        Separator(),
        *_program(desk),
    )


def _head(view: View, desk: Desk) -> Menu:
    notices = (Entry(_new_notices(desk.unseen), intents.ShowStatus()),) if desk.unseen else ()
    return (
        Entry(words.condition(view).rstrip("."), enabled=False),
        *notices,
        Separator(),
        *_address(view),
        Entry("Status…", intents.ShowStatus()),
        Entry("Requests…", intents.ShowRequests()),
    )


def _address(view: View) -> Menu:
    if not view.address:
        return ()
    return (
        Entry(f"Copy {words.api_address(view)}", intents.CopyAddress(), hint="The address for OpenAI clients"),
        Entry("Open page", intents.OpenPage()),
    )


def _new_notices(count: int) -> str:
    return "1 new notice…" if count == 1 else f"{count} new notices…"


def models(view: View) -> Menu:
    """One submenu per model, or a single line that says why there is none."""
    if not view.models:
        return (Entry("No model is configured" if view.memory else "Models are not known yet", enabled=False),)
    lines = tuple(_model(model, view) for model in view.models)
    if len(lines) <= LONGEST_LIST:
        return lines
    return (Entry(f"Models ({len(lines)})", children=lines),)


def _model(model: Model, view: View) -> Entry:
    one_pool = view.memory is not None and view.memory.one_pool
    where = words.whereabouts(model, one_pool=one_pool)
    takes = f", {words.size(words.held_bytes(model))}" if words.held_bytes(model) else ""
    mark = " (!)" if model.problem and model.enabled else ""
    return Entry(f"{model.id}: {where}{takes}{mark}", children=model_actions(model, view))


def model_actions(model: Model, view: View) -> Menu:
    """Where a model can be moved, and whether it is in service."""
    one_pool = view.memory is not None and view.memory.one_pool
    why_not = _why_not_moved(model, view)
    moves = tuple(
        Entry(
            words.move_to(tier, one_pool=one_pool),
            intents.Move(model.id, tier),
            enabled=not why_not and not is_there(model, tier),
            checked=model.enabled and is_there(model, tier),
            hint=why_not,
        )
        for tier in Tier
    )
    told = (Entry(short(model.problem), enabled=False, hint=model.problem),) if model.problem else ()
    in_service = Entry(
        "In service",
        intents.Switch(model.id, enabled=not model.enabled),
        enabled=not model.leases and view.phase is not Phase.UNREACHABLE,
        checked=model.enabled,
        hint="It answers a request right now" if model.leases else "",
    )
    return (*told, *moves, Separator(), in_service)


def is_there(model: Model, tier: Tier) -> bool:
    """Whether a model needs no move to be at a tier."""
    if tier is Tier.GPU:
        return model.tier is tier and model.residency is Residency.READY
    return model.tier is tier and not model.is_loading


def _why_not_moved(model: Model, view: View) -> str:
    """Empty when it can be moved."""
    if view.phase is Phase.UNREACHABLE:
        return "The engine does not answer"
    if not model.enabled:
        return "It is switched off"
    if model.leases:
        return "It answers a request right now"
    return ""


def short(text: str, longest: int = 70) -> str:
    """The beginning of a sentence, for places with little room."""
    return text if len(text) <= longest else f"{text[: longest - 1].rstrip()}…"


def _wishes(view: View) -> Menu:
    if view.memory is None or view.memory.one_pool:
        free, back = "Free the memory for other programs", "Bring the models back"
    else:
        free, back = "Free the GPU for other programs", "Give the GPU back to Hypnos"
    reachable = view.phase is Phase.READY
    if view.hold is not None:
        return (Entry(back, intents.RestoreGpu(), enabled=reachable),)
    return (Entry(free, intents.FreeGpu(), enabled=reachable),)


def _program(desk: Desk) -> Menu:
    login = (
        (Entry("Start at login", intents.StartAtLogin(not desk.starts_at_login), checked=desk.starts_at_login),)
        if desk.starts_at_login is not None
        else ()
    )
    return (*login, Entry("About Hypnos…", intents.ShowAbout()), Entry("Quit", intents.Quit()))
