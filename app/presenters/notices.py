"""Which news a person is told, once and in words, with something to do about it. Shows nothing itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum, auto

from app.presenters import intents
from app.state import Phase, Told, Update, View
from hypnos_engine.api.schemas.memory_events import DecisionEvent


class Weight(StrEnum):
    """How loudly a notice is told."""

    NOTE = auto()
    PROBLEM = auto()
    """Makes the tray icon ask for attention until somebody looked."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One piece of news. A notice with a key that was told already is not told again."""

    key: str
    title: str
    text: str
    weight: Weight = Weight.PROBLEM
    action: intents.Intent | None = None
    action_text: str = ""


TOLD_KINDS = {
    "worker_died": "{model} had to be restarted",
    "load_failed": "{model} could not be loaded",
    "device_lost": "A GPU was lost",
}
"""Decisions that are news. Everything else is the scheduler's daily work."""
LOST = "lost"


def news(before: View, update: Update, after: View) -> Iterator[Notice]:
    """What an update that turned `before` into `after` is worth telling."""
    if isinstance(update, Told) and isinstance(update.event, DecisionEvent):
        yield from _of_decision(update.event)
    yield from _new_problems(before, after)
    if after.phase is Phase.UNREACHABLE and before.phase is not Phase.UNREACHABLE:
        yield _lost(after)


def over(before: View, after: View) -> Iterator[str]:
    """Keys of what was told and holds no more: when it comes up again, it is news again."""
    if before.phase is Phase.UNREACHABLE and after.phase is not Phase.UNREACHABLE:
        yield LOST
    for known in before.models:
        now = after.model(known.id)
        if known.problem and (now is None or now.problem != known.problem):
            yield _problem_key(known.id, known.problem)


def _problem_key(model: str, problem: str) -> str:
    return f"problem {model} {problem}"


def _of_decision(decision: DecisionEvent) -> Iterator[Notice]:
    title = TOLD_KINDS.get(decision.kind)
    if title is None:
        return
    text = decision.because
    if decision.kind == "worker_died":
        text = f"{text.rstrip('.')}. Its next request starts it again."
    yield Notice(
        key=f"decision {decision.unix_ms} {decision.id}",
        title=title.format(model=decision.model),
        text=text,
        action=intents.ShowStatus(),
        action_text="Show models",
    )


def _new_problems(before: View, after: View) -> Iterator[Notice]:
    for model in after.models:
        known = before.model(model.id)
        if model.problem and model.enabled and (known is None or known.problem != model.problem):
            yield Notice(
                key=_problem_key(model.id, model.problem),
                title=f"{model.id} cannot be served",
                text=model.problem,
                action=intents.ShowStatus(),
                action_text="Show models",
            )


def _lost(view: View) -> Notice:
    if view.own:
        return Notice(LOST, "The engine does not answer", view.reason, action=intents.ShowStatus(), action_text="Show")
    return Notice(
        key=LOST,
        title="The engine has ended",
        text=f"{view.reason} This window showed an engine that another program had started.",
        action=intents.StartHere(),
        action_text="Start it here",
    )


def refused(intent: intents.EngineIntent, reason: str) -> Notice:
    """What is told when a wish could not be carried out."""
    title = _refusal(intent)
    return Notice(f"refused {title} {reason}", title, reason, action=intents.ShowStatus(), action_text="Show models")


def _refusal(intent: intents.EngineIntent) -> str:
    match intent:
        case intents.Move(model):
            return f"{model} was not moved"
        case intents.Switch(model, enabled):
            return f"{model} was not switched {'on' if enabled else 'off'}"
        case intents.FreeGpu():
            return "The GPU was not freed"
        case intents.RestoreGpu():
            return "The models were not brought back"
