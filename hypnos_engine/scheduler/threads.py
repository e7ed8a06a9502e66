"""How the models that work at once share the processor's cores; never gives out more of them than there are."""

from hypnos_engine.domain.kinds import Residency
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler.state import FIXED_THREADS, ModelState, State


def for_load(state: State, model: ModelState) -> int:
    """Threads for a model that begins to load: its share beside those that work.

    An engine that keeps its number of threads gets half of the cores at most, for it will not always be alone.
    """
    busy = sum(1 for other in state.models.values() if other.leases)
    share = state.budgets.cores // (busy + 1)
    return max(1, min(share, state.budgets.cores // 2) if model.spec.engine in FIXED_THREADS else share)


def shared_out(state: State) -> list[fx.SetThreads]:
    """Give every working model its share, where that has changed.

    Each gets the same, those that somebody waits for also what does not divide. Work that nobody sits in front of
    leaves a core free, for whoever comes next. Engines that keep their threads keep them: the others share the rest.
    """
    busy = [model for model in state.models.values() if model.leases and model.residency is Residency.READY]
    out: list[fx.SetThreads] = []
    if len(busy) == 1 and busy[0].spec.engine not in FIXED_THREADS:  # nearly always
        _give(busy[0], max(1, state.budgets.cores - busy[0].is_batch), out)
        return out
    fixed = [model for model in busy if model.spec.engine in FIXED_THREADS]
    flexible = [model for model in busy if model.spec.engine not in FIXED_THREADS]
    if not flexible:
        return []
    cores = max(1, state.budgets.cores - sum(model.threads for model in fixed))
    interactive = sum(1 for model in flexible if not model.is_batch)
    if not interactive and cores > 1:
        cores -= 1
    each, over = divmod(cores, len(flexible))
    for model in sorted(flexible, key=_interactive_first):
        threads = each + (1 if over > 0 and not model.is_batch else 0)
        over -= 1
        _give(model, max(1, threads), out)
    return out


def _give(model: ModelState, threads: int, out: list[fx.SetThreads]) -> None:
    if model.threads != threads:
        model.threads = threads
        out.append(fx.SetThreads(model.spec.id, threads))


def _interactive_first(model: ModelState) -> tuple[bool, float]:
    return (model.is_batch, -model.last_used_at)
