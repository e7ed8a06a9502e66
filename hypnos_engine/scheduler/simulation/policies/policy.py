"""What a simulation asks of a policy, and how one is made; decides nothing."""

from collections.abc import Callable, Sequence
from typing import Protocol

from hypnos_engine.domain.model import ModelSpec
from hypnos_engine.scheduler.effects import Effect
from hypnos_engine.scheduler.events import Event
from hypnos_engine.scheduler.limits import Limits


class Policy(Protocol):
    """Decides who runs and what is loaded, by the events and effects of the scheduler."""

    def on(self, event: Event, now: float) -> Sequence[Effect]:
        """Take one event; return what has to be done about it, in order.

        Never reads a clock and takes no chances: the same events at the same times give the same effects. Events that
        mean nothing to a policy are ignored. A request is granted only when its model is ready and has a free slot.
        """
        ...


MakePolicy = Callable[[Sequence[ModelSpec], Limits], Policy]
"""Makes a fresh policy for a pool of models; one policy object serves one simulation."""
