"""What is held in tier 2: decides which files' pages are read and kept in host memory, and which are let go for others.

Pages are held only within `Budgets.tier2_bytes`, only into memory that nobody needs, and one file set at a time.
"""

import math

from hypnos_engine.domain.kinds import Pages, Residency, Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import ledger
from hypnos_engine.scheduler.ledger import Gone, human
from hypnos_engine.scheduler.placement import Plan
from hypnos_engine.scheduler.room import RANK, saved_s
from hypnos_engine.scheduler.state import FileSet, ModelState, State


def size_bytes(model: ModelState) -> int:
    """What holding a model's files takes; 0 when they are not known."""
    return 0 if model.shape is None or model.problem is not None else model.shape.file_bytes


def wish(state: State, model: ModelState) -> None:
    """Hold the model's pages as soon as that is possible."""
    if state.budgets.tier2_bytes > 0 and size_bytes(model):
        state.wanted_pages.setdefault(model.files, model.spec.id)


def wish_back(state: State, path: str) -> None:
    """Pages that had to go come back as soon as there is room again, if their owner wants them kept."""
    for user in state.users(path):
        if user.spec.keep_warm_in_ram and user.spec.enabled:
            wish(state, user)


def could_hold(state: State, model: ModelState) -> bool:
    """Whether the model's pages are held, or can be without anybody leaving for them."""
    files = state.files.get(model.files)
    if files is not None and files.pages in (Pages.HELD, Pages.FILLING):
        return True
    leaves = Gone(frozenset((model.spec.id,))) if model.residency is Residency.READY else Gone()
    return bool(size_bytes(model)) and _lacking_bytes(state, model, leaves) <= 0


def are_coming(state: State, model: ModelState) -> bool:
    """Whether a wish for the model's pages may still come true without anybody else doing anything."""
    leaving = any(other.residency is Residency.UNLOADING for other in state.models.values())
    return model.files in state.wanted_pages and (leaving or _is_occupied(state))


def settle(state: State, now: float, out: list[fx.Effect]) -> None:
    """Begin to fill the first wanted file set that there is room for, or to make that room.

    1. Nothing begins while another set is filled or dropped, or while a model is read from the disk.
    2. Room without anybody leaving: fill.
    3. Room once workers have left that are on their way out: wait for them.
    4. Room once pages have left whose loss costs less: drop those, and fill afterwards.
    5. Else the wish is forgotten, unless the owner wants the pages kept: then it waits.
    """
    if not state.wanted_pages or state.draining:
        return
    if _is_occupied(state):  # 1
        return
    for path, name in sorted(state.wanted_pages.items(), key=lambda wanted: _asked_for(state, wanted[1])):
        model = state.models.get(name)
        files = state.files.setdefault(path, FileSet(path))
        if model is None or not model.spec.enabled or not size_bytes(model) or files.pages is Pages.HELD:
            del state.wanted_pages[path]
            continue
        if model.residency in (Residency.LOADING, Residency.READY) and not model.spec.keep_warm_in_ram:
            del state.wanted_pages[path]  # it was wanted for a load, and that has come
            continue
        if path in state.taken_files:
            continue
        if _left_for_a_waiter(state, files):  # they would only be dropped again
            continue
        if _lacking_bytes(state, model, Gone()) <= 0:  # 2
            del state.wanted_pages[path]
            _fill(files, model, out)
            return
        if _lacking_bytes(state, model, ledger.room_in_flight(state)) <= 0:  # 3
            continue
        leaving = _cheaper(state, model, now)
        if leaving:  # 4
            for path_left in leaving:
                drop(state, path_left, name, out)
            return
        if not model.spec.keep_warm_in_ram:  # 5
            del state.wanted_pages[path]


def _left_for_a_waiter(state: State, files: FileSet) -> bool:
    """Whether the pages were dropped for a model that still waits for its load."""
    other = None if files.left_for is None else state.models.get(files.left_for)
    return other is not None and other.residency is Residency.COLD and bool(other.waiting or other.staged)


def _is_occupied(state: State) -> bool:
    """True while pages come or go, or a worker reads the disk."""
    moving = any(files.pages in (Pages.FILLING, Pages.DROPPING) for files in state.files.values())
    return moving or any(
        model.residency is Residency.LOADING and model.loading_from is Tier.DISK for model in state.models.values()
    )


def drop(state: State, path: str, for_model: ModelId | None, out: list[fx.Effect]) -> None:
    """Let go of held pages."""
    files = state.files[path]
    files.pages = Pages.DROPPING
    files.left_for = for_model
    out.append(fx.DropPages(path, for_model))
    user = next((user.spec.id for user in state.users(path)), ModelId(path))
    reason = f"for {for_model}" if for_model is not None else "because nobody uses them any more"
    out.append(
        fx.Record(
            "drop_pages",
            user,
            f"{human(files.held_bytes)} of {path} leave the RAM {reason}.",
            (("bytes", files.held_bytes),),
        )
    )


def _fill(files: FileSet, model: ModelState, out: list[fx.Effect]) -> None:
    files.pages = Pages.FILLING
    files.held_bytes = size_bytes(model)
    out.append(fx.FillPages(files.path, model.spec.id, files.held_bytes))
    out.append(
        fx.Record(
            "fill_pages",
            model.spec.id,
            f"{human(files.held_bytes)} of {model.spec.id} are kept in RAM: there is room for them.",
            (("bytes", files.held_bytes),),
        )
    )


def _lacking_bytes(state: State, model: ModelState, gone: Gone) -> int:
    """By how much the room for a model's pages is too small."""
    size = size_bytes(model)
    held = sum(files.held_bytes for path, files in state.files.items() if path not in gone.files)
    free = ledger.free_without(state, gone)
    more = size - ledger.file_line(state, model.files, gone)
    lacking = max(held + size - state.budgets.tier2_bytes, more - free.host_bytes)
    return lacking if lacking > 0 else max(lacking, _taken_from_loads(state, model, gone))


def _taken_from_loads(state: State, model: ModelState, gone: Gone) -> int:
    """How much of the room for a model's pages is awaited by one that can be loaded once what is leaving has left."""
    gone = gone | ledger.room_in_flight(state)
    more = size_bytes(model) - ledger.file_line(state, model.files, gone)
    most = -more
    for other in state.models.values():
        awaited = other.residency is Residency.COLD and (other.waiting or other.staged or other.promoted)
        if not awaited or other.files == model.files:
            continue
        plan = ledger.plan_without(state, other, gone)
        if isinstance(plan, Plan):
            free = ledger.free_without(state, gone, other.files)
            needs = plan.host_peak_bytes - min(free.held_pages_bytes, plan.mapped_bytes)
            needs += plan.device_peak_bytes if free.unified else 0
            most = max(most, more - (free.host_bytes - needs))
    return most


def _cheaper(state: State, model: ModelState, now: float) -> list[str]:
    """File sets whose pages are worth less than the model's and whose leaving makes room; empty when there are none."""
    mine = _worth(state, model, now)
    others: list[tuple[tuple[int, float], str]] = []
    for path, files in state.files.items():
        worths = [_worth(state, user, now) for user in state.users(path)]
        worth = max(worths, default=(0, 0.0))
        if files.pages is Pages.HELD and worth < mine and not state.is_read(path):
            others.append((worth, path))
    chosen: list[str] = []
    for _, path in sorted(others):
        chosen.append(path)
        if _lacking_bytes(state, model, Gone(files=frozenset(chosen))) <= 0:
            return chosen
    return []


def _worth(state: State, model: ModelState, now: float) -> tuple[int, float]:
    """Pages that somebody waits for are worth most, then those that are to be kept, of whatever priority.

    Among those that are waited for only the priority counts: what is there already stays, else two would take turns.
    """
    rank = RANK[model.spec.priority] + (len(RANK) if model.spec.keep_warm_in_ram else 0)
    if model.waiting and model.residency is Residency.COLD:
        return 2 * len(RANK) + rank, 0.0
    return rank, saved_s(state, model) * model.requests_per_minute(now)


def _asked_for(state: State, name: ModelId) -> float:
    """When the oldest request came that waits for the model; files that nobody waits for are read last."""
    model = state.models.get(name)
    return model.oldest().arrived_at if model is not None and model.waiting else math.inf
