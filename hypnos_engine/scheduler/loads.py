"""Loads and unloads: decides which model is loaded next and what leaves for it, and books what workers report."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from hypnos_engine.domain.errors import DeviceOutOfMemory, HypnosError, InsufficientMemory
from hypnos_engine.domain.kinds import Pages, Priority, Residency
from hypnos_engine.domain.memory import Footprint
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import changes, leaving, ledger, order, pages, room, threads
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.corrections import error_fraction, once_touched, private_bytes
from hypnos_engine.scheduler.ledger import Gone, What, human
from hypnos_engine.scheduler.placement import Plan, Shortage
from hypnos_engine.scheduler.room import Victims
from hypnos_engine.scheduler.state import ModelState, State

LEAST_DOUBT_BYTES = 64 * 2**20
"""An accelerator on which an allocation failed is believed to have at least so much less than it says."""
DOUBTED_SHARE = 0.05
"""... or this share of what the model wanted there."""
SOON_S = 5.0
"""A model that is announced will be asked within about so many seconds: what others lose in that time is compared."""
WORTH_MORE = 0.9
"""A model is loaded ahead of time only if what leaves for it costs less than this share of what it saves."""
SHOWN_ALTERNATIVES = 8
GROWN = 1.5
"""A worker that holds so many times the private memory that it had after its load ..."""
GROWN_LEAST_BYTES = 2**30
"""... and so much besides is started anew: libraries leak, and heaps come apart. Less may well be what a worker sets
aside on purpose: checkpoints of caches, and states of idle conversations."""
NEARLY = 0.9
"""A plan that gives an accelerator this share of the layers that it could have at best is as good as the best."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A model is in the way of a waiter at its bound: it serves only requests that came before `since`."""

    for_model: ModelId
    since: float


Claims = Mapping[ModelId, Claim]


# --- which model is loaded next -------------------------------------------------------------------------------------


def is_loadable(state: State, model: ModelState, now: float) -> bool:
    """Whether a load of the model may begin at all."""
    return (
        model.residency is Residency.COLD
        and model.retry_at <= now
        and model.problem is None
        and model.change is None
        and model.spec.enabled
        and not state.is_taken(model)
    )


def settle(state: State, waiting: list[ModelState], claims: Claims, now: float, out: list[fx.Effect]) -> None:
    """Steps 5 and 6 of the scheduler. `waiting` are the models for which requests wait."""
    wanted = [m for m in waiting if m.residency is Residency.COLD and m.waiting and is_loadable(state, m, now)]
    if state.wishing:
        for name in sorted(state.wishing):
            model = state.models.get(name)
            if model is None or not model.wishes:
                state.wishing.discard(name)
                if model is not None and not model.waiting:
                    model.promised = False
            elif not model.waiting and is_loadable(state, model, now):
                wanted.append(model)
    if not wanted:
        return
    for model in order.candidates(wanted, state, now):
        if _blocked(state, model, now, out):
            continue
        if not _load(state, model, claims, now, out):
            return
    if state.wishing:
        _prefetch(state, wanted, now, out)


def _blocked(state: State, model: ModelState, now: float, out: list[fx.Effect]) -> bool:
    """Refuse at once where the accelerator is on hold or lost and nothing may fall to the processor in silence."""
    reason = changes.device_problem(state)
    if reason is None or not changes.wants_accelerator(model):
        return False
    model.staged = False
    leaving.answer_move(model, reason, out)
    leaving.refuse_all(state, model, reason, now, out)
    return True


def _load(state: State, model: ModelState, claims: Claims, now: float, out: list[fx.Effect]) -> bool:
    """Try one candidate (5); False when those after it have to wait for it."""
    loading = [other for other in state.models.values() if other.residency is Residency.LOADING]
    if loading and len(state.budgets.device_bytes) <= 1:
        if model.waiting:
            pages.wish(state, model)
        return False
    closed = frozenset(name for name, claim in claims.items() if claim.for_model == model.spec.id)
    if model.waits_since == (state.memory_version, closed):
        return not closed
    enough = good_enough(state, model)
    plan = ledger.plan_without(state, model, ledger.NOBODY)
    if isinstance(plan, Plan) and enough(plan):  # a
        if not _device_is_busy(state, plan, loading):
            _start(state, model, plan, now, out)
        return True
    if loading:
        return True
    on_its_way = ledger.room_in_flight(state)
    if on_its_way:
        # b: what it needs is coming; or not all of it, and then it is seen what more has to go when that is there.
        return False
    lacking = plan if isinstance(plan, Shortage) else ledger.shortage_of(state, model, plan)
    if model.staged and not model.waiting and not model.promoted:
        model.staged = False
        out.append(
            fx.Record("stage_skipped", model.spec.id, f"{model.spec.id} stays where it is: {leaving.short(lacking)}")
        )
        return True
    found = room.victims(state, model, now, enough, closed=closed)
    if found is not None:  # c
        return not _evict(state, model, found, lacking, now, out) and _load(state, model, claims, now, out)
    if model.promoted:
        leaving.answer_move(model, leaving.no_room(state, model, lacking), out)
        return not model.waiting or _load(state, model, claims, now, out)
    if place(state, model, ledger.all_that_may_leave(state, model)) is not None:  # d
        model.waits_since = (state.memory_version, closed)
        pages.wish(state, model)  # what it has to wait for is the accelerator: its files can be read meanwhile
        # Nobody may evict what a waiter at its bound is waiting for.
        return not closed
    numbers = (("needed_bytes", lacking.needed_bytes), ("free_bytes", lacking.free_bytes))
    leaving.refuse_all(state, model, leaving.no_room(state, model, lacking), now, out, numbers)  # e
    model.out_of_memory = False
    believe_again(state)
    return True


def good_enough(state: State, model: ModelState) -> Callable[[Plan], bool]:
    """Which plans of a model are worth a load: those that give an accelerator about as much as the best possible.

    A share for the processor makes every answer slow for as long as the model stays: it is taken only when the model
    would have to do with it even if everything that may leave had left.
    """
    if not state.budgets.device_bytes:
        return lambda plan: True
    if model.best is None or model.best[0] != state.memory_version:
        possible = ledger.plan_without(state, model, ledger.all_that_may_leave(state, model))
        model.best = (state.memory_version, possible)
    best = model.best[1]
    if not isinstance(best, Plan):
        return lambda plan: True
    layers = NEARLY * sum(best.device_layers)
    experts = best.placement.cpu_expert_layers + (1 - NEARLY) * best.placement.gpu_layers
    return lambda plan: sum(plan.device_layers) >= layers and plan.placement.cpu_expert_layers <= experts


def place(state: State, model: ModelState, gone: Gone) -> Plan | None:
    """A plan that is worth a load as if all that is `gone` had left; None when there is none."""
    plan = ledger.plan_without(state, model, gone)
    return plan if isinstance(plan, Plan) and good_enough(state, model)(plan) else None


def _device_is_busy(state: State, plan: Plan, loading: Iterable[ModelState]) -> bool:
    """One load at a time per accelerator, so that what each takes can be told apart."""
    for other in loading:
        theirs = frozenset() if other.plan is None else other.plan.devices
        if plan.devices & theirs or not (plan.devices or theirs):
            return True
    return False


def _prefetch(state: State, wanted: list[ModelState], now: float, out: list[fx.Effect]) -> None:
    """Load the model that was announced last, if nobody waits for a load and nobody loses more by it (6)."""
    announced = [model for model in wanted if model.announced_at is not None and not model.waiting and not model.staged]
    for model in announced:
        if model.announced_at is not None and now - model.announced_at >= room.ANNOUNCED_S:
            model.announced_at = None
    moving = any(m.residency in (Residency.LOADING, Residency.UNLOADING) for m in state.models.values())
    cold = any(m.waiting and m.residency is Residency.COLD for m in state.models.values())
    if moving or cold or changes.device_problem(state) is not None:
        return
    for model in sorted(announced, key=lambda model: -(model.announced_at or 0.0)):
        if model.announced_at is None or model.skipped_version == state.memory_version:
            continue
        enough = good_enough(state, model)
        plan = ledger.plan_without(state, model, ledger.NOBODY)
        saved = state.reload_s(model)
        if isinstance(plan, Plan) and enough(plan):
            _start(state, model, plan, now, out)
            return
        lacking = plan if isinstance(plan, Shortage) else ledger.shortage_of(state, model, plan)
        found = room.victims(state, model, now, enough)
        again = model.made_room_at == model.announced_at  # others have left for it already, and that was not enough
        if found is not None and not again and found.cost * SOON_S / 60.0 < WORTH_MORE * saved:
            state.stage(model)
            model.made_room_at = model.announced_at
            if not _evict(state, model, found, lacking, now, out):
                _load(state, model, {}, now, out)
            return
        model.skipped_version = state.memory_version
        pages.wish(state, model)
        if model.skipped_at != model.announced_at:
            model.skipped_at = model.announced_at
            because = f"{model.spec.id} is not loaded ahead of time: {leaving.short(lacking)}"
            out.append(fx.Record("prefetch_skipped", model.spec.id, because, (("saved_s", saved),)))


def _start(state: State, model: ModelState, plan: Plan, now: float, out: list[fx.Effect]) -> None:
    from_tier = state.tier(model)
    model.residency = Residency.LOADING
    model.promised = False
    model.plan = plan
    model.correction = ledger.known_error(state, model, plan.placement.allocated_context_len)
    model.load_started_at = now
    model.load_fraction = 0.0
    model.loading_from = from_tier
    model.threads = threads.for_load(state, model)
    why = f"{len(model.waiting)} waiting" if model.waiting else "nobody waits yet"
    placement = plan.placement
    where = f"{placement.gpu_layers} layers on the accelerator, " if plan.devices else ""
    out.append(
        fx.Record(
            "load",
            model.spec.id,
            f"{model.spec.id} is loaded: {human(plan.footprint.peak)} fit, {where}{why}.",
            (
                ("peak_bytes", plan.footprint.peak),
                ("waiting", len(model.waiting)),
                ("expected_s", state.reload_s(model, from_tier)),
            ),
            chosen=from_tier.value,
        )
    )
    out.append(fx.Load(model.spec.id, plan, model.threads, from_tier))


# --- what leaves ----------------------------------------------------------------------------------------------------


def _evict(
    state: State, model: ModelState, found: Victims, lacking: Shortage, now: float, out: list[fx.Effect]
) -> bool:
    """Let what was found leave for a model; False where that were parked conversations only, for they are gone now."""
    evicted: list[ModelId] = []
    capped = ledger.is_capped(state, model, ledger.NOBODY)
    numbers = (("needed_bytes", lacking.needed_bytes), ("free_bytes", lacking.free_bytes))
    spared = tuple(
        fx.Alternative(ModelId(other.item.name), other.cost, "its loss would cost more")
        for other in found.spared[:SHOWN_ALTERNATIVES]
    )
    for candidate in found.chosen:
        if candidate.item.what is What.PAGES:
            pages.drop(state, candidate.item.name, model.spec.id, out)
            pages.wish_back(state, candidate.item.name)
            continue
        victim = state.models[ModelId(candidate.item.name)]
        if candidate.item.what is What.PARKED:
            leaving.forget_parked(state, victim, out)
            continue
        evicted.append(victim.spec.id)
        out.append(
            fx.Record(
                "evict",
                victim.spec.id,
                f"{victim.spec.id} makes room for {model.spec.id}: {leaving.short(lacking)}",
                (*numbers, ("cost", candidate.cost)),
                chosen=victim.spec.id,
                alternatives=spared,
            )
        )
        reason = "process_memory_cap" if capped else "memory_budget"
        reason = "device_out_of_memory" if model.out_of_memory else reason
        leaving.unload(state, victim, model.spec.id, reason, None, out)
    model.evicted_for_load = tuple(evicted)
    model.promised = True
    return any(candidate.item.what is not What.PARKED for candidate in found.chosen)


def gone(state: State, name: ModelId) -> None:
    """Book that a worker has been reaped."""
    changes.has_gone(state, state.models[name])
    believe_again(state)


def believe_again(state: State) -> None:
    """Accelerators on which nothing of ours is left: what they say now can be believed."""
    for device in list(state.doubted_bytes):
        if not ledger.device_booked(state, device):
            del state.doubted_bytes[device]
            state.freed()


# --- what workers report --------------------------------------------------------------------------------------------


def finished(state: State, event: ev.LoadFinished, now: float, out: list[fx.Effect]) -> None:
    """Book a load that went well."""
    model = state.models[event.model]
    assert model.plan is not None, f"{event.model} was not being loaded"
    planned_bytes = model.plan.footprint.total
    error = error_fraction(model.plan.footprint, event.measured)
    model.residency = Residency.READY
    state.freed()
    _measured(state, model, model.plan, event.context_len, event.measured)
    taken_s = now - model.load_started_at
    model.load_s[model.loading_from] = taken_s
    model.loads += 1
    model.last_used_at = now
    model.staged = False
    model.out_of_memory = False
    out.append(
        fx.Record(
            "loaded",
            model.spec.id,
            f"{model.spec.id} is ready after {taken_s:.1f} s and holds {human(event.measured.total)}; "
            f"planned were {human(planned_bytes)}.",
            (("load_s", taken_s), ("measured_bytes", event.measured.total), ("plan_error", error)),
        )
    )


def context(state: State, event: ev.ContextWanted | ev.ContextResized, out: list[fx.Effect]) -> None:
    """Answer a worker that wants a larger cache, or book the one that it has made."""
    model = state.models[event.model]
    if isinstance(event, ev.ContextResized):
        model.resizing = False
        state.freed()
        if model.residency is Residency.READY and model.plan is not None:
            _measured(state, model, model.plan, event.context_len, event.measured)
        return
    if model.residency is not Residency.READY or model.plan is None:
        return
    cells = event.context_len
    grown = ledger.grown_plan(state, model, cells)
    kept_place = isinstance(grown, Plan) and grown.device_layers == model.plan.device_layers
    if isinstance(grown, Shortage) or not kept_place:
        model.wanted_cells = max(model.wanted_cells, cells)
        lacking = grown if isinstance(grown, Shortage) else Shortage(grown.footprint.peak, 0)
        out.append(fx.DenyContext(model.spec.id))
        out.append(
            fx.Record(
                "context_denied",
                model.spec.id,
                f"{model.spec.id} keeps its context: {cells} cells need {human(lacking.needed_bytes)}, "
                f"{human(lacking.free_bytes)} are free.",
                (("needed_bytes", lacking.needed_bytes), ("free_bytes", lacking.free_bytes)),
            )
        )
        return
    model.plan = grown
    model.correction = ledger.known_error(state, model, cells)
    model.measured = None
    model.resizing = True
    out.append(fx.ResizeContext(model.spec.id, cells))


def _measured(state: State, model: ModelState, plan: Plan, context_len: int, measured: Footprint) -> None:
    """Book what the worker holds, and learn how wrong the plan was."""
    planned = plan.footprint
    held = replace(once_touched(planned, measured), device_context=planned.device_context)
    model.measured = held
    model.baseline_bytes, model.grown = private_bytes(held), False
    model.plan = replace(plan, placement=replace(plan.placement, allocated_context_len=context_len))
    if context_len == plan.placement.allocated_context_len and model.shape is not None:
        state.corrections.learn(model.spec.weights_path, context_len, planned, held, model.correction)


def measured_again(state: State, event: ev.WorkerMeasured, out: list[fx.Effect]) -> None:
    """Book what a worker has grown by, and note when it has grown so far that it is better started anew."""
    model = state.models.get(event.model)
    if model is None or model.residency is not Residency.READY or model.measured is None:
        return
    more = event.private_bytes - private_bytes(model.measured)
    if more > 0:
        model.measured = replace(model.measured, anonymous=model.measured.anonymous + more)
        if ledger.host_booked(state) > ledger.host_budget(state):
            state.shrinking = state.unsettled = True
    allowed = GROWN * model.baseline_bytes + GROWN_LEAST_BYTES
    if event.private_bytes <= allowed or model.grown:
        return
    model.grown = state.unsettled = True
    out.append(
        fx.Record(
            "grown",
            model.spec.id,
            f"The worker of {model.spec.id} holds {human(event.private_bytes)} where it began with "
            f"{human(model.baseline_bytes)}: it is started anew as soon as nobody uses it.",
            (("private_bytes", event.private_bytes), ("baseline_bytes", model.baseline_bytes)),
        )
    )


def memory_changed(
    state: State, event: ev.PagesFilled | ev.PagesDropped | ev.PagesLost | ev.KvParked, out: list[fx.Effect]
) -> None:
    """Book what the holder of pages and the parking report."""
    state.freed()
    if isinstance(event, ev.KvParked):
        model = state.models.get(event.model)
        if model is not None:
            model.parked_bytes = max(0, event.held_bytes)
            leaving.keep_parked(state, state.budgets.park_bytes, out)
        return
    files = state.files.get(event.files)
    if files is None:
        return
    state.unsettled = True
    match event:
        case ev.PagesFilled(held_bytes=held):
            if files.pages is not Pages.FILLING:
                return
            whole = held >= files.held_bytes
            files.pages = Pages.HELD
            if not whole:
                files.held_bytes = held
                pages.drop(state, files.path, None, out)
        case ev.PagesDropped():
            files.pages, files.held_bytes = Pages.ABSENT, 0
        case _ if files.pages is Pages.HELD:  # lost
            pages.drop(state, files.path, None, out)
            pages.wish_back(state, files.path)


def doubt(state: State, model: ModelState, error: DeviceOutOfMemory, now: float, out: list[fx.Effect]) -> None:
    """An allocation failed: the accelerators of the model have less than they say."""
    for device in model.plan.devices if model.plan is not None else ():
        share = ledger.share_of(model, device)
        more = max(LEAST_DOUBT_BYTES, int(DOUBTED_SHARE * share))
        state.doubted_bytes[device] = state.doubted_bytes.get(device, 0) + more
        out.append(
            fx.Record(
                "device_out_of_memory",
                model.spec.id,
                f"{model.spec.id} found less memory on accelerator {device} than it reports: "
                f"{human(state.doubted_bytes[device])} less are planned with. {error}",
                (("doubted_bytes", state.doubted_bytes[device]),),
            )
        )


def pins_problem(state: State) -> HypnosError | None:
    """Why the pinned models do not fit tier 1 together, with the bytes; None when they do."""
    trial = State(models={}, limits=state.limits, budgets=state.budgets, corrections=state.corrections)
    trial.host_available_bytes, trial.device_free_bytes = state.host_available_bytes, state.device_free_bytes
    placed: list[str] = []
    for name, model in state.models.items():
        if model.spec.priority is not Priority.REALTIME_PINNED or not model.spec.enabled or model.problem is not None:
            continue
        pinned = ModelState(model.spec, model.shape)
        plan = ledger.plan_without(trial, pinned, ledger.NOBODY)
        if isinstance(plan, Shortage):
            beside = f" beside {', '.join(placed)}" if placed else ""
            return InsufficientMemory(
                f"The pinned model '{name}' does not fit{beside}: {leaving.short(plan)} Pinned models never leave, so "
                "all of them have to fit together: pin fewer, or give them less context_len."
            )
        pinned.residency, pinned.plan = Residency.READY, plan
        trial.models[name] = pinned
        placed.append(f"{name} ({human(plan.footprint.total)})")
    return None
