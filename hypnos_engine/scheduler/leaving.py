"""How things end: requests are refused, workers unloaded, wishes answered. Decides what is kept of a model that leaves.

Nothing here chooses who has to leave.
"""

from hypnos_engine.domain.errors import HypnosError, InsufficientMemory, ProcessMemoryCap
from hypnos_engine.domain.kinds import EngineKind, Residency, Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import ledger, pages
from hypnos_engine.scheduler.ledger import human
from hypnos_engine.scheduler.placement import Shortage
from hypnos_engine.scheduler.state import ModelState, State, Waiting


def unload(
    state: State, model: ModelState, for_model: ModelId | None, reason: str, to_tier: Tier | None, out: list[fx.Effect]
) -> None:
    """End a worker. `to_tier` None: to RAM if its pages are or can be held, else to disk."""
    model.residency = Residency.UNLOADING
    model.staged = False
    if to_tier is None:
        to_tier = Tier.RAM if pages.could_hold(state, model) else Tier.DISK
    if to_tier is Tier.RAM:
        pages.wish(state, model)
    out.append(fx.Unload(model.spec.id, for_model, reason, to_tier, _book_parking(state, model, to_tier, out)))


def _book_parking(state: State, model: ModelState, to_tier: Tier, out: list[fx.Effect]) -> int:
    """Host memory for the conversations of a model that leaves: what its cache can fill, within the cap."""
    cap = state.budgets.park_bytes
    if not cap or to_tier is Tier.DISK or model.spec.engine is not EngineKind.LLAMA or model.plan is None:
        return 0
    wanted = min(model.plan.placement.vram_kv_and_workspace_bytes or model.plan.footprint.kv, cap)
    keep_parked(state, cap - wanted, out)
    wanted = min(wanted, cap - ledger.parked_bytes(state))
    # The worker's own memory is not free yet while it saves.
    model.parked_bytes = max(0, min(wanted, ledger.free_without(state, ledger.NOBODY).host_bytes))
    return model.parked_bytes


def keep_parked(state: State, cap_bytes: int, out: list[fx.Effect]) -> None:
    """Forget parked conversations, the oldest first, until no more than so much is left; not those just being saved."""
    others = [m for m in state.models.values() if m.parked_bytes and m.residency is not Residency.UNLOADING]
    for other in sorted(others, key=lambda m: m.last_used_at):
        if ledger.parked_bytes(state) <= cap_bytes:
            return
        forget_parked(state, other, out)


def forget_parked(state: State, model: ModelState, out: list[fx.Effect]) -> None:
    """Give up a model's parked conversations, if there are any; their memory is free at once."""
    if not model.parked_bytes:
        return
    state.host_available_bytes += model.parked_bytes
    model.parked_bytes = 0
    state.freed()
    out.append(fx.DropParked(model.spec.id))


def answer_move(model: ModelState, error: HypnosError | None, out: list[fx.Effect]) -> None:
    """Tell the person who wanted to move the model what became of it, if there is one."""
    move, model.move = model.move, None
    if move is None:
        return
    if error is None:
        out.append(fx.Moved(move.request))
        return
    out.append(fx.Refuse(move.request, error))
    out.append(fx.Record("refuse", model.spec.id, error.message, chosen=move.tier.value))


def refuse(
    state: State, model: ModelState, waiter: Waiting, error: HypnosError, now: float, out: list[fx.Effect]
) -> None:
    """End one waiting request."""
    del model.waiting[waiter.request]
    forget_promise(model)
    state.freed()
    del state.where[waiter.request]
    state.shares.leave(waiter.key)
    out.append(fx.Refuse(waiter.request, error))
    end_step(state, waiter, now, out)


def forget_promise(model: ModelState) -> None:
    """Room that others left for the model is anybody's again, once nobody wants it any more."""
    if not model.waiting and not model.wishes:
        model.promised = False


def refuse_all(
    state: State,
    model: ModelState,
    error: HypnosError,
    now: float,
    out: list[fx.Effect],
    numbers: tuple[tuple[str, float], ...] = (),
) -> None:
    """End every waiting request of a model; `numbers` are what the decision went by."""
    waiters = list(model.waiting.values())
    for waiter in waiters:
        refuse(state, model, waiter, error, now, out)
    if waiters:
        out.append(fx.Record("refuse", model.spec.id, error.message, (("requests", len(waiters)), *numbers)))


def end_step(state: State, waiting: Waiting, now: float, out: list[fx.Effect]) -> None:
    """A request of a multi-step task is over, whatever became of it."""
    duration_s = state.workflows.left(waiting.workflow, now)
    if duration_s is not None and waiting.workflow is not None:
        out.append(fx.WorkflowEnded(waiting.workflow.name, duration_s))


def no_room(state: State, model: ModelState, lacking: Shortage) -> HypnosError:
    """The error for a model that does not fit, with the bytes and who holds them."""
    could_go = ledger.idle_beside(state, model) if model.promoted else ledger.all_that_may_leave(state, model)
    if ledger.is_capped(state, model, could_go):
        return ProcessMemoryCap(
            f"The model '{model.spec.id}' does not fit under the cap on the memory of Hypnos and its workers "
            f"(hardware.max_process_memory_bytes): {short(lacking)} Raise the cap, give the model a smaller "
            "context_len, or choose a smaller variant."
        )
    holders = [m for m in state.models.values() if m.residency is not Residency.COLD and m is not model]
    if not model.promoted:
        holders = [m for m in holders if not m.may_leave]
    held = ", ".join(f"{m.spec.id} holds {human(m.footprint.total)}" for m in holders)
    budgets = state.budgets
    budget = max(budgets.device_bytes, default=budgets.host_bytes)
    return InsufficientMemory(
        f"The model '{model.spec.id}' does not fit: {short(lacking)} {f'{held}. ' if held else ''}"
        f"Models may use {human(budget)} (hardware.tier1_bytes, "
        f"hardware.os_reserve_bytes), and the machine has {human(state.host_available_bytes)} left. "
        "Give the model a smaller context_len, choose a smaller variant, or free memory."
    )


def short(lacking: Shortage) -> str:
    """A shortage as the end of a sentence."""
    return f"it needs {human(lacking.needed_bytes)}, {human(lacking.free_bytes)} are free."
