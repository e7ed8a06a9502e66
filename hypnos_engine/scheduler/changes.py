"""What people and the machine change while models run: tiers by hand, holds, devices, budgets, the pool of models.

Decides when a model has to go although nobody needs its memory. A model in use is never taken away: it takes no new
requests and goes when the last one has ended.
"""

import math
from dataclasses import replace

from hypnos_engine.domain.errors import (
    Cancelled,
    HypnosError,
    InsufficientMemory,
    ModelBusy,
    ModelDisabled,
    ModelNotAvailable,
    ModelNotFound,
)
from hypnos_engine.domain.kinds import EngineKind, MoeOffload, Pages, Residency, Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler import leaving, ledger, pages, room
from hypnos_engine.scheduler.limits import NO_BUDGETS, Budgets
from hypnos_engine.scheduler.placement import Plan
from hypnos_engine.scheduler.state import Closing, Hold, ModelState, State

_MOVING = (Residency.LOADING, Residency.UNLOADING)
_WHY = {
    "pool": "its settings change",
    "disabled": "it is switched off",
    "files": "its files change",
    "hold": "the accelerator is wanted for something else",
    "device_lost": "its accelerator does not answer",
    "move": "a person wishes it",
    "offload": "its experts are to run elsewhere",
    "grown": "its worker has grown and is started anew",
    "memory_budget": "less memory may be used from now on",
    "process_memory_cap": "Hypnos and its workers may take less memory from now on",
    "full_gpu_placement": "the accelerator has room for it now",
}
"""The reasons of an unload that nobody's memory is needed for, as the end of a sentence."""
_COMES_BACK = ("full_gpu_placement", "grown")
"""Reasons of an unload after which the model is loaded again at once, if that evicts nobody."""


def take(state: State, event: ev.Event, now: float, out: list[fx.Effect]) -> None:
    """Take an event that changes what may run, rather than what runs."""
    state.unsettled = True
    state.freed()
    match event:
        case ev.StageRequested(name):
            if (model := state.models.get(name)) is not None and model.spec.enabled:
                state.stage(model)
        case ev.MoveRequested():
            error = _begin_move(state, event)
            if error is not None:
                out.append(fx.Refuse(event.request, error))
                out.append(fx.Record("refuse", event.model, error.message, chosen=event.tier.value))
        case ev.HoldStarted(until):
            _hold(state, until, out)
        case ev.HoldEnded():
            _end_hold(state, out)
        case ev.DeviceLost(device):
            _lose(state, device, out)
        case ev.DeviceReturned(device):
            _return(state, device)
        case ev.BudgetsSet(budgets):
            _set_budgets(state, budgets, now, out)
        case ev.LimitsSet(limits):
            state.limits = limits
        case ev.ModelInspected(name, shape, problem):
            if (model := state.models.get(name)) is not None:
                if (shape, problem) != (model.shape, model.problem):  # another file: what failed may work now
                    model.failures, model.retry_at = 0, 0.0
                model.shape, model.problem = shape, problem
                if model.spec.keep_warm_in_ram and model.spec.enabled:
                    pages.wish(state, model)
        case ev.ModelAdded(spec):
            _replace(state, ev.ModelReplaced(spec), out)
        case ev.ModelReplaced():
            _replace(state, event, out)
        case ev.ModelRemoved():
            _remove(state, event, out)
        case ev.ChangeAbandoned(name):
            _abandon(state, name, out)
        case ev.FilesTaken(files):
            state.taken_files |= files
        case ev.FilesReturned(files):
            state.taken_files -= files
            for model in state.models.values():
                if model.files in files and model.spec.keep_warm_in_ram and model.spec.enabled:
                    pages.wish(state, model)
        case ev.OffloadSet(name, mode):
            if (model := state.models.get(name)) is not None:
                _set_offload(model, mode)
        case ev.ModelSwitched(name, enabled):
            if (model := state.models.get(name)) is not None:
                _switch(state, model, now, enabled=enabled, out=out)
        case _:
            raise AssertionError(f"an event without an answer: {event!r}")


def settle(state: State, now: float, out: list[fx.Effect]) -> None:
    """Step 2 of the scheduler: everything that was waiting for a model to be left alone.

    1. A hold that has run out ends.
    2. More is booked than a smaller budget allows: models have to go.
    3. A model that has to go is unloaded once nobody uses it.
    4. A change of the pool happens once the model is not loaded any more.
    5. A wish for tier 1 is answered once the model is there.
    6. Pages that no model in service uses, and those of files that change on disk, are let go.
    """
    if not state.unsettled:
        return
    if state.hold is not None and state.hold.until is not None and state.hold.until <= now:  # 1
        _end_hold(state, out)
    if state.shrinking:
        _shrink(state, now, out)  # 2
    for model in list(state.models.values()):
        unused = model.residency is Residency.READY and not model.resizing and not model.leases
        if unused and (closing := reason_to_go(state, model)) is not None:  # 3
            why = f"{model.spec.id} leaves tier 1: {_WHY[closing.reason]}."
            size = (("bytes", model.footprint.total),)
            out.append(fx.Record("unload", model.spec.id, why, size, chosen=closing.to_tier.value))
            if closing.reason == "grown":
                model.closing = closing
            leaving.unload(state, model, None, closing.reason, closing.to_tier, out)
        if model.change is not None and model.residency is Residency.COLD and not model.leases:  # 4
            _apply(state, model, model.change, now, out)
        if model.promoted and model.move is not None:
            _follow(state, model, model.move, out)  # 5
    for path, files in state.files.items():
        unused = path in state.taken_files or not any(user.spec.enabled for user in state.users(path))
        if files.pages is Pages.HELD and unused:
            pages.drop(state, path, None, out)  # 6
    state.unsettled = (
        state.shrinking
        or state.hold is not None
        or bool(state.lost_devices)
        or bool(state.taken_files)
        or any(
            m.change or m.closing or m.move or m.grown or (m.residency is not Residency.COLD and not m.spec.enabled)
            for m in state.models.values()
        )
    )


def answer_moves(state: State, out: list[fx.Effect]) -> None:
    """Answer the wishes to move a model that have come true or cannot, now that it is known what will be held."""
    if not state.unsettled:
        return
    for model in state.models.values():
        if model.move is not None:
            _follow(state, model, model.move, out)


def reason_to_go(state: State, model: ModelState) -> Closing | None:
    """Why a model takes no new leases and has to leave tier 1; None when it may stay.

    A change of the pool comes before everything else, then its owner, then the accelerator.
    """
    if model.change is not None:
        return Closing("pool", Tier.RAM if _keeps_pages(model, model.change) else Tier.DISK)
    if not model.spec.enabled:
        return Closing("disabled", Tier.DISK)
    if state.is_taken(model):
        return Closing("files", Tier.DISK)
    if model.closing is not None:
        return model.closing
    if state.hold is not None and _uses_accelerator(state, model):
        return Closing("hold", Tier.RAM)
    if state.lost_devices and _is_lost(state, model):
        return Closing("device_lost", Tier.RAM)
    if model.grown and model.idle:
        return Closing("grown", Tier.RAM)
    return None


def _keeps_pages(model: ModelState, change: ev.ModelReplaced | ev.ModelRemoved) -> bool:
    """A replaced model begins on disk, unless its owner wants just these pages kept."""
    if isinstance(change, ev.ModelRemoved):
        return False
    return change.spec.keep_warm_in_ram and change.spec.weights_path == model.spec.weights_path


def wake_at(state: State) -> float:
    """When a hold ends by itself."""
    if state.hold is None or state.hold.until is None:
        return math.inf
    return state.hold.until


def has_gone(state: State, model: ModelState) -> None:
    """A worker is no more, however it ended: whatever had to drive it away has nothing left to do."""
    model.cool()
    closing, model.closing = model.closing, None
    state.freed()
    if closing is not None and closing.reason in _COMES_BACK:
        state.stage(model)


# --- accelerators ---------------------------------------------------------------------------------------------------


def device_problem(state: State) -> HypnosError | None:
    """Why nothing can be loaded now although there is memory; None when loads may begin."""
    if not state.budgets.device_layers:
        return None
    if state.hold is not None and not state.limits.hold_uses_cpu:
        until = state.hold.until
        ends = "until it is given back (POST /v1/memory/restore)" if until is None else "for a while"
        return ModelNotAvailable(
            f"The accelerator is on hold {ends}: nothing is loaded there. Set hardware.hold_policy to 'cpu' to have "
            "models run on the processor meanwhile.",
            retry_after_s=30.0,
        )
    if state.lost_devices and len(state.lost_devices) >= max(1, len(state.budgets.device_bytes)):
        return ModelNotAvailable(
            "The accelerator does not answer (driver restart, suspend, or a fault): models are loaded again when it "
            "is back. Nothing is moved to the processor in silence; set hardware.backend to 'cpu' to have that.",
            retry_after_s=10.0,
        )
    return None


def wants_accelerator(model: ModelState) -> bool:
    """Whether the planner would give the model to an accelerator; engines that load no weights run on the processor."""
    return model.shape is not None and model.spec.engine is not EngineKind.FAKE


def _uses_accelerator(state: State, model: ModelState) -> bool:
    if model.plan is None or not state.budgets.device_layers:
        return False
    return model.plan.footprint.device > 0 if state.budgets.one_pool else bool(model.plan.devices)


def _hold(state: State, until: float | None, out: list[fx.Effect]) -> None:
    state.hold = Hold(until)
    for model in state.models.values():
        if model.residency in (Residency.READY, Residency.LOADING) and _uses_accelerator(state, model):
            model.driven_away = True
            out.append(
                fx.Record(
                    "hold",
                    model.spec.id,
                    f"{model.spec.id} leaves the accelerator: it is wanted for something else.",
                    (("bytes", model.footprint.total), ("leases", len(model.leases))),
                )
            )


def _end_hold(state: State, out: list[fx.Effect]) -> None:
    """Bring back what was driven away, and onto the accelerator what was loaded for the processor meanwhile."""
    if state.hold is None:
        return
    state.hold = None
    for model in state.models.values():
        if model.driven_away:
            out.append(fx.Record("restore", model.spec.id, f"{model.spec.id} comes back: the hold is over."))
            _come_back(state, model)
        if model.residency is Residency.READY and model.plan is not None and not model.closing:
            if not state.budgets.device_layers or _uses_accelerator(state, model) or model.shape is None:
                continue
            again = ledger.plan_without(state, model, ledger.Gone(models=frozenset((model.spec.id,))))
            if isinstance(again, Plan) and again.footprint.device:
                model.closing = Closing("full_gpu_placement", Tier.RAM)


def _come_back(state: State, model: ModelState) -> None:
    """Load again what has gone already; what has not gone yet simply stays."""
    model.driven_away = False
    if model.residency in (Residency.COLD, Residency.UNLOADING):
        state.stage(model)


def _is_lost(state: State, model: ModelState) -> bool:
    if not _uses_accelerator(state, model):
        return False
    return state.budgets.one_pool or (model.plan is not None and not model.plan.devices.isdisjoint(state.lost_devices))


def _lose(state: State, device: int, out: list[fx.Effect]) -> None:
    state.lost_devices.add(device)
    for model in state.models.values():
        if model.residency in (Residency.READY, Residency.LOADING) and _is_lost(state, model):
            model.driven_away = True
            out.append(fx.Record("device_lost", model.spec.id, f"{model.spec.id} goes: accelerator {device} is lost."))


def _return(state: State, device: int) -> None:
    state.lost_devices.discard(device)
    if device_problem(state) is None:
        for model in state.models.values():
            if model.driven_away:
                _come_back(state, model)


def _set_budgets(state: State, budgets: Budgets, now: float, out: list[fx.Effect]) -> None:
    first = state.budgets is NO_BUDGETS
    state.budgets = budgets
    for model in state.models.values():
        warm = model.spec.keep_warm_in_ram or (first and model.spec.initial_tier is Tier.RAM)
        if warm and model.spec.enabled:
            pages.wish(state, model)
    leaving.keep_parked(state, budgets.park_bytes, out)
    state.shrinking = True


def _shrink(state: State, now: float, out: list[fx.Effect]) -> None:
    """A smaller budget: let as many models go as it takes, the cheapest loss first, the busy ones after the others."""
    if not _over_budget(state, ledger.NOBODY):
        state.shrinking = False
        return
    ready = [m for m in state.models.values() if m.residency is Residency.READY and m.may_leave and not m.closing]
    reason = "memory_budget" if _over_budget(state, ledger.NOBODY, capped=False) else "process_memory_cap"
    ready.sort(key=lambda m: (not m.idle, room.RANK[m.spec.priority], room.loss(state, m, now)))
    leaving_too = ledger.room_in_flight(state)
    for path in ledger.held(state):
        if _over_budget(state, leaving_too):
            pages.drop(state, path, None, out)
            leaving_too = ledger.room_in_flight(state)
    for model in ready:
        if not _over_budget(state, leaving_too):
            state.shrinking = _over_budget(state, ledger.NOBODY)
            return
        model.closing = Closing(reason, Tier.RAM)
        leaving_too = leaving_too | ledger.Gone(models=frozenset((model.spec.id,)))
        out.append(fx.Record("shrink", model.spec.id, f"{model.spec.id} goes: less memory may be used from now on."))


def _over_budget(state: State, gone: ledger.Gone, *, capped: bool = True) -> bool:
    devices = range(len(state.budgets.device_bytes))
    over = any(ledger.device_booked(state, d, gone) > state.budgets.device_bytes[d] for d in devices)
    host = ledger.host_budget(state) if capped else state.budgets.host_bytes
    return over or ledger.host_booked(state, gone) > host


# --- tiers by hand --------------------------------------------------------------------------------------------------


def _begin_move(state: State, event: ev.MoveRequested) -> HypnosError | None:
    """Take a person's wish, or say at once why it is refused: it never waits for others."""
    model = state.models.get(event.model)
    if model is None:
        return ModelNotFound(f"There is no model '{event.model}'. GET /v1/models lists the models in service.")
    if state.draining:
        return Cancelled("Hypnos is shutting down.")
    if not model.spec.enabled:
        return ModelDisabled(f"The model '{event.model}' is switched off.")
    if model.problem is not None and event.tier is not Tier.DISK:
        return model.problem
    taken = model.change is not None or state.is_taken(model)
    coming = model.waiting or model.residency in _MOVING or model.resizing or model.move or model.closing
    if model.leases or coming or taken:
        return ModelBusy(f"The model '{event.model}' is in use or on its way; try again when it is idle.")
    if event.tier is Tier.GPU:
        problem = device_problem(state)
        if problem is not None and wants_accelerator(model):
            return problem
        if any(other.residency in _MOVING for other in state.models.values()):
            return ModelBusy("Another model is being loaded or unloaded; try again in a moment.")
    if event.tier is Tier.RAM and not pages.could_hold(state, model):
        return InsufficientMemory(
            f"The pages of '{event.model}' do not fit the RAM that is set aside for models that are not loaded: it has "
            f"{ledger.human(state.budgets.tier2_bytes)} in all (hardware.tier2_bytes), "
            f"{ledger.human(ledger.held_bytes(state))} are in use."
        )
    model.move = event
    state.wishing.add(event.model)
    loaded = model.residency is Residency.READY
    if event.tier is Tier.GPU:
        enough = model.plan is not None and (event.context_len or 0) <= model.plan.placement.allocated_context_len
        known_cells = model.wanted_cells
        model.wanted_cells = max(model.wanted_cells, event.context_len or 0)
        if loaded and not enough:
            again = ledger.plan_without(state, model, ledger.idle_beside(state, model))
            if not isinstance(again, Plan):
                model.move, model.wanted_cells = None, known_cells
                return leaving.no_room(state, model, again)
            model.closing = Closing("move", Tier.RAM)
    elif loaded:
        model.closing = Closing("move", event.tier)
    if event.tier is Tier.RAM:
        pages.wish(state, model)
    return None


def _follow(state: State, model: ModelState, move: ev.MoveRequested, out: list[fx.Effect]) -> None:
    """Answer a wish whose end has come."""
    if model.closing is not None or model.residency in _MOVING:
        return
    if move.tier is Tier.GPU:
        if model.residency is Residency.READY:
            leaving.answer_move(model, None, out)
        return
    if model.residency is Residency.READY:  # somebody asked for the model in the meantime
        leaving.answer_move(model, ModelBusy(f"The model '{model.spec.id}' was asked for again."), out)
        return
    files = state.files.get(model.files)
    held = Pages.ABSENT if files is None else files.pages
    if move.tier is Tier.DISK:
        if held is Pages.HELD:
            pages.drop(state, model.files, None, out)
        elif held is Pages.ABSENT:
            state.wanted_pages.pop(model.files, None)
            leaving.answer_move(model, None, out)
    elif held is Pages.HELD:
        leaving.answer_move(model, None, out)
    elif held is Pages.ABSENT and not pages.are_coming(state, model):
        leaving.answer_move(model, _not_held(state, model), out)


def _not_held(state: State, model: ModelState) -> HypnosError:
    if model.problem is not None:
        return model.problem
    if pages.could_hold(state, model):
        return ModelNotAvailable(
            f"The pages of '{model.spec.id}' could not be held in RAM although there is room for them: its files could "
            "not be read, or the process that holds pages ended. The log says which; try again."
        )
    return InsufficientMemory(f"The pages of '{model.spec.id}' could not be held in RAM: there is no room left.")


# --- the pool -------------------------------------------------------------------------------------------------------


def _replace(state: State, event: ev.ModelReplaced, out: list[fx.Effect]) -> None:
    name = event.spec.id
    model = state.models.get(name)
    if model is None:
        state.models[name] = ModelState(event.spec, event.shape, event.problem)
        out.append(fx.PoolChanged(name, done=True))
        return
    _change(model, event)


def _remove(state: State, event: ev.ModelRemoved, out: list[fx.Effect]) -> None:
    model = state.models.get(event.model)
    if model is None:
        out.append(fx.PoolChanged(event.model, done=False))
        return
    _change(model, event)


def _change(model: ModelState, event: ev.ModelReplaced | ev.ModelRemoved) -> None:
    model.change = event
    model.staged = False


def _apply(
    state: State, model: ModelState, change: ev.ModelReplaced | ev.ModelRemoved, now: float, out: list[fx.Effect]
) -> None:
    model.change = None
    name = model.spec.id
    model.closing = None
    leaving.forget_parked(state, model, out)
    if isinstance(change, ev.ModelRemoved):
        gone = ModelNotFound(f"The model '{name}' was removed.")
        leaving.answer_move(model, gone, out)
        leaving.refuse_all(state, model, gone, now, out)
        del state.models[name]
    else:
        if not _keeps_pages(model, change):
            _let_go_of_pages(state, model, out)
        model.spec, model.shape, model.problem = change.spec, change.shape, change.problem
        model.load_s, model.service_s, model.wanted_cells = {}, None, 0
        model.failures, model.retry_at, model.last_failure = 0, 0.0, None
        if model.problem is not None:
            leaving.refuse_all(state, model, model.problem, now, out)
        elif not model.spec.enabled:
            leaving.refuse_all(state, model, ModelDisabled(f"The model '{name}' is switched off."), now, out)
    out.append(fx.PoolChanged(name, done=True))


def _let_go_of_pages(state: State, model: ModelState, out: list[fx.Effect]) -> None:
    """Drop what is held of a model that begins anew, unless another model in service has the same files."""
    if any(user is not model and user.spec.enabled for user in state.users(model.files)):
        return
    state.wanted_pages.pop(model.files, None)
    files = state.files.get(model.files)
    if files is not None and files.pages is Pages.HELD:
        pages.drop(state, model.files, None, out)


def _abandon(state: State, name: ModelId, out: list[fx.Effect]) -> None:
    model = state.models.get(name)
    if model is None or model.change is None or model.residency is Residency.UNLOADING:
        return  # done, or too late to stay
    model.change = None
    out.append(fx.PoolChanged(name, done=False))


def _set_offload(model: ModelState, mode: MoeOffload) -> None:
    """Take a new expert offload; dense models have no use for it, and those in use go on as they are."""
    if isinstance(model.change, ev.ModelReplaced):
        model.change = replace(model.change, spec=replace(model.change.spec, moe_offload=mode))
    changed = model.spec.moe_offload is not mode
    model.spec = replace(model.spec, moe_offload=mode)
    model.best = model.waits_since = None
    has_experts = model.shape is not None and model.shape.expert_bytes > 0
    if changed and has_experts and model.idle and model.closing is None:
        model.closing = Closing("offload", Tier.RAM)


def _switch(state: State, model: ModelState, now: float, *, enabled: bool, out: list[fx.Effect]) -> None:
    if isinstance(model.change, ev.ModelReplaced):
        model.change = replace(model.change, spec=replace(model.change.spec, enabled=enabled))
    model.spec = replace(model.spec, enabled=enabled)
    if enabled:
        return
    model.staged, model.announced_at = False, None
    off = ModelDisabled(f"The model '{model.spec.id}' is switched off.")
    leaving.answer_move(model, off, out)
    leaving.refuse_all(state, model, off, now, out)
    leaving.forget_parked(state, model, out)
