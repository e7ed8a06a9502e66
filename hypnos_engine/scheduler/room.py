"""Whether a model fits, and who would have to leave for it. Asks only: nothing here changes the state."""

from collections.abc import Collection
from dataclasses import replace

from hypnos_engine.domain.kinds import Priority, Residency
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler.corrections import Correction
from hypnos_engine.scheduler.placement import Free, Plan, Shortage, context_cells, plan
from hypnos_engine.scheduler.state import ModelState, State

_RANK = {priority: rank for rank, priority in enumerate(Priority)}


def human(amount_bytes: int) -> str:
    """Bytes for a sentence: 1.4 GiB, 312 MiB."""
    gib = amount_bytes / 2**30
    return f"{gib:.1f} GiB" if gib >= 1 else f"{amount_bytes / 2**20:.0f} MiB"


def free_without(state: State, gone: Collection[ModelId]) -> Free:
    """Bytes that a new worker could take if the models in `gone` had left.

    The budget minus what is booked, and never more than the machine really has left.
    """
    one_pool = state.budgets.device_bytes == 0
    staying = [model for model in state.models.values() if model.spec.id not in gone]
    leaving = [state.models[model] for model in gone]
    host = state.budgets.host_bytes - sum(_host_bytes(model, one_pool=one_pool) for model in staying)
    device = state.budgets.device_bytes - sum(_device_bytes(model) for model in staying)
    # Mapped pages are part of what the kernel calls available already; private memory comes back only on exit.
    returned = sum(_host_bytes(model, one_pool=one_pool) - model.footprint.file_pages for model in leaving)
    real_host = state.host_available_bytes + returned
    real_device = state.device_free_bytes + sum(_device_bytes(model) for model in leaving)
    return Free(
        host_bytes=max(0, min(host, real_host)),
        device_bytes=max(0, min(device, real_device)),
        device_layers=state.budgets.device_layers,
        unified=one_pool,
    )


def plan_without(state: State, model: ModelState, gone: Collection[ModelId]) -> Plan | Shortage:
    """Place the model as if the models in `gone` had left."""
    cells = context_cells(model.spec, model.shape)
    return plan(model.spec, model.shape, cells, free_without(state, gone), known_error(state, model, cells))


def grown_plan(state: State, model: ModelState, context_len: int) -> Plan | Shortage:
    """Place a loaded model again with a larger context, its own present bytes counted as free."""
    free = free_without(state, (model.spec.id,))
    return plan(model.spec, model.shape, context_len, free, known_error(state, model, context_len))


def known_error(state: State, model: ModelState, cells: int) -> Correction:
    """What earlier loads of the model's file taught about plans for such a context."""
    return state.corrections.find(model.spec.weights_path, cells)


def as_loaded(planned: Plan, context_len: int) -> Plan:
    """The plan with the context that the worker really made."""
    return replace(planned, placement=replace(planned.placement, allocated_context_len=context_len))


def may_leave(model: ModelState) -> bool:
    """Whether the model may ever be evicted."""
    return model.spec.priority is not Priority.REALTIME_PINNED


def leaving(state: State, model: ModelState) -> tuple[ModelId, ...]:
    """Every model that running requests will sooner or later set free."""
    return tuple(
        other.spec.id
        for other in state.models.values()
        if other is not model and other.residency is not Residency.COLD and may_leave(other)
    )


def victims(state: State, model: ModelState, held: Collection[ModelId], now: float) -> tuple[ModelState, ...]:
    """The models to unload so that `model` fits: idle, cheapest loss first, no more than needed; empty = not enough.

    A loss costs the measured reload time times the request rate; within equal cost the longest idle goes first.
    """
    idle = [other for other in state.models.values() if other is not model and may_leave(other) and _free(other, held)]
    idle.sort(
        key=lambda other: (
            _RANK[other.spec.priority],
            other.reload_s() * other.requests_per_minute(now),
            other.last_used_at,
        )
    )
    chosen: list[ModelState] = []
    for candidate in idle:
        chosen.append(candidate)
        if _fits_without(state, model, chosen):
            break
    else:
        return ()
    for candidate in tuple(chosen[:-1]):
        fewer = [other for other in chosen if other is not candidate]
        if _fits_without(state, model, fewer):
            chosen = fewer
    return tuple(chosen)


def _free(model: ModelState, held: Collection[ModelId]) -> bool:
    if model.spec.id in held:
        return model.residency is Residency.READY and not model.leases and not model.resizing
    return model.idle


def _fits_without(state: State, model: ModelState, gone: list[ModelState]) -> bool:
    return isinstance(plan_without(state, model, [other.spec.id for other in gone]), Plan)


def _host_bytes(model: ModelState, *, one_pool: bool) -> int:
    return model.footprint.total if one_pool else model.footprint.total - _device_bytes(model)


def _device_bytes(model: ModelState) -> int:
    return model.footprint.device + model.footprint.device_context
