"""Compares what the scheduler has booked with what workers, holder and parking say of themselves. Changes nothing."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypnos_engine.domain.kinds import Pages, Residency
from hypnos_engine.runtime.dispatcher import Dispatcher
from hypnos_engine.scheduler import ledger

if TYPE_CHECKING:
    from collections.abc import Iterator

_THERE = (Residency.LOADING, Residency.READY, Residency.UNLOADING)


@dataclass(frozen=True, slots=True)
class Difference:
    """A number that should be the same on both sides and is not."""

    what: str
    booked: int
    counted: int


def recount(dispatcher: Dispatcher) -> tuple[Difference, ...]:
    """Everything in which the ledger differs from a fresh count; empty when all is right.

    Workers that have grown since their report may only hold more than was counted then, never less.
    """
    found = (*_workers(dispatcher), *_pages(dispatcher), *_parked(dispatcher), *_sums(dispatcher))
    return tuple(found)


def _workers(dispatcher: Dispatcher) -> "Iterator[Difference]":
    models = dispatcher.scheduler.state.models
    live = dict(dispatcher.residents.all())
    there = {name for name, model in models.items() if model.residency in _THERE}
    if there != set(live):
        yield Difference(f"workers of {sorted(there ^ set(live))}", len(there), len(live))
    for name, resident in live.items():
        model = models.get(name)
        counted = dispatcher.residents.counted(resident)
        if model is None or model.measured is None or counted is None:
            continue
        if model.measured.device != counted.device:
            yield Difference(f"device bytes of {name}", model.measured.device, counted.device)
        if model.measured.file_pages != counted.file_pages:
            yield Difference(f"mapped bytes of {name}", model.measured.file_pages, counted.file_pages)
        if model.measured.anonymous < counted.anonymous:
            yield Difference(f"private bytes of {name}", model.measured.anonymous, counted.anonymous)


def _pages(dispatcher: Dispatcher) -> "Iterator[Difference]":
    report = dispatcher.pages.report()
    held = {} if report is None else {one.files: one.held_bytes for one in report.held}
    booked = {
        path: files.held_bytes
        for path, files in dispatcher.scheduler.state.files.items()
        if files.pages is Pages.HELD and files.held_bytes
    }
    moving = {
        path
        for path, files in dispatcher.scheduler.state.files.items()
        if files.pages in (Pages.FILLING, Pages.DROPPING)
    }
    for path in sorted(booked.keys() | held.keys()):
        if path not in moving and booked.get(path, 0) > held.get(path, 0):
            yield Difference(f"pages of {path}", booked.get(path, 0), held.get(path, 0))
        if path not in moving and path not in booked and held[path]:
            yield Difference(f"pages of {path}", 0, held[path])


def _parked(dispatcher: Dispatcher) -> "Iterator[Difference]":
    conversations = dispatcher.around.conversations
    view = None if conversations is None else conversations.view()
    parked = {} if view is None else {one.model: one.bytes for one in view.models}
    for name, model in dispatcher.scheduler.state.models.items():
        on_its_way = model.residency in (Residency.UNLOADING, Residency.LOADING)
        if not on_its_way and model.parked_bytes != parked.get(name, 0):
            yield Difference(f"parked bytes of {name}", model.parked_bytes, parked.get(name, 0))


def _sums(dispatcher: Dispatcher) -> "Iterator[Difference]":
    """The ledger's sums against sums made another way: file sets once each, everything else by model."""
    state = dispatcher.scheduler.state
    lines = {path: files.held_bytes for path, files in state.files.items()}
    for model in state.models.values():
        lines[model.files] = max(lines.get(model.files, 0), model.mapped_bytes)
    private = sum(model.private_bytes + model.parked_bytes for model in state.models.values())
    counted = private + sum(lines.values())
    if ledger.host_booked(state) != counted:
        yield Difference("host memory", ledger.host_booked(state), counted)
    devices = range(len(state.budgets.device_bytes))
    for device in devices:
        shares = sum(ledger.share_of(model, device) for model in state.models.values())
        if ledger.device_booked(state, device) != shares:
            yield Difference(f"device {device}", ledger.device_booked(state, device), shares)
