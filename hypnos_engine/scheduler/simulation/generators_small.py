"""Invents traces so small that their best schedule can be found; for nothing but the comparison with that."""

from dataclasses import dataclass

from hypnos_engine.scheduler.simulation.generators import Amount, Dice, Lineup
from hypnos_engine.scheduler.simulation.trace import Trace, TraceModel, TraceRequest

_NO_SLOWDOWN = 10_000.0
_SERVICE_S = Amount(3.0, 0.6)


@dataclass(frozen=True, slots=True)
class Handful:
    """A few requests for a few models of a lineup that do not all fit, each at a set time.

    Requests of one model do not slow each other down here, as the bound does not know of that.
    """

    models: int = 4
    requests: int = 10
    slots: int = 2
    service_s: Amount = _SERVICE_S
    span_s: float = 25.0
    """The requests come within so many seconds."""
    again: float = 0.4
    """Chance that a request asks for the same model as the one before."""
    most: int = 5
    """Requests for one model; with more, the orders of its slots are too many to search."""

    def trace(self, lineup: Lineup, dice: Dice) -> Trace:
        """Make a trace; the models are the lineup's largest ones and their order is drawn."""
        largest = sorted(lineup.models, key=lambda model: (-model.weight_bytes, model.id))[: self.models]
        models = tuple(self._simple(model) for model in largest)
        moments = sorted(round(dice.random() * self.span_s, 3) for _ in range(self.requests))
        requests: list[TraceRequest] = []
        asked = dict.fromkeys(models, 0)
        model = models[0]
        for number, at_s in enumerate(moments):
            if not requests or dice.random() >= self.again or asked[model] == self.most:
                open_to = [other for other in models if asked[other] < self.most]
                model = open_to[int(dice.random() * len(open_to))]
            asked[model] += 1
            service_s = round(self.service_s.draw(dice), 3)
            requests.append(TraceRequest(id=f"r{number}", model=model.id, at_s=at_s, service_s=service_s))
        return Trace(tuple(requests), models)

    def _simple(self, model: TraceModel) -> TraceModel:
        return TraceModel(
            id=model.id,
            weight_bytes=model.weight_bytes,
            layers=model.layers,
            kv_bytes_per_cell=model.kv_bytes_per_cell,
            context_len=model.context_len,
            slots=self.slots,
            min_gpu_layer_ratio=1.0,
            batch_gain=_NO_SLOWDOWN,
            start_s=1.0,
        )
