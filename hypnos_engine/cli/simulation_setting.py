"""What a simulation of the command line is about: reads the trace and the files' headers, asks what the machine is."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from hypnos_engine.config.hardware_settings import SimulatedMachine
from hypnos_engine.config.settings import Settings
from hypnos_engine.config.starter import model_roots
from hypnos_engine.domain.errors import ConfigurationInvalid, EngineFailed, FolderUnusable
from hypnos_engine.domain.kinds import EngineKind, Topology
from hypnos_engine.domain.memory import HardwareSnapshot
from hypnos_engine.domain.model import ModelShape, ModelSpec
from hypnos_engine.hardware import ggml
from hypnos_engine.hardware.machine import DEVICE_RESERVE_BYTES, OS_RESERVE_BYTES, host_memory, snapshot
from hypnos_engine.runtime.inspection import inspect_files
from hypnos_engine.scheduler.simulation.machine import OtherUse, SimMachine, SimModel, made_up_shape, models_of
from hypnos_engine.scheduler.simulation.trace import Trace, TraceModel, read_trace

WEIGHTS_PER_S = 250e9
"""Bytes of weights that an accelerator reads in a second, to guess how fast a model answers."""
HOST_WEIGHTS_PER_S = 30e9
PREFILL_GAIN = 30.0
"""How many times faster a prompt is read than an answer is written."""
_FASTEST = 1000.0


def read(path: Path) -> Trace:
    """The trace in a file. Raises ConfigurationInvalid."""
    try:
        with path.open("rb") as lines:
            return read_trace(lines, str(path))
    except OSError as error:
        raise ConfigurationInvalid(f"The trace {path} cannot be read: {error.strerror or error}.") from error


def write(path: Path, text: str) -> None:
    """Put a picture into a file. Raises FolderUnusable."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FolderUnusable(f"The picture {path} cannot be written: {error.strerror or error}.") from error


def machine_of(settings: Settings) -> SimMachine:
    """The made-up machine of the settings, else this computer. Blocks for the time of the probe."""
    hardware = settings.hardware
    reserve = OS_RESERVE_BYTES if hardware.os_reserve_bytes is None else hardware.os_reserve_bytes
    budget_bytes, warm_bytes = hardware.tier1_bytes, hardware.tier2_bytes
    if hardware.simulate is not None:
        made_up = hardware.simulate
        discrete = made_up.topology is Topology.DISCRETE
        return SimMachine(
            host_bytes=made_up.host_bytes,
            devices=tuple(device.total_bytes for device in made_up.devices) if discrete else (),
            unified=made_up.topology is Topology.UNIFIED,
            cores=made_up.cores,
            disk_bytes_per_s=float(made_up.tier3_to_tier2_bytes_per_s),
            device_bytes_per_s=float(made_up.tier2_to_tier1_bytes_per_s),
            others=_others(made_up, discrete=discrete),
            device_reserve_bytes=DEVICE_RESERVE_BYTES,
            host_reserve_bytes=reserve,
            tier1_bytes=budget_bytes,
            tier2_bytes=warm_bytes,
        )
    real = _this_computer(hardware.backend)
    discrete = real.topology is Topology.DISCRETE
    return SimMachine(
        host_bytes=real.host_total_bytes,
        devices=tuple(device.total_bytes for device in real.devices) if discrete else (),
        unified=real.topology is Topology.UNIFIED,
        cores=real.cores,
        device_reserve_bytes=DEVICE_RESERVE_BYTES,
        host_reserve_bytes=reserve,
        tier1_bytes=budget_bytes,
        tier2_bytes=warm_bytes,
    )


def _others(made_up: SimulatedMachine, *, discrete: bool) -> tuple[OtherUse, ...]:
    """What other programs hold; where nothing has memory of its own they hold it of the host."""
    return tuple(
        OtherUse(other.after_secs, other.used_bytes, other.device if discrete else None) for other in made_up.others
    )


def _this_computer(backend: str) -> HardwareSnapshot:
    try:
        report = asyncio.run(ggml.probe())
    except EngineFailed:
        report = None  # without llama.cpp there is still a processor
    return snapshot(host_memory(), report, backend=backend)


def models_for(trace: Trace, settings: Settings, machine: SimMachine) -> tuple[SimModel, ...]:
    """The configuration's models, and those of the trace's table that it does not have.

    A model's bytes are those of its file, else those of the table. A model with neither is left out, if nobody asks for
    it. Raises ConfigurationInvalid with every model that is missing.
    """
    table = {model.id: model for model in trace.models}
    roots = model_roots(settings.models_dirs)
    wanted = dict.fromkeys(request.model for request in trace.requests)
    found: dict[str, SimModel] = {}
    problems: list[str] = []
    for spec in settings.models:
        model, problem = _configured(spec, table.get(spec.id), roots, machine)
        if model is not None:
            found[spec.id] = model
        elif spec.id in wanted:
            problems.append(f"{problem} Give the trace's first line a table that has it.")
    for other in models_of(model for model in trace.models if model.id not in {spec.id for spec in settings.models}):
        found[other.id] = other
    known = found.keys() | {spec.id for spec in settings.models}
    problems += [
        f"Neither the configuration nor the trace has a model '{name}'." for name in wanted if name not in known
    ]
    if problems:
        raise ConfigurationInvalid("\n".join(problems))
    return tuple(found.values())


def _configured(
    spec: ModelSpec, stated: TraceModel | None, roots: Sequence[Path], machine: SimMachine
) -> tuple[SimModel | None, str]:
    inspected = inspect_files(spec, roots)
    shape = inspected.shape
    if shape is None and spec.engine is not EngineKind.FAKE:
        if stated is None:
            problem = inspected.problem
            return None, problem.message if problem else f"The file of '{spec.id}' does not say how large it is."
        shape = made_up_shape(stated)
    if stated is None:
        speed = guessed_speed(shape, on_accelerator=machine.budgets.device_layers)
        return SimModel(spec, shape, prefill_tokens_per_s=speed * PREFILL_GAIN, decode_tokens_per_s=speed), ""
    (like,) = models_of([stated])
    rates = like.prefill_tokens_per_s, like.decode_tokens_per_s
    return SimModel(spec, shape, *rates, batch_gain=like.batch_gain, start_s=like.start_s), ""


def guessed_speed(shape: ModelShape | None, *, on_accelerator: bool) -> float:
    """Tokens a second of one answer: as often as the weights that a token needs can be read."""
    if shape is None or not shape.tensor_bytes:
        return _FASTEST
    used = shape.expert_used_count / shape.expert_count if shape.expert_count else 1.0
    read_bytes = shape.tensor_bytes - shape.expert_bytes * (1.0 - used)
    return min((WEIGHTS_PER_S if on_accelerator else HOST_WEIGHTS_PER_S) / read_bytes, _FASTEST)
