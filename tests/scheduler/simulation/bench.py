"""Small pools and machines whose times can be worked out by hand, and short ways to ask what a simulation showed.

A model of n gigabytes takes 1 s to start and n s to come from disk, and its layers are copied at once; a worker that is
told to go has gone after 1 s. With one slot each, a request takes what its trace says.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypnos_engine.domain.kinds import Residency
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.limits import Limits
from hypnos_engine.scheduler.simulation.machine import SimMachine, SimModel, models_of
from hypnos_engine.scheduler.simulation.policies.policy import Policy
from hypnos_engine.scheduler.simulation.result import Outcome, SimResult
from hypnos_engine.scheduler.simulation.run import simulate
from hypnos_engine.scheduler.simulation.trace import TraceModel, TraceRequest

GB = 10**9
LIMITS = Limits()


def machine(device_gb: float = 10, **changes: Any) -> SimMachine:
    """One device of so many gigabytes and a host with room for every file."""
    settings: dict[str, Any] = {
        "host_bytes": 100 * GB,
        "devices": (int(device_gb * GB),),
        "disk_bytes_per_s": 1e9,
        "device_bytes_per_s": 1e18,
        "stop_s": 1.0,
        "device_reserve_bytes": 0,
        **changes,
    }
    return SimMachine(**settings)


def pool(sizes_gb: Mapping[str, float], **changes: Any) -> tuple[SimModel, ...]:
    """Models of one slot and hardly any cache; a little smaller than they say, so that ten of 1 GB fit into 10 GB."""
    settings: dict[str, Any] = {"slots": 1, "context_len": 256, "kv_bytes_per_cell": 128, "layers": 10, **changes}
    return models_of(TraceModel(id=name, weight_bytes=int(size * GB), **settings) for name, size in sizes_gb.items())


def with_spec(models: Iterable[SimModel], name: str, **changes: Any) -> tuple[SimModel, ...]:
    """The same pool with other settings for one model."""
    return tuple(replace(model, spec=replace(model.spec, **changes)) if model.id == name else model for model in models)


def ask(name: str, model: str, at_s: float = 0.0, service_s: float = 10.0, **more: Any) -> TraceRequest:
    """A request of known length."""
    return TraceRequest(id=name, model=model, at_s=at_s, service_s=service_s, **more)


def run(
    requests: Sequence[TraceRequest], models: Sequence[SimModel], policy: Policy, on: SimMachine | None = None
) -> SimResult:
    return simulate(requests, models, on or machine(), policy)


def specs(models: Iterable[SimModel]) -> list[ModelSpec]:
    return [model.spec for model in models]


def waits(result: SimResult) -> dict[str, float]:
    """Seconds that each served request waited."""
    return {
        request.id: round(request.wait_s, 6)
        for request in result.requests
        if request.outcome is Outcome.SERVED and request.wait_s is not None
    }


def outcomes(result: SimResult) -> dict[str, Outcome]:
    return {request.id: request.outcome for request in result.requests}


def order(result: SimResult) -> str:
    """Ids of the served requests by the moment of their grant."""
    granted = [(request.granted_s, request.id) for request in result.requests if request.granted_s is not None]
    return " ".join(name for _, name in sorted(granted))


def loads(result: SimResult) -> dict[str, int]:
    return {model.model: model.loads for model in result.models}


def residency_at(result: SimResult, model: str, moment: float) -> Residency:
    """What a model was at a moment."""
    seen = [entry.residency for entry in result.timeline if entry.model == model and entry.at_s <= moment]
    return seen[-1] if seen else Residency.COLD


def most_at_once(result: SimResult) -> tuple[int, int]:
    """The most device bytes and host bytes that workers ever had together."""
    now: dict[ModelId, tuple[int, int]] = {}
    most = (0, 0)
    for entry in result.timeline:
        now[entry.model] = (entry.device_bytes, entry.host_bytes)
        sums = tuple(sum(column) for column in zip(*now.values(), strict=True))
        most = max(most[0], sums[0]), max(most[1], sums[1])
    return most


class Watched:
    """Passes everything through and keeps what was said."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.events: list[ev.Event] = []
        self.effects: list[tuple[float, fx.Effect]] = []

    def on(self, event: ev.Event, now: float) -> Sequence[fx.Effect]:
        self.events.append(event)
        effects = self._policy.on(event, now)
        self.effects += [(now, effect) for effect in effects]
        return effects
