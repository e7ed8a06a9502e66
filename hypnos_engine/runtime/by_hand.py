"""What people do by hand: tiers, switches, expert offload, holds of the accelerator, and the pool of models.

Each wish becomes one event; what comes back is the scheduler's answer. Decides nothing about memory. A caller that
leaves does not undo what it asked for, except that a change of the pool which nobody awaits any more is given up.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from hypnos_engine.domain.errors import Cancelled, InvalidRequest, ModelBusy, ModelDisabled, ModelNotFound
from hypnos_engine.domain.kinds import MoeOffload, Pages, Residency, Tier
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.runtime.dispatcher import Dispatcher
from hypnos_engine.runtime.inspection import Inspection
from hypnos_engine.runtime.snapshot import HoldView, MovedModel
from hypnos_engine.scheduler import changes
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.state import ModelState

LEAVE_WITHIN_S = 60.0
"""How long an answer waits for an idle model to leave; parking and the end of a process take seconds."""
CHANGE_WITHIN_S = 600.0
"""How long a change of the pool waits for running requests before it is abandoned."""


class Files(Protocol):
    """Where what a model's files say comes from."""

    async def look(self, spec: ModelSpec) -> Inspection:
        """What the files say of a model as it is, or will be, configured."""
        ...


@dataclass(slots=True)
class _Hold:
    """The accelerator is kept free: since when each model that was on it has been on its way."""

    until_unix_ms: int | None
    driven: list[ModelId] = field(default_factory=list)


class ByHand:
    """Used on the dispatcher's loop."""

    def __init__(self, dispatcher: Dispatcher, files: Files) -> None:
        self._dispatcher = dispatcher
        self._files = files
        self._hold: _Hold | None = None

    # --- one model --------------------------------------------------------------------------------------------------

    async def move(self, model: ModelId, tier: Tier, context_len: int | None) -> None:
        """See `lease.Runtime.move`."""
        state = self._models.get(model)
        if state is not None and state.residency is Residency.COLD:
            await self._files.look(state.spec)
        number = self._dispatcher.wishes.next_number()
        with self._dispatcher.wishes.move(number) as moved:
            self._post(ev.MoveRequested(number, model, tier, context_len))
            await moved

    async def switch(self, model: ModelId, *, enabled: bool) -> None:
        """See `lease.Runtime.switch`."""
        state = self._known(model)
        if not enabled and state.leases:
            raise ModelBusy(f"The model '{model}' is in use and cannot be switched off now; try again when it is idle.")
        self._post(ev.ModelSwitched(model, enabled))
        if enabled:
            await self._files.look(state.spec)
            return
        await self._until(lambda: state.spec.enabled or self._has_left(state), LEAVE_WITHIN_S)

    async def set_expert_offload(self, model: ModelId, mode: MoeOffload) -> bool:
        """See `lease.Runtime.set_expert_offload`; whether it applies now."""
        state = self._known(model)
        if not state.spec.enabled:
            raise ModelDisabled(f"The model '{model}' is switched off.")
        now = state.residency in (Residency.COLD, Residency.UNLOADING) or (state.idle and state.closing is None)
        self._post(ev.OffloadSet(model, mode))
        if now:
            await self._until(lambda: state.residency is not Residency.UNLOADING, LEAVE_WITHIN_S)
        return now

    # --- holds ------------------------------------------------------------------------------------------------------

    async def free(self, until_s: float | None) -> HoldView:
        """See `lease.Runtime.free`."""
        self._not_at_the_end()
        now = self._dispatcher.now
        before = None if self.hold() is None else self._hold
        ends_unix_ms = None if until_s is None else int((time.time() + until_s) * 1e3)
        self._hold = hold = before or _Hold(ends_unix_ms)
        hold.until_unix_ms = ends_unix_ms
        on_it = [name for name, model in self._models.items() if model.residency in _THERE]
        self._post(ev.HoldStarted(None if until_s is None else now + until_s))
        hold.driven += [name for name in on_it if self._is_driven(name) and name not in hold.driven]
        await self._until(lambda: self._hold is not hold or all(map(self._is_gone_or_used, hold.driven)))
        return self.hold() or HoldView(held=False)

    async def restore(self) -> HoldView:
        """See `lease.Runtime.restore`."""
        if self.hold() is None:
            return HoldView(held=False)
        hold, self._hold = self._hold, None
        driven = () if hold is None else hold.driven
        before = {name: self._tier(self._models[name]) for name in driven if name in self._models}
        self._post(ev.HoldEnded())
        await self._until(lambda: not any(map(self._is_coming, before)))
        moved = tuple(
            MovedModel(name, tier, Tier.GPU)
            for name, tier in before.items()
            if tier is not Tier.GPU and name in self._models and self._tier(self._models[name]) is Tier.GPU
        )
        return HoldView(held=False, moved=moved)

    def hold(self) -> HoldView | None:
        """See `lease.Runtime.hold`."""
        if self._dispatcher.scheduler.state.hold is None:
            self._hold = None  # it has run out
            return None
        hold = self._hold or _Hold(None)
        tiers = {name: self._tier(self._models[name]) for name in hold.driven if name in self._models}
        moved = (MovedModel(name, Tier.GPU, tier) for name, tier in tiers.items() if tier is not Tier.GPU)
        return HoldView(held=True, until_unix_ms=hold.until_unix_ms, moved=tuple(moved))

    # --- the pool ---------------------------------------------------------------------------------------------------

    async def add(self, spec: ModelSpec) -> None:
        """Take a new model into service, cold. Raises InvalidRequest when there is one of its name."""
        self._unknown(spec.id)
        found = await self._files.look(spec)
        self._unknown(spec.id)
        await self._change(spec.id, ev.ModelReplaced(spec, found.shape, found.problem), CHANGE_WITHIN_S)

    async def replace(self, spec: ModelSpec, within_s: float = CHANGE_WITHIN_S) -> None:
        """Give a model other settings once its running requests have ended; waiting ones get the new settings.

        Raises ModelNotFound, and ModelBusy when they have not ended in time: then it stays as it is.
        """
        self._known(spec.id)
        found = await self._files.look(spec)
        self._known(spec.id)
        await self._change(spec.id, ev.ModelReplaced(spec, found.shape, found.problem), within_s)

    async def remove(self, model: ModelId, within_s: float = CHANGE_WITHIN_S) -> None:
        """Take a model out of the pool once its running requests have ended; errors as `replace`."""
        self._known(model)
        await self._change(model, ev.ModelRemoved(model), within_s)

    async def _change(self, model: ModelId, event: ev.Event, within_s: float) -> None:
        self._not_at_the_end()
        with self._dispatcher.wishes.change(model) as changed:
            self._post(event)
            try:
                await asyncio.wait({changed}, timeout=within_s)
            finally:
                if not changed.done():
                    # What is leaving already cannot stay any more: then the change comes true in a moment.
                    self._post(ev.ChangeAbandoned(model))
            if not await changed:
                raise ModelBusy(f"The model '{model}' was in use for more than {within_s:.0f} s and stays as it is.")

    # --- questions --------------------------------------------------------------------------------------------------

    @property
    def _models(self) -> dict[ModelId, ModelState]:
        return self._dispatcher.scheduler.state.models

    def _known(self, model: ModelId) -> ModelState:
        state = self._models.get(model)
        if state is None:
            raise ModelNotFound(f"There is no model '{model}'. GET /v1/models lists the models in service.")
        if isinstance(state.change, ev.ModelRemoved):
            raise ModelBusy(f"The model '{model}' is about to be removed; try again in a moment.")
        return state

    def _unknown(self, model: ModelId) -> None:
        if model in self._models:
            raise InvalidRequest(f"There is a model '{model}' already: replace or remove it, or choose another id.")

    def _tier(self, model: ModelState) -> Tier:
        return self._dispatcher.scheduler.state.tier(model)

    def _has_left(self, model: ModelState) -> bool:
        """Whether nothing of a model is in memory any more; pages that others use stay."""
        files = self._dispatcher.scheduler.state.files.get(model.files)
        shared = any(user.spec.enabled for user in self._dispatcher.scheduler.state.users(model.files))
        return model.residency is Residency.COLD and (files is None or shared or files.pages is Pages.ABSENT)

    def _is_driven(self, name: ModelId) -> bool:
        model = self._models.get(name)
        return model is not None and (model.driven_away or model.residency is Residency.UNLOADING)

    def _is_gone_or_used(self, name: ModelId) -> bool:
        model = self._models.get(name)
        if model is None or model.leases or model.residency is Residency.COLD:
            return True
        going = changes.reason_to_go(self._dispatcher.scheduler.state, model)
        return model.residency is Residency.READY and (going is None or going.reason != "hold")

    def _is_coming(self, name: ModelId) -> bool:
        model = self._models.get(name)
        if model is None:
            return False
        return model.residency in _MOVING or (model.staged and model.problem is None)

    def _post(self, event: ev.Event) -> None:
        self._dispatcher.post(self._dispatcher.sample(), event)

    async def _until(self, condition: Callable[[], bool], within_s: float = float("inf")) -> None:
        """Wait for a condition, at most that long, and never beyond the end of the program."""
        await self._dispatcher.until(lambda: condition() or self._dispatcher.stopping, within_s=within_s)
        self._not_at_the_end()

    def _not_at_the_end(self) -> None:
        if self._dispatcher.stopping:
            raise Cancelled("Hypnos is shutting down.")


_THERE = (Residency.LOADING, Residency.READY)
_MOVING = (Residency.LOADING, Residency.UNLOADING)
