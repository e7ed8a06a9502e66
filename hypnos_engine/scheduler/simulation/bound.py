"""Says how little waiting any policy could reach on a small trace, the future being known; runs no policy.

The least is searched for on a machine that is kinder than the simulated one, so that no policy can do better there:

- every request runs at full speed, whoever else is at work;
- a file that was read once stays in host memory, so that a model is read from disk only before its first load, and the
  reading may be done any time before;
- host memory has room for everything that has to be there beside the scarce memory;
- processes start as fast as the fastest of them.

What is kept: device memory (host memory on one pool) up to its budget, one transfer at a time, the time that a worker
takes to end, slots, and that a request keeps its model until it has ended.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler.placement import Free, Plan, context_cells, plan
from hypnos_engine.scheduler.simulation.bound_search import Bounds, Job, Movable, least_total_wait
from hypnos_engine.scheduler.simulation.machine import SimMachine, SimModel
from hypnos_engine.scheduler.simulation.trace import TraceRequest

_EVERYTHING = 2**60
MOST_REQUESTS = 16


@dataclass(frozen=True, slots=True)
class Bound:
    """No policy's mean wait is less."""

    mean_wait_s: float
    exact: bool
    """False when the search was cut short: then the least may be more."""
    nodes: int
    """How many half-finished schedules were looked at."""


def least_mean_wait(
    trace: Sequence[TraceRequest],
    models: Sequence[SimModel],
    machine: SimMachine,
    *,
    ahead: bool = True,
    max_nodes: int = 100_000,
) -> Bound:
    """Search the least mean wait of a trace whose requests all come at set times.

    `ahead`: whether models may be read and loaded before anybody asks for them. Without it the bound holds only for
    policies that do neither. Raises ValueError for a trace or models for which the bound would not hold: requests that
    come after others, several devices, models of which a part may be computed by the processor, more than
    `MOST_REQUESTS` requests.
    """
    if any(request.after for request in trace):
        raise ValueError("a request comes after another one: when it comes depends on the policy")
    if not trace or len(trace) > MOST_REQUESTS:
        raise ValueError(f"the trace has {len(trace)} requests, not 1 to {MOST_REQUESTS}")
    if len(machine.devices) > 1 or machine.others:
        raise ValueError("the bound knows one device and no other programs")
    asked = [model for model in models if any(request.model == model.id for request in trace)]
    shared = Counter(model.files for model in models)
    movables = [_movable(model, machine, alone=shared[model.files] == 1) for model in asked]
    number = {model.id: index for index, model in enumerate(asked)}
    jobs = [
        Job(number[ModelId(request.model)], request.at_s, _alone_s(request, asked[number[ModelId(request.model)]]))
        for request in trace
    ]
    budgets = machine.budgets
    capacity = budgets.device_bytes[0] if budgets.device_bytes else budgets.host_bytes
    bounds = Bounds(capacity, min(model.start_s for model in asked), machine.stop_s, ahead)
    found = least_total_wait(movables, jobs, bounds, max_nodes)
    return Bound(found.total_wait_s / len(trace), found.exact, found.nodes)


def _movable(model: SimModel, machine: SimMachine, *, alone: bool) -> Movable:
    if machine.devices and model.spec.min_gpu_layer_ratio < 1.0:
        raise ValueError(f"a part of '{model.id}' may be computed by the processor")
    one_pool = not machine.devices
    free = Free(_EVERYTHING, () if one_pool else (_EVERYTHING,), machine.budgets.device_layers)
    made = plan(model.spec, model.shape, context_cells(model.spec, model.shape), free)
    assert isinstance(made, Plan), "everything fits into a memory without end"
    copied = 0 if one_pool else made.placement.vram_weight_bytes
    return Movable(
        held_bytes=made.footprint.total if one_pool else made.device_peak_bytes,
        copy_s=copied / machine.device_bytes_per_s,
        read_s=model.file_bytes / machine.disk_bytes_per_s if alone else 0.0,
        slots=model.slots,
    )


def _alone_s(request: TraceRequest, model: SimModel) -> float:
    if request.service_s is not None:
        return request.service_s
    return model.service_s(request.prompt_tokens, request.output_tokens)
