"""The planner: where a model's bytes go, and whether they are there. The only way to a footprint; changes nothing."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from hypnos_engine.domain.drafting import output_rows
from hypnos_engine.domain.kinds import Drafts, EngineKind, KvType, LoadMode, Modality, MoeOffload, Tier
from hypnos_engine.domain.memory import Footprint, Placement
from hypnos_engine.domain.model import ModelShape, ModelSpec
from hypnos_engine.scheduler.compute_buffers import MICRO_BATCH
from hypnos_engine.scheduler.corrections import NO_CORRECTION, Correction, corrected
from hypnos_engine.scheduler.footprint import (
    CONTEXT_PAD,
    DEVICE_CONTEXT_BYTES,
    WORKER_BYTES,
    Parts,
    Split,
    kv_bytes,
    pad_cells,
    workspace_bytes,
)

__all__ = [
    "CONTEXT_PAD",
    "DEFAULT_CONTEXT",
    "DEVICE_CONTEXT_BYTES",
    "MICRO_BATCH",
    "WORKER_BYTES",
    "Free",
    "Plan",
    "Shortage",
    "context_cells",
    "kv_bytes",
    "pad_cells",
    "plan",
    "workspace_bytes",
]

DEFAULT_CONTEXT = 8192
"""KV cells of a model whose settings do not say and which was trained for at least as many."""
DEFAULT_WHOLE_TEXT = 2048
"""The same where a text has to be computed at once: its buffers grow with its length times the vocabulary, and with the
square of its length."""
_KEPT_PARTS = 256
_KEPT_NEEDS = 1024
_ROUNDING = 1e-9
"""0.1 of 30 layers are 3 and not, as floating point has it, a little more."""


class _Need(NamedTuple):
    """What a share on at most one device takes at its peak."""

    device_bytes: int
    host_bytes: int
    mapped_bytes: int


class _Known(Parts):
    """Parts that remember what has been worked out from them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.needs: dict[object, _Need] = {}
        self.plans: dict[object, Plan] = {}


@dataclass(frozen=True, slots=True)
class Free:
    """Bytes that a plan may use."""

    host_bytes: int
    device_bytes: tuple[int, ...]
    """For each accelerator with memory of its own, the best first; empty on one pool."""
    device_layers: bool
    """Whether layers can go to an accelerator at all."""
    held_pages_bytes: int = 0
    """Pages of the model's own files that are in the ledger already, and not counted again."""

    @property
    def unified(self) -> bool:
        """True when device bytes are host bytes."""
        return not self.device_bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a model's bytes will be."""

    placement: Placement
    footprint: Footprint
    device_shares: tuple[int, ...] = ()
    """Bytes on each accelerator with memory of its own, the cost of opening it included."""
    device_layers: tuple[int, ...] = ()
    """Layers on each of them."""
    mapped_bytes: int = 0
    """Pages of the file in host memory that the worker uses as they are: on one pool the accelerator does, too."""

    @property
    def devices(self) -> frozenset[int]:
        """The accelerators that it uses; empty when it uses none with memory of its own."""
        return frozenset(index for index, share in enumerate(self.device_shares) if share)

    @property
    def host_peak_bytes(self) -> int:
        """Host memory needed while loading."""
        return self.footprint.peak - self.device_peak_bytes

    @property
    def device_peak_bytes(self) -> int:
        """Device memory needed while loading."""
        return self.footprint.device + self.footprint.device_context


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a plan is not possible now: what it takes at the least and what there is."""

    needed_bytes: int
    free_bytes: int


Spread = Mapping[int, int]
"""Layers by device, for the devices with memory of their own that are used at all."""
_Rung = tuple[Split | None, tuple[int, ...]]
"""A share for the accelerators, and which of them; no share at all is None, and on one pool no device has a number."""


def context_cells(spec: ModelSpec, shape: ModelShape | None) -> int:
    """KV cells that a model gets when it is loaded without a larger wish."""
    if spec.context_len is not None:
        return spec.context_len
    if shape is None or not shape.context_train:
        return DEFAULT_CONTEXT
    whole_texts = spec.modality is Modality.EMBEDDINGS and not shape.embeds_in_parts
    return min(shape.context_train, DEFAULT_WHOLE_TEXT if whole_texts else DEFAULT_CONTEXT)


def plan(
    spec: ModelSpec, shape: ModelShape | None, cells: int, free: Free, correction: Correction = NO_CORRECTION
) -> Plan | Shortage:
    """Place a model with `cells` KV cells into what is free.

    1. Without a shape (an engine that loads no weights) only the worker itself is counted.
    2. Whole on one device when it fits, on the first that holds it; whole over several when none does. Not if the
       experts are told to stay with the processor.
    3. Else with the experts of as few layers as needed computed by the processor, if that is allowed.
    4. Else as many of the last layers as fit, down to `min_gpu_layer_ratio`; experts as the settings say.
    5. Else all of it by the processor, when no accelerator was asked to hold a share of it.
    6. Else a shortage: what the last of these takes, and what there is of the memory that it lacks.

    Shares of a model (3, 4) go to the device that has most.
    """
    if shape is None or spec.engine is EngineKind.FAKE:  # 1
        return _fits(_worker_only(cells), free)
    drafts = spec.draft is not Drafts.OFF and _may_draft(shape)
    rows = output_rows(spec.slots, spec.draft if drafts else Drafts.OFF)
    embeds = spec.modality is Modality.EMBEDDINGS
    parts = _parts(shape, spec.kv_type, spec.load_mode, spec.slots, cells, rows, embeds=embeds)
    split: Split | None = None
    spread: Spread | None = None
    for split, devices in _ladder(spec, shape, free):  # 2 to 5
        wider = _spread(parts, split, devices, free)
        if wider is None:
            continue  # then the whole of it on the last device says how much is missing
        spread = wider
        if len(spread) <= 1:
            # Most questions end here: the bytes of a share are remembered, its plan is made only when it fits.
            need = _need(parts, split, len(spread), free, correction)
            if _lacking(need, spread, free) is None:
                return _place(parts, split, spread, cells, free, correction)
            continue
        candidate = _place(parts, split, spread, cells, free, correction)
        if isinstance(_fits(candidate, free), Plan):
            return candidate
    assert spread is not None
    return _fits(_place(parts, split, spread, cells, free, correction), free)  # 6


def _may_draft(shape: ModelShape) -> bool:
    """A worker takes back what it guessed wrong; a state that runs cannot be taken back, and an encoder has none."""
    return not shape.is_encoder and not any(layer.recurrent_state_bytes for layer in shape.layers)


def _parts(
    shape: ModelShape, kv_type: KvType, load_mode: LoadMode, slots: int, cells: int, rows: int, *, embeds: bool
) -> _Known:
    """The parts of a shape, remembered by its identity: to compare all its layers would cost more than that saves."""
    key = (id(shape), kv_type, load_mode, slots, cells, rows, embeds)
    known = _PARTS.get(key)
    if known is None or known.shape is not shape:
        if len(_PARTS) >= _KEPT_PARTS:
            del _PARTS[next(iter(_PARTS))]
        known = _PARTS[key] = _Known(shape, kv_type, load_mode, slots, cells, rows, embeds=embeds)
    return known


_PARTS: dict[tuple[int, KvType, LoadMode, int, int, int, bool], _Known] = {}
"""Each entry keeps its shape alive, so that no other can have the same identity."""


def _need(parts: _Known, split: Split | None, devices: int, free: Free, error: Correction) -> _Need:
    known = parts.needs
    key = (split, devices, free.device_layers, free.unified, error)
    need = known.get(key)
    if need is None:
        if len(known) >= _KEPT_NEEDS:
            known.clear()
        footprint = _footprint(parts, split, devices, free, error)
        device = footprint.device + footprint.device_context
        mapped = _mapped(parts, split, footprint, free)
        need = known[key] = _Need(device, footprint.peak - device, mapped)
    return need


def _lacking(need: _Need, spread: Spread, free: Free) -> Shortage | None:
    """What is missing for a share on at most one device."""
    host = need.host_bytes - min(free.held_pages_bytes, need.mapped_bytes)
    if free.unified or not free.device_layers:
        needed = need.device_bytes + host
        return None if needed <= free.host_bytes else Shortage(needed, free.host_bytes)
    for device in spread:
        if need.device_bytes > free.device_bytes[device]:
            return Shortage(need.device_bytes, free.device_bytes[device])
    return None if host <= free.host_bytes else Shortage(host, free.host_bytes)


def _ladder(spec: ModelSpec, shape: ModelShape, free: Free) -> Iterator[_Rung]:
    """Yield ever smaller shares for the devices. At least one, and the last is the least."""
    layers = len(shape.layers)
    every = tuple(range(len(free.device_bytes)))
    roomiest = (max(every, key=lambda index: (free.device_bytes[index], -index)),) if every else ()
    if free.device_layers:
        offloads = spec.moe_offload is not MoeOffload.OFF and not free.unified and shape.expert_bytes > 0
        if not offloads or spec.moe_offload is MoeOffload.AUTO:  # 2
            yield from ((Split(layers), (index,)) for index in every)
            if len(every) != 1:
                yield Split(layers), every
        if offloads:
            first = layers if spec.moe_offload is MoeOffload.ON else 1
            yield from ((Split(layers, experts), roomiest) for experts in range(first, layers + 1))  # 3
        # On one pool a share for the processor would free nothing.
        least = layers if free.unified else max(1, math.ceil(spec.min_gpu_layer_ratio * layers - _ROUNDING))
        experts = layers if offloads else 0
        yield from ((Split(count, experts), roomiest) for count in range(layers - 1, least - 1, -1))  # 4
    if not free.device_layers or spec.min_gpu_layer_ratio <= 0:
        yield None, ()  # 5


def _spread(parts: Parts, split: Split | None, devices: tuple[int, ...], free: Free) -> Spread | None:
    """Layers for each device that is used; None when several cannot hold the model among them."""
    if split is None or not devices:
        return {}
    if len(devices) == 1:
        return {devices[0]: split.gpu_layers}
    counts = parts.spread([free.device_bytes[index] - DEVICE_CONTEXT_BYTES for index in devices])
    if counts is None:
        return None
    return {index: count for index, count in zip(devices, counts, strict=True) if count} or {devices[0]: 0}


def _fits(candidate: Plan, free: Free) -> Plan | Shortage:
    host = candidate.host_peak_bytes - min(free.held_pages_bytes, candidate.mapped_bytes)
    if free.unified or not free.device_layers:
        needed = candidate.device_peak_bytes + host
        return candidate if needed <= free.host_bytes else Shortage(needed, free.host_bytes)
    for share, device in zip(candidate.device_shares, free.device_bytes, strict=False):
        if share > device:
            return Shortage(share, device)
    return candidate if host <= free.host_bytes else Shortage(host, free.host_bytes)


def _worker_only(cells: int) -> Plan:
    footprint = Footprint(anonymous=WORKER_BYTES, peak=WORKER_BYTES)
    return Plan(Placement(primary_tier=Tier.GPU, allocated_context_len=cells), footprint)


def _place(parts: _Known, split: Split | None, spread: Spread, cells: int, free: Free, error: Correction) -> Plan:
    """Write a plan out; those on at most one device are remembered, for the same ones are asked for again and again."""
    if len(spread) > 1:
        return _written_out(parts, split, spread, cells, free, error)
    key = (split, tuple(spread), free.device_layers, len(free.device_bytes), error)
    known = parts.plans.get(key)
    if known is None:
        if len(parts.plans) >= _KEPT_NEEDS:
            parts.plans.clear()
        known = parts.plans[key] = _written_out(parts, split, spread, cells, free, error)
    return known


def _written_out(parts: Parts, split: Split | None, spread: Spread, cells: int, free: Free, error: Correction) -> Plan:
    shape, layers = parts.shape, len(parts.shape.layers)
    footprint = _footprint(parts, split, len(spread), free, error)
    if free.unified:  # whoever computes, all of it is in the one memory there is
        placement = Placement(
            primary_tier=Tier.GPU,
            gpu_layers=layers,
            vram_weight_bytes=shape.tensor_bytes,
            vram_kv_and_workspace_bytes=parts.kv + parts.workspace,
            allocated_context_len=cells,
        )
        return Plan(placement, footprint, mapped_bytes=_mapped(parts, split, footprint, free))
    if split is None:
        placement = Placement(
            primary_tier=Tier.RAM,
            pinned_ram_layers=layers,
            pinned_ram_bytes=shape.tensor_bytes,
            allocated_context_len=cells,
        )
        return Plan(placement, footprint, mapped_bytes=_mapped(parts, split, footprint, free))
    weights = parts.device_weight_bytes(split)
    placement = Placement(
        primary_tier=Tier.GPU,
        gpu_layers=split.gpu_layers,
        pinned_ram_layers=layers - split.gpu_layers,
        vram_weight_bytes=weights,
        vram_kv_and_workspace_bytes=footprint.device - weights,
        pinned_ram_bytes=shape.tensor_bytes + shape.tied_head_bytes - weights,
        allocated_context_len=cells,
        cpu_expert_layers=split.cpu_expert_layers,
    )
    every = range(len(free.device_bytes))
    shares = _shares(parts, footprint, spread)
    return Plan(
        placement,
        footprint,
        tuple(shares.get(index, 0) for index in every),
        tuple(spread.get(index, 0) for index in every),
        footprint.file_pages,
    )


def _mapped(parts: Parts, split: Split | None, footprint: Footprint, free: Free) -> int:
    """Bytes of the file that are mapped, each once, whoever computes with them."""
    shared = parts.device_weight_bytes(split) if split is not None and free.unified and parts.maps else 0
    return min(footprint.file_pages + shared, parts.shape.tensor_bytes)


def _footprint(parts: Parts, split: Split | None, devices: int, free: Free, error: Correction) -> Footprint:
    if split is None:
        return corrected(parts.on_host(repacks=not free.device_layers), error)
    opening = 0 if free.unified else DEVICE_CONTEXT_BYTES * devices
    return corrected(parts.divided(split, context_bytes=opening, devices=max(devices, 1)), error)


def _shares(parts: Parts, footprint: Footprint, spread: Spread) -> dict[int, int]:
    """Divide the device bytes; what the parts do not explain (a correction) goes to the first device in use."""
    total = footprint.device + footprint.device_context
    if len(spread) == 1:
        return dict.fromkeys(spread, total)
    parts_of = parts.spread_bytes(list(spread.values()))
    shares = {index: part + DEVICE_CONTEXT_BYTES for index, part in zip(spread, parts_of, strict=True)}
    shares[next(iter(spread))] += total - sum(shares.values())
    return shares
