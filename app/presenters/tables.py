"""Rows and columns of the windows' tables, as values with their words and their sort keys."""

from dataclasses import dataclass

from app.presenters import words
from app.state import Decision, Model, View
from hypnos_engine.domain.kinds import Tier

SortKey = str | float


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its heading, what the heading means, and whether it holds numbers."""

    title: str
    about: str
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    sort: SortKey
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One model's line; `cells` has one entry per column."""

    model: str
    cells: tuple[Cell, ...]
    about: str
    """The line in words, for tool tips and for people who hear it read."""


MODEL_COLUMNS = (
    Column("Model", "The name that requests use"),
    Column("For", "What it can do"),
    Column("Where", "In which memory it is now"),
    Column("Takes", "GPU memory and RAM that it takes, or the size of its weights on disk", is_number=True),
    Column("Running", "Requests that it answers right now", is_number=True),
    Column("Per minute", "Requests of the last minutes, per minute", is_number=True),
)

REQUEST_COLUMNS = (
    Column("Model", "The name that requests use"),
    Column("Running", "Requests that it answers right now", is_number=True),
    Column("Waiting", "Requests that wait for it", is_number=True),
    Column("Answered", "Requests since the engine started", is_number=True),
    Column("Per minute", "Requests of the last minutes, per minute", is_number=True),
    Column("Usual time", "How long a request holds the model on average", is_number=True),
    Column("Next would wait", "How long a request that arrives now would wait", is_number=True),
)


def model_rows(view: View) -> tuple[Row, ...]:
    """One row per model, in the order of the configuration."""
    one_pool = view.memory is not None and view.memory.one_pool
    return tuple(_model_row(model, one_pool=one_pool) for model in view.models)


def _model_row(model: Model, *, one_pool: bool) -> Row:
    where = words.whereabouts(model, one_pool=one_pool)
    troubled = bool(model.problem and model.enabled)
    about = f"{model.id}, {words.need(model)}: {where}, takes {words.bytes_of(model)}, {model.leases} running"
    if model.problem:
        about = f"{about}. {model.problem}"
    return Row(
        model.id,
        (
            Cell(model.id, model.id.casefold()),
            Cell(words.need(model), words.need(model)),
            Cell(f"{where} (!)" if troubled else where, _distance(model), is_warning=troubled),
            Cell(words.bytes_of(model), float(words.held_bytes(model) or model.weight_bytes)),
            Cell(str(model.leases), float(model.leases)),
            Cell(words.per_minute(model.per_minute), model.per_minute),
        ),
        about,
    )


def _distance(model: Model) -> float:
    """How far a model is from answering: what is switched off comes last."""
    order = {Tier.GPU: 0.0, Tier.RAM: 2.0, Tier.DISK: 3.0}
    if not model.enabled:
        return 4.0
    return 1.0 if model.is_loading else order[model.tier]


def request_rows(view: View) -> tuple[Row, ...]:
    """One row per model in service."""
    return tuple(_request_row(model) for model in view.models if model.enabled)


def _request_row(model: Model) -> Row:
    about = f"{model.id}: {model.leases} running, {model.waiting} waiting, {model.served} answered"
    return Row(
        model.id,
        (
            Cell(model.id, model.id.casefold()),
            Cell(str(model.leases), float(model.leases)),
            Cell(str(model.waiting), float(model.waiting)),
            Cell(f"{model.served:,}".replace(",", "\u202f"), float(model.served)),
            Cell(words.per_minute(model.per_minute), model.per_minute),
            Cell(words.duration(model.service_ms), model.service_ms or 0.0),
            Cell(words.duration(model.wait_ms), model.wait_ms or 0.0),
        ),
        about,
    )


@dataclass(frozen=True, slots=True)
class Gauge:
    """How full one memory is; `part` is 0 to 1."""

    title: str
    text: str
    part: float


def gauges(view: View) -> tuple[Gauge, ...]:
    """One bar per tier that has room at all; none before anything is known."""
    memory = view.memory
    if memory is None:
        return ()
    first = _gauge(
        "Memory for models" if memory.one_pool else "GPU memory", memory.tier1_used_bytes, memory.tier1_budget_bytes
    )
    second = _gauge("RAM", memory.tier2_used_bytes, memory.tier2_budget_bytes)
    return (first,) if memory.one_pool or not memory.tier2_budget_bytes else (first, second)


def _gauge(title: str, used: int, budget: int) -> Gauge:
    part = min(1.0, used / budget) if budget else 0.0
    return Gauge(title, f"{words.size(used)} of {words.size(budget)}" if used else f"{words.size(budget)} free", part)


def decision_lines(view: View) -> tuple[str, ...]:
    """What the scheduler decided lately, newest first, in its own words."""
    return tuple(_line(decision) for decision in view.decisions)


def _line(decision: Decision) -> str:
    return decision.because
