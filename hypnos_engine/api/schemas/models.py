"""The list of models and what says where a model is (contract §6.1, §18)."""

from typing import Literal

import msgspec

from hypnos_engine.domain.kinds import Modality, Tier


class LayerPlacementPlan(msgspec.Struct, frozen=True):
    """Which part of a model is in which tier; sizes in bytes (contract §18)."""

    primary_tier: Tier
    gpu_layers: int
    pinned_ram_layers: int
    ssd_layers: int
    vram_weight_bytes: int
    vram_kv_and_workspace_bytes: int
    pinned_ram_bytes: int
    allocated_context_len: int
    """KV cells across all slots."""
    cpu_expert_layers: int


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One model in service, as OpenAI lists it, with where it is now."""

    id: str
    object: Literal["model"] = "model"
    created: int
    """Unix seconds, the same in every answer of one server."""
    owned_by: Literal["hypnos"] = "hypnos"
    modality: Modality
    current_tier: Tier
    placement: LayerPlacementPlan
    active_leases: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[ModelEntry, ...]
